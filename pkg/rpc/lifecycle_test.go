package rpc

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// restart stops the fixture's server and serves again at the same path.
func (r *fixture) restart(t *testing.T) {
	t.Helper()
	r.srv.Close()
	srv, err := NewServer(ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.srv = srv
	srv.Register(echoService, r.echo)
	l, err := net.Listen("unix", r.target)
	if err != nil {
		t.Fatal(err)
	}
	r.serve(t, l)
}

func TestClientReconnectsAfterRestart(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	r.client.RetryFor = wait.Limit
	cl := r.dial(t)
	if _, err := call(t, cl, mEcho, &echoMsg{}); err != nil {
		t.Fatal(err)
	}
	r.restart(t)
	// A call is never started on the dead connection, so a call that is not
	// idempotent is repeated too.
	for range 3 {
		if _, err := call(t, cl, mWrite, &echoMsg{}); err != nil {
			t.Fatal(err)
		}
	}
	// While no server listens, calls wait.
	r.srv.Close()
	done := make(chan error, 1)
	go func() {
		_, err := call(t, cl, mWrite, &echoMsg{})
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("a call without a server returned %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	r.restart(t)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := r.echo.calls.Load(); n != 5 {
		t.Errorf("%d calls were carried out, 5 were made", n)
	}
}

// TestRetryUnknown: a call of unknown outcome is repeated only if it is
// idempotent.
func TestRetryUnknown(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	r.client.RetryFor = wait.Limit
	cl := r.dial(t)
	idempotent := mBlock.MethodInfo
	idempotent.Idempotent = true
	for _, c := range []struct {
		name string
		ctx  context.Context
		m    *MethodInfo
		want bool
	}{
		{"plain", t.Context(), &mBlock.MethodInfo, false},
		{"idempotent", t.Context(), &idempotent, true},
		{"marked", WithIdempotent(t.Context()), &mBlock.MethodInfo, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			done := make(chan error, 1)
			go func() { done <- cl.Call(c.ctx, c.m, &echoMsg{}, new(echoMsg)) }()
			<-r.echo.entered
			r.killConns()
			if c.want {
				<-r.echo.entered
				r.echo.release <- struct{}{}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				return
			}
			wantClass(t, <-done, errs.Unavailable, Unknown)
		})
	}
}

func TestDialErrors(t *testing.T) {
	dir := t.TempDir()
	dial := func(target string, opts ClientOptions) error {
		t.Helper()
		began := time.Now()
		opts.DialTimeout = 2 * wait.Limit
		cl, err := Dial(t.Context(), target, opts)
		if err == nil {
			cl.Close()
			t.Fatalf("dial %s succeeded", target)
		}
		if time.Since(began) > wait.Limit {
			t.Errorf("dial %s took %s", target, time.Since(began))
		}
		if errs.HintOf(err) == "" {
			t.Errorf("%v has no hint", err)
		}
		return err
	}
	wantClass(t, dial(filepath.Join(dir, "none"), ClientOptions{}), errs.Unavailable, NotStarted)
	stale := filepath.Join(dir, "stale")
	l, err := net.Listen("unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	wantClass(t, dial("unix://"+stale, ClientOptions{}), errs.Unavailable, NotStarted)

	r := newFixture(t, "tls", Limits{})
	wantClass(t, dial("tls://"+r.target, ClientOptions{}), errs.InvalidArgument, NotStarted)
	other := newPKI(t)
	wantClass(t, dial(r.target, ClientOptions{TLS: other.client(t, "")}), errs.Unauthenticated, NotStarted)
	foreign := r.pki.client(t, "")
	foreign.Certificates = other.client(t, "mallory", RoleAdmin).Certificates
	wantClass(t, dial(r.target, ClientOptions{TLS: foreign}), errs.Unauthenticated, NotStarted)
	wrongName := r.pki.client(t, "x", "viewer")
	wrongName.ServerName = "elsewhere.example"
	wantClass(t, dial(r.target, ClientOptions{TLS: wrongName}), errs.Unauthenticated, NotStarted)

	for _, bad := range []string{"", "x", "host:", ":1", "http://x:1", "unix://rel/path"} {
		if _, err := NewClient(bad, ClientOptions{}); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("target %q: %v", bad, err)
		}
	}
}

// TestDialSilence: a peer that accepts and says nothing.
func TestDialSilence(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = Dial(t.Context(), l.Addr().String(), ClientOptions{DialTimeout: 50 * time.Millisecond})
	wantClass(t, err, errs.Unavailable, NotStarted)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, l.Addr().String(), ClientOptions{})
	wantClass(t, err, errs.DeadlineExceeded, NotStarted)
}

