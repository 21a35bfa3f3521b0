package main

import (
	"fmt"
	"sync"
	"time"

	"miren.dev/runtime/pkg/agentproto"
)

// table holds all execs that run or wait to be closed.
type table struct {
	mu      sync.Mutex
	m       map[uint64]*execProcess
	stopped bool
	change  chan struct{} // closed and renewed when one is removed
}

func newTable() *table { return &table{m: map[uint64]*execProcess{}, change: make(chan struct{})} }

func (t *table) add(e *execProcess) agentproto.Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.stopped:
		return agentproto.Failure{Kind: agentproto.Wrong, Message: "the sandbox is ending"}
	case t.m[e.id] != nil:
		return agentproto.Failure{Kind: agentproto.Wrong, Message: "the exec's id is taken"}
	case len(t.m) >= agentproto.MaxExecs:
		return agentproto.Failure{Kind: agentproto.Exhausted, Message: fmt.Sprintf("there are %d execs already", len(t.m))}
	}
	t.m[e.id] = e
	return agentproto.Failure{}
}

func (t *table) get(id uint64) *execProcess {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.m[id]
}

func (t *table) remove(e *execProcess) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m[e.id] == e {
		delete(t.m, e.id)
		close(t.change)
		t.change = make(chan struct{})
	}
}

func (t *table) all() []*execProcess {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*execProcess, 0, len(t.m))
	for _, e := range t.m {
		list = append(list, e)
	}
	return list
}

// stop refuses further execs.
func (t *table) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
}

// drain waits until the node has closed every exec that it is attached to; the
// node does so after reading the exec's end.
func (t *table) drain(d time.Duration) {
	timeout := time.After(d)
	for {
		t.mu.Lock()
		change, n := t.change, 0
		for _, e := range t.m {
			e.mu.Lock()
			if e.link != nil && !e.closed {
				n++
			}
			e.mu.Unlock()
		}
		t.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-change:
		case <-timeout:
			return
		}
	}
}
