package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/pkg/agentproto"
)

// table holds all channels that work or wait to be closed.
type table struct {
	mu      sync.Mutex
	m       map[uint64]*channel
	stopped bool
	change  chan struct{} // closed and renewed when one is removed
}

func newTable() *table { return &table{m: map[uint64]*channel{}, change: make(chan struct{})} }

func (t *table) add(c *channel) agentproto.Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.stopped:
		return agentproto.Failure{Kind: agentproto.Wrong, Message: "the sandbox is ending"}
	case t.m[c.id] != nil:
		return agentproto.Failure{Kind: agentproto.Wrong, Message: "the channel's id is taken"}
	case len(t.m) >= agentproto.MaxChannels:
		return agentproto.Failure{Kind: agentproto.Exhausted, Message: fmt.Sprintf("there are %d channels already", len(t.m))}
	}
	t.m[c.id] = c
	return agentproto.Failure{}
}

func (t *table) get(id uint64) *channel {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.m[id]
}

func (t *table) remove(c *channel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m[c.id] == c {
		delete(t.m, c.id)
		close(t.change)
		t.change = make(chan struct{})
	}
}

func (t *table) all() []*channel {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*channel, 0, len(t.m))
	for _, c := range t.m {
		list = append(list, c)
	}
	return list
}

// prune closes the oldest detached channels that have ended, until n are left.
func (t *table) prune(n int) {
	var ended []*channel
	at := map[*channel]time.Time{}
	for _, c := range t.all() {
		c.mu.Lock()
		if c.life == agentproto.LifeDetached && c.done != nil && c.link == nil {
			ended = append(ended, c)
			at[c] = c.endedAt
		}
		c.mu.Unlock()
	}
	slices.SortFunc(ended, func(a, b *channel) int { return at[b].Compare(at[a]) }) // newest first
	for _, c := range ended[min(n, len(ended)):] {
		c.close()
	}
}

// stop refuses further channels.
func (t *table) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
}

// drain waits until the node has closed every channel that it is attached to;
// the node does so after reading the channel's end.
func (t *table) drain(d time.Duration) {
	timeout := time.After(d)
	for {
		t.mu.Lock()
		change := t.change
		t.mu.Unlock()
		n := 0
		for _, c := range t.all() {
			c.mu.Lock()
			if c.link != nil && !c.closed && c.life == agentproto.LifeLinger {
				n++
			}
			c.mu.Unlock()
		}
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
