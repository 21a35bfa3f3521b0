package daemon

import (
	"context"
	"sync"

	"golang.org/x/sync/singleflight"

	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store"
)

// stores are the stores that are in use, by URL. Disks of one store share it: to open
// one asks the server whether it keeps the contract, which is needed once and not for
// each disk.
type stores struct {
	opening singleflight.Group

	mu   sync.Mutex
	open map[string]*openStore
}

type openStore struct {
	st    store.Store
	users int
}

// use returns a store and its canonical URL. The caller calls release when it no
// longer needs it; the last one forgets it, so that the next one tests it again.
func (s *stores) use(ctx context.Context, rawURL string) (st store.Store, url string, release func(), err error) {
	url, err = host.StoreURL(rawURL)
	if err != nil {
		return nil, "", nil, err
	}
	for {
		if st := s.take(url); st != nil {
			return st, url, sync.OnceFunc(func() { s.give(url) }), nil
		}
		// All that wait share an attempt, which does not end with the first one's context.
		done := s.opening.DoChan(url, func() (any, error) {
			if s.has(url) {
				return nil, nil // since the caller has looked
			}
			st, _, err := host.OpenStore(context.WithoutCancel(ctx), url)
			if err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.open == nil {
				s.open = map[string]*openStore{}
			}
			s.open[url] = &openStore{st: st}
			return nil, nil
		})
		select {
		case r := <-done:
			if r.Err != nil {
				return nil, "", nil, r.Err
			}
		case <-ctx.Done():
			return nil, "", nil, ctx.Err()
		}
	}
}

func (s *stores) has(url string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[url] != nil
}

func (s *stores) take(url string) store.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.open[url]
	if o == nil {
		return nil
	}
	o.users++
	return o.st
}

func (s *stores) give(url string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.open[url]
	if o.users--; o.users == 0 {
		delete(s.open, url)
	}
}
