package ingress

import (
	"context"
	"errors"
	"io"
	"net"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/testsupport/need"
)

// connect connects to a listener as the ingress does. The connection is swept
// until the test ends.
func connect(ctx context.Context, t *testing.T, l net.Listener) (*upConn, net.Conn, error) {
	b := &backend{Sandbox: Sandbox{Address: l.Addr().String()}, dial: func(ctx context.Context, address string) (net.Conn, error) {
		return newDialer(time.Second).DialContext(ctx, "tcp", address)
	}}
	c, err := b.get(ctx, true)
	if err != nil {
		return nil, nil, err
	}
	peer, err := l.Accept()
	if err != nil {
		c.discard()
		return nil, nil, err
	}
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		tick := time.NewTicker(idleConnLife / 2)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				b.sweep(time.Time{}, false)
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		<-swept
		c.discard()
		if len(b.open) > 0 {
			t.Errorf("%d connections are known after they were closed", len(b.open))
		}
	})
	return c, peer, nil
}

// TestSandboxGone: a sandbox that vanishes together with its network refuses
// nothing and answers nothing. A waiting client still gets an error, also when
// the sandbox had acknowledged the whole request.
func TestSandboxGone(t *testing.T) {
	need.Root(t)
	for _, sent := range []bool{true, false} {
		name := "waiting"
		if sent {
			name = "sending"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := make(chan *upConn)
			cut := make(chan struct{})
			go func() {
				defer close(conn)
				runtime.LockOSThread() // never unlocked: the thread ends, and the namespace with it
				if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
					t.Error(err)
					return
				}
				link := func(state string) {
					if out, err := exec.Command("ip", "link", "set", "lo", state).CombinedOutput(); err != nil {
						t.Errorf("%v: %s", err, out)
					}
				}
				link("up")
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Error(err)
					return
				}
				defer l.Close()
				c, peer, err := connect(t.Context(), t, l)
				if err != nil {
					t.Error(err)
					return
				}
				defer peer.Close()
				link("down")
				conn <- c
				<-cut
			}()
			c := <-conn
			if c == nil {
				return
			}
			defer close(cut)
			if sent {
				if _, err := c.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
					t.Fatal(err)
				}
			}
			ended := make(chan error, 1)
			began := time.Now()
			go func() { _, err := c.Read(make([]byte, 1)); ended <- err }()
			most := 3*unheard + probeAfter
			select {
			case err := <-ended:
				t.Logf("after %v: %v", time.Since(began).Round(time.Millisecond), err)
				if err == nil || errors.Is(err, io.EOF) || sent != c.gone.Load() {
					t.Errorf("it ends with %v, gone %v", err, c.gone.Load())
				}
			case <-time.After(most):
				t.Errorf("it took more than %v", most)
			}
		})
	}
}

// TestSlowReader: an app may leave sent data unread for any time. Its kernel
// then announces a full window, which counts as a sign of life.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, peer, err := connect(t.Context(), t, l)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	const size = 32 << 20
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, size))
		if err == nil {
			err = c.Conn.(*net.TCPConn).CloseWrite()
		}
		sent <- err
	}()
	select {
	case err := <-sent:
		t.Fatalf("nobody reads, and the write ends with %v", err)
	case <-time.After(3 * unheard): // wait this long: the test asserts that nothing happens
	}
	got, err := io.Copy(io.Discard, peer)
	if werr := <-sent; err != nil || werr != nil || got != size {
		t.Errorf("%d bytes arrived: %v, %v", got, err, werr)
	}
}
