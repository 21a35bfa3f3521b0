// Package cache keeps the entities of one kind in memory, current by a watch,
// for readers that must not ask the store each time: controllers, the
// scheduler, ingress.
//
// A cache lists, watches from the list's token, and resumes where it was after
// an interruption. When its position is gone it lists again and treats what is
// missing then as deleted. While the store cannot be reached it keeps what it
// has (unknown is never gone); LastSeen tells how old that may be.
//
// Objects are shared: nobody may modify one. Readers and Run may be used
// concurrently; AddIndex and OnChange come before Run. mu is a leaf lock.
package cache

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	firstPause = 20 * time.Millisecond
	maxPause   = 5 * time.Second
	// bookmarks is how often a quiet store proves that it is there.
	bookmarks = 5 * time.Second
)

// Config of a cache. The zero Config is valid.
type Config struct {
	Project schema.ID    // only entities of this project; empty: of all
	Logger  *slog.Logger // nil: slog.Default()
}

// Change tells what became of one entity since the last time it was told.
// Several changes in a row are told as one. Old is nil for a new entity, New
// for one that is gone, both for one that came and went unnoticed.
type Change[P any] struct {
	ID       schema.ID
	Old, New P
}

// Cache holds the entities of T's kind.
type Cache[T any, P entity.ObjectPtr[T]] struct {
	reader entity.Reader
	kind   *schema.Kind
	cfg    Config
	synced chan struct{} // closed after the first list

	mu      sync.RWMutex
	objects map[schema.ID]P
	indexes map[string]*index[P]
	token   schema.Token
	seen    time.Time
	moved   chan struct{} // closed when token moves, then replaced
	subs    []*subscriber[P]
}

type index[P any] struct {
	values func(P) []string
	ids    map[string]map[schema.ID]struct{}
}

// New returns a cache that is empty until Run:
//
//	c := cache.New[sandbox.Sandbox](store, cache.Config{})
func New[T any, P entity.ObjectPtr[T]](r entity.Reader, cfg Config) *Cache[T, P] {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Cache[T, P]{
		reader: r, kind: P(new(T)).EntityKind(), cfg: cfg, synced: make(chan struct{}), moved: make(chan struct{}),
		objects: map[schema.ID]P{}, indexes: map[string]*index[P]{},
	}
}

// AddIndex makes ByIndex(name, v) find the objects for which values returns v.
func (c *Cache[T, P]) AddIndex(name string, values func(P) []string) {
	c.indexes[name] = &index[P]{values: values, ids: map[string]map[schema.ID]struct{}{}}
}

// OnChange has fn called, by one goroutine, for every change from the first
// list on. fn may take its time: changes wait and merge.
func (c *Cache[T, P]) OnChange(fn func(Change[P])) {
	c.subs = append(c.subs, newSubscriber(fn))
}

// Run fills the cache and keeps it current until ctx ends, then returns nil.
// An error means that the kind can never be read.
func (c *Cache[T, P]) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range c.subs {
		g.Go(func() error { s.run(ctx, c.Get); return nil })
	}
	g.Go(func() error { return c.follow(ctx) })
	return g.Wait()
}

func (c *Cache[T, P]) follow(ctx context.Context) error {
	pause := firstPause
	listed := false
	for ctx.Err() == nil {
		var err error
		progress := false
		if !listed {
			err = c.relist(ctx)
			listed, progress = err == nil, err == nil
		}
		if listed {
			progress, err = c.watch(ctx)
		}
		if ctx.Err() != nil {
			break
		}
		switch errs.ClassOf(err) {
		case errs.InvalidArgument, errs.Unimplemented, errs.PermissionDenied:
			return errs.Wrap(err, "follow %s", c.kind.Plural)
		case errs.Compacted:
			listed = false
		}
		if progress {
			pause = firstPause
		}
		c.cfg.Logger.Debug("cache interrupted", "kind", c.kind.Name, "error", err, "retry_in", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		}
		pause = min(2*pause, maxPause)
	}
	return nil
}

