package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// target is what the probes of an escape try to reach, by the arguments of the
// command: NAME=VALUE.
type target struct {
	file     string   // on the machine
	text     string   // its content
	pid      int      // a process outside the sandbox
	tracee   int      // the agent, or a process in its place
	abstract string   // an abstract unix socket of the machine
	agent    string   // directory of the agent
	dial     []string // addresses that must not answer
}

// probes return nil if they reached something that a sandbox must not reach.
var probes = []struct {
	name string
	try  func(target) error
}{
	{"mount a file system", func(target) error {
		return inNewDir(func(d string) error { return unix.Mount("tmpfs", d, "tmpfs", 0, "") })
	}},
	{"bind a directory", func(target) error {
		return inNewDir(func(d string) error { return unix.Mount("/", d, "", unix.MS_BIND, "") })
	}},
	{"make a device", makeDevice},
	{"open a device of the machine", func(target) error {
		return anyOpens(unix.O_RDWR, "/dev/kmsg", "/dev/mem", "/dev/kvm", "/dev/loop-control", "/dev/[sv]d?", "/dev/nvme*")
	}},
	{"change a kernel setting", func(target) error {
		return anyOpens(unix.O_WRONLY, "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches")
	}},
	{"change a device by /sys", func(target) error {
		return anyOpens(unix.O_WRONLY, "/sys/block/*/queue/nr_requests", "/sys/class/net/*/mtu", "/sys/kernel/mm/*/enabled")
	}},
	{"read the kernel's memory", func(target) error { return readsByte("/proc/kcore") }},
	{"read a file of the machine", machineFile},
	{"signal a process of the machine", func(x target) error { return unix.Kill(x.pid, 0) }},
	{"trace the agent", func(x target) error { return call(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(x.tracee), 0, 0) }},
	{"read the agent's memory", func(x target) error { return anyOpens(unix.O_RDONLY, fmt.Sprintf("/proc/%d/mem", x.tracee)) }},
	{"read the agent's variables", func(x target) error { return readsByte(fmt.Sprintf("/proc/%d/environ", x.tracee)) }},
	{"read the agent's token", func(x target) error { return readsByte(filepath.Join(x.agent, "config")) }},
	{"connect to the agent's socket", func(x target) error { return dials("unix", filepath.Join(x.agent, "agent.sock")) }},
	{"connect to a unix socket of the machine", func(x target) error { return dials("unix", "@"+x.abstract) }},
	{"open a packet socket", func(target) error { return opensSocket(unix.AF_PACKET, unix.SOCK_RAW, 0x0300) }},
	{"open a raw socket", func(target) error { return opensSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) }},
	{"open a socket of the kernel's ciphers", func(target) error { return opensSocket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) }},
	{"load a kernel module", func(target) error { return call(unix.SYS_INIT_MODULE, 0, 0, 0) }},
	{"load a kernel", func(target) error { return call(unix.SYS_KEXEC_LOAD, 0, 1<<30, 0) }},
	{"swap", func(target) error { return call(unix.SYS_SWAPON, 0, 0) }},
	{"restart the machine", func(target) error { return call(unix.SYS_REBOOT, 0, 0, 0) }}, // no such command
	{"load a BPF program", func(target) error { return call(unix.SYS_BPF, 0, 0, 0) }},
	{"reach an address that is closed", func(x target) error {
		failed := errors.New("none answers")
		for _, a := range x.dial {
			if dials("tcp", a) == nil {
				fmt.Printf("%s answers\n", a)
				failed = nil
			}
		}
		return failed
	}},
}

// probe tries every way out and prints a line for each: its name, "reached",
// "refused" or "absent" (this kernel has no such thing), and the error.
func probe(args []string) int {
	var x target
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "file":
			x.file = value
		case "text":
			x.text = value
		case "pid":
			x.pid, _ = strconv.Atoi(value)
		case "tracee":
			x.tracee, _ = strconv.Atoi(value)
		case "abstract":
			x.abstract = value
		case "agent":
			x.agent = value
		case "dial":
			x.dial = strings.Split(value, ",")
		}
	}
	for _, p := range probes {
		verdict, err := "reached", p.try(x)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EAFNOSUPPORT):
			verdict = "absent"
		case err != nil:
			verdict = "refused"
		}
		fmt.Printf("%s\t%s\t%v\n", p.name, verdict, err)
	}
	return 0
}

func inNewDir(try func(dir string) error) error {
	dir, err := os.MkdirTemp("/tmp", "probe")
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	if err := try(dir); err != nil {
		return err
	}
	return unix.Unmount(dir, unix.MNT_DETACH)
}

func makeDevice(target) error {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("probe-%d", os.Getpid()))
	defer os.Remove(path)
	return unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0)))
}

// anyOpens returns nil if a file that matches a pattern can be opened.
func anyOpens(flags int, patterns ...string) error {
	var failed error = unix.ENOENT
	for _, p := range patterns {
		files, _ := filepath.Glob(p) // the patterns are well formed
		for _, f := range files {
			fd, err := unix.Open(f, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err == nil {
				unix.Close(fd)
				return nil
			}
			failed = fmt.Errorf("%s: %w", f, err)
		}
	}
	return failed
}

func readsByte(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Read(make([]byte, 1))
	return err
}

// machineFile looks for the file in the root and working directories of all processes.
func machineFile(x target) error {
	roots, _ := filepath.Glob("/proc/[0-9]*/root")
	dirs, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, d := range append(append([]string{"/"}, roots...), dirs...) {
		for _, path := range []string{d + x.file, d + strings.Repeat("/..", 32) + x.file} {
			if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), x.text) {
				return nil
			}
		}
	}
	return errors.New("no process has it")
}

func dials(network, address string) error {
	c, err := net.DialTimeout(network, address, time.Second)
	if err == nil {
		c.Close()
	}
	return err
}

func opensSocket(domain, kind, protocol int) error {
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// call makes a system call with arguments that make no sense. Only an error that says that the caller may not make it, or
// that there is none, is a refusal.
func call(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	switch errno {
	case unix.EPERM, unix.EACCES, unix.ENOSYS, unix.ESRCH:
		return errno
	}
	return nil
}
