package sandboxes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// TestCallFilter: a confined program gets ordinary system calls, and none of those that are refused, by whatever
// interface of the kernel.
func TestCallFilter(t *testing.T) {
	vm, err := bpf.NewVM(callFilter())
	if err != nil {
		t.Fatal(err)
	}
	const foreign = auditArch ^ 1
	eperm, enosys := unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM), unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)
	type call struct{ arch, number, arg, want uint32 }
	calls := []call{
		{auditArch, unix.SYS_READ, 0, unix.SECCOMP_RET_ALLOW},
		{auditArch, unix.SYS_EXECVE, 0, unix.SECCOMP_RET_ALLOW},
		{auditArch, unix.SYS_CLONE, unix.CLONE_VM | unix.CLONE_THREAD, unix.SECCOMP_RET_ALLOW},
		{auditArch, unix.SYS_CLONE, unix.CLONE_VM | unix.CLONE_NEWUSER, eperm},
		{auditArch, unix.SYS_CLONE, unix.CLONE_NEWNET, eperm},
		{auditArch, unix.SYS_CLONE3, 0, enosys},
		{auditArch, x32Calls | unix.SYS_READ, 0, eperm},
		{foreign, unix.SYS_READ, 0, eperm},
	}
	for _, number := range refusedCalls {
		calls = append(calls, call{auditArch, number, 0, eperm})
	}
	for _, c := range calls {
		data := make([]byte, 64) // struct seccomp_data, with numbers in the order in which VM reads them
		for off, n := range map[int]uint32{callOffset: c.number, archOffset: c.arch, firstArgOffset: c.arg} {
			binary.BigEndian.PutUint32(data[off:], n)
		}
		got, err := vm.Run(data)
		if err != nil || uint32(got) != c.want {
			t.Errorf("call %d of %#x with %#x: %#x, %v; want %#x", c.number, c.arch, c.arg, uint32(got), err, c.want)
		}
	}
}

// TestConfinedCommand: the shell that starts bwrap passes the input, the filter and the exit code on.
func TestConfinedCommand(t *testing.T) {
	command := confined("/work", []string{"program", "it's"})
	i := slices.Index(command, "bwrap")
	if i < 0 || !slices.Equal(command[len(command)-2:], []string{"program", "it's"}) {
		t.Fatalf("%q", command)
	}
	filter, err := bpf.Assemble(callFilter())
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(command[0], append(slices.Clone(command[1:i]), "sh", "-c", `cat; od -An -v -tx1 <&9 | tr -d ' \n' | wc -c; exit 3`)...)
	c.Stdin = strings.NewReader("input\n")
	out, err := c.Output()
	var ended *exec.ExitError
	if want := fmt.Sprintf("input\n%d\n", len(filter)*16); !errors.As(err, &ended) || ended.ExitCode() != 3 || string(out) != want {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
}
