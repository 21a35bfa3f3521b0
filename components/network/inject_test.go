package network

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/private"
)

// TestInjectedSecrets: a server gets the secret that the sandbox does not have,
// by TLS that the proxy ends; all other TLS passes unread.
func TestInjectedSecrets(t *testing.T) {
	if !private.Run(t) {
		return
	}
	const value = "the-value"
	roots := filepath.Join(t.TempDir(), "roots.pem")
	m := startWith(t, Config{Roots: roots, Secret: func(_ context.Context, reference, host string) (string, error) {
		if reference != "proj-1/api" || host != "example.com" {
			return "", errs.New(errs.NotFound, "no secret %s", reference)
		}
		return value, nil
	}})
	w := newInternet(t)
	stop := m.runsUntil(t)
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	site, good := netip.MustParseAddrPort("203.0.113.80:443"), netip.MustParseAddrPort("203.0.113.81:443")
	injected := func(allow, secret string) egress.Policy {
		t.Helper()
		host, err := egress.ParseRule("example.com")
		if err != nil {
			t.Fatal(err)
		}
		p, err := egress.Parse("list", strings.Fields(allow), nil, egress.Injection{Host: host, Secret: secret, Header: "Authorization", Format: "Bearer {}"})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	a := attachWith(t, m, "a", injected("www.good.example", "proj-1/api"))
	// ask asks the server for the hash of the header that it got. The client trusts the proxy's authority alone.
	ask := func() (string, error) {
		t.Helper()
		authority, err := m.Authority()
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(authority)
		tr := &http.Transport{
			DialContext:     func(context.Context, string, string) (net.Conn, error) { return dialFrom(t, a.NetNS, site, later) },
			TLSClientConfig: &tls.Config{RootCAs: pool},
		}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr, Timeout: later}).Get("https://example.com/authorization")
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", resp.Status, b)
		}
		return string(b), err
	}
	want := fmt.Sprintf("%x", sha256.Sum256([]byte("Bearer "+value)))
	gets := func(when string) {
		t.Helper()
		if got, err := ask(); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", when, got, err, want)
		}
	}
	if got, err := resolve(t, a.NetNS, "example.com", netip.AddrPortFrom(m.gateway(), 53), dnsmessage.TypeA, later); err != nil || len(got) != 1 {
		t.Errorf("the name of the host: %q, %v", got, err)
	}
	gets("at first")
	// Port 80 of the host is not permitted; a host without a rule is the server's own TLS.
	if fetch(t, a.NetNS, "example.com", netip.AddrPortFrom(site.Addr(), 80), soon) == nil {
		t.Error("the rule for HTTPS opens plain HTTP")
	}
	c, err := dialFrom(t, a.NetNS, good, later)
	if err != nil {
		t.Fatal(err)
	}
	plain := clientTLS(c, "www.good.example")
	if err := plain.Handshake(); err != nil || !plain.ConnectionState().PeerCertificates[0].Equal(w.cert) {
		t.Errorf("a host without a rule: %v", err)
	}
	plain.Close()

	// What is kept of the policy has no value.
	kept, err := os.ReadFile(filepath.Join(m.leaseDir(), "a"))
	if err != nil || !strings.Contains(string(kept), "proj-1/api") || strings.Contains(string(kept), value) {
		t.Errorf("%s, %v", kept, err)
	}
	setPolicy(t, m, "a", injected("", "proj-1/deleted"))
	if got, err := ask(); err == nil || !strings.Contains(err.Error(), "403") || !strings.Contains(err.Error(), "deleted") {
		t.Errorf("a secret that does not exist: %s, %v", got, err)
	}
	setPolicy(t, m, "a", policy(t, "list", "example.com", ""))
	if _, err := ask(); !errors.As(err, new(*tls.CertificateVerificationError)) {
		t.Errorf("without the rule the proxy still ends the TLS: %v", err)
	}
	setPolicy(t, m, "a", injected("", "proj-1/api"))
	gets("set again")

	stop()
	before, err := m.Authority()
	if err != nil {
		t.Fatal(err)
	}
	m = New(m.cfg)
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.runs(t)
	if again, err := m.Authority(); err != nil || string(again) != string(before) {
		t.Errorf("another authority after a restart: %v", err)
	}
	gets("after a restart")
}
