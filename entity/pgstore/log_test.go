package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

const partition = 65536 // revisions of a partition of the log

// at returns a database whose next revision is rev+1.
func at(t *testing.T, rev int64) string {
	t.Helper()
	url := pgtest.URL(t)
	sql(t, url, fmt.Sprintf("update runtime.store set revision = %d", rev)).Close()
	return url
}

func TestSlowWatcher(t *testing.T) {
	s := pgtest.Open(t, pgstore.Config{URL: pgtest.URL(t), Kinds: storetest.Kinds(), RingEvents: 16})
	proj := newProject(t, s)
	w, err := s.Watch(t.Context(), entity.WatchQuery{Kinds: []string{"thing"}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	evs, err := w.Next(t.Context())
	if err != nil || evs[0].Type != entity.EventBookmark {
		t.Fatalf("first: %+v, %v", evs, err)
	}
	token := evs[0].Token
	var last schema.Revision
	for range 100 {
		last = create(t, s, proj).Revision
	}
	for range 2 { // it stays dropped
		if _, err = w.Next(t.Context()); !errs.Is(err, errs.ResourceExhausted) {
			t.Fatalf("a watcher 100 changes behind got %v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := record(ctx, t, s, token)
	h.await(t, last)
	cancel()
	<-h.done
}

// TestOldPartitionsAreDropped: writing crosses the boundaries of partitions, and compaction
// drops the old ones, under watchers.
func TestOldPartitionsAreDropped(t *testing.T) {
	const start = 3*partition - 50
	url := at(t, start)
	s := pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds(), RingEvents: 1000})
	writeThrough(t, []*pgstore.Store{s}, func(stop <-chan struct{}) {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			if err := s.Compact(context.Background(), 0, 1); err != nil {
				t.Error(err)
			}
		}
	})
	n := number(t, url, `select count(*) from pg_inherits where inhparent = 'runtime.log'::regclass`)
	floor := number(t, url, `select floor from runtime.compaction`)
	if floor < 2*partition || n > 4 {
		t.Errorf("floor %d, %d partitions", floor, n)
	}
	page, err := s.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	// The ring may hold what lies just below the floor, so look farther back.
	old := schema.Token{Epoch: page.Token.Epoch, Revision: schema.Revision(floor) - 2000}
	if _, err := s.Watch(t.Context(), entity.WatchQuery{Kinds: []string{"thing"}, From: old}); !errs.Is(err, errs.Compacted) {
		t.Errorf("watch below the floor: %v", err)
	}
	old.Revision = schema.Revision(floor)
	w, err := s.Watch(t.Context(), entity.WatchQuery{Kinds: []string{"thing"}, From: old})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	evs, err := w.Next(t.Context())
	if err != nil || len(evs) == 0 || evs[0].Record.CreateRevision == 0 {
		t.Errorf("watch from the floor: %d events, %v", len(evs), err)
	}
}

// TestPartitionMadeTwice: of several servers that find the next partition
// missing at the same moment, each succeeds.
func TestPartitionMadeTwice(t *testing.T) {
	const start, rounds = 3*partition + partition/2 + 1, 10
	url := at(t, start)
	var all []*pgstore.Store
	for range 3 {
		all = append(all, pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()}))
	}
	for round := range rounds {
		if round > 0 {
			sql(t, url, fmt.Sprintf("update runtime.store set revision = revision + %d", partition)).Close()
		}
		var wg sync.WaitGroup
		for _, s := range all {
			wg.Go(func() {
				if err := s.Compact(t.Context(), time.Hour, 1<<40); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	if n := number(t, url, `select count(*) from pg_inherits where inhparent = 'runtime.log'::regclass`); n < rounds {
		t.Errorf("%d partitions", n)
	}
}

// TestListAcrossCompaction: a listing continues while its revision is kept,
// also for entities that were written before the log begins, and fails with
// Compacted afterwards.
func TestListAcrossCompaction(t *testing.T) {
	url := at(t, partition-5)
	open := func() *pgstore.Store {
		return pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()})
	}
	s := open()
	proj := newProject(t, s)
	a := create(t, s, proj, func(o *thing) { o.ID = "thing-a" })
	b := create(t, s, proj, func(o *thing) { o.ID = "thing-b" })
	s.Close()
	sql(t, url, fmt.Sprintf("update runtime.store set revision = %d", 3*partition)).Close()
	s = open()
	list := func(q entity.Query) (entity.Page, error) {
		q.Kind, q.Limit = "thing", 1
		return s.List(t.Context(), q)
	}
	first, err := list(entity.Query{})
	if err != nil || len(first.Records) != 1 || first.Records[0].ID != a.ID {
		t.Fatalf("first page: %+v, %v", first, err)
	}
	// b was last written before the compacted log begins.
	want := *b
	b.Spec.Color = "blue"
	if err := entity.UpdateSpec(t.Context(), s, b); err != nil {
		t.Fatal(err)
	}
	if err := s.Compact(t.Context(), 0, 1); err != nil {
		t.Fatal(err)
	}
	if n := number(t, url, `select count(*) from runtime.log where revision < $1`, partition); n != 0 {
		t.Fatalf("%d old entries were not dropped", n)
	}
	second, err := list(entity.Query{Cursor: first.Cursor})
	if err != nil || len(second.Records) != 1 {
		t.Fatalf("second page: %+v, %v", second, err)
	}
	got, err := entity.Decode[thing](&second.Records[0])
	if err != nil || got.Spec.Color != "red" || got.Meta.Revision != want.Meta.Revision {
		t.Errorf("second page has %+v, %v", got, err)
	}
	s.Close()
	sql(t, url, fmt.Sprintf("update runtime.store set revision = %d", 6*partition)).Close()
	s = open()
	if err := s.Compact(t.Context(), 0, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := list(entity.Query{Cursor: first.Cursor}); !errs.Is(err, errs.Compacted) {
		t.Errorf("page of a compacted revision: %v", err)
	}
}

func TestCompactKeepsByTime(t *testing.T) {
	url := at(t, 5*partition)
	s := pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()})
	floor := func() int64 { return number(t, url, `select floor from runtime.compaction`) }
	if err := s.Compact(t.Context(), time.Hour, 1_000_000_000); err != nil || floor() != 0 {
		t.Fatalf("young history was compacted: floor %d, %v", floor(), err)
	}
	sql(t, url, `insert into runtime.log_mark values (now() - interval '2 hours', $1), (now() - interval '3 hours', 1)`, 4*partition+10_000).Close()
	if err := s.Compact(t.Context(), time.Hour, 1_000_000_000); err != nil || floor() <= 4*partition || floor() > 4*partition+10_000 {
		t.Fatalf("old history was kept: floor %d, %v", floor(), err)
	}
	if n := number(t, url, `select count(*) from runtime.log_mark where at < now() - interval '150 minutes'`); n != 0 {
		t.Errorf("%d old marks are left", n)
	}
}

func TestNewEpoch(t *testing.T) {
	url := pgtest.URL(t)
	s := pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()})
	other := pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()})
	proj := newProject(t, s)
	create(t, s, proj)
	page, err := s.List(t.Context(), entity.Query{Kind: "thing", Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, proj)
	cursorPage, err := s.List(t.Context(), entity.Query{Kind: "thing", Limit: 1})
	if err != nil || cursorPage.Cursor == "" {
		t.Fatal(err)
	}
	var watches []entity.Watch
	for _, st := range []*pgstore.Store{s, other} {
		w, err := st.Watch(t.Context(), entity.WatchQuery{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		watches = append(watches, w)
	}
	if err := s.NewEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, w := range watches {
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		for err = nil; err == nil; {
			_, err = w.Next(ctx)
		}
		cancel()
		if !errs.Is(err, errs.Compacted) {
			t.Errorf("watch %d of the old epoch: %v", i, err)
		}
	}
	for _, st := range []*pgstore.Store{s, other} {
		if _, err := st.Watch(t.Context(), entity.WatchQuery{From: page.Token}); !errs.Is(err, errs.Compacted) {
			t.Errorf("watch from the old epoch: %v", err)
		}
		if _, err := st.List(t.Context(), entity.Query{Kind: "thing", Limit: 1, Cursor: cursorPage.Cursor}); !errs.Is(err, errs.Compacted) {
			t.Errorf("page of the old epoch: %v", err)
		}
	}
	// Writing and watching continue in the new epoch.
	page, err = s.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := record(ctx, t, s, page.Token)
	h.await(t, create(t, other, proj).Revision)
	cancel()
	<-h.done
}

// TestOtherCopy: a database that was restored elsewhere begins a new epoch by
// itself, as does one that went back in time under a running server.
func TestOtherCopy(t *testing.T) {
	url := pgtest.URL(t)
	open := func() *pgstore.Store {
		return pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()})
	}
	token := func(s *pgstore.Store) schema.Token {
		page, err := s.List(t.Context(), entity.Query{Kind: "thing"})
		if err != nil {
			t.Fatal(err)
		}
		return page.Token
	}
	s := open()
	newProject(t, s)
	before := token(s)
	again := open()
	if got := token(again); got != before {
		t.Errorf("reopened: token %v, was %v", got, before)
	}
	again.Close()
	sql(t, url, `update runtime.store set origin = 'another cluster'`).Close()
	again = open()
	if got := token(again); got.Epoch == before.Epoch {
		t.Error("a restored copy goes on with the old epoch")
	}
	wait.For(t, "the running server notices", func() bool {
		_, err := s.Watch(t.Context(), entity.WatchQuery{From: before})
		return errs.Is(err, errs.Compacted)
	})
	before = token(s)
	sql(t, url, `update runtime.store set revision = 0`).Close()
	wait.For(t, "back in time", func() bool { return token(s).Epoch != before.Epoch })
}

