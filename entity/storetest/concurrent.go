package storetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

// testConcurrentWriters: 64 writers, and watchers that see every revision
// once and in order.
func testConcurrentWriters(t *testing.T, f *fixture) {
	const writers, each, watchers = 64, 25, 4
	start, err := f.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	last := start.Token.Revision + writers*each
	var watching, writing sync.WaitGroup
	type seen struct {
		rev schema.Revision
		id  schema.ID
	}
	logs := make([][]seen, watchers)
	for i := range logs {
		w := f.follow(entity.WatchQuery{From: start.Token})
		watching.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*wait.Limit)
			defer cancel()
			for {
				evs, err := w.Next(ctx)
				if err != nil {
					t.Errorf("watcher %d: %v", i, err)
					return
				}
				for _, e := range evs {
					if e.Type == entity.EventBookmark {
						continue
					}
					logs[i] = append(logs[i], seen{e.Record.Revision, e.Record.ID})
					if e.Record.Revision == last {
						return
					}
				}
			}
		})
	}
	var mu sync.Mutex
	written := map[schema.Revision]schema.ID{}
	for i := range writers {
		writing.Go(func() {
			o := f.thing(func(o *Thing) { o.ID = schema.ID(fmt.Sprintf("thing-w%02d", i)) })
			for n := range each {
				var err error
				switch {
				case n == 0:
					err = entity.Create(t.Context(), f, o)
				case n%2 == 0:
					o.Spec.Size++
					err = entity.UpdateSpec(t.Context(), f, o)
				default:
					o.Status.Count++
					err = entity.UpdateStatus(t.Context(), f, o)
				}
				if err != nil {
					t.Errorf("writer %d: %v", i, err)
					return
				}
				mu.Lock()
				if by, twice := written[o.Revision]; twice {
					t.Errorf("revision %d was given to %s and %s", o.Revision, by, o.ID)
				}
				written[o.Revision] = o.ID
				mu.Unlock()
			}
		})
	}
	writing.Wait()
	watching.Wait()
	for i, log := range logs {
		if len(log) != writers*each {
			t.Errorf("watcher %d saw %d changes of %d", i, len(log), writers*each)
			continue
		}
		for n, e := range log {
			if want := start.Token.Revision + 1 + schema.Revision(n); e.rev != want || written[want] != e.id {
				t.Fatalf("watcher %d: event %d is %v, want %d of %s", i, n, e, want, written[want])
			}
		}
	}
}

// testConcurrentCounter: conditional writes lose no increment.
func testConcurrentCounter(t *testing.T, f *fixture) {
	const writers, each = 8, 10
	o := f.stored()
	var wg sync.WaitGroup
	var conflicts atomic.Int64
	for range writers {
		wg.Go(func() {
			for n := 0; n < each; {
				cur, err := entity.Get[Thing](t.Context(), f, o.ID)
				if err == nil {
					cur.Status.Count++
					err = entity.UpdateStatus(t.Context(), f, cur)
				}
				switch {
				case err == nil:
					n++
				case errs.Is(err, errs.Conflict):
					conflicts.Add(1)
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := f.get(o.ID).Status.Count; got != writers*each {
		t.Errorf("counted %d of %d, with %d conflicts", got, writers*each, conflicts.Load())
	}
}

// testRejectedAmongOthers: a rejected transaction does not affect those that
// are written together with it.
func testRejectedAmongOthers(t *testing.T, f *fixture) {
	const n = 128
	a := f.stored(func(o *Thing) { o.Name = "taken" })
	stale := *a
	stale.SpecRevision--
	before := f.stored().Revision
	var wg sync.WaitGroup
	var good atomic.Int64
	for i := range n {
		wg.Go(func() {
			var err error
			var want errs.Class
			switch i % 4 {
			case 0:
				err, want = entity.Create(t.Context(), f, f.thing(func(o *Thing) { o.Name = "taken" })), errs.AlreadyExists
			case 1:
				s := stale
				err, want = entity.UpdateSpec(t.Context(), f, &s), errs.Conflict
			case 2:
				err, want = entity.Create(t.Context(), f, f.thing(func(o *Thing) { o.Spec.Needs = "thing-nobody" })), errs.FailedPrecondition
			case 3:
				if err = entity.Create(t.Context(), f, f.thing()); err == nil {
					good.Add(1)
				}
			}
			if errs.ClassOf(err) != want {
				t.Errorf("kind %d of write: %v, want %q", i%4, err, want)
			}
		})
	}
	wg.Wait()
	if good.Load() != n/4 {
		t.Errorf("%d good writes of %d", good.Load(), n/4)
	}
	if got := f.stored().Revision; got != before+n/4+1 {
		t.Errorf("revision %d, want %d: rejected ones take none", got, before+n/4+1)
	}
}
