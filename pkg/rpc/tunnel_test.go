package rpc

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// reverse is a service by which a caller lets the server call it.
type reverse struct{ clients chan *Client }

var mTunnel = &Method{
	MethodInfo: MethodInfo{Service: "test.Reverse", Name: "Tunnel", Full: "test.Reverse/Tunnel", Permission: "write", Stream: StreamBidi},
	Streaming: func(ctx context.Context, impl any, _ Decoder, st Stream) error {
		ended := make(chan struct{})
		cl, err := NewConnClient(NewTunnel(st, st, func() { close(ended) }), ClientOptions{})
		if err != nil {
			return err
		}
		impl.(*reverse).clients <- cl
		select {
		case <-ended:
		case <-ctx.Done():
		}
		return nil
	},
}

// back is a server of a fixture that calls the program which dialled it.
type back struct {
	client *Client // the server's client of the program
	echo   *echoServer
	st     Stream     // the program's stream
	served chan error // receives the end of the program's serving
}

func newBack(t *testing.T, r *fixture) *back {
	t.Helper()
	rev := &reverse{clients: make(chan *Client, 1)}
	r.srv.Register(&Service{Name: "test.Reverse", Methods: []*Method{mTunnel}}, rev)
	near, err := NewServer(ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b := &back{echo: newEchoServer(), served: make(chan error, 1)}
	near.Register(echoService, b.echo)
	t.Cleanup(near.Close)
	if b.st, err = r.dial(t).Open(t.Context(), &mTunnel.MethodInfo, &None{}); err != nil {
		t.Fatal(err)
	}
	go func() {
		b.served <- near.ServeConn(NewTunnel(b.st, b.st, func() { _ = b.st.Close() }), Identity{Name: "server", Roles: []string{RoleAdmin}, How: "tunnel"})
	}()
	b.client = wait.Receive(t, "the server has a client", rev.clients)
	t.Cleanup(b.client.Close)
	return b
}

// TestCallsInTheOtherDirection: a server calls the program that dialled it, with
// streams in both directions, while that program calls the server.
func TestCallsInTheOtherDirection(t *testing.T) {
	eachTransport(t, func(t *testing.T, r *fixture) {
		b := newBack(t, r)
		if resp, err := call(t, b.client, mPublic, &echoMsg{}); err != nil || resp.Text != "server" {
			t.Fatalf("%q, %v", resp.Text, err)
		}
		sink, err := b.client.Open(t.Context(), &mSink.MethodInfo, &echoMsg{})
		if err != nil {
			t.Fatal(err)
		}
		defer sink.Close()
		const size = 20 << 20 // more than every window
		if _, err := io.Copy(sink, bytes.NewReader(make([]byte, size))); err != nil {
			t.Fatal(err)
		}
		if err := sink.CloseSend(); err != nil {
			t.Fatal(err)
		}
		var m echoMsg
		if err := sink.RecvMsg(&m); err != nil || m.N != size {
			t.Fatalf("%d bytes arrived, %v", m.N, err)
		}
		if _, err := call(t, r.dial(t), mEcho, &echoMsg{}); err != nil {
			t.Error(err)
		}
	})
}

// TestReasonOfAClosedClient: a call that comes after the end of a tunnel was not
// canceled by its caller.
func TestReasonOfAClosedClient(t *testing.T) {
	b := newBack(t, newFixture(t, "tls", Limits{}))
	b.client.CloseWith(errs.New(errs.Unavailable, "the connection has ended"))
	if _, err := call(t, b.client, mEcho, &echoMsg{}); !errs.Is(err, errs.Unavailable) || OutcomeOf(err) != NotStarted {
		t.Errorf("%v (%s)", err, errs.ClassOf(err))
	}
}

// stuck is the stream of a peer that reads nothing, until the call ends.
type stuck struct{ ended chan struct{} }

func (s stuck) Read([]byte) (int, error)  { <-s.ended; return 0, io.ErrClosedPipe }
func (s stuck) Write([]byte) (int, error) { <-s.ended; return 0, io.ErrClosedPipe }

// TestPeerOfATunnelThatReadsNothing: a write ends at its deadline, with the tunnel.
func TestPeerOfATunnelThatReadsNothing(t *testing.T) {
	s := stuck{make(chan struct{})}
	nc := NewTunnel(s, s, func() { close(s.ended) })
	if err := nc.SetWriteDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := nc.Write([]byte("x"))
		failed <- err
	}()
	if err := wait.Receive(t, "the write ends", failed); err == nil {
		t.Error("written")
	}
}

// TestEndOfATunnel: calls through it fail as unavailable, and what serves it
// returns, whichever side ends it.
func TestEndOfATunnel(t *testing.T) {
	for name, end := range map[string]func(b *back, r *fixture){
		"program":    func(b *back, _ *fixture) { _ = b.st.Close() },
		"server":     func(b *back, _ *fixture) { b.client.Close() },
		"connection": func(_ *back, r *fixture) { r.srv.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(t, "tls", Limits{})
			b := newBack(t, r)
			failed := make(chan error, 1)
			go func() {
				_, err := call(t, b.client, mBlock, &echoMsg{})
				failed <- err
			}()
			wait.Receive(t, "the call has begun", b.echo.entered)
			end(b, r)
			if err := wait.Receive(t, "the call ends", failed); !errs.Is(err, errs.Unavailable) && !errs.Is(err, errs.Canceled) {
				t.Errorf("the call ended with %v", err)
			}
			if err := wait.Receive(t, "the program serves no more", b.served); err != nil {
				t.Error(err)
			}
			if _, err := call(t, b.client, mEcho, &echoMsg{}); !errs.Is(err, errs.Unavailable) && !errs.Is(err, errs.Canceled) {
				t.Errorf("a call after it: %v", err)
			}
		})
	}
}
