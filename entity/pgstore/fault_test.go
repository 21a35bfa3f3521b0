package pgstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

type thing = storetest.Thing

func newProject(t testing.TB, s entity.Store) schema.ID {
	t.Helper()
	p := new(storetest.Project)
	if err := entity.Create(t.Context(), s, p); err != nil {
		t.Fatal(err)
	}
	return p.ID
}

func newThing(project schema.ID) *thing {
	return &thing{Meta: schema.Meta{Project: project}, Spec: storetest.ThingSpec{Color: "red"}}
}

func create(t testing.TB, s entity.Store, project schema.ID, change ...func(*thing)) *thing {
	t.Helper()
	o := newThing(project)
	for _, c := range change {
		c(o)
	}
	if err := entity.Create(t.Context(), s, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// sql runs a statement on the store's database.
func sql(t testing.TB, url, stmt string, args ...any) pgx.Rows {
	t.Helper()
	c, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	rows, err := c.Query(context.Background(), stmt, args...)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func number(t testing.TB, url, stmt string, args ...any) int64 {
	t.Helper()
	n, err := pgx.CollectOneRow(sql(t, url, stmt, args...), pgx.RowTo[int64])
	if err != nil {
		t.Fatalf("%s: %v", stmt, err)
	}
	return n
}

// history checks that a watcher sees every revision once and in order.
type history struct {
	mu   sync.Mutex
	last schema.Revision
	seen map[schema.ID]schema.Revision // newest revision of each entity
	done chan struct{}
}

// record follows all changes from a token, resuming after interruptions, until
// ctx ends.
func record(ctx context.Context, t testing.TB, s entity.Store, from schema.Token) *history {
	h := &history{last: from.Revision, seen: map[schema.ID]schema.Revision{}, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		for ctx.Err() == nil {
			w, err := s.Watch(ctx, entity.WatchQuery{From: from, Bookmarks: 100 * time.Millisecond})
			if err != nil {
				if ctx.Err() == nil && !errs.Is(err, errs.Unavailable) {
					t.Errorf("watch: %v", err)
					return
				}
				continue
			}
			for {
				evs, err := w.Next(ctx)
				if err != nil {
					// ResourceExhausted: the watcher was too slow, and resumes.
					if ctx.Err() == nil && !errs.Is(err, errs.Unavailable) && !errs.Is(err, errs.ResourceExhausted) {
						t.Errorf("next: %v", err)
					}
					break
				}
				h.mu.Lock()
				for _, e := range evs {
					from = e.Token
					if e.Type == entity.EventBookmark {
						continue
					}
					if e.Record.Revision != h.last+1 {
						t.Errorf("revision %d came after %d", e.Record.Revision, h.last)
					}
					h.last = e.Record.Revision
					h.seen[e.Record.ID] = e.Record.Revision
				}
				h.mu.Unlock()
			}
			w.Close()
		}
	}()
	return h
}

func (h *history) await(t testing.TB, rev schema.Revision) {
	t.Helper()
	wait.For(t, fmt.Sprintf("watcher at revision %d", rev), func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.last >= rev
	})
}

// writeThrough writes with 16 writers while faults happen, and checks that the
// store has exactly the acknowledged writes: each create once, each counter at
// the number of acknowledged increments. It resolves unknown outcomes by
// repeating the request.
func writeThrough(t *testing.T, stores []*pgstore.Store, trouble func(stop <-chan struct{})) {
	s := stores[0]
	proj := newProject(t, s)
	start, err := s.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	watchCtx, stopWatch := context.WithCancel(context.WithoutCancel(t.Context()))
	defer stopWatch()
	var histories []*history
	for _, s := range stores {
		histories = append(histories, record(watchCtx, t, s, start.Token))
	}
	stop := make(chan struct{})
	var troubled, wg sync.WaitGroup
	troubled.Go(func() { trouble(stop) })
	var mu sync.Mutex
	counts := map[schema.ID]int64{}
	revisions := map[schema.Revision]bool{}
	unknown := 0
	for i := range 16 {
		wg.Go(func() {
			s := stores[i%len(stores)]
			o := newThing(proj)
			o.ID = schema.ID(fmt.Sprintf("thing-%02d", i))
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				var op entity.Op
				var err error
				if n == 0 {
					op, err = entity.CreateOp(o)
				} else {
					o.Status.Count++
					op, err = entity.UpdateStatusOp(o)
				}
				if err != nil {
					t.Error(err)
					return
				}
				req := entity.TxnRequest{RequestID: fmt.Sprintf("%d-%d", i, n), Ops: []entity.Op{op}}
				var res entity.TxnResult
				for tries := 0; ; tries++ {
					ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), wait.Limit)
					res, err = s.Txn(ctx, req)
					cancel()
					if !errs.Is(err, errs.Unavailable) || tries == 10 {
						break
					}
					mu.Lock()
					unknown++
					mu.Unlock()
				}
				if err != nil {
					t.Errorf("writer %d, write %d: %v", i, n, err)
					return
				}
				o.Meta = res.Records[0].Meta
				mu.Lock()
				counts[o.ID] = o.Status.Count
				if revisions[res.Revision] {
					t.Errorf("revision %d was given twice", res.Revision)
				}
				revisions[res.Revision] = true
				mu.Unlock()
			}
		})
	}
	time.AfterFunc(4*time.Second, func() { close(stop) })
	wg.Wait()
	troubled.Wait()
	last := create(t, s, proj).Revision
	for _, h := range histories {
		h.await(t, last)
	}
	all, _, err := entity.List[thing](t.Context(), s, entity.Query{})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != len(counts)+1 {
		t.Errorf("%d things, want %d", len(all), len(counts)+1)
	}
	for _, o := range all {
		if o.Status.Count != counts[o.ID] {
			t.Errorf("%s counts %d, acknowledged %d", o.ID, o.Status.Count, counts[o.ID])
		}
		for _, h := range histories {
			h.mu.Lock()
			if o.Revision > start.Token.Revision && h.seen[o.ID] != o.Revision {
				t.Errorf("%s is at %d, the watcher saw %d", o.ID, o.Revision, h.seen[o.ID])
			}
			h.mu.Unlock()
		}
	}
	if want := int(last - start.Token.Revision - 1); len(revisions) != want {
		t.Errorf("%d revisions were acknowledged, %d were given", len(revisions), want)
	}
	t.Logf("%d writes, %d repeated by the client", len(revisions), unknown)
	stopWatch()
	for _, h := range histories {
		<-h.done
	}
}

