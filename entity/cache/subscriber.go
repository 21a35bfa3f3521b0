package cache

import (
	"context"
	"sync"

	"miren.dev/runtime/pkg/schema"
)

// subscriber tells a function about changes, each entity's merged into one
// while the function is busy.
type subscriber[P any] struct {
	fn   func(Change[P])
	wake chan struct{}

	mu      sync.Mutex // a leaf, taken under the cache's
	pending map[schema.ID]P
	order   []schema.ID
}

func newSubscriber[P any](fn func(Change[P])) *subscriber[P] {
	return &subscriber[P]{fn: fn, wake: make(chan struct{}, 1), pending: map[schema.ID]P{}}
}

// changed notes that an entity is no longer what it was.
func (s *subscriber[P]) changed(id schema.ID, old P) {
	s.mu.Lock()
	if _, ok := s.pending[id]; !ok {
		s.pending[id] = old
		s.order = append(s.order, id)
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *subscriber[P]) run(ctx context.Context, get func(schema.ID) P) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		for ctx.Err() == nil {
			s.mu.Lock()
			if len(s.order) == 0 {
				s.order = nil
				s.mu.Unlock()
				break
			}
			id := s.order[0]
			s.order = s.order[1:]
			old := s.pending[id]
			delete(s.pending, id)
			s.mu.Unlock()
			s.fn(Change[P]{ID: id, Old: old, New: get(id)})
		}
	}
}
