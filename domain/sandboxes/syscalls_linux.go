package sandboxes

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// refusedCalls are the system calls that confined programs do not get, in classes.
// Programs get all others: their names change with each version of a C library.
var refusedCalls = []uint32{
	// mounts and roots
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT,
	unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	// namespaces; see also cloneNew
	unix.SYS_UNSHARE, unix.SYS_SETNS,
	// memory and files of other processes
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_KCMP,
	unix.SYS_PIDFD_GETFD, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT,
	// keys, and interfaces to the kernel that have had many errors
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_FANOTIFY_INIT, unix.SYS_FANOTIFY_MARK,
	// the machine
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_SYSLOG, unix.SYS_SETTIMEOFDAY,
	unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
}

// cloneNew are the flags of clone that make namespaces.
const cloneNew = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Offsets in struct seccomp_data of a machine with little-endian numbers.
const (
	callOffset     = 0
	archOffset     = 4
	firstArgOffset = 16 // the lower half of it
)

// x32Calls is the lowest number of a call of the x32 interface, whose numbers are not those of refusedCalls.
const x32Calls = 0x40000000

// callFilter returns the instructions of a seccomp filter for this architecture. The sandboxes that a server makes are of
// its own.
func callFilter() []bpf.Instruction {
	refuse := func(errno unix.Errno) bpf.Instruction {
		return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)}
	}
	f := []bpf.Instruction{
		bpf.LoadAbsolute{Off: archOffset, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		refuse(unix.EPERM),
		bpf.LoadAbsolute{Off: callOffset, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: x32Calls, SkipTrue: 1},
		refuse(unix.EPERM),
	}
	for _, call := range refusedCalls {
		f = append(f, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: 1}, refuse(unix.EPERM))
	}
	return append(f,
		// Its flags are in memory, where a filter cannot read them. C libraries use clone instead.
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE3, SkipTrue: 1},
		refuse(unix.ENOSYS),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 3},
		bpf.LoadAbsolute{Off: firstArgOffset, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: cloneNew, SkipTrue: 1},
		refuse(unix.EPERM),
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
	)
}

// printedFilter is the filter as bwrap reads it, in the format of printf(1).
var printedFilter = func() string {
	raw, err := bpf.Assemble(callFilter())
	if err != nil {
		panic(err) // the instructions are fixed
	}
	var b strings.Builder
	for _, i := range raw {
		out := binary.LittleEndian.AppendUint16(nil, i.Op)
		out = append(out, i.Jt, i.Jf)
		for _, c := range binary.LittleEndian.AppendUint32(out, i.K) {
			fmt.Fprintf(&b, `\%03o`, c)
		}
	}
	return b.String()
}()
