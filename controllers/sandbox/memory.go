package sandbox

import (
	"sync"
	"time"
)

// work is something that takes long.
type work int

const (
	setup work = iota
	down
	probing
	kinds
)

// How much of each goes on at a time, and the workers, which leave some for
// what is quick. A set-up is heavy on CPU and disk; a stop mostly waits for what
// runs in the sandbox, and a probe for its answer.
const (
	setups  = 16
	downs   = 96
	probes  = 64
	workers = setups + downs + probes + 16
)

var room = [kinds]int{setup: setups, down: downs, probing: probes}

// busyWait is when a key for which there is no room is looked at again.
const busyWait = 100 * time.Millisecond

// memory is what a Reconciler remembers. The zero value is empty.
type memory struct {
	mu      sync.Mutex
	taken   [kinds]int
	trying  map[string]time.Time // since when the set-up is tried
	told    map[string]time.Time // when something was last reported
	probeAt map[string]time.Time // when to probe next
	misses  map[string]int       // probes in a row that failed, of a ready sandbox
}

// take makes room for one more of w. release may be called more than once.
func (m *memory) take(w work) (release func(), ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken[w] >= room[w] {
		return nil, false
	}
	m.taken[w]++
	return sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.taken[w]--
	}), true
}

// forget drops what is known of a sandbox.
func (m *memory) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.trying, id)
	delete(m.told, id)
	delete(m.probeAt, id)
	delete(m.misses, id)
}

// tryingSince returns when this was first asked for id.
func (m *memory) tryingSince(id string, now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t, ok := m.trying[id]; ok {
		return t
	}
	put(&m.trying, id, now)
	return now
}

// mayReport says whether the last report is at least gap ago; then this is one.
func (m *memory) mayReport(id string, now time.Time, gap time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t, ok := m.told[id]; ok && now.Sub(t) < gap {
		return false
	}
	put(&m.told, id, now)
	return true
}

// untilProbe returns how long it is until the next probe.
func (m *memory) untilProbe(id string, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(0, m.probeAt[id].Sub(now))
}

// probeAfter sets when the next probe is and returns wait.
func (m *memory) probeAfter(id string, now time.Time, wait time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	put(&m.probeAt, id, now.Add(wait))
	return wait
}

// hit ends a row of misses.
func (m *memory) hit(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.misses, id)
}

// miss counts one and returns how many there are in a row.
func (m *memory) miss(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	put(&m.misses, id, m.misses[id]+1)
	return m.misses[id]
}

func put[V any](m *map[string]V, id string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[id] = v
}
