package rpcserver

import (
	"context"
	"io"
	"testing"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/errs"
)

// ending is the stream of a call that ends with an error.
type ending struct {
	execStream
	err error
}

func (e ending) Recv() (*sandbox.ExecInput, error) { return nil, e.err }

// listener is a process that notices the end of its input.
type listener struct {
	sandboxes.Process
	closed int
}

func (l *listener) Stdin() io.WriteCloser       { return l }
func (l *listener) Write(b []byte) (int, error) { return len(b), nil }
func (l *listener) Close() error                { l.closed++; return nil }

// TestInputEndsWithItsCaller: the end of the caller's stream ends the input of a
// process; the stop of the server does not, since the process goes on.
func TestInputEndsWithItsCaller(t *testing.T) {
	for _, c := range []struct {
		name     string
		err      error
		detached bool
		closed   int
	}{
		{"the caller's end", io.EOF, false, 1},
		{"the caller's end, detached", io.EOF, true, 0},
		{"the server stops", errs.New(errs.Unavailable, "the server is shutting down"), false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &listener{}
			input(context.Background(), ending{err: c.err}, p, c.detached)
			if p.closed != c.closed {
				t.Errorf("the input was closed %d times, want %d", p.closed, c.closed)
			}
		})
	}
}
