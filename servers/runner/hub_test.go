package runner

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// TestRunnerThatIsAwayFailsItsCallsAtOnce holds that calls wait for a runner only
// just after it was connected, and that others are not concerned.
func TestRunnerThatIsAwayFailsItsCallsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(slog.New(slog.DiscardHandler))
		took := func(node string, want errs.Class, wait time.Duration) {
			t.Helper()
			began := time.Now()
			_, err := h.client(t.Context(), id.Node(node))
			if got := time.Since(began); errs.ClassOf(err) != want && (err != nil || want != "") || got != wait {
				t.Errorf("runner %s: %v after %s, want %q after %s", node, err, got, want, wait)
			}
		}
		connect := func(node string) (end func()) {
			cl, err := rpc.NewClient("/none", rpc.ClientOptions{})
			if err != nil {
				t.Fatal(err)
			}
			ended, done := make(chan struct{}), make(chan struct{})
			go func() { defer close(done); h.serve(context.Background(), id.Node(node), cl, ended) }()
			synctest.Wait()
			return func() { close(ended); <-done }
		}
		endB := connect("b")
		defer func() { endB() }()
		took("a", errs.Unavailable, reconnectWait) // the server has just begun
		took("a", errs.Unavailable, 0)
		endA := connect("a")
		took("a", "", 0)
		endA()
		time.Sleep(reconnectWait - time.Second)
		took("b", "", 0)
		took("a", errs.Unavailable, time.Second)
		took("a", errs.Unavailable, 0)
		took("b", "", 0)
		endA = connect("a")
		took("a", "", 0)
		endA()
	})
}
