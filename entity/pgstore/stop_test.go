package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
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

// stat returns the state of a process and the process id of its parent.
func stat(pid string) (state, parent string) {
	b, _ := os.ReadFile(filepath.Join("/proc", pid, "stat")) // it may have ended
	_, rest, _ := strings.Cut(string(b), ") ")
	if fields := strings.Fields(rest); len(fields) > 1 {
		return fields[0], fields[1]
	}
	return "", ""
}

// signalAll sends a signal to the postmaster and every process of it. A postmaster
// that is to stop has stopped before the others are listed, so it makes none
// meanwhile.
func signalAll(t testing.TB, postmaster int, sig syscall.Signal) {
	t.Helper()
	send := func(pid int) {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	send(postmaster)
	if sig == syscall.SIGSTOP {
		wait.For(t, "the postmaster stops", func() bool { state, _ := stat(strconv.Itoa(postmaster)); return state == "T" })
	}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := filepath.Base(filepath.Dir(f))
		if _, parent := stat(name); parent != strconv.Itoa(postmaster) {
			continue
		}
		pid, err := strconv.Atoi(name)
		if err != nil {
			t.Fatal(err)
		}
		send(pid)
	}
}

// TestFrozenDatabase: while PostgreSQL is stopped by a signal, so that it
// accepts connections and never answers, every operation ends as Unavailable in
// time, whatever its caller's context; afterwards nothing is stuck.
// RUNTIME_SOAK makes it one minute and 100,000 entities.
func TestFrozenDatabase(t *testing.T) {
	entities, frozen := 500, 7*time.Second // longer than the gap after which leases get their full time again
	if os.Getenv("RUNTIME_SOAK") != "" {
		entities, frozen = 100_000, time.Minute
	}
	const attempt, retry = time.Second, 500 * time.Millisecond
	const bound = 3 * (attempt + retry) // a commit, finding out its outcome, and a margin for a busy machine
	server := pgtest.Server(t)
	s := pgtest.Open(t, pgstore.Config{URL: server.URL(), Kinds: storetest.Kinds(), RingEvents: 64, RetryFor: retry, Attempt: attempt})
	proj := newProject(t, s)
	grow(t, pgtest.Open(t, pgstore.Config{URL: server.URL(), Kinds: storetest.Kinds()}), proj, entities, func(int, *thing) {})
	first := create(t, s, proj)
	l, err := s.Grant(t.Context(), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	leased := create(t, s, proj, func(o *thing) { o.Lease = l.ID })
	page, err := s.List(t.Context(), entity.Query{Kind: "thing", Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	defer stop()
	h := record(ctx, t, s, page.Token)

	calls := map[string]func(context.Context) error{
		"get": func(ctx context.Context) error { _, err := s.Get(ctx, "thing", first.ID); return err },
		"list": func(ctx context.Context) error {
			_, err := s.List(ctx, entity.Query{Kind: "thing", Limit: 10})
			return err
		},
		"next page": func(ctx context.Context) error {
			_, err := s.List(ctx, entity.Query{Kind: "thing", Limit: 10, Cursor: page.Cursor})
			return err
		},
		"watch": func(ctx context.Context) error {
			w, err := s.Watch(ctx, entity.WatchQuery{From: schema.Token{Epoch: page.Token.Epoch, Revision: 1}})
			if err != nil {
				return err
			}
			defer w.Close()
			_, err = w.Next(ctx)
			return err
		},
		"watch of another epoch": func(ctx context.Context) error {
			_, err := s.Watch(ctx, entity.WatchQuery{From: schema.Token{Epoch: "epoch-other", Revision: 1}})
			if errs.Is(err, errs.Compacted) {
				return nil
			}
			return err
		},
		"create":     func(ctx context.Context) error { return entity.Create(ctx, s, newThing(proj)) },
		"grant":      func(ctx context.Context) error { _, err := s.Grant(ctx, time.Minute); return err },
		"keep alive": func(ctx context.Context) error { _, err := s.KeepAlive(ctx, l.ID); return err },
		"append":     func(ctx context.Context) error { return s.Append(ctx, auditRecord("frozen")) },
		"history": func(ctx context.Context) error {
			_, err := s.Records(ctx, entity.HistoryQuery{Stream: entity.StreamAudit})
			return err
		},
		"ping": s.Ping,
	}
	// Some writers and readers are under way when it happens.
	busy, quiet := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			o := newThing(proj)
			o.ID = schema.ID(fmt.Sprintf("thing-busy-%d", i))
			err := entity.Create(ctx, s, o)
			for busy.Err() == nil {
				if err == nil {
					o.Status.Count++
					err = entity.UpdateStatus(ctx, s, o)
				}
				if errs.Is(err, errs.Unavailable) || errs.Is(err, errs.Conflict) {
					var now *thing
					if now, err = entity.Get[thing](ctx, s, o.ID); err == nil {
						o = now
					}
				}
				if err != nil && !errs.Is(err, errs.Unavailable) && !errs.Is(err, errs.NotFound) {
					t.Errorf("writer %d: %v", i, err)
					return
				}
			}
		})
	}
	signalAll(t, server.PID(), syscall.SIGSTOP)
	thaw := sync.OnceFunc(func() { signalAll(t, server.PID(), syscall.SIGCONT) })
	t.Cleanup(thaw)
	began := time.Now()
	var asked sync.WaitGroup
	for name, call := range calls {
		asked.Go(func() {
			began := time.Now()
			// The caller's context has no deadline.
			if err := call(context.Background()); !errs.Is(err, errs.Unavailable) {
				t.Errorf("%s: %v (%s), want unavailable", name, err, errs.ClassOf(err))
			}
			if d := time.Since(began); d > bound {
				t.Errorf("%s took %s, at most %s is allowed", name, d, bound)
			}
		})
	}
	wait.For(t, "the end of the outage", func() bool { return time.Since(began) > max(frozen, bound) })
	answered := make(chan struct{})
	go func() { asked.Wait(); close(answered) }()
	wait.Receive(t, "the end of every call", answered) // on a busy machine some begin late
	thaw()
	wait.For(t, "available again", func() bool { return s.Ping(context.Background()) == nil })
	quiet()
	wg.Wait()
	for name, call := range calls {
		// On a busy machine one attempt may still be too short: the caller
		// retries.
		wait.For(t, name+" afterwards", func() bool {
			err := call(t.Context())
			if err != nil && !errs.Is(err, errs.Unavailable) {
				t.Fatalf("%s afterwards: %v", name, err)
			}
			return err == nil
		})
	}
	if _, err := s.Get(t.Context(), "thing", leased.ID); err != nil {
		t.Errorf("the entity of a lease that could not be renewed meanwhile: %v", err)
	}
	h.await(t, create(t, s, proj).Revision)
	stop()
	<-h.done
}
