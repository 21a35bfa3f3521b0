package cache_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/cache"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

type thing = storetest.Thing

// flaky is a reader whose connection breaks at random.
type flaky struct {
	entity.Reader
	broken atomic.Bool
	cuts   atomic.Int64
}

func (f *flaky) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	if f.broken.Load() && rand.N(2) == 0 {
		return entity.Page{}, errs.New(errs.Unavailable, "cut")
	}
	return f.Reader.List(ctx, q)
}

func (f *flaky) Watch(ctx context.Context, q entity.WatchQuery) (entity.Watch, error) {
	w, err := f.Reader.Watch(ctx, q)
	return &flakyWatch{w, f}, err
}

type flakyWatch struct {
	entity.Watch
	f *flaky
}

func (w *flakyWatch) Next(ctx context.Context) ([]entity.Event, error) {
	evs, err := w.Watch.Next(ctx)
	if err == nil && w.f.broken.Load() && rand.N(3) == 0 {
		w.f.cuts.Add(1)
		return nil, errs.New(errs.ResourceExhausted, "cut")
	}
	return evs, err
}

func newProject(t *testing.T, s entity.Store) schema.ID {
	t.Helper()
	p := new(storetest.Project)
	if err := entity.Create(t.Context(), s, p); err != nil {
		t.Fatal(err)
	}
	return p.ID
}

func newThing(t *testing.T, s entity.Store, project schema.ID, color string) *thing {
	t.Helper()
	o := &thing{Meta: schema.Meta{Project: project}, Spec: storetest.ThingSpec{Color: color}}
	if err := entity.Create(t.Context(), s, o); err != nil {
		t.Fatal(err)
	}
	return o
}

func run(t *testing.T, c *cache.Cache[thing, *thing]) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	deadline, cancelWait := context.WithTimeout(t.Context(), wait.Limit)
	defer cancelWait()
	if err := c.WaitSynced(deadline); err != nil {
		t.Fatal(err)
	}
}

func TestCacheFollows(t *testing.T) {
	s := pgtest.Store(t, storetest.Kinds()...)
	proj, other := newProject(t, s), newProject(t, s)
	a := newThing(t, s, proj, "red")
	newThing(t, s, other, "red")

	c := cache.New[thing](s, cache.Config{Project: proj})
	c.AddIndex("color", func(o *thing) []string { return []string{o.Spec.Color} })
	changes := make(chan cache.Change[*thing], 100)
	c.OnChange(func(ch cache.Change[*thing]) { changes <- ch })
	run(t, c)
	next := func() cache.Change[*thing] {
		t.Helper()
		return wait.Receive(t, "a change", changes)
	}
	if ch := next(); ch.ID != a.ID || ch.Old != nil || ch.New == nil {
		t.Fatalf("first change: %+v", ch)
	}
	if c.Len() != 1 || c.Get(a.ID) == nil || len(c.ByIndex("color", "red")) != 1 {
		t.Fatalf("after the list: %v", c.List())
	}
	b := newThing(t, s, proj, "blue")
	if err := c.WaitFor(t.Context(), b.Revision); err != nil {
		t.Fatal(err)
	}
	if got := c.Get(b.ID); got == nil || got.Spec.Color != "blue" {
		t.Fatalf("own write: %+v", got)
	}
	if ch := next(); ch.ID != b.ID {
		t.Fatalf("change: %+v", ch)
	}
	a.Spec.Color = "blue"
	if err := entity.UpdateSpec(t.Context(), s, a); err != nil {
		t.Fatal(err)
	}
	if ch := next(); ch.Old == nil || ch.New == nil || ch.Old.Spec.Color != "red" || ch.New.Spec.Color != "blue" {
		t.Fatalf("change: %+v", ch)
	}
	if len(c.ByIndex("color", "red")) != 0 || len(c.ByIndex("color", "blue")) != 2 {
		t.Errorf("index: %v, %v", c.ByIndex("color", "red"), c.ByIndex("color", "blue"))
	}
	if err := entity.Delete(t.Context(), s, a); err != nil {
		t.Fatal(err)
	}
	if ch := next(); ch.ID != a.ID || ch.Old == nil || ch.New != nil {
		t.Fatalf("change: %+v", ch)
	}
	if c.Len() != 1 || c.Get(a.ID) != nil || len(c.ByIndex("color", "blue")) != 1 {
		t.Errorf("after the deletion: %v", c.List())
	}
}

