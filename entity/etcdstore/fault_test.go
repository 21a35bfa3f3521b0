package etcdstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/etcdstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/etcdtest"
	"miren.dev/runtime/testsupport/wait"
)

// next returns the next events of a watch.
func next(t *testing.T, w entity.Watch) []entity.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	evs, err := w.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return evs
}

func count(ctx context.Context, s entity.Store) error {
	_, err := s.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{entity.AddOp(storetest.ThingKind, counter, entity.Addition{Attr: "status.count", Delta: 1})}})
	return err
}

// follow returns the counts that a watch sees, in order, up to the last.
func follow(t *testing.T, w entity.Watch, last int64) {
	t.Helper()
	for seen := int64(0); seen < last; {
		for _, e := range next(t, w) {
			if e.Type != entity.EventPut {
				continue
			}
			o, err := entity.Decode[storetest.Thing](&e.Record)
			if err != nil {
				t.Fatal(err)
			}
			if o.Status.Count != seen+1 {
				t.Fatalf("the watch has %d after %d", o.Status.Count, seen)
			}
			seen = o.Status.Count
		}
	}
}

func counted(t *testing.T, s entity.Store) int64 {
	t.Helper()
	c, err := entity.Get[storetest.Thing](t.Context(), s, counter)
	if err != nil {
		t.Fatal(err)
	}
	return c.Status.Count
}

// TestKilledEtcd: while etcd is gone, calls fail as unavailable; when it is back,
// the same store goes on. Nothing acknowledged is lost, nothing is applied twice,
// and watches have no gap.
func TestKilledEtcd(t *testing.T) {
	etcd := etcdtest.Start(t)
	s := open(t, etcdstore.Config{URL: etcd.URL(t), RetryFor: time.Second, Attempt: time.Second})
	if err := prepare(s); err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(t.Context(), entity.WatchQuery{IDs: []schema.ID{counter}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var acked, unknown, down atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for ctx.Err() == nil {
				switch err := count(t.Context(), s); {
				case err == nil:
					acked.Add(1)
				case !errs.Is(err, errs.Unavailable):
					t.Errorf("a write: %v", err)
					return
				case errs.Detail(err, "outcome") == "unknown":
					unknown.Add(1)
				default:
					down.Add(1)
				}
			}
		})
	}
	for round := range 3 {
		before := acked.Load()
		wait.For(t, "writes", func() bool { return acked.Load() > before+20 })
		kill, again := etcd.Kill, etcd.Run
		if round == 2 {
			kill, again = etcd.Pause, etcd.Resume
		}
		kill()
		failed := unknown.Load() + down.Load()
		wait.For(t, "failing writes", func() bool { return unknown.Load()+down.Load() >= failed+4 })
		if _, err := s.Get(t.Context(), "thing", counter); !errs.Is(err, errs.Unavailable) {
			t.Errorf("get while etcd is gone: %v", err)
		}
		if _, err := s.List(t.Context(), entity.Query{Kind: "thing"}); !errs.Is(err, errs.Unavailable) {
			t.Errorf("list while etcd is gone: %v", err)
		}
		again()
	}
	before := acked.Load()
	wait.For(t, "writes again", func() bool { return acked.Load() > before+20 })
	stop()
	writers.Wait()
	n := counted(t, s)
	if n < acked.Load() || n > acked.Load()+unknown.Load() {
		t.Errorf("%d writes, %d acknowledged, %d unknown", n, acked.Load(), unknown.Load())
	}
	t.Logf("%d writes, %d acknowledged, %d unknown, %d failed", n, acked.Load(), unknown.Load(), down.Load())
	follow(t, w, n)
}

// TestLostAnswers: a commit whose answer or request is lost is applied once.
func TestLostAnswers(t *testing.T) {
	etcd := etcdtest.Start(t)
	var calls, lose atomic.Int64
	lost := status.Error(codes.Unavailable, "lost")
	s := open(t, etcdstore.Config{URL: etcd.URL(t), DialOptions: []grpc.DialOption{writesOf(func(invoke func() error) error {
		if lose.Load() == 0 {
			return invoke()
		}
		switch calls.Add(1) % 5 {
		case 1: // the answer is lost
			_ = invoke()
			return lost
		case 3: // the request is lost
			return lost
		}
		return invoke()
	})}})
	if err := prepare(s); err != nil {
		t.Fatal(err)
	}
	lose.Store(1)
	const all = 30
	for i := range all {
		if err := count(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if err := s.Append(t.Context(), entity.HistoryRecord{Stream: entity.StreamAudit, Action: "count", RequestID: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := counted(t, s); n != all {
		t.Errorf("counted %d of %d", n, all)
	}
	page, err := s.Records(t.Context(), entity.HistoryQuery{Stream: entity.StreamAudit})
	if err != nil || len(page.Records) != all {
		t.Fatalf("%d records of %d: %v", len(page.Records), all, err)
	}
	for i, r := range page.Records {
		if r.RequestID != fmt.Sprint(all-1-i) {
			t.Errorf("record %d is of request %s", i, r.RequestID)
		}
	}
}

// TestTwoServers: two servers write at once. Each sees the writes of the other at
// once, and the watches of both have every change in order.
func TestTwoServers(t *testing.T) {
	etcd := etcdtest.Start(t)
	a := open(t, etcdstore.Config{URL: etcd.URL(t)})
	if err := prepare(a); err != nil {
		t.Fatal(err)
	}
	b := open(t, etcdstore.Config{URL: etcd.URL(t)})
	const each = 40
	var writers sync.WaitGroup
	var watches []entity.Watch
	for i, s := range []*etcdstore.Store{a, b} {
		w, err := s.Watch(t.Context(), entity.WatchQuery{IDs: []schema.ID{counter}})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		watches = append(watches, w)
		writers.Go(func() {
			for n := range each {
				o := &storetest.Thing{Meta: schema.Meta{ID: schema.ID(fmt.Sprintf("thing-%d-%d", i, n)), Project: project, Name: fmt.Sprint(n)}, Spec: storetest.ThingSpec{Color: "red"}}
				create, err := entity.CreateOp(o)
				if err == nil {
					// The names are the same: one of the servers has each.
					_, err = s.Txn(t.Context(), entity.TxnRequest{Ops: []entity.Op{create}})
				}
				if err != nil && !errs.Is(err, errs.AlreadyExists) {
					t.Errorf("create: %v", err)
				}
				if err := count(t.Context(), s); err != nil {
					t.Errorf("count: %v", err)
				}
			}
		})
	}
	writers.Wait()
	for i, s := range []*etcdstore.Store{a, b} {
		page, err := s.List(t.Context(), entity.Query{Kind: "thing", Index: []entity.IndexMatch{{Attr: "spec.color", Op: entity.IndexEq, Value: []byte("red")}}})
		if err != nil || len(page.Records) != each {
			t.Errorf("server %d lists %d of %d: %v", i, len(page.Records), each, err)
		}
		if n := counted(t, s); n != 2*each {
			t.Errorf("server %d has counted %d", i, n)
		}
		follow(t, watches[i], 2*each)
	}
}
