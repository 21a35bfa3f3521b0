// Package informer keeps the entities of some kinds in memory, current by one
// watch, for everything in a process that must not ask the store each time:
// controllers, the ingress, and calls that wait for an entity.
//
// A Set lists each kind that is asked for, then watches all of them from there
// and resumes where it was after an interruption. When its position is gone
// (Compacted, a new epoch) it lists again, and what is missing then counts as
// deleted. While the store cannot be reached the Set keeps its entities: unknown
// is never gone.
//
// Because one watch carries every kind, changes reach the handlers in the order
// of the store's transactions, across kinds too. An OnAdvance function sees the
// state of all kinds at one revision.
//
// A kind is listed when it is first asked for (Of, Set.Handle), also while the
// Set runs. A handler that is added later first gets the existing entities.
//
// # Words
//
//	position   the token up to which everything was applied and handed to the handlers
//	synced     each kind was listed at least once, and handed to the handlers
//	floor      of a kind: its changes up to this revision are in its listing
//
// # Limits
//
// A kind that the store refuses to list keeps the whole Set from following it.
//
// Memory holds the entities of the kinds, plus one batch of events; see
// Informer.Trim. Handlers run one after the other on the goroutine of Run: they
// must only note what changed. A slow one delays the others and the position,
// and skips nothing: a Set that falls behind the store's buffers reads the log
// of changes, or lists again.
//
// # Concurrency
//
// All functions may be called concurrently. Objects are shared: no caller may
// modify one. Lock order: delivery, then mu; handlers run under delivery alone, so they
// may read informers, and must not add handlers.
package informer

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// Config of a Set. Zero values mean the defaults.
type Config struct {
	Reader entity.Reader
	Logger *slog.Logger // nil: discards
	// Bookmarks is how often the store sends a bookmark while no entity
	// changes; default 1 s.
	Bookmarks time.Duration
	// OutageLimit is how long Await continues while the store cannot be
	// reached; default 30 s.
	OutageLimit time.Duration
}

// Set holds the informers of a process over one store, at most one per kind.
type Set struct {
	cfg Config

	// delivery is held while changes are applied and handed to the handlers.
	delivery sync.Mutex

	mu        sync.RWMutex // guards the fields below and every cache
	kinds     map[string]*cache
	onAdvance []func(schema.Token)
	relist    context.CancelFunc // ends the watch under way because a new kind must be listed; nil: none is under way
	status    Status
	news      chan struct{} // closed when status changes; nil: no goroutine waits

	// Used by Run's goroutine only.
	from    schema.Token      // where the watch resumes
	watched map[string]*cache // kinds of the watch under way
}

// Status describes how a Set follows the store.
type Status struct {
	Position schema.Token
	// Synced reports whether this process listed every kind at least once.
	Synced bool
	// LastSeen is when the store last answered, which it does at least every
	// Config.Bookmarks while it can be reached. Zero: never.
	LastSeen time.Time
	// Err is why the Set does not follow the store now; nil: it does.
	Err error
	// Interruptions counts how often the Set lost the store.
	Interruptions int64
	Kinds         []KindStatus // ordered by name
}

// KindStatus describes a Set's cache of one kind.
type KindStatus struct {
	Kind     string
	Entities int
	Handlers int
}

// New returns a Set without kinds, which does nothing until Run.
func New(cfg Config) *Set {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Bookmarks <= 0 {
		cfg.Bookmarks = time.Second
	}
	if cfg.OutageLimit <= 0 {
		cfg.OutageLimit = 30 * time.Second
	}
	return &Set{cfg: cfg, kinds: map[string]*cache{}}
}

// kind returns the cache of k, and has Run list k if it is new.
func (s *Set) kind(k *schema.Kind) *cache {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.kinds[k.Name]
	if c == nil {
		c = newCache(k)
		s.kinds[k.Name] = c
		if s.relist != nil {
			s.relist()
		}
	}
	return c
}

// Change is the change of one entity. Old is nil for an entity that is new to
// the handler. New is nil for a deleted one; Old is then the last object.
type Change[P any] struct {
	Old, New P
}

// Handle has fn called for every entity of k that is there, then for each
// change, in the order of the store's transactions. Calls never overlap. fn must
// not block and must not add handlers. It may be called once more while remove
// runs.
func (s *Set) Handle(k *schema.Kind, fn func(Change[schema.Object])) (remove func()) {
	c := s.kind(k)
	s.delivery.Lock()
	defer s.delivery.Unlock()
	s.mu.RLock()
	objects := slices.Clone(c.all)
	s.mu.RUnlock()
	for _, o := range objects {
		fn(Change[schema.Object]{New: o})
	}
	h := &handler{fn}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.addHandler(h)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.removeHandler(h)
	}
}

// OnAdvance has fn called whenever the position moves, after the handlers, on
// the same goroutine. All listed kinds are then at that position, so that fn
// reads a consistent state of several kinds. It must come before Run.
func (s *Set) OnAdvance(fn func(schema.Token)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onAdvance = append(s.onAdvance, fn)
}

// Status returns how the Set follows the store.
func (s *Set) Status() Status {
	s.mu.RLock()
	defer s.mu.RUnlock()
	st := s.status
	st.Synced = s.synced()
	for _, name := range sortedKeys(s.kinds) {
		c := s.kinds[name]
		st.Kinds = append(st.Kinds, KindStatus{Kind: name, Entities: len(c.objects), Handlers: len(c.handlers)})
	}
	return st
}

// synced is called with mu held.
func (s *Set) synced() bool {
	for _, c := range s.kinds {
		if !c.synced {
			return false
		}
	}
	return true
}

// Position returns the position.
func (s *Set) Position() schema.Token {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.status.Position
}

// wakeWaiters wakes every goroutine that waits for news. mu is held.
func (s *Set) wakeWaiters() {
	if s.news != nil {
		close(s.news)
		s.news = nil
	}
}

// awaitNews returns a channel that is closed at the next news. mu is held.
func (s *Set) awaitNews() <-chan struct{} {
	if s.news == nil {
		s.news = make(chan struct{})
	}
	return s.news
}
