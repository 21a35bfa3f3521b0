package rpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log/slog"
	"math/big"
	"net"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// The service that the tests call, written as rpcgen would.

type echoMsg struct {
	Text string `cbor:"1,keyasint,omitempty"`
	Data []byte `cbor:"2,keyasint,omitempty"`
	N    int64  `cbor:"3,keyasint,omitempty"`
}

type echoServer struct {
	calls   atomic.Int64
	sources atomic.Int64  // handlers of Source that have begun
	entered chan struct{} // receives a value when a blocking handler has begun
	release chan struct{} // lets blocking handlers go
}

func newEchoServer() *echoServer {
	return &echoServer{entered: make(chan struct{}, 1000), release: make(chan struct{})}
}

func unary(name, perm string, idempotent bool, f func(s *echoServer, ctx context.Context, req *echoMsg) (*echoMsg, error)) *Method {
	return &Method{
		MethodInfo: MethodInfo{Service: "test.Echo", Name: name, Full: "test.Echo/" + name, Permission: perm, Idempotent: idempotent, Stream: StreamNone},
		Unary: func(ctx context.Context, impl any, d Decoder) (any, error) {
			req := new(echoMsg)
			if err := d.Decode(req); err != nil {
				return nil, err
			}
			return f(impl.(*echoServer), ctx, req)
		},
	}
}

func streaming(name, perm string, t StreamType, f func(s *echoServer, ctx context.Context, req *echoMsg, st Stream) error) *Method {
	return &Method{
		MethodInfo: MethodInfo{Service: "test.Echo", Name: name, Full: "test.Echo/" + name, Permission: perm, Stream: t},
		Streaming: func(ctx context.Context, impl any, d Decoder, st Stream) error {
			req := new(echoMsg)
			if err := d.Decode(req); err != nil {
				return err
			}
			return f(impl.(*echoServer), ctx, req, st)
		},
	}
}