func TestMigrationsRunOnce(t *testing.T) {
	url := pgtest.URL(t)
	for range 2 {
		if err := pgstore.Migrate(t.Context(), url); err != nil {
			t.Fatal(err)
		}
	}
	// Servers that start together.
	fresh := pgtest.URL(t)
	sql(t, fresh, `drop schema runtime cascade`).Close()
	errc := make(chan error, 8)
	for range cap(errc) {
		go func() { errc <- pgstore.Migrate(context.WithoutCancel(t.Context()), fresh) }()
	}
	var all error
	for range cap(errc) {
		all = errors.Join(all, <-errc)
	}
	if all != nil {
		t.Fatal(all)
	}
	sql(t, url, `insert into runtime.migration values (1000)`).Close()
	if _, err := pgstore.Open(t.Context(), pgstore.Config{URL: url}); !errs.Is(err, errs.FailedPrecondition) || errs.HintOf(err) == "" {
		t.Errorf("open a newer store: %v", err)
	}
	if _, err := pgstore.Open(t.Context(), pgstore.Config{URL: "postgres:///x?host=/nonexistent"}); !errs.Is(err, errs.Unavailable) {
		t.Errorf("open an unreachable store: %v", err)
	}
}

func TestCloseEndsWatches(t *testing.T) {
	s, err := pgstore.Open(t.Context(), pgstore.Config{URL: pgtest.URL(t), Kinds: storetest.Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	proj := newProject(t, s)
	w, err := s.Watch(t.Context(), entity.WatchQuery{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := w.Next(context.Background()); err != nil {
				ended <- err
				return
			}
		}
	}()
	writes := make(chan error, 64)
	for range cap(writes) {
		go func() { writes <- entity.Create(context.Background(), s, newThing(proj)) }()
	}
	s.Close()
	s.Close()
	for range cap(writes) {
		if err := <-writes; err != nil && !errs.Is(err, errs.Unavailable) {
			t.Errorf("write while closing: %v", err)
		}
	}
	if err := <-ended; !errs.Is(err, errs.Unavailable) {
		t.Errorf("watch of a closed store: %v", err)
	}
	if err := entity.Create(t.Context(), s, newThing(proj)); !errs.Is(err, errs.Unavailable) {
		t.Errorf("write to a closed store: %v", err)
	}
	if _, err := s.Get(t.Context(), "thing", "thing-x"); !errs.Is(err, errs.Unavailable) {
		t.Errorf("read of a closed store: %v", err)
	}
}
