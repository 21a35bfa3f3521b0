package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/breaker"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/servers/rest"
	"miren.dev/runtime/testsupport/wait"
)

// hangingStore is a store whose database stops answering.
type hangingStore struct {
	entityStore
	away    atomic.Bool
	waiting atomic.Int64
	back    chan struct{} // closed when it answers again
}

func (s *hangingStore) hang(ctx context.Context) error {
	if !s.away.Load() {
		return nil
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	select {
	case <-s.back:
		return nil
	case <-ctx.Done():
		return errs.New(errs.ClassOf(ctx.Err()), "wait for the database: %w", ctx.Err())
	}
}

func (s *hangingStore) Get(ctx context.Context, kind string, id schema.ID) (schema.Record, error) {
	if err := s.hang(ctx); err != nil {
		return schema.Record{}, err
	}
	return s.entityStore.Get(ctx, kind, id)
}

func (s *hangingStore) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	if err := s.hang(ctx); err != nil {
		return entity.Page{}, err
	}
	return s.entityStore.List(ctx, q)
}

func (s *hangingStore) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	if err := s.hang(ctx); err != nil {
		return entity.TxnResult{}, err
	}
	return s.entityStore.Txn(ctx, req)
}

// TestDatabaseThatIsAwayIsAnsweredAtOnce holds that the HTTP faces answer 503 with
// Retry-After at once while the database does not answer, that requests do not
// pile up, and that they are served again when it does.
func TestDatabaseThatIsAwayIsAnsweredAtOnce(t *testing.T) {
	cfg := &config.Config{}
	cfg.Store.KeepRevisions = 100_000
	real, err := openStore(t.Context(), cfg, "sqlite://"+t.TempDir()+"/store.db", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(real.Close)
	s := &hangingStore{entityStore: real, back: make(chan struct{})}
	b := breaker.New(breaker.Config{Name: "database", Failures: 3, Slow: 500 * time.Millisecond, Pause: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	e := newRestEnvOn(t, newFrontEnvOn(t, wrapStore(s, b, false)))
	e.newTenant("p")
	key := e.key("p", "admin")
	list := func(ctx context.Context) (status int, retry string, err error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+rest.Prefix+"/sessions", nil)
		if err != nil {
			return 0, "", err
		}
		req.Header.Set("X-API-Key", key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, "", err
		}
		resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("Retry-After"), nil
	}
	if status, _, err := list(t.Context()); status != http.StatusOK {
		t.Fatalf("%d, %v", status, err)
	}
	s.away.Store(true)
	first, cancel := context.WithCancel(t.Context())
	var hanging sync.WaitGroup
	for range 3 {
		hanging.Go(func() { _, _, _ = list(first) })
	}
	var status int
	var retry string
	wait.For(t, "an answer that the database is away", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		status, retry, _ = list(ctx)
		return status == http.StatusServiceUnavailable && retry != ""
	}, wait.State(func() any { return fmt.Sprintf("status %d, Retry-After %q, %d wait", status, retry, s.waiting.Load()) }))
	before, refused := runtime.NumGoroutine(), 0
	for range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if status, _, _ := list(ctx); status == http.StatusServiceUnavailable {
			refused++
		}
		cancel()
	}
	// Now and then one request tries, which hangs.
	if after := runtime.NumGoroutine(); refused < 150 || after > before+100 || s.waiting.Load() > 60 {
		t.Errorf("%d of 200 were refused; %d goroutines, %d before; %d wait for the database", refused, after, before, s.waiting.Load())
	}
	close(s.back)
	s.away.Store(false)
	wait.For(t, "an answer when the database is back", func() bool {
		status, _, _ := list(t.Context())
		return status == http.StatusOK
	})
	cancel()
	hanging.Wait()
}

// TestObjectStoreThatIsAwayHoldsUpNobody holds that users of an object store that
// does not answer wait neither for it nor for each other.
func TestObjectStoreThatIsAwayHoldsUpNobody(t *testing.T) {
	back := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-back:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(back) })
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	b := breaker.New(breaker.Config{
		Name: "object store", Failures: 3, Slow: 50 * time.Millisecond, Pause: time.Hour, Logger: slog.New(slog.DiscardHandler),
	})
	o, err := newObjects("s3://bucket/results?endpoint="+srv.URL, "inst", b)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var hanging sync.WaitGroup
	for i := range 8 {
		hanging.Go(func() { _, _ = o.Get(ctx, fmt.Sprint("key", i)) })
	}
	wait.For(t, "a refusal", func() bool {
		// Without the breaker this waits for S3's own time-out, behind the others.
		try, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := o.Get(try, "key")
		return errs.Is(err, errs.Unavailable) && strings.Contains(err.Error(), "object store")
	})
	cancel()
	ended := make(chan struct{})
	go func() { hanging.Wait(); close(ended) }()
	wait.Receive(t, "those who gave up", ended)
}
