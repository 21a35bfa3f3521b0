// Package upgrade opens connections for RPC through an HTTP listener whose
// callers have API keys. The client asks to switch protocols,
//
//	GET /rpc HTTP/1.1
//	Connection: Upgrade
//	Upgrade: runtime-rpc/1
//	Authorization: Bearer KEY
//
// and after the server's answer 101 the connection is one of package rpc, with the
// identity of the key. The client sends nothing of it before that answer.
package upgrade

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Path is where the server switches protocols, and Protocol to what.
const (
	Path     = "/rpc"
	Protocol = "runtime-rpc/1"
)

// maxProblem bounds the body of a refusal, in bytes.
const maxProblem = 64 << 10

// ParseURL checks the address of an HTTP listener, https://HOST[:PORT] without a
// path. Plain http is for addresses of this machine, since the key would be
// readable on the way.
func ParseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	bad := func(why string) (*url.URL, error) {
		return nil, errs.New(errs.InvalidArgument, "server %q: %s", s, why).WithHint("give it as https://HOST:PORT")
	}
	switch {
	case err != nil:
		return bad("it is no URL")
	case u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return bad("it is no URL of https")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "":
		return bad("it has more than a host and a port")
	case u.Scheme == "http" && u.Hostname() != "localhost" && !net.ParseIP(u.Hostname()).IsLoopback():
		return bad("without TLS the API key could be read on the way")
	}
	u.Path = ""
	return u, nil
}

// Dial opens a connection for RPC through the listener at base, from ParseURL.
// cfg verifies the server; it is not used for plain http. The error is
// Unauthenticated if the key is not valid.
func Dial(ctx context.Context, base *url.URL, cfg *tls.Config, key string) (net.Conn, error) {
	port := base.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[base.Scheme]
	}
	address := net.JoinHostPort(base.Hostname(), port)
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "connect to %s: %w", base, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	nc, err := upgraded(ctx, raw, base, cfg, key)
	if !stop() && err == nil {
		err = errs.New(errs.Unavailable, "connect to %s: %w", base, context.Cause(ctx))
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return nc, nil
}

// upgraded switches protocols on a connection.
func upgraded(ctx context.Context, raw net.Conn, base *url.URL, cfg *tls.Config, key string) (net.Conn, error) {
	nc := raw
	if base.Scheme == "https" {
		if cfg == nil {
			cfg = &tls.Config{}
		}
		if cfg = cfg.Clone(); cfg.ServerName == "" {
			cfg.ServerName = base.Hostname()
		}
		cfg.MinVersion, cfg.NextProtos = max(cfg.MinVersion, tls.VersionTLS12), []string{"http/1.1"}
		t := tls.Client(raw, cfg)
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, tlsError(base, err)
		}
		nc = t
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(Path).String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", Protocol)
	req.Header.Set("Authorization", "Bearer "+key)
	if err := req.Write(nc); err != nil {
		return nil, errs.New(errs.Unavailable, "connect to %s: %w", base, err)
	}
	r := bufio.NewReader(nc)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "connect to %s: %w", base, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != Protocol {
		defer resp.Body.Close()
		return nil, refusal(base, resp)
	}
	return &readAhead{nc, r}, nil
}

func tlsError(base *url.URL, err error) error {
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return errs.New(errs.Unauthenticated, "the certificate of %s: %w", base, err).
			WithHint("name the authority that signed it with `r auth login --ca FILE`")
	}
	return errs.New(errs.Unavailable, "connect to %s: %w", base, err)
}

// refusal is the error for an answer that does not switch protocols.
func refusal(base *url.URL, resp *http.Response) error {
	class := errs.FailedPrecondition
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		class = errs.Unauthenticated
	case resp.StatusCode == http.StatusForbidden:
		class = errs.PermissionDenied
	case resp.StatusCode == http.StatusTooManyRequests:
		class = errs.ResourceExhausted
	case resp.StatusCode >= http.StatusInternalServerError:
		class = errs.Unavailable
	}
	var problem struct{ Detail, Hint string }
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if media == "application/problem+json" {
		_ = json.NewDecoder(io.LimitReader(resp.Body, maxProblem)).Decode(&problem) // the status says enough
	}
	if problem.Detail == "" {
		return errs.New(class, "%s does not offer RPC: it answered %s", base, resp.Status).
			WithHint("the address must be that of the server's HTTP API (api.address)")
	}
	err := errs.New(class, "%s: %s", base, problem.Detail)
	if problem.Hint != "" {
		return err.WithHint("%s", problem.Hint)
	}
	return err
}

// readAhead is a connection of which some bytes were read.
type readAhead struct {
	net.Conn
	r *bufio.Reader
}

func (c *readAhead) Read(p []byte) (int, error) { return c.r.Read(p) }

// Wanted reports whether a request asks to switch to Protocol.
func Wanted(r *http.Request) bool {
	if r.ProtoMajor != 1 || r.Method != http.MethodGet || r.Header.Get("Upgrade") != Protocol {
		return false
	}
	for _, field := range r.Header.Values("Connection") {
		for name := range strings.SplitSeq(field, ",") {
			if strings.EqualFold(strings.TrimSpace(name), "Upgrade") {
				return true
			}
		}
	}
	return false
}

// acceptTimeout bounds the answer that switches protocols.
const acceptTimeout = 10 * time.Second

// Accept switches protocols and returns the connection, which the caller owns. It
// has answered nothing if it returns an error of class FailedPrecondition.
func Accept(w http.ResponseWriter) (net.Conn, error) {
	nc, b, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "switch protocols: %w", err)
	}
	if b.Reader.Buffered() > 0 {
		_ = nc.Close()
		return nil, errs.New(errs.InvalidArgument, "the client did not wait for the answer")
	}
	_ = nc.SetDeadline(time.Now().Add(acceptTimeout))
	_, err = io.WriteString(nc, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+Protocol+"\r\n\r\n")
	if err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = nc.Close()
		return nil, errs.New(errs.Unavailable, "switch protocols: %w", err)
	}
	return nc, nil
}