// relist replaces the contents by those of the store.
func (c *Cache[T, P]) relist(ctx context.Context) error {
	q := entity.Query{Kind: c.kind.Name, Project: c.cfg.Project}
	fresh := map[schema.ID]*schema.Record{}
	var token schema.Token
	for {
		page, err := c.reader.List(ctx, q)
		if err != nil {
			return err
		}
		for i := range page.Records {
			fresh[page.Records[i].ID] = &page.Records[i]
		}
		token = page.Token
		if q.Cursor = page.Cursor; q.Cursor == "" {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.objects {
		if fresh[id] == nil {
			c.set(id, nil)
		}
	}
	for id, rec := range fresh {
		if old, ok := c.objects[id]; !ok || old.GetMeta().Revision != rec.Revision {
			c.put(rec)
		}
	}
	c.advance(token)
	select {
	case <-c.synced:
	default:
		close(c.synced)
	}
	return nil
}

// watch follows from the token until an error. It reports whether anything
// came.
func (c *Cache[T, P]) watch(ctx context.Context) (progress bool, err error) {
	w, err := c.reader.Watch(ctx, entity.WatchQuery{Kind: c.kind.Name, Project: c.cfg.Project, From: c.Token(), Bookmarks: bookmarks})
	if err != nil {
		return false, err
	}
	defer w.Close()
	for {
		evs, err := w.Next(ctx)
		if err != nil {
			return progress, err
		}
		progress = true
		c.mu.Lock()
		for i := range evs {
			c.apply(&evs[i])
		}
		if len(evs) > 0 {
			c.advance(evs[len(evs)-1].Token)
		}
		c.mu.Unlock()
	}
}

// apply is called with mu held. A resumed watch may repeat the changes of one
// transaction.
func (c *Cache[T, P]) apply(e *entity.Event) {
	old, have := c.objects[e.Record.ID]
	switch e.Type {
	case entity.EventPut:
		if !have || old.GetMeta().Revision < e.Record.Revision {
			c.put(&e.Record)
		}
	case entity.EventDelete:
		if have && old.GetMeta().Revision < e.Record.Revision {
			c.set(e.Record.ID, nil)
		}
	}
}

// put is called with mu held. A record that cannot be decoded leaves the
// version before it in place: that it cannot be read does not mean that it is
// gone.
func (c *Cache[T, P]) put(rec *schema.Record) {
	o, err := entity.Decode[T, P](rec)
	if err != nil {
		c.cfg.Logger.Error("cannot decode entity", "kind", rec.Kind, "id", rec.ID, "revision", rec.Revision, "error", err)
		return
	}
	c.set(rec.ID, o)
}

// set is called with mu held; nil removes.
func (c *Cache[T, P]) set(id schema.ID, o P) {
	old := c.objects[id]
	for _, ix := range c.indexes {
		if old != nil {
			for _, v := range ix.values(old) {
				delete(ix.ids[v], id)
				if len(ix.ids[v]) == 0 {
					delete(ix.ids, v)
				}
			}
		}
		if o != nil {
			for _, v := range ix.values(o) {
				if ix.ids[v] == nil {
					ix.ids[v] = map[schema.ID]struct{}{}
				}
				ix.ids[v][id] = struct{}{}
			}
		}
	}
	if o == nil {
		delete(c.objects, id)
	} else {
		c.objects[id] = o
	}
	for _, s := range c.subs {
		s.changed(id, old)
	}
}

// advance is called with mu held.
func (c *Cache[T, P]) advance(t schema.Token) {
	c.token, c.seen = t, time.Now()
	close(c.moved)
	c.moved = make(chan struct{})
}

// WaitSynced waits until the cache has listed once.
func (c *Cache[T, P]) WaitSynced(ctx context.Context) error {
	select {
	case <-c.synced:
		return nil
	case <-ctx.Done():
		return errs.New(errs.ClassOf(ctx.Err()), "wait for %s: %w", c.kind.Plural, ctx.Err())
	}
}

// WaitFor waits until the cache shows a revision at which an entity of its
// kind was written: to read one's own write.
func (c *Cache[T, P]) WaitFor(ctx context.Context, rev schema.Revision) error {
	for {
		c.mu.RLock()
		at, moved := c.token.Revision, c.moved
		c.mu.RUnlock()
		if at >= rev {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return errs.New(errs.ClassOf(ctx.Err()), "wait for revision %d of %s, at %d: %w", rev, c.kind.Plural, at, ctx.Err())
		}
	}
}

// Token returns the position that the cache shows.
func (c *Cache[T, P]) Token() schema.Token {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.token
}

// LastSeen returns when the store last told something, which it does at least
// every five seconds while it can be reached.
func (c *Cache[T, P]) LastSeen() time.Time {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.seen
}

// Get returns the object with an id, nil if there is none.
func (c *Cache[T, P]) Get(id schema.ID) P {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.objects[id]
}

// Len returns the number of objects.
func (c *Cache[T, P]) Len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.objects)
}

// List returns every object, ordered by id.
func (c *Cache[T, P]) List() []P {
	c.mu.RLock()
	out := make([]P, 0, len(c.objects))
	for _, o := range c.objects {
		out = append(out, o)
	}
	c.mu.RUnlock()
	return byID(out)
}

// ByIndex returns the objects with a value in an index, ordered by id.
func (c *Cache[T, P]) ByIndex(name, value string) []P {
	c.mu.RLock()
	ix := c.indexes[name]
	if ix == nil {
		c.mu.RUnlock()
		panic("cache: no index " + name) // a mistake in the program
	}
	out := make([]P, 0, len(ix.ids[value]))
	for id := range ix.ids[value] {
		out = append(out, c.objects[id])
	}
	c.mu.RUnlock()
	return byID(out)
}

func byID[P schema.Object](list []P) []P {
	slices.SortFunc(list, func(a, b P) int { return cmp.Compare(a.GetMeta().ID, b.GetMeta().ID) })
	return list
}
