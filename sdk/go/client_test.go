package miren_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	miren "miren.dev/runtime/sdk/go"
	"miren.dev/runtime/sdk/go/rest"
)

const session = `{"id": "sb-1", "mode": "persistent", "state": "running", "created_at": "2026-01-01T00:00:00Z", "unknown": 1}`

// newClient returns a client of a server that answers attempt n, from 1, with answer.
func newClient(t *testing.T, answer func(n int32, w http.ResponseWriter, r *http.Request)) (*miren.Client, *atomic.Int32) {
	t.Helper()
	var n atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer(n.Add(1), w, r)
	}))
	t.Cleanup(s.Close)
	c, err := miren.NewClient(miren.Config{URL: s.URL + "/", APIKey: "key", Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return c, &n
}

func refuse(w http.ResponseWriter, status int, class string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Retry-After", "0")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"status": %d, "class": %q, "detail": "no", "hint": "try", "type": "", "title": ""}`, status, class)
}

func TestRefusedCreationIsRepeatedWithItsKey(t *testing.T) {
	keys := map[string]bool{}
	c, n := newClient(t, func(n int32, w http.ResponseWriter, r *http.Request) {
		keys[r.Header.Get("Idempotency-Key")] = true
		if n == 1 {
			refuse(w, http.StatusTooManyRequests, "resource_exhausted")
			return
		}
		if n == 2 {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		if got := r.Header.Get("Authorization"); got != "Bearer key" {
			t.Errorf("Authorization: %q", got)
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, session)
	})
	sandbox, err := c.Create(t.Context(), rest.CreateSession{Template: miren.Ptr("python")})
	if err != nil || sandbox.ID() != "sb-1" {
		t.Fatal(sandbox, err)
	}
	if n.Load() != 3 || len(keys) != 1 || keys[""] {
		t.Errorf("%d attempts with keys %v, want 3 with one", n.Load(), keys)
	}
}

func TestCommandThatMayHaveRunIsNotRepeated(t *testing.T) {
	c, n := newClient(t, func(n int32, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(http.StatusOK)
			fmt.Fprint(w, session)
			return
		}
		refuse(w, http.StatusServiceUnavailable, "unavailable")
	})
	sandbox, err := c.Get(t.Context(), "sb-1")
	if err != nil {
		t.Fatal(err)
	}
	_, err = sandbox.Run(t.Context(), "true")
	var problem *miren.Error
	if !errors.Is(err, miren.Unavailable) || !errors.As(err, &problem) || problem.Status != http.StatusServiceUnavailable || problem.Hint != "try" {
		t.Errorf("%#v", err)
	}
	if n.Load() != 2 {
		t.Errorf("%d requests, want 2", n.Load())
	}
}

func TestErrorsWithoutProblemAreErrors(t *testing.T) {
	c, n := newClient(t, func(_ int32, w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "a proxy's page", http.StatusBadGateway)
	})
	_, err := c.Get(t.Context(), "sb-1")
	var e *miren.Error
	if !errors.As(err, &e) || e.Status != http.StatusBadGateway || e.Class != "" || n.Load() != 1 {
		t.Errorf("%v after %d requests", err, n.Load())
	}
}

func TestEndedCallIsNotRepeated(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, n := newClient(t, func(_ int32, w http.ResponseWriter, _ *http.Request) {
		cancel()
		refuse(w, http.StatusServiceUnavailable, "unavailable")
	})
	if _, err := c.Get(ctx, "sb-1"); !errors.Is(err, context.Canceled) || n.Load() != 1 {
		t.Errorf("%v after %d requests", err, n.Load())
	}
}

func TestExecuteSubmitsUntilTheEnd(t *testing.T) {
	keys := map[string]bool{}
	c, _ := newClient(t, func(n int32, w http.ResponseWriter, r *http.Request) {
		const execution = `{"id": "exec-1", "state": %q, "attempt": 1, "created_at": "2026-01-01T00:00:00Z"}`
		switch {
		case r.Method == http.MethodGet:
			fmt.Fprintf(w, `{"execution": `+execution+`, "encoding": "text", "stdout": "42\n", "stderr": ""}`, "ended")
			return
		case n < 3:
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, execution, "running")
		default:
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, execution, "ended")
		}
		keys[r.Header.Get("Idempotency-Key")] = true
	})
	result, err := c.Execute(t.Context(), rest.Submission{Code: miren.Ptr("print(42)")})
	if err != nil || result.Stdout != "42\n" || len(keys) != 1 {
		t.Error(result, err, keys)
	}
}

func TestBrokenStreamIsContinued(t *testing.T) {
	c, _ := newClient(t, func(n int32, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		if n == 1 {
			fmt.Fprint(w, ": heartbeat\n\nid: 1-0\nevent: output\ndata: {\"data\": \"a\"}\n\nevent: new-event\ndata: {}\n\n")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		if got := r.Header.Get("Last-Event-ID"); got != "1-0" {
			t.Errorf("Last-Event-ID: %q", got)
		}
		fmt.Fprint(w, "id: 2-0\nevent: output\ndata: {\"data\": \"b\"}\n\nevent: end\ndata: {\"exit_code\": 3}\n\n")
	})
	var text string
	for e, err := range c.Follow(t.Context(), "exec-1") {
		switch {
		case err != nil:
			t.Fatal(err)
		case e.Output != nil:
			text += e.Output.Data
		case e.End != nil:
			text += fmt.Sprint(e.End.ExitCode)
		}
	}
	if text != "ab3" {
		t.Errorf("events: %q", text)
	}
}

func TestErrorInAStreamEndsIt(t *testing.T) {
	c, n := newClient(t, func(_ int32, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "event: error\ndata: {\"status\": 404, \"class\": \"not_found\"}\n\n")
	})
	for _, err := range c.Follow(t.Context(), "exec-1") {
		if !errors.Is(err, miren.NotFound) {
			t.Errorf("%v", err)
		}
	}
	if n.Load() != 1 {
		t.Errorf("%d requests", n.Load())
	}
}