var (
	mEcho = unary("Echo", "read", true, func(s *echoServer, _ context.Context, req *echoMsg) (*echoMsg, error) {
		s.calls.Add(1)
		return req, nil
	})
	mPublic = unary("Public", Public, true, func(_ *echoServer, ctx context.Context, _ *echoMsg) (*echoMsg, error) {
		return &echoMsg{Text: IdentityFrom(ctx).String()}, nil
	})
	mFail = unary("Fail", "read", false, func(_ *echoServer, _ context.Context, req *echoMsg) (*echoMsg, error) {
		return nil, errs.New(errs.Class(req.Text), "it failed: %d", 7).WithHint("try %s", "again").With("key", "value")
	})
	mPanic = unary("Panic", "read", false, func(*echoServer, context.Context, *echoMsg) (*echoMsg, error) { panic("oh") })
	mWrite = unary("Write", "write", false, func(s *echoServer, _ context.Context, req *echoMsg) (*echoMsg, error) {
		s.calls.Add(1)
		return req, nil
	})
	// Block waits until released or its context ends.
	mBlock = unary("Block", "read", false, func(s *echoServer, ctx context.Context, req *echoMsg) (*echoMsg, error) {
		s.calls.Add(1)
		s.entered <- struct{}{}
		select {
		case <-s.release:
			return req, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	// Deaf waits until released, whatever becomes of its call.
	mDeaf = streaming("Deaf", "read", StreamServer, func(s *echoServer, _ context.Context, _ *echoMsg, _ Stream) error {
		s.entered <- struct{}{}
		<-s.release
		return nil
	})
	mMeta = unary("Meta", "read", false, func(_ *echoServer, ctx context.Context, _ *echoMsg) (*echoMsg, error) {
		m := ctx.Value(keyCall).(*serverCall).method
		d, _ := ctx.Deadline()
		return &echoMsg{Text: RequestID(ctx) + "," + Trace(ctx) + "," + m.Name, N: time.Until(d).Milliseconds()}, nil
	})
	// Count sends N messages.
	mCount = streaming("Count", "read", StreamServer, func(_ *echoServer, _ context.Context, req *echoMsg, st Stream) error {
		for i := range req.N {
			if err := st.SendMsg(&echoMsg{N: i, Data: req.Data}); err != nil {
				return err
			}
		}
		if req.Text != "" {
			return errs.New(errs.Conflict, "%s", req.Text)
		}
		return nil
	})
	// Chat sends back what it gets.
	mChat = streaming("Chat", "read", StreamBidi, func(_ *echoServer, _ context.Context, _ *echoMsg, st Stream) error {
		for {
			var m echoMsg
			err := st.RecvMsg(&m)
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			if err := st.SendMsg(&m); err != nil {
				return err
			}
		}
	})
	// Sink reads raw bytes and answers with their number.
	mSink = streaming("Sink", "write", StreamBidi, func(_ *echoServer, _ context.Context, _ *echoMsg, st Stream) error {
		n, err := io.Copy(io.Discard, struct{ io.Reader }{st})
		if err != nil {
			return err
		}
		return st.SendMsg(&echoMsg{N: n})
	})
	// Source sends raw bytes until the caller has enough.
	mSource = streaming("Source", "read", StreamServer, func(s *echoServer, _ context.Context, req *echoMsg, st Stream) error {
		s.sources.Add(1)
		chunk := make([]byte, req.N)
		for {
			if _, err := st.Write(chunk); err != nil {
				return err
			}
			s.calls.Add(1)
		}
	})
	// Hold keeps its stream open.
	mHold = streaming("Hold", "read", StreamServer, func(s *echoServer, ctx context.Context, _ *echoMsg, _ Stream) error {
		s.entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	echoService = &Service{Name: "test.Echo", Methods: []*Method{
		mEcho, mPublic, mFail, mPanic, mWrite, mBlock, mMeta, mCount, mChat, mSink, mSource, mHold, mDeaf,
	}}
)

// testPKI is a certificate authority with a server and clients.
type testPKI struct {
	ca   *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
	n    int64
}

func newPKI(t testing.TB) *testPKI {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	p := &testPKI{ca: ca, key: key, pool: x509.NewCertPool(), n: 1}
	p.pool.AddCert(ca)
	return p
}

func (p *testPKI) cert(t testing.TB, name string, roles ...string) tls.Certificate {
	t.Helper()
	return p.certUntil(t, time.Now().Add(time.Hour), name, roles...)
}

func (p *testPKI) certUntil(t testing.TB, end time.Time, name string, roles ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.n++
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(p.n), Subject: pkix.Name{CommonName: name, Organization: roles},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: end, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, p.ca, &key.PublicKey, p.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (p *testPKI) server(t testing.TB) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{p.cert(t, "server")},
		ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: p.pool,
	}
}

func (p *testPKI) client(t testing.TB, name string, roles ...string) *tls.Config {
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: p.pool}
	if name != "" {
		cfg.Certificates = []tls.Certificate{p.cert(t, name, roles...)}
	}
	return cfg
}

// fixture is a server with a listener and what a client needs to reach it.
type fixture struct {
	srv    *Server
	echo   *echoServer
	pki    *testPKI
	target string
	client ClientOptions
}

func newFixture(t testing.TB, network string, lim Limits) *fixture {
	t.Helper()
	r := &fixture{echo: newEchoServer(), client: ClientOptions{Limits: lim, RetryFor: -1}}
	opts := ServerOptions{Limits: lim, Logger: slog.New(slog.DiscardHandler)}
	if network == "tls" {
		r.pki = newPKI(t)
		opts.TLS = r.pki.server(t)
		r.client.TLS = r.pki.client(t, "tester", RoleAdmin)
	}
	srv, err := NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	r.srv = srv
	srv.Register(echoService, r.echo)
	var l net.Listener
	if network == "tls" {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	} else {
		l, err = net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	}
	if err != nil {
		t.Fatal(err)
	}
	r.target = l.Addr().String()
	r.serve(t, l)
	return r
}

func (r *fixture) serve(t testing.TB, l net.Listener) {
	done := make(chan error, 1)
	go func() { done <- r.srv.Serve(l) }()
	srv := r.srv
	t.Cleanup(func() {
		srv.Close()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

func (r *fixture) dial(t testing.TB) *Client {
	t.Helper()
	cl, err := Dial(t.Context(), r.target, r.client)
	if err != nil {
		t.Fatalf("dial %s: %v", r.target, err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// eachTransport runs f over a unix socket and over TLS.
func eachTransport(t *testing.T, f func(t *testing.T, r *fixture)) {
	for _, network := range []string{"unix", "tls"} {
		t.Run(network, func(t *testing.T) { f(t, newFixture(t, network, Limits{})) })
	}
}

func wantClass(t testing.TB, err error, c errs.Class, o Outcome) {
	t.Helper()
	if !errs.Is(err, c) || OutcomeOf(err) != o {
		t.Fatalf("error %v: class %q outcome %s, want %q and %s", err, errs.ClassOf(err), OutcomeOf(err), c, o)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
