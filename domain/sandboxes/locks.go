package sandboxes

import (
	"sync"
	"time"

	"miren.dev/runtime/pkg/schema"
)

// claimedFor is how long a claimed sandbox is not offered again: until the
// informer has surely seen the claim.
const claimedFor = 10 * time.Second

// claims are the warm sandboxes that requests of this process are claiming or
// have just claimed, so that two requests do not try the same one. The zero
// value is empty.
type claims struct {
	mu   sync.Mutex
	busy map[schema.ID]time.Time // until when; zero: until end
}

// begin reports whether the caller may claim a sandbox.
func (c *claims) begin(sid schema.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy == nil {
		c.busy = map[schema.ID]time.Time{}
	}
	now := time.Now()
	if until, ok := c.busy[sid]; ok && (until.IsZero() || now.Before(until)) {
		return false
	}
	for k, until := range c.busy {
		if !until.IsZero() && now.After(until) {
			delete(c.busy, k)
		}
	}
	c.busy[sid] = time.Time{}
	return true
}

// end ends a claim that begin permitted.
func (c *claims) end(sid schema.ID, claimed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if claimed {
		c.busy[sid] = time.Now().Add(claimedFor)
		return
	}
	delete(c.busy, sid)
}

// keyed is a mutex per key. The zero value has none locked.
type keyed struct {
	mu    sync.Mutex
	locks map[string]*keyedLock
}

type keyedLock struct {
	mu    sync.Mutex
	users int
}

// lock locks a key and returns a function that unlocks it.
func (k *keyed) lock(key string) (unlock func()) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = map[string]*keyedLock{}
	}
	l := k.locks[key]
	if l == nil {
		l = &keyedLock{}
		k.locks[key] = l
	}
	l.users++
	k.mu.Unlock()
	l.mu.Lock()
	return func() {
		l.mu.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, key)
		}
	}
}
