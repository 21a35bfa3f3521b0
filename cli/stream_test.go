package cli_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"

	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

var unavailable = errs.New(errs.Unavailable, "the server restarts")

// lineWriter sends lines as they are written.
type lineWriter struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	lines chan string
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(p)
	for {
		s := w.buf.String()
		i := strings.IndexByte(s, '\n')
		if i < 0 {
			return len(p), nil
		}
		w.buf.Next(i + 1)
		w.lines <- s[:i]
	}
}

func (w *lineWriter) next(t *testing.T) string {
	t.Helper()
	return wait.Receive(t, "a line", w.lines)
}

// runWith runs a command until ctx ends.
func runWith(ctx context.Context, out *lineWriter, args ...string) error {
	env := command.New(&console.Console{In: strings.NewReader(""), Out: out, Err: out})
	defer env.Close()
	root := cli.Root(env, nil)
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// all returns every line so far.
func (w *lineWriter) all() string {
	var b strings.Builder
	for {
		select {
		case l := <-w.lines:
			b.WriteString(l + "\n")
		default:
			return b.String()
		}
	}
}
