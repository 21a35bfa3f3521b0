package agentdriver

import (
	"context"
	"sync"
)

// KeyLock is one lock per key. The zero value is ready.
type KeyLock struct {
	mu   sync.Mutex
	held map[string]*keyEntry
}

type keyEntry struct {
	token chan struct{} // has room for the holder
	users int           // holder and waiters; guarded by KeyLock.mu
}

// Lock waits for key until ctx ends.
func (l *KeyLock) Lock(ctx context.Context, key string) (unlock func(), _ error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*keyEntry{}
	}
	e := l.held[key]
	if e == nil {
		e = &keyEntry{token: make(chan struct{}, 1)}
		l.held[key] = e
	}
	e.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if e.users--; e.users == 0 {
			delete(l.held, key)
		}
	}
	select {
	case e.token <- struct{}{}:
		return func() { <-e.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
