package rpc

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"net"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// alpn is the application protocol that both sides negotiate within TLS.
const alpn = "runtime-rpc/1"

// ioBuffer is the size of buffers around TLS, in bytes: four records.
const ioBuffer = 68 << 10

// corkedConn is the connection below TLS. It reads ahead, and collects the
// records of one Write, so that each takes one system call and not one per
// record.
type corkedConn struct {
	net.Conn
	r *bufio.Reader

	mu     sync.Mutex
	corked bool
	buf    []byte
}

func newCorkedConn(nc net.Conn) *corkedConn {
	return &corkedConn{Conn: nc, r: bufio.NewReaderSize(nc, ioBuffer)}
}

func (c *corkedConn) Read(p []byte) (int, error) { return c.r.Read(p) }

func (c *corkedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.corked {
		c.buf = append(c.buf, p...)
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *corkedConn) cork() {
	c.mu.Lock()
	c.corked = true
	c.mu.Unlock()
}

// uncork writes the collected records. none reports that the kernel took no
// byte.
func (c *corkedConn) uncork() (none bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = false
	if len(c.buf) == 0 {
		return false, nil
	}
	n, err := c.Conn.Write(c.buf)
	if c.buf = c.buf[:0]; cap(c.buf) > keepBuffer {
		c.buf = nil
	}
	return n == 0, err
}

// tlsConn is a TLS connection over a corkedConn.
type tlsConn struct {
	*tls.Conn
	under *corkedConn
}

func (t *tlsConn) Write(p []byte) (int, error) {
	t.under.cork()
	_, err := t.Conn.Write(p)
	none, uerr := t.under.uncork()
	if err == nil {
		err = uerr
	}
	if none {
		return 0, err
	}
	return len(p), err // part of it may have arrived
}

func prepareTLS(cfg *tls.Config) *tls.Config {
	cfg = cfg.Clone()
	cfg.MinVersion = tls.VersionTLS13
	cfg.NextProtos = []string{alpn}
	cfg.DynamicRecordSizingDisabled = true // one Write becomes one system call
	cfg.SessionTicketsDisabled = true
	return cfg
}

func serverTLS(ctx context.Context, nc net.Conn, cfg *tls.Config, timeout time.Duration) (*tlsConn, error) {
	under := newCorkedConn(nc)
	return shakeHands(ctx, &tlsConn{tls.Server(under, prepareTLS(cfg)), under}, timeout)
}

func clientTLS(ctx context.Context, nc net.Conn, cfg *tls.Config, timeout time.Duration) (*tlsConn, error) {
	under := newCorkedConn(nc)
	return shakeHands(ctx, &tlsConn{tls.Client(under, prepareTLS(cfg)), under}, timeout)
}

func shakeHands(ctx context.Context, t *tlsConn, timeout time.Duration) (*tlsConn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	if p := t.ConnectionState().NegotiatedProtocol; p != alpn {
		return nil, protocolError("the peer does not speak runtime's RPC (it chose %q)", p)
	}
	return t, nil
}

// target is a parsed address of a server.
type target struct {
	network string // unix, tcp
	address string
}

func (t target) String() string {
	if t.network == "unix" {
		return "unix://" + t.address
	}
	return t.address
}

// parseTarget parses unix:///path, /path, tls://host:port and host:port.
func parseTarget(s string) (target, error) {
	bad := func(why string) (target, error) {
		return target{}, errs.New(errs.InvalidArgument, "server address %q: %s", s, why).
			WithHint("use unix:///path/to/server.sock or host:port")
	}
	if p, ok := strings.CutPrefix(s, "unix://"); ok || strings.HasPrefix(s, "/") {
		if !ok {
			p = s
		}
		if !strings.HasPrefix(p, "/") {
			return bad("the path must be absolute")
		}
		return target{"unix", p}, nil
	}
	addr := strings.TrimPrefix(s, "tls://")
	if strings.Contains(addr, "://") {
		return bad("unknown scheme")
	}
	if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" {
		return bad("host and port are needed")
	}
	return target{"tcp", addr}, nil
}

// dial connects and negotiates the protocol.
func (t target) dial(ctx context.Context, cfg *tls.Config, lim Limits, timeout time.Duration) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var d net.Dialer
	nc, err := d.DialContext(ctx, t.network, t.address)
	if err != nil {
		return nil, t.dialError(err)
	}
	raw := nc
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	if t.network == "tcp" {
		if cfg == nil {
			_ = raw.Close()
			return nil, errs.New(errs.InvalidArgument, "%s: a certificate authority or client certificate is needed for servers on the network", t).
				WithHint("use a configuration made by `r auth generate`, or unix:///path/to/server.sock on the server's machine")
		}
		if cfg.ServerName == "" {
			cfg = cfg.Clone()
			cfg.ServerName, _, _ = net.SplitHostPort(t.address)
		}
		if nc, err = clientTLS(ctx, raw, cfg, timeout); err != nil {
			_ = raw.Close()
			return nil, t.tlsError(err)
		}
	}
	c := newConn(nc, true, lim)
	if err := c.handshake(timeout); err != nil {
		_ = raw.Close()
		return nil, t.tlsError(err)
	}
	return c, nil
}

func (t target) dialError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, connRefused):
		return errs.New(errs.Unavailable, "no server listens on %s: %w", t, err).WithHint("start it with `r server start`, or name another with --server")
	case errors.Is(err, fs.ErrPermission):
		return errs.New(errs.PermissionDenied, "no access to %s: %w", t, err).WithHint("run as root, or use a client certificate (`r auth generate`)")
	}
	return errs.New(errs.Unavailable, "connect to %s: %w", t, err)
}

// tlsError explains an error of a handshake, with a hint.
func (t target) tlsError(err error) error {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var alert tls.AlertError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &unknown):
		return errs.New(errs.Unauthenticated, "the server at %s is not the one that this configuration is for: %w", t, err).
			WithHint("generate a new client configuration on the server with `r auth generate`")
	case errors.As(err, &host):
		return errs.New(errs.Unauthenticated, "the certificate of %s is for other names: %w", t, err).
			WithHint("use one of these names, or add this one to the server's configuration")
	case errors.As(err, &invalid):
		return errs.New(errs.Unauthenticated, "the certificate of %s is not valid: %w", t, err)
	case errors.As(err, &alert), strings.HasPrefix(remoteError(err), "tls: "):
		return errs.New(errs.Unauthenticated, "%s refused this client's certificate: %w", t, err).
			WithHint("it may have expired or been revoked; generate a new one with `r auth generate`")
	case errors.As(err, &record):
		return errs.New(errs.FailedPrecondition, "%s does not speak TLS: %w", t, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, connReset):
		return errs.New(errs.Unavailable, "%s closed the connection during the handshake: %w", t, err)
	case errs.ClassOf(err) != errs.Internal && errs.ClassOf(err) != errs.DeadlineExceeded:
		return err
	}
	return errs.New(errs.Unavailable, "handshake with %s: %w", t, err)
}

// remoteError returns the text of an alert that the peer sent, or "".
func remoteError(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return op.Err.Error()
	}
	return ""
}
