package main

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that the main process gets.
var forwarded = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// needed are the other signals that Go's runtime must handle: what a fault of its own and a broken connection raise.
// 32 and 33 are those by which it makes all threads do a system call; it does not let go of them.
var needed = []os.Signal{syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGPIPE, syscall.SIGKILL, syscall.SIGSTOP, syscall.Signal(32), syscall.Signal(33)}

// numSignals is one more than the last signal.
const numSignals = 65

// listen returns where the signals to forward come.
func listen() <-chan os.Signal {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	return signals
}

// dropHandlers takes the handlers of all signals that nobody needs away from Go's runtime: a forked child puts each
// signal with a handler back to its default before it runs the program, and in gVisor the more than fifty system calls
// for that are a good part of starting a process. So is being interrupted by SIGCHLD, which the reaper does not use.
//
// It is called before the first fork: a child that is forked meanwhile would ignore a signal.
func dropHandlers() {
	keep := [numSignals]bool{}
	for _, list := range [][]os.Signal{forwarded, needed} {
		for _, s := range list {
			keep[s.(syscall.Signal)] = true
		}
	}
	for s := syscall.Signal(1); s < numSignals; s++ {
		if keep[s] {
			continue
		}
		signal.Ignore(s) // the runtime forgets its handler
		// What is ignored stays so in children. The zero action is the default, which ends this process as the
		// handler would have, or does nothing.
		var action [4]uint64
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0) // cannot fail
	}
}
