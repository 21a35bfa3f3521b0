package pgstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// TestSelectFromLog: watches by value send the same events whether the change
// was committed by their own server, tailed from another's, or read from the
// log long after.
func TestSelectFromLog(t *testing.T) {
	url := pgtest.URL(t)
	open := func() *pgstore.Store {
		return pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()})
	}
	mine, other := open(), open()
	proj := newProject(t, mine)
	page, err := mine.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	q := entity.WatchQuery{Kinds: []string{"thing"}, Select: &entity.Selector{Attr: "spec.color", Value: []byte("blue")}, From: page.Token}
	follow := func(s entity.Store) entity.Watch {
		w, err := s.Watch(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		return w
	}
	watches := map[string]entity.Watch{"own": follow(mine), "tailed": follow(other)}
	var want []string
	for i := range 5 {
		o := create(t, mine, proj, func(o *thing) { o.ID = schema.ID(fmt.Sprintf("thing-%d", i)) })
		for _, step := range []struct{ color, told string }{{"blue", "put"}, {"green", "leave"}, {"red", ""}, {"blue", "put"}} {
			o.Spec.Color = step.color
			if err := entity.UpdateSpec(t.Context(), mine, o); err != nil {
				t.Fatal(err)
			}
			if step.told != "" {
				want = append(want, fmt.Sprint(step.told, o.ID))
			}
		}
		if err := entity.Delete(t.Context(), mine, o); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprint("delete", o.ID))
	}
	// A server that was not running meanwhile has none of it in memory.
	watches["from the log"] = follow(open())
	types := map[entity.EventType]string{entity.EventPut: "put", entity.EventLeave: "leave", entity.EventDelete: "delete"}
	for name, w := range watches {
		var got []string
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		for len(got) < len(want) {
			evs, err := w.Next(ctx)
			if err != nil {
				t.Fatalf("%s: %v after %v", name, err, got)
			}
			for _, e := range evs {
				if e.Type != entity.EventBookmark {
					got = append(got, fmt.Sprint(types[e.Type], e.Record.ID))
				}
			}
		}
		cancel()
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

// wakes returns how often the watches of a store were woken.
func wakes(t testing.TB, s *pgstore.Store) int {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(s); err != nil {
		t.Fatal(err)
	}
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.GetName() == "runtime_store_watch_wakes_total" {
			return int(m.GetMetric()[0].GetCounter().GetValue())
		}
	}
	t.Fatal("there is no count of wakes")
	return 0
}

// TestThousandWaiters: 1,000 watches, half of an id and half by value, under
// 1,000 changes a second: each is woken by its own changes only.
func TestThousandWaiters(t *testing.T) {
	const waiters, seconds, rate = 1000, 3, 1000
	s := pgtest.Store(t, storetest.Kinds()...)
	proj := newProject(t, s)
	var things []*thing
	ops := make([]entity.Op, waiters)
	for i := range ops {
		o := newThing(proj)
		o.ID, o.Labels = schema.ID(fmt.Sprintf("thing-%04d", i)), map[string]string{"n": fmt.Sprint(i)}
		var err error
		if ops[i], err = entity.CreateOp(o); err != nil {
			t.Fatal(err)
		}
		things = append(things, o)
	}
	res, err := s.Txn(t.Context(), entity.TxnRequest{Ops: ops})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var got atomic.Int64
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	defer stop()
	ready := make(chan struct{}, waiters)
	for i, o := range things {
		o.Meta = res.Records[i].Meta
		q := entity.WatchQuery{Kinds: []string{"thing"}, IDs: []schema.ID{o.ID}}
		if i%2 == 1 {
			q = entity.WatchQuery{Kinds: []string{"thing"}, Select: entity.LabelSelector("n", fmt.Sprint(i))}
		}
		w, err := s.Watch(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		id := o.ID
		wg.Go(func() {
			defer w.Close()
			for ctx.Err() == nil {
				evs, err := w.Next(ctx)
				if err != nil {
					if ctx.Err() == nil {
						t.Errorf("waiter %d: %v", i, err)
					}
					return
				}
				for _, e := range evs {
					if e.Type == entity.EventBookmark {
						ready <- struct{}{}
						continue
					}
					if e.Record.ID != id {
						t.Errorf("waiter %d was told of %s", i, e.Record.ID)
					}
					got.Add(1)
				}
			}
		})
	}
	for range waiters {
		<-ready
	}
	before := wakes(t, s)
	// Every thing changes three times, each time together with 99 others.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := range seconds * rate / 100 {
		var ops []entity.Op
		var changed []*thing
		for i := range 100 {
			o := things[(n*100+i)%waiters]
			o.Status.Count++
			op, err := entity.UpdateStatusOp(o)
			if err != nil {
				t.Fatal(err)
			}
			ops, changed = append(ops, op), append(changed, o)
		}
		// One transaction each, so that every change has a revision of its own.
		var writing sync.WaitGroup
		for i, op := range ops {
			writing.Go(func() {
				res, err := s.Txn(t.Context(), entity.TxnRequest{Ops: []entity.Op{op}})
				if err != nil {
					t.Error(err)
					return
				}
				changed[i].Meta = res.Records[0].Meta
			})
		}
		writing.Wait()
		<-tick.C
	}
	wait.For(t, "every waiter was told of its own", func() bool { return got.Load() == seconds*rate })
	// A slow waiter may get two changes at one wake.
	if n := wakes(t, s) - before; n > seconds*rate || n < waiters {
		t.Errorf("%d wakes for %d changes", n, seconds*rate)
	}
	// A change that no watch selects wakes none.
	before = wakes(t, s)
	for range 100 {
		create(t, s, proj)
	}
	if n := wakes(t, s) - before; n != 0 {
		t.Errorf("%d wakes by what nobody waits for", n)
	}
	stop()
	wg.Wait()
}
