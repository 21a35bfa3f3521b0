package main

import (
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"gvisor.dev/gvisor/pkg/shim/v1/proc"
)

// statusUnknown is what gVisor's shim reports when it could not learn how a container ended.
const statusUnknown = 128

// reapTimeout is how long to wait for the end of a sandbox process that is said to have ended.
const reapTimeout = 5 * time.Second

// exits learns how sandboxes ended from their processes. gVisor's shim starts a `runsc wait` after it has started the
// container; when the container ends before that is connected, or the sandbox is killed, its status would be lost. But
// the sandbox process ends with the status of its first container, and the shim is its parent.
type exits struct {
	mu        sync.Mutex
	processes map[int]*process
}

// process is a sandbox process.
type process struct {
	ended  chan struct{}
	status int // set when ended is closed
}

// expect starts to remember how process pid ends.
func (e *exits) expect(pid int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.processes[pid] = &process{ended: make(chan struct{})}
}

// forget ends that.
func (e *exits) forget(pid int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.processes, pid)
}

// note records the end of a process, if it is expected.
func (e *exits) note(pid, status int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.processes[pid]
	if p == nil {
		return
	}
	select {
	case <-p.ended: // a new process with the id of an old one; who deletes the container forgets it
	default:
		p.status = status
		close(p.ended)
	}
}

// wait is how process pid ended, or status when that cannot be known.
func (e *exits) wait(pid, status int) int {
	e.mu.Lock()
	p := e.processes[pid]
	e.mu.Unlock()
	if p == nil {
		return status
	}
	select {
	case <-p.ended:
		return p.status
	case <-time.After(reapTimeout):
		return status
	}
}

// watch records the ends of this process's children, of which the sandboxes become one when runsc has made them. It
// runs until the shim ends.
func (e *exits) watch() {
	for exit := range reaper.Default.Subscribe() {
		e.note(exit.Pid, exit.Status)
	}
}

// correct passes on what is reported on from, with the status that is known better. The pid of a container's sandbox
// is what pidOf says; 0 when the container is not the first one of its sandbox. It runs until the shim ends.
func (e *exits) correct(from <-chan proc.Exit, to chan<- proc.Exit, pidOf func(id string) int) {
	for exit := range from {
		pid := 0
		if exit.Status == statusUnknown {
			pid = pidOf(exit.ID)
		}
		if pid == 0 {
			to <- exit
			continue
		}
		go func() { // others need not wait for it
			exit.Status = e.wait(pid, exit.Status)
			to <- exit
		}()
	}
}
