package holder_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/frontend/holder"
	"miren.dev/runtime/pkg/errs"
)

// run runs a holder and returns its socket.
func run(t *testing.T, o holder.Options) (socket string, done chan error, stop context.CancelFunc) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	ctx, cancel := context.WithCancel(context.Background())
	done = make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		done <- holder.Run(ctx, socket, o)
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return socket, done, cancel
}

func dial(t *testing.T, socket string) *holder.Client {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		c, err := holder.Dial(t.Context(), socket)
		if err == nil {
			t.Cleanup(func() { c.Close() })
			return c
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// pipe returns both ends of a pipe; a read of the second ends when nobody has
// the first.
func pipe(t *testing.T) (w, r *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	return w, r
}

func TestSuccessorTakesFiles(t *testing.T) {
	socket, _, _ := run(t, holder.Options{})
	ctx := t.Context()
	first := dial(t, socket)
	w, r := pipe(t)
	if err := first.Put(ctx, "a", []byte("meta"), w); err != nil {
		t.Fatal(err)
	}
	w.Close()
	other := dial(t, socket)
	if _, _, err := other.Take(ctx, "a"); !errs.Is(err, errs.Conflict) {
		t.Fatalf("take of what somebody else has: %v", err)
	}
	if err := other.Drop(ctx, "a"); !errs.Is(err, errs.Conflict) {
		t.Fatalf("drop of what somebody else has: %v", err)
	}
	if _, _, err := other.Take(ctx, "b"); !errs.Is(err, errs.NotFound) {
		t.Fatalf("take of nothing: %v", err)
	}
	if err := other.Stop(ctx); !errs.Is(err, errs.FailedPrecondition) {
		t.Fatalf("stop of a holder that holds: %v", err)
	}
	first.Close()
	var meta []byte
	var files []*os.File
	wait(t, func() bool {
		var err error
		if meta, files, err = other.Take(ctx, "a"); err != nil && !errs.Is(err, errs.Conflict) {
			t.Fatal(err)
		}
		return err == nil
	})
	if string(meta) != "meta" || len(files) != 1 {
		t.Fatalf("took %q and %d files", meta, len(files))
	}
	entries, err := other.List(ctx)
	if err != nil || len(entries) != 1 || !entries[0].Owned || entries[0].Files != 1 || entries[0].Name != "a" {
		t.Fatalf("listed %v, %v", entries, err)
	}
	if _, err := files[0].WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	files[0].Close()
	if err := other.Drop(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); string(b) != "hello" || err != nil {
		t.Fatalf("read %q, %v", b, err)
	}
}

func TestFilesCloseWithoutSuccessor(t *testing.T) {
	socket, _, _ := run(t, holder.Options{HandoverTimeout: 50 * time.Millisecond})
	w, r := pipe(t)
	c := dial(t, socket)
	if err := c.Put(t.Context(), "a", nil, w); err != nil {
		t.Fatal(err)
	}
	w.Close()
	begin := time.Now()
	c.Close()
	if b, err := io.ReadAll(r); len(b) != 0 || err != nil {
		t.Fatalf("read %q, %v", b, err)
	}
	if d := time.Since(begin); d < 50*time.Millisecond {
		t.Fatalf("gave up after %v", d)
	}
	next := dial(t, socket)
	if _, _, err := next.Take(t.Context(), "a"); !errs.Is(err, errs.NotFound) {
		t.Fatalf("take of what was given up: %v", err)
	}
}

func TestReplacedFilesAreClosed(t *testing.T) {
	socket, _, _ := run(t, holder.Options{})
	c := dial(t, socket)
	w1, r1 := pipe(t)
	w2, _ := pipe(t)
	for _, w := range []*os.File{w1, w2} {
		if err := c.Put(t.Context(), "a", nil, w, w); err != nil {
			t.Fatal(err)
		}
	}
	w1.Close()
	if b, err := io.ReadAll(r1); len(b) != 0 || err != nil {
		t.Fatalf("what was replaced is still open: %q, %v", b, err)
	}
	if err := c.Put(t.Context(), "", nil, w2); !errs.Is(err, errs.InvalidArgument) {
		t.Fatalf("put without a name: %v", err)
	}
	if err := c.Put(t.Context(), "b", nil); !errs.Is(err, errs.InvalidArgument) {
		t.Fatalf("put without files: %v", err)
	}
}

func TestHolderEndsWhenIdle(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		socket, done, _ := run(t, holder.Options{Idle: 2 * time.Second})
		c := dial(t, socket)
		w, _ := pipe(t)
		if err := c.Put(t.Context(), "a", nil, w); err != nil {
			t.Fatal(err)
		}
		if err := c.Drop(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
	t.Run("told", func(t *testing.T) {
		socket, done, _ := run(t, holder.Options{})
		c := dial(t, socket)
		if err := c.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		<-c.Done()
		if err := c.Drop(t.Context(), "a"); !errs.Is(err, errs.Unavailable) {
			t.Fatalf("drop at a holder that has gone: %v", err)
		}
	})
	t.Run("second", func(t *testing.T) {
		socket, _, _ := run(t, holder.Options{})
		dial(t, socket)
		if err := holder.Run(t.Context(), socket, holder.Options{}); !errs.Is(err, errs.Conflict) {
			t.Fatalf("second holder: %v", err)
		}
	})
}

func wait(t *testing.T, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !f(); {
		if time.Now().After(deadline) {
			t.Fatal("it does not happen")
		}
	}
}
