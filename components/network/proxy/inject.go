package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// header is one that the proxy adds to a request. Its value has a secret: it is
// never logged or recorded.
type header struct {
	name, value string
	secret      string // name of the secret
}

type headers []header

// secrets returns the names of the secrets.
func (h headers) secrets() string {
	var names []string
	for _, x := range h {
		names = append(names, x.secret)
	}
	return strings.Join(names, ",")
}

// headersFor returns the headers to add to a request for a name. PermissionDenied
// if a secret was deleted or may not be sent there, or the policy no longer has one for a connection whose
// TLS was ended for that.
func (p *Proxy) headersFor(ctx context.Context, c *webConn, name string) (headers, error) {
	_, policy, ok := p.policyOf(c.guest)
	if !ok {
		return nil, errs.New(errs.PermissionDenied, "the sandbox is gone")
	}
	rules := policy.Injections(name, c.to.Port())
	if len(rules) == 0 && c.server != "" {
		return nil, errs.New(errs.PermissionDenied, "the network policy of the sandbox was changed")
	}
	var added headers
	for _, r := range rules {
		secret := path.Base(r.Secret)
		value, err := p.secret(ctx, r, name)
		switch {
		case errs.Is(err, errs.NotFound):
			return nil, errs.New(errs.PermissionDenied, "the secret %s for %s does not exist", secret, printable(name))
		case errs.Is(err, errs.PermissionDenied):
			return nil, errs.New(errs.PermissionDenied, "the secret %s may not be sent to %s", secret, printable(name))
		case err != nil:
			p.cfg.Logger.Warn("cannot inject a secret", "secret", secret, "error", err)
			return nil, errs.New(errs.Unavailable, "the secret %s for %s cannot be used; the log of the server says why", secret, printable(name))
		}
		added = append(added, header{name: r.Header, value: value, secret: secret})
	}
	return added, nil
}

// secret returns the value of the header of a rule, for a request to a host.
func (p *Proxy) secret(ctx context.Context, r egress.Injection, host string) (string, error) {
	if p.cfg.Secret == nil {
		return "", errs.New(errs.FailedPrecondition, "this proxy has no secrets")
	}
	v, err := p.cfg.Secret(ctx, r.Secret, egress.Canonical(host))
	if err != nil {
		return "", err
	}
	return r.Value(v)
}

// Certificate returns the certificate of the authority, as PEM. Guests for which
// a secret is injected must trust it.
func (p *Proxy) Certificate() ([]byte, error) { return p.ca.certificate() }

// terminate ends the TLS of a connection, whose ClientHello was read already, and
// has the HTTP server serve the requests in it. The server that they go to is
// verified by its certificate for the same name.
func (p *Proxy) terminate(ctx context.Context, c *conn, name string, hello []byte) {
	p.mu.Lock()
	c.terminated = true
	p.mu.Unlock()
	r := egress.Record{Protocol: "https", Name: name, Address: c.to.Addr(), Port: c.to.Port()}
	if err := p.permit(ctx, c, name); err != nil {
		r.Reason = reason(err)
		p.record(c.guest, r)
		return
	}
	r.Allowed = true
	leaf, err := p.ca.leaf(egress.Canonical(name), time.Now())
	var pool *x509.CertPool
	if err == nil {
		pool, err = p.roots.load()
	}
	if err != nil {
		p.cfg.Logger.Error("cannot end TLS to inject a secret", "host", printable(name), "error", err)
		r.Reason = "the log of the server says why TLS cannot be ended"
		p.record(c.guest, r)
		return
	}
	wc := p.newWebConn(c, name)
	wc.first = hello
	wc.transport.TLSClientConfig = &tls.Config{ServerName: name, RootCAs: pool, MinVersion: tls.VersionTLS12}
	wc.transport.TLSHandshakeTimeout = dialTimeout
	wc.transport.ForceAttemptHTTP2 = true
	t := tls.Server(wc, &tls.Config{Certificates: []tls.Certificate{*leaf}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12})
	hctx, cancel := context.WithTimeout(ctx, helloTimeout)
	err = t.HandshakeContext(hctx)
	cancel()
	if err != nil { // such as a program with a list of authorities of its own
		r.Reason = "TLS with the sandbox: " + err.Error()
		p.record(c.guest, r)
		return
	}
	p.web.take(wc, t)
}

// roots are the certificates by which the servers are verified that get secrets.
type roots struct {
	path string // besides those of the machine; empty: none

	mu      sync.Mutex
	pool    *x509.CertPool
	changed time.Time // of the file
}

// load returns the pool, which it reads again if the file was changed.
func (r *roots) load() (*x509.CertPool, error) {
	var changed time.Time
	if r.path != "" {
		info, err := os.Stat(r.path)
		if err != nil {
			return nil, errs.New(errs.FailedPrecondition, "certificates of authorities: %w", err)
		}
		changed = info.ModTime()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pool != nil && changed.Equal(r.changed) {
		return r.pool, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "the machine's certificates of authorities: %w", err)
	}
	if r.path != "" {
		b, err := os.ReadFile(r.path)
		if err != nil {
			return nil, errs.New(errs.FailedPrecondition, "certificates of authorities: %w", err)
		}
		pool.AppendCertsFromPEM(b)
	}
	r.pool, r.changed = pool, changed
	return pool, nil
}