// TestShutdownDrains: calls under way end normally, streams get an error, new
// calls are not started, and the client finds the next server.
func TestShutdownDrains(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	r.client.RetryFor = wait.Limit
	cl := r.dial(t)
	results := make(chan error, 8)
	for range cap(results) {
		go func() {
			_, err := call(t, cl, mBlock, &echoMsg{})
			results <- err
		}()
		<-r.echo.entered
	}
	st := open(t, cl, mHold, &echoMsg{})
	<-r.echo.entered
	old := cl.cur.Load()
	down := make(chan error, 1)
	go func() { down <- r.srv.Shutdown(t.Context()) }()
	wantClass(t, st.RecvMsg(new(echoMsg)), errs.Unavailable, Unknown)
	wait.For(t, "GOAWAY", func() bool { return !old.usable() })
	err := old.call(t.Context(), &mEcho.MethodInfo, "", &echoMsg{}, new(echoMsg))
	wantClass(t, err, errs.Unavailable, NotStarted)
	close(r.echo.release)
	for range cap(results) {
		if err := <-results; err != nil {
			t.Errorf("a call that was under way: %v", err)
		}
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
	r.restart(t)
	if _, err := call(t, cl, mWrite, &echoMsg{}); err != nil {
		t.Error(err)
	}
}

// TestShutdownGivesUp: calls that do not end are ended.
func TestShutdownGivesUp(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	cl := r.dial(t)
	done := make(chan error, 1)
	go func() {
		_, err := call(t, cl, mBlock, &echoMsg{})
		done <- err
	}()
	<-r.echo.entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.srv.Shutdown(ctx); !errs.Is(err, errs.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	wantClass(t, <-done, errs.Unavailable, Unknown)
}

// TestRollingRestarts: a client that calls all the time while the server is
// replaced again and again loses no call.
func TestRollingRestarts(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	r.client.RetryFor = wait.Limit
	cl := r.dial(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var made [4]int64
	for i := range made {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := call(t, cl, mWrite, &echoMsg{}); err != nil {
					t.Errorf("call: %v (%s)", err, OutcomeOf(err))
					return
				}
				made[i]++
			}
		})
	}
	for range 10 {
		before := r.echo.calls.Load()
		wait.For(t, "calls", func() bool { return r.echo.calls.Load() > before+50 })
		if err := r.srv.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.restart(t)
	}
	close(stop)
	wg.Wait()
	if n := made[0] + made[1] + made[2] + made[3]; n != r.echo.calls.Load() {
		t.Errorf("%d calls were made, %d carried out", n, r.echo.calls.Load())
	}
}

// TestHalfOpen: a side gives up a peer that vanished without a message.
func TestHalfOpen(t *testing.T) {
	r := newFixture(t, "unix", Limits{})
	// Between client and server is a proxy that, once told, drops everything.
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "hole"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	swallow := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		a, err := l.Accept()
		if err != nil {
			return
		}
		defer a.Close()
		b, err := net.Dial("unix", r.target)
		if err != nil {
			t.Error(err)
			return
		}
		defer b.Close()
		go func() { _, _ = io.Copy(a, b) }()
		buf := make([]byte, 4096)
		for {
			n, err := a.Read(buf)
			if err != nil {
				return
			}
			select {
			case <-swallow:
			default:
				_, _ = b.Write(buf[:n])
			}
		}
	})
	cl, err := Dial(t.Context(), l.Addr().String(), ClientOptions{RetryFor: -1, Limits: Limits{KeepAlive: 500 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	// Idle for longer than it takes to be given up: pings keep it alive.
	c := cl.cur.Load()
	select {
	case <-c.closed:
		t.Fatalf("an idle connection was given up: %v", c.err)
	case <-time.After(2500 * time.Millisecond):
	}
	close(swallow)
	_, err = call(t, cl, mBlock, &echoMsg{})
	wantClass(t, err, errs.Unavailable, Unknown)
}

// TestStuckPeer: a side gives up a peer that stops reading.
func TestStuckPeer(t *testing.T) {
	r := newFixture(t, "unix", Limits{WriteTimeout: 100 * time.Millisecond})
	nc, err := net.Dial("unix", r.target)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	// Windows that never close, and a peer that does not read.
	h := Limits{}.withDefaults().hello()
	h.streamWindow, h.connWindow = 1<<30, 1<<40
	b := appendHello(nil, h)
	head := appendCallHeader(nil, &callHeader{method: mSource.Full})
	e := getBuffer()
	if err := e.encode(&echoMsg{N: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	b = appendHeader(b, header{typ: frameCall, id: 1, length: len(head) + len(e.b)})
	if _, err := nc.Write(append(append(b, head...), e.b...)); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the call", func() bool { return r.echo.sources.Load() == 1 })
	wait.For(t, "the server to give up", func() bool { return r.conns() == 0 })
}

func TestClientClose(t *testing.T) {
	r := newFixture(t, "tls", Limits{})
	cl := r.dial(t)
	done := make(chan error, 1)
	go func() {
		_, err := call(t, cl, mBlock, &echoMsg{})
		done <- err
	}()
	<-r.echo.entered
	cl.Close()
	wantClass(t, <-done, errs.Canceled, Unknown)
	_, err := call(t, cl, mEcho, &echoMsg{})
	wantClass(t, err, errs.Canceled, NotStarted)
	wait.For(t, "the server to notice", func() bool { return r.conns() == 0 })
}

func TestListenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = dead.Close()
	l, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	if _, err := ListenUnix(path); !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("beside another: %v", err)
	}
	_ = l.Close()
	if l, err = ListenUnix(path); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

// TestServeRefusesPlainTCP: without TLS only unix sockets are served.
func TestServeRefusesPlainTCP(t *testing.T) {
	srv, err := NewServer(ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Serve(l); !errs.Is(err, errs.InvalidArgument) {
		t.Fatal(err)
	}
}
