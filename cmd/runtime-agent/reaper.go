package main

import (
	"sync"
	"syscall"
	"time"

	"miren.dev/runtime/pkg/agentproto"
)

// reaper waits for every child: those that the agent started, whose owners it
// calls, and orphans.
type reaper struct {
	// mu is held from the fork to the registration of a child, so that run
	// never sees its end before.
	mu       sync.Mutex
	children map[int]func(syscall.WaitStatus)
	more     chan struct{} // a child was started
	none     chan struct{} // closed when no child is left; another one after that
	idle     bool          // none is closed
}

func newReaper() *reaper {
	r := &reaper{children: map[int]func(syscall.WaitStatus){}, more: make(chan struct{}, 1), none: make(chan struct{}), idle: true}
	close(r.none)
	return r
}

// fork calls start and registers the child that it returns.
func (r *reaper) fork(start func() (int, error), ended func(syscall.WaitStatus)) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := start()
	if err == nil {
		r.children[pid] = ended
	}
	if r.idle { // also after an error: the failed child may still exist
		r.idle, r.none = false, make(chan struct{})
		select {
		case r.more <- struct{}{}:
		default:
		}
	}
	return pid, err
}

// run reaps for ever. It has a thread of its own in wait4, which is quicker
// than a signal handler.
func (r *reaper) run() {
	<-r.more
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err == syscall.ECHILD:
			r.mu.Lock()
			// A child may have been started meanwhile; its token is then
			// consumed here.
			if pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil); err == syscall.ECHILD {
				r.idle = true
				close(r.none)
				r.mu.Unlock()
				<-r.more
			} else {
				ended := r.take(pid, err, ws)
				r.mu.Unlock()
				ended(ws)
			}
		case err == nil:
			r.mu.Lock()
			ended := r.take(pid, err, ws)
			r.mu.Unlock()
			ended(ws)
		}
	}
}

// take returns the function to call for a reaped child. It is called with mu
// held.
func (r *reaper) take(pid int, err error, ws syscall.WaitStatus) func(syscall.WaitStatus) {
	if ended := r.children[pid]; err == nil && pid > 0 && ended != nil && (ws.Exited() || ws.Signaled()) {
		delete(r.children, pid)
		return ended
	}
	return func(syscall.WaitStatus) {} // it was an orphan
}

// signal sends sig to a child that is not reaped yet, so that the pid is still
// its own.
func (r *reaper) signal(pid int, sig syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.children[pid] != nil {
		_ = syscall.Kill(pid, sig) // it may have ended, so an error means nothing
	}
}

// signalGroup is signal for the child's process group, which every child leads.
func (r *reaper) signalGroup(pid int, sig syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.children[pid] != nil {
		_ = syscall.Kill(-pid, sig) // it may have ended, so an error means nothing
	}
}

// waitNone waits until there is no child at all and reports whether that
// happened in time.
func (r *reaper) waitNone(d time.Duration) bool {
	r.mu.Lock()
	none := r.none
	r.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-none:
		return true
	case <-t.C:
		return false
	}
}

func exitOf(ws syscall.WaitStatus) agentproto.Exit {
	if ws.Signaled() {
		return signalExit(ws.Signal())
	}
	return agentproto.Exit{Code: int64(ws.ExitStatus()), At: time.Now().UnixNano()}
}
