package server

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/wait"
)

// serviceDialer serves DialService alone: after the byte 0 serve has the call.
type serviceDialer struct {
	sandbox.Sandboxes
	serve func(ctx context.Context, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error
}

func (d serviceDialer) DialService(ctx context.Context, _ *sandbox.DialRequest, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	if _, err := st.Writer().Write([]byte{0}); err != nil {
		return err
	}
	return d.serve(ctx, st)
}

// dialTest returns a connection to serve through RPC, as the ingress makes it.
func dialTest(t *testing.T, serve func(ctx context.Context, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error) net.Conn {
	t.Helper()
	srv, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	sandbox.RegisterSandboxes(srv, serviceDialer{serve: serve})
	cl := srv.Local(ingressIdentity)
	t.Cleanup(cl.Close)
	c, err := dialService(t.Context(), sandbox.NewSandboxesClient(cl), "sb-1", 80)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetReadDeadline(time.Now().Add(wait.Limit)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestServiceConn: bytes of both directions, a half-closed connection, and the end of the call.
func TestServiceConn(t *testing.T) {
	c := dialTest(t, func(_ context.Context, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
		b, err := io.ReadAll(st.Reader())
		if err == nil {
			_, err = st.Writer().Write(append([]byte("got "), b...))
		}
		return err
	})
	if _, err := io.WriteString(c, "a request"); err != nil {
		t.Fatal(err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "got a request" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestServiceConnFails: a call that fails does not look like the end of an answer, however it is read.
func TestServiceConnFails(t *testing.T) {
	for name, read := range map[string]func(net.Conn) error{
		"Read":    func(c net.Conn) error { _, err := io.ReadAll(struct{ io.Reader }{c}); return err },
		"WriteTo": func(c net.Conn) error { _, err := io.Copy(io.Discard, c); return err },
	} {
		c := dialTest(t, func(_ context.Context, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
			if _, err := st.Writer().Write([]byte("half an ans")); err != nil {
				return err
			}
			return errs.New(errs.Unavailable, "the runner is lost")
		})
		if err := read(c); !errs.Is(err, errs.Unavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestServiceConnDeadline: a deadline that passes ends one read, and not the connection. Its end ends the call.
func TestServiceConnDeadline(t *testing.T) {
	ended, answer := make(chan struct{}), make(chan struct{})
	c := dialTest(t, func(ctx context.Context, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
		defer close(ended)
		<-answer
		_, err := st.Writer().Write([]byte("late"))
		<-ctx.Done()
		return err
	})
	if err := c.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := c.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	close(answer)
	if err := c.SetReadDeadline(time.Now().Add(wait.Limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "late" {
		t.Errorf("%q, %v", b, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	wait.Receive(t, "the end of the call", ended)
}
