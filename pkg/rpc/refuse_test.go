package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// refusals is a ServerOptions.Refuse of names.
type refusals struct {
	mu    sync.Mutex
	names map[string]bool
}

func (r *refusals) add(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names[name] = true
}

func (r *refusals) refuse(id Identity) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.names[id.Name] {
		return errs.New(errs.Unauthenticated, "the certificate of %s was revoked", id.Name)
	}
	return nil
}

func newRefusingFixture(t *testing.T) (*fixture, *refusals) {
	t.Helper()
	r, refused := &fixture{echo: newEchoServer(), pki: newPKI(t), client: ClientOptions{RetryFor: -1}}, &refusals{names: map[string]bool{}}
	srv, err := NewServer(ServerOptions{TLS: r.pki.server(t), Refuse: refused.refuse})
	if err != nil {
		t.Fatal(err)
	}
	r.srv = srv
	srv.Register(echoService, r.echo)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.target = l.Addr().String()
	r.serve(t, l)
	return r, refused
}

// TestRefusedIdentityLosesItsConnections: calls and streams under way are
// cancelled with the reason, later calls do not start, the handshake is
// refused, and other connections stay.
func TestRefusedIdentityLosesItsConnections(t *testing.T) {
	r, refused := newRefusingFixture(t)
	alice, bob := r.as(t, "alice"), r.as(t, "bob")
	a, b := alice.dial(t), bob.dial(t)
	called := make(chan error, 1)
	go func() {
		_, err := call(t, a, mBlock, &echoMsg{})
		called <- err
	}()
	st, err := a.Open(t.Context(), &mHold.MethodInfo, &echoMsg{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	<-r.echo.entered
	<-r.echo.entered
	kept := b.cur.Load()

	refused.add("alice")
	r.srv.Recheck()
	wantClass(t, <-called, errs.Unauthenticated, Unknown)
	wantClass(t, st.RecvMsg(&echoMsg{}), errs.Unauthenticated, Unknown)
	_, err = call(t, a, mEcho, &echoMsg{})
	wantClass(t, err, errs.Unauthenticated, NotStarted)
	if _, err := Dial(t.Context(), r.target, alice.client); !errs.Is(err, errs.Unauthenticated) || errs.HintOf(err) == "" {
		t.Errorf("a new connection: %v", err)
	}
	wait.For(t, "the connection to be closed", func() bool { return r.inClass(classCertified) == 1 })
	if _, err := call(t, b, mEcho, &echoMsg{}); err != nil || b.cur.Load() != kept {
		t.Errorf("another's connection: %v", err)
	}
}

// TestRefusedCallsDoNotWaitForTheirHandlers: a caller learns why its call ended,
// however long the handler goes on.
func TestRefusedCallsDoNotWaitForTheirHandlers(t *testing.T) {
	r, refused := newRefusingFixture(t)
	a := r.as(t, "alice").dial(t)
	t.Cleanup(func() { close(r.echo.release) })
	st, err := a.Open(t.Context(), &mDeaf.MethodInfo, &echoMsg{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	<-r.echo.entered
	refused.add("alice")
	r.srv.Recheck()
	wantClass(t, st.RecvMsg(&echoMsg{}), errs.Unauthenticated, Unknown)
}

// TestRefusedPeerCannotLinger: a peer that neither hangs up nor reads is
// closed, and the frames that it sends meanwhile have no effect.
func TestRefusedPeerCannotLinger(t *testing.T) {
	r, refused := newRefusingFixture(t)
	cl := r.as(t, "alice").dial(t)
	if _, err := call(t, cl, mEcho, &echoMsg{}); err != nil {
		t.Fatal(err)
	}
	go func() { // does not return by itself
		_, _ = call(t, cl, mBlock, &echoMsg{})
	}()
	<-r.echo.entered
	done := r.echo.calls.Load()
	c := cl.cur.Load()
	refused.add("alice")
	r.srv.Recheck()
	// A connection of a peer that ignores GOAWAY.
	c.mu.Lock()
	c.draining = false
	c.mu.Unlock()
	deadline := time.Now().Add(10 * time.Second)
	for c.usable() && time.Now().Before(deadline) {
		_ = c.call(t.Context(), &mWrite.MethodInfo, "id", &echoMsg{}, &echoMsg{})
	}
	wait.For(t, "the connection to be closed", func() bool { return r.inClass(classCertified) == 0 })
	if n := r.echo.calls.Load(); n != done {
		t.Errorf("%d calls were carried out after the refusal", n-done)
	}
}

// TestConnectionEndsWithItsCertificate: calls and streams under way are cancelled
// when the client certificate expires, and later calls do not start.
func TestConnectionEndsWithItsCertificate(t *testing.T) {
	r, _ := newRefusingFixture(t)
	alice, bob := r.as(t, "alice"), r.as(t, "bob")
	cert := r.pki.certUntil(t, time.Now().Add(3*time.Second), "alice", RoleAdmin)
	alice.client.TLS.Certificates = []tls.Certificate{cert}
	a, b := alice.dial(t), bob.dial(t)
	if _, err := call(t, a, mEcho, &echoMsg{}); err != nil {
		t.Fatal(err)
	}
	kept := b.cur.Load()
	st, err := a.Open(t.Context(), &mHold.MethodInfo, &echoMsg{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	wantClass(t, st.RecvMsg(&echoMsg{}), errs.Unauthenticated, Unknown)
	if left := time.Until(leaf.NotAfter); left > 0 {
		t.Errorf("it ended %s before the certificate", left)
	}
	wait.For(t, "the connection to be closed", func() bool { return r.inClass(classCertified) == 1 })
	if _, err := call(t, a, mEcho, &echoMsg{}); err == nil {
		t.Error("a call with the expired certificate succeeded")
	}
	if _, err := call(t, b, mEcho, &echoMsg{}); err != nil || b.cur.Load() != kept {
		t.Errorf("another's connection: %v", err)
	}
}

// TestTwoClosesSendWhatWaits: a connection that is closed twice at once, as by
// two checks in a row, sends its waiting frames first.
func TestTwoClosesSendWhatWaits(t *testing.T) {
	near, far := net.Pipe() // a write waits for its reader
	defer far.Close()
	c := newConn(near, false, Limits{}.withDefaults())
	ran := make(chan error, 1)
	go func() { ran <- c.run() }()
	c.goAway()
	why := errs.New(errs.Unauthenticated, "the key was deleted")
	closed := make(chan struct{}, 2)
	for range 2 {
		go func() {
			c.close(why)
			closed <- struct{}{}
		}()
	}
	rd := newFrameReader(far)
	for {
		h, _, err := rd.next()
		if err != nil {
			t.Fatalf("the connection ended before its frames were read: %v", err)
		}
		if h.typ == frameGoAway {
			break
		}
	}
	<-closed
	<-closed
	if err := <-ran; !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("the connection ended with %v", err)
	}
}
