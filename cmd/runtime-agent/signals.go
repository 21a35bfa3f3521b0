package main

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that the agent passes on to the main process.
var forwarded = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// needed are the other signals that Go's runtime must handle: those of its own faults, of broken connections, and of
// files that exceed the limit of their size, whose writer then gets an error. With
// 32 and 33 the runtime makes all threads perform a system call; it does not give them up.
var needed = []os.Signal{syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGPIPE, syscall.SIGXFSZ, syscall.SIGKILL, syscall.SIGSTOP, syscall.Signal(32), syscall.Signal(33)}

// numSignals is one more than the largest signal.
const numSignals = 65

// listen returns the channel of the signals to forward.
func listen() <-chan os.Signal {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGXFSZ) // its default would end this process
	return signals
}

// dropHandlers removes Go's handlers of all signals that the agent does not need. A forked child resets each signal
// with a handler to its default before it runs the program; in gVisor the more than fifty system calls for that are a
// large part of starting a process. So are interruptions by SIGCHLD, which the reaper does not use.
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