// TestCacheRelists: when the position is gone, what vanished meanwhile is told
// as deleted.
func TestCacheRelists(t *testing.T) {
	s := pgtest.Store(t, storetest.Kinds()...)
	proj := newProject(t, s)
	gone, kept := newThing(t, s, proj, "red"), newThing(t, s, proj, "red")

	// The reader holds the cache off while its epoch ends.
	r := &gated{Reader: s}
	c := cache.New[thing](r, cache.Config{})
	var mu sync.Mutex
	deleted := map[schema.ID]bool{}
	c.OnChange(func(ch cache.Change[*thing]) {
		mu.Lock()
		defer mu.Unlock()
		deleted[ch.ID] = ch.New == nil
	})
	run(t, c)
	wait.For(t, "both told", func() bool { mu.Lock(); defer mu.Unlock(); return len(deleted) == 2 })
	r.gate.Lock()
	if err := entity.Delete(t.Context(), s, gone); err != nil {
		t.Fatal(err)
	}
	fresh := newThing(t, s, proj, "green")
	if err := s.NewEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.gate.Unlock()
	wait.For(t, "new entity", func() bool { return c.Get(fresh.ID) != nil })
	if c.Get(gone.ID) != nil || c.Get(kept.ID) == nil || c.Len() != 2 {
		t.Errorf("after the new list: %v", c.List())
	}
	wait.For(t, "deletion told", func() bool { mu.Lock(); defer mu.Unlock(); return deleted[gone.ID] && !deleted[kept.ID] })
}

// gated lets events pass only while its gate is open.
type gated struct {
	entity.Reader
	gate sync.Mutex
}

func (g *gated) Watch(ctx context.Context, q entity.WatchQuery) (entity.Watch, error) {
	w, err := g.Reader.Watch(ctx, q)
	return &gatedWatch{w, g}, err
}

type gatedWatch struct {
	entity.Watch
	g *gated
}

func (w *gatedWatch) Next(ctx context.Context) ([]entity.Event, error) {
	evs, err := w.Watch.Next(ctx)
	w.g.gate.Lock()
	defer w.g.gate.Unlock()
	if err == nil && len(evs) > 0 && evs[0].Type == entity.EventDelete {
		return nil, errs.New(errs.Unavailable, "cut") // so that the deletion is only seen by listing
	}
	return evs, err
}

// TestCacheConverges: under random cuts, writers, epochs and small rings the
// cache ends up with what the store has, and its told changes do too.
func TestCacheConverges(t *testing.T) {
	s := pgtest.Open(t, pgstore.Config{URL: pgtest.URL(t), Kinds: storetest.Kinds(), RingEvents: 16})
	proj := newProject(t, s)
	r := &flaky{Reader: s}
	c := cache.New[thing](r, cache.Config{})
	c.AddIndex("color", func(o *thing) []string { return []string{o.Spec.Color} })
	var mu sync.Mutex
	told := map[schema.ID]schema.Revision{}
	c.OnChange(func(ch cache.Change[*thing]) {
		mu.Lock()
		defer mu.Unlock()
		if ch.New == nil {
			delete(told, ch.ID)
		} else {
			told[ch.ID] = ch.New.Revision
		}
	})
	run(t, c)
	r.broken.Store(true)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			var mine []*thing
			for n := range 60 {
				var err error
				switch k := rnd.IntN(10); {
				case len(mine) == 0 || k < 4:
					o := &thing{Meta: schema.Meta{Project: proj}, Spec: storetest.ThingSpec{Color: fmt.Sprint(n % 3)}}
					if err = entity.Create(t.Context(), s, o); err == nil {
						mine = append(mine, o)
					}
				case k < 8:
					o := mine[rnd.IntN(len(mine))]
					o.Spec.Color = fmt.Sprint(rnd.IntN(3))
					err = entity.UpdateSpec(t.Context(), s, o)
				default:
					j := rnd.IntN(len(mine))
					if err = entity.Delete(t.Context(), s, mine[j]); err == nil {
						mine = append(mine[:j], mine[j+1:]...)
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
				if i == 0 && n%20 == 10 {
					if err := s.NewEpoch(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	r.broken.Store(false)
	final := newThing(t, s, proj, "done")
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	if err := c.WaitFor(ctx, final.Revision); err != nil {
		t.Fatal(err)
	}
	want, _, err := entity.List[thing](t.Context(), s, entity.Query{})
	if err != nil {
		t.Fatal(err)
	}
	got := c.List()
	if len(got) != len(want) {
		t.Fatalf("cache has %d, store %d", len(got), len(want))
	}
	colors := map[string]int{}
	for i := range want {
		if got[i].ID != want[i].ID || got[i].Revision != want[i].Revision {
			t.Fatalf("cache has %v, store %v", got[i].Meta, want[i].Meta)
		}
		colors[want[i].Spec.Color]++
	}
	for color, n := range colors {
		if have := len(c.ByIndex("color", color)); have != n {
			t.Errorf("index %s has %d, want %d", color, have, n)
		}
	}
	wait.For(t, "every change told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		if len(told) != len(want) {
			return false
		}
		for _, o := range want {
			if told[o.ID] != o.Revision {
				return false
			}
		}
		return true
	})
	t.Logf("%d cuts", r.cuts.Load())
}

func TestCacheUnknownKind(t *testing.T) {
	s := pgtest.Store(t, storetest.ProjectKind)
	c := cache.New[thing](s, cache.Config{})
	if err := c.Run(t.Context()); !errs.Is(err, errs.InvalidArgument) {
		t.Fatalf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.WaitSynced(ctx); !errs.Is(err, errs.Canceled) {
		t.Fatalf("got %v", err)
	}
}