func TestKilledDatabase(t *testing.T) {
	server := pgtest.Server(t)
	ctx, cancel := context.WithCancel(context.Background())
	supervised := make(chan error, 1)
	go func() { supervised <- server.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-supervised })
	s := pgtest.Open(t, pgstore.Config{URL: server.URL(), Kinds: storetest.Kinds()})
	writeThrough(t, []*pgstore.Store{s}, func(stop <-chan struct{}) {
		for {
			select {
			case <-stop:
				return
			case <-time.After(500*time.Millisecond + rand.N(300*time.Millisecond)):
			}
			// It may still be down from the previous round.
			if err := syscall.Kill(server.PID(), syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				t.Error(err)
			}
		}
	})
}

func TestCutConnections(t *testing.T) {
	url := pgtest.URL(t)
	stores := []*pgstore.Store{}
	for range 2 { // two servers on one database
		stores = append(stores, pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()}))
	}
	writeThrough(t, stores, func(stop <-chan struct{}) {
		c, err := pgx.Connect(context.Background(), url)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close(context.Background())
		for {
			select {
			case <-stop:
				return
			case <-time.After(rand.N(20 * time.Millisecond)):
			}
			const kill = `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() order by random() limit 1`
			if _, err := c.Exec(context.Background(), kill); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestTwoServers(t *testing.T) {
	url := pgtest.URL(t)
	stores := []*pgstore.Store{}
	for range 3 {
		stores = append(stores, pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds()}))
	}
	writeThrough(t, stores, func(<-chan struct{}) {})
}

// TestStoppedDatabase: while the database is stopped, operations fail as
// Unavailable, never as NotFound, and leases stay.
func TestStoppedDatabase(t *testing.T) {
	server := pgtest.Server(t)
	s := pgtest.Open(t, pgstore.Config{URL: server.URL(), Kinds: storetest.Kinds(), RetryFor: 100 * time.Millisecond})
	proj := newProject(t, s)
	l, err := s.Grant(t.Context(), 4*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	leased := create(t, s, proj, func(o *thing) { o.Lease = l.ID })
	pid := server.PID()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "unavailable", func() bool {
		_, err := s.Get(t.Context(), "thing", leased.ID)
		if errs.Is(err, errs.NotFound) {
			t.Fatal("an unreachable store said not found")
		}
		return errs.Is(err, errs.Unavailable)
	})
	if err := entity.Create(t.Context(), s, newThing(proj)); !errs.Is(err, errs.Unavailable) {
		t.Errorf("create: %v", err)
	}
	if _, err := s.List(t.Context(), entity.Query{Kind: "thing"}); !errs.Is(err, errs.Unavailable) {
		t.Errorf("list: %v", err)
	}
	if _, err := s.KeepAlive(t.Context(), l.ID); !errs.Is(err, errs.Unavailable) {
		t.Errorf("keep alive: %v", err)
	}
	wait.For(t, "away for longer than the lease", func() bool { return time.Now().After(l.ExpiresAt) })
	ctx, cancel := context.WithCancel(context.Background())
	supervised := make(chan error, 1)
	go func() { supervised <- server.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-supervised })
	wait.For(t, "available again", func() bool { return s.Ping(t.Context()) == nil })
	if _, err := s.KeepAlive(t.Context(), l.ID); err != nil {
		t.Errorf("the lease lapsed while the database was away: %v", err)
	}
	if _, err := s.Get(t.Context(), "thing", leased.ID); err != nil {
		t.Error(err)
	}
	wait.For(t, "lapse once it is not renewed", func() bool {
		_, err := s.Get(t.Context(), "thing", leased.ID)
		return errs.Is(err, errs.NotFound)
	})
}
