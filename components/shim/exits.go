package main

import (
	"sync"

	"github.com/containerd/containerd/v2/pkg/sys/reaper"
)

// exits learns how sandboxes ended from their processes: a sandbox process ends with the status of its first container,
// and the shim is its parent. So no process has to run as long as a sandbox only to wait for it, and the status is not
// lost when the container ends at once or the sandbox is killed.
type exits struct {
	mu        sync.Mutex
	processes map[int]*process
	// early are the statuses, by pid, of children that ended before expect was called for them: a sandbox whose first
	// container ends at once, and each runsc command. At most maxEarly are kept; the oldest are dropped first.
	early  map[int]int
	oldest []int
}

// maxEarly is more children than can end between the start of a sandbox and the answer that it was started.
const maxEarly = 256

// process is a sandbox process.
type process struct {
	pid    int
	ended  chan struct{}
	status int // set when ended is closed
}

func newExits() *exits {
	return &exits{processes: map[int]*process{}, early: map[int]int{}}
}

// expect begins to record how process pid ends, a child of this process that was started a moment ago.
func (e *exits) expect(pid int) *process {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &process{pid: pid, ended: make(chan struct{})}
	e.processes[pid] = p
	if status, ok := e.early[pid]; ok {
		p.status = status
		close(p.ended)
	}
	return p
}

// forget stops recording a process.
func (e *exits) forget(p *process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.processes[p.pid] == p {
		delete(e.processes, p.pid)
	}
}

// recordEnd records the end of a child.
func (e *exits) recordEnd(pid, status int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.processes[pid]
	if p == nil {
		if _, ok := e.early[pid]; !ok {
			e.oldest = append(e.oldest, pid)
		}
		e.early[pid] = status
		if len(e.oldest) > maxEarly {
			delete(e.early, e.oldest[0])
			e.oldest = e.oldest[1:]
		}
		return
	}
	if !p.hasEnded() { // otherwise it is a new process with the pid of an old one, which the deletion of the container forgets
		p.status = status
		close(p.ended)
	}
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// watch records the ends of this process's children; a sandbox becomes one when runsc has made it. It runs until the
// shim ends.
func (e *exits) watch() {
	for exit := range reaper.Default.Subscribe() {
		e.recordEnd(exit.Pid, exit.Status)
	}
}
