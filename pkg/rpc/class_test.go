package rpc

import (
	"bytes"
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// newClassFixture is a server with limits of connections over TLS, and the unix
// socket at the returned path.
func newClassFixture(t *testing.T, limits ConnLimits) (r *fixture, socket string) {
	t.Helper()
	r = &fixture{echo: newEchoServer(), pki: newPKI(t), client: ClientOptions{RetryFor: -1}}
	srv, err := NewServer(ServerOptions{TLS: r.pki.server(t), Conns: limits})
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
	socket = filepath.Join(t.TempDir(), "s")
	u, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	r.serve(t, u)
	return r, socket
}

func (r *fixture) as(t *testing.T, name string) *fixture {
	return &fixture{srv: r.srv, echo: r.echo, pki: r.pki, target: r.target, client: ClientOptions{RetryFor: -1, TLS: r.pki.client(t, name, RoleAdmin)}}
}

// inClass is how many connections the server counts in a class.
func (r *fixture) inClass(c class) int {
	r.srv.mu.Lock()
	defer r.srv.mu.Unlock()
	if c == classHandshake {
		return len(r.srv.admission.handshakes)
	}
	return r.srv.admission.count[c]
}

// TestStrangersFillOnlyTheirClass: however many connections strangers hold, or
// leave in the handshake, the socket and holders of certificates get in.
func TestStrangersFillOnlyTheirClass(t *testing.T) {
	r, socket := newClassFixture(t, ConnLimits{Local: 1, Certified: 1, Anonymous: 2, Handshakes: 3, AnonymousIdle: time.Minute})
	stranger := r.as(t, "")
	stranger.dial(t)
	stranger.dial(t)
	if _, err := Dial(t.Context(), r.target, stranger.client); !errs.Is(err, errs.Unavailable) {
		t.Fatalf("one stranger too many: %v", err)
	}
	var silent []net.Conn
	for range 20 {
		nc, err := net.Dial("tcp", r.target)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		silent = append(silent, nc)
	}
	// The oldest of the silent ones make room.
	if err := silent[0].SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := silent[0].Read(make([]byte, 1)); err == nil {
		t.Error("a silent peer was answered")
	} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Error("the oldest handshake still holds its place")
	}
	wait.For(t, "the limit of handshakes", func() bool { return r.inClass(classHandshake) <= 3 })
	if _, err := call(t, r.as(t, "holder").dial(t), mWrite, &echoMsg{}); err != nil {
		t.Errorf("a holder of a certificate: %v", err)
	}
	local := &fixture{target: socket, client: ClientOptions{RetryFor: -1}}
	if _, err := call(t, local.dial(t), mWrite, &echoMsg{}); err != nil {
		t.Errorf("the socket: %v", err)
	}
}

// TestConnectionsBeyondTheLimitAreRefused: in each class, until a connection of
// the class ends.
func TestConnectionsBeyondTheLimitAreRefused(t *testing.T) {
	r, socket := newClassFixture(t, ConnLimits{Local: 2, Certified: 2, Anonymous: 2})
	for c, peer := range map[class]*fixture{
		classLocal:     {target: socket, client: ClientOptions{RetryFor: -1}},
		classCertified: r.as(t, "holder"),
		classAnonymous: r.as(t, ""),
	} {
		first := peer.dial(t)
		peer.dial(t)
		if _, err := Dial(t.Context(), peer.target, peer.client); !errs.Is(err, errs.Unavailable) {
			t.Errorf("the third %s connection: %v", c, err)
		}
		first.Close()
		wait.For(t, "room", func() bool { return r.inClass(c) < 2 })
		peer.dial(t)
	}
}

// TestIdleAnonymousConnectionsAreClosed: connections without a call and
// connections whose call never ends; no others.
func TestIdleAnonymousConnectionsAreClosed(t *testing.T) {
	r, _ := newClassFixture(t, ConnLimits{AnonymousIdle: 50 * time.Millisecond})
	holder := r.as(t, "holder").dial(t)
	if _, err := call(t, holder, mEcho, &echoMsg{}); err != nil {
		t.Fatal(err)
	}
	kept := holder.cur.Load()
	idle := r.as(t, "").dial(t)
	if _, err := call(t, idle, mPublic, &echoMsg{}); err != nil {
		t.Fatal(err)
	}
	stuck := r.as(t, "").dial(t)
	// A call whose request never comes to its end.
	c := stuck.cur.Load()
	st := &stream{notify: make(chan struct{}, 1), sendReady: make(chan struct{}, 1)}
	b := &buffer{b: make([]byte, maxInline+1)}
	if err := c.start(t.Context(), st, &mPublic.MethodInfo, "id", b); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the strangers to be gone", func() bool { return r.inClass(classAnonymous) == 0 })
	if holder.cur.Load() != kept || !kept.usable() {
		t.Error("a connection with a certificate was closed")
	}
	// The client connects again when it calls.
	if _, err := call(t, idle, mPublic, &echoMsg{}); err != nil {
		t.Error(err)
	}
}

// TestConnectionLimitsAreChecked: limits that admit nothing are refused.
func TestConnectionLimitsAreChecked(t *testing.T) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS13}
	if _, err := NewServer(ServerOptions{TLS: cfg, Conns: ConnLimits{Local: -1}}); !errs.Is(err, errs.InvalidArgument) {
		t.Error(err)
	}
}

// TestStrangerThatReadsNothing: a stranger who sends and reads nothing has the server keep few of the answers.
func TestStrangerThatReadsNothing(t *testing.T) {
	r, _ := newClassFixture(t, ConnLimits{AnonymousIdle: time.Hour})
	cfg := r.pki.client(t, "")
	cfg.NextProtos = []string{alpn}
	nc, err := tls.Dial("tcp", r.target, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	greet(t, nc)
	wait.For(t, "the connection", func() bool { return r.inClass(classAnonymous) == 1 })
	pings := bytes.Repeat(frame(header{typ: framePing}, make([]byte, 8)), 1<<12)
	sent := 0
	for err == nil && sent < 32<<20 { // less than a peer with an identity may leave unread; buffers of sockets hold some of it
		var n int
		n, err = nc.Write(pings)
		sent += n
	}
	if err == nil {
		t.Errorf("the server keeps the answers to %d bytes", sent)
	}
	wait.For(t, "the end of the connection", func() bool { return r.inClass(classAnonymous) == 0 })
}
