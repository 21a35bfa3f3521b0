package daemon

import (
	"context"
	"sync"

	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
)

// stores are the stores that are in use, by URL. Disks of one store share it, and the
// test of its server if they are opened at once.
type stores struct {
	mu   sync.Mutex
	open map[string]*openStore
}

type openStore struct {
	users int           // with those that wait until it is open; under stores.mu
	ended chan struct{} // closed when st or err is set
	stop  context.CancelFunc
	st    store.Store
	err   error
}

// use returns a store and its canonical URL. The caller calls release when it no
// longer needs the store. The last release forgets it.
func (s *stores) use(ctx context.Context, rawURL string) (st store.Store, url string, release func(), err error) {
	url, err = host.StoreURL(rawURL)
	if err != nil {
		return nil, "", nil, err
	}
	s.mu.Lock()
	o := s.open[url]
	if o == nil {
		o = &openStore{ended: make(chan struct{})}
		// It does not end with the first of those that wait for it, but with the last.
		octx, stop := context.WithCancel(context.WithoutCancel(ctx))
		o.stop = stop
		if s.open == nil {
			s.open = map[string]*openStore{}
		}
		s.open[url] = o
		go func() {
			defer close(o.ended)
			if o.st, _, o.err = host.OpenStore(octx, url); o.err != nil {
				s.forget(url, o)
			}
		}()
	}
	o.users++
	s.mu.Unlock()
	release = sync.OnceFunc(func() { s.give(url, o) })
	select {
	case <-o.ended:
		err = o.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		release()
		return nil, "", nil, err
	}
	return o.st, url, release, nil
}

func (s *stores) give(url string, o *openStore) {
	s.mu.Lock()
	o.users--
	last := o.users == 0
	if last && s.open[url] == o {
		delete(s.open, url)
	}
	s.mu.Unlock()
	if last {
		o.stop()
		<-o.ended
	}
}

// forget removes the store, so that the next use opens it anew.
func (s *stores) forget(url string, o *openStore) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[url] == o {
		delete(s.open, url)
	}
}
