package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/testsupport/pebbletest"
	"miren.dev/runtime/testsupport/wait"
)

// acmeClient asks an ingress for hosts by HTTPS, and trusts an authority.
type acmeClient struct {
	address string
	roots   *x509.CertPool
}

// get asks for / on a connection of its own, and returns the body and the names of
// the certificate.
func (c *acmeClient) get(host string) (body string, cert *x509.Certificate, err error) {
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: c.roots}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", c.address)
		},
	}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: wait.Limit}).Get("https://" + host + "/")
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	return string(b), resp.TLS.PeerCertificates[0], err
}

// serves waits until a host is served with a certificate other than one of a serial
// number.
func (c *acmeClient) serves(t *testing.T, host, other string) string {
	t.Helper()
	serial := ""
	wait.NoError(t, host+" is served by HTTPS", func() error {
		body, cert, err := c.get(host)
		if err != nil {
			return err
		}
		if serial = cert.SerialNumber.String(); serial == other || !strings.Contains(body, "v1") {
			return fmt.Errorf("serial %s, %q", serial, body)
		}
		return nil
	}, wait.Within(5*time.Minute))
	return serial
}

// acmeFlags are those of a server that orders from pebble.
func acmeFlags(p *pebbletest.Server, https string, more ...string) []string {
	return append([]string{"--ingress-https-address", https, "--acme-directory", p.Directory, "--acme-ca-file", p.CAFile, "--acme-email", "ops@example.com"}, more...)
}

// TestACME: hosts of routes are served by HTTPS without anybody setting a certificate,
// shown to the authority in each way, and renewed.
func TestACME(t *testing.T) {
	t.Parallel()
	s, err := newServer("acme")
	if err != nil {
		t.Fatal(err)
	}
	https, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	c := &acmeClient{address: fmt.Sprintf("127.0.0.1:%d", https)}
	pebble := pebbletest.Start(t, pebbletest.Config{HTTPPort: s.port, TLSPort: https})
	c.roots = pebble.Roots()
	hook := pebble.Hook()
	s.extra = acmeFlags(pebble, c.address, "--acme-challenges", "http-01", "--acme-domains", "example.com,shop.internal", "--acme-dns-command", hook)
	s.begin(t)
	s.r(t, copyExample(t, "go-http"), "deploy", "--app", "shop")
	for _, host := range []string{"a.example.com", "www.shop.internal", "elsewhere.example.org", "*.w.example.com"} {
		s.r(t, "", "route", "set", host, "--app", "shop")
	}
	first := c.serves(t, "a.example.com", "")
	c.serves(t, "www.shop.internal", "")
	c.serves(t, "any.w.example.com", "")
	list := s.r(t, "", "certificate", "list")
	contains(t, "certificate list", list, "a.example.com", "*.w.example.com", "www.shop.internal", "valid until")
	if strings.Contains(list, "elsewhere") {
		t.Error(list)
	}
	contains(t, "certificate show", s.r(t, "", "certificate", "show", "a.example.com"), "Pebble", pebble.Directory, "renewed at")
	b, err := os.ReadFile(hook + ".log")
	if err != nil || strings.Count(string(b), "cleanup _acme-challenge.w.example.com ") != strings.Count(string(b), "present _acme-challenge.w.example.com ") {
		t.Errorf("%s %v", b, err)
	}
	s.ingressIsConfined(t)

	// A challenge that nobody asked for is not answered, and the path is the app's.
	resp, err := client.Do(request(t, s.port, "a.example.com", "/.well-known/acme-challenge/none"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !strings.Contains(string(text), "v1") && resp.StatusCode != http.StatusNotFound {
		t.Errorf("%s %q %v", resp.Status, text, err)
	}

	s.r(t, "", "certificate", "renew", "a.example.com")
	c.serves(t, "a.example.com", first)
	s.r(t, "", "server", "stop")
	s.extra = acmeFlags(pebble, c.address, "--acme-challenges", "tls-alpn-01")
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.r(t, "", "route", "set", "b.example.com", "--app", "shop")
	second := c.serves(t, "b.example.com", "")
	contains(t, "certificate renew", s.r(t, "", "certificate", "renew", "b.example.com"), "b.example.com")
	c.serves(t, "b.example.com", second)
	s.r(t, "", "route", "set", "*.v.example.com", "--app", "shop")
	wait.NoError(t, "a wildcard needs the hook", func() error {
		if out := s.r(t, "", "certificate", "list"); !strings.Contains(out, "dns-01") {
			return fmt.Errorf("%s", out)
		}
		return nil
	}, wait.Within(converge))

	s.r(t, "", "route", "delete", "b.example.com")
	wait.NoError(t, "the certificate goes with its route", func() error {
		if _, _, err := c.get("b.example.com"); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			return fmt.Errorf("%v", err)
		}
		return nil
	}, wait.Within(converge))
}

// request is one to the ingress of a server by HTTP.
func request(t *testing.T, port int, host, path string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	return req
}

// TestServerKilledInOrder kills the server at each step of an order. The next one ends
// it.
func TestServerKilledInOrder(t *testing.T) {
	t.Parallel()
	https, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	c := &acmeClient{address: fmt.Sprintf("127.0.0.1:%d", https)}
	var pebble *pebbletest.Server
	f := newFaulty(t, "acme-points", func(s *server) {
		pebble = pebbletest.Start(t, pebbletest.Config{HTTPPort: s.port, TLSPort: https})
		s.extra = acmeFlags(pebble, c.address)
	})
	c.roots = pebble.Roots()
	f.r(t, copyExample(t, "go-http"), "deploy", "--app", "shop")
	points := f.trace(t, func() {
		f.r(t, "", "route", "set", "first.example.com", "--app", "shop")
		c.serves(t, "first.example.com", "")
	})
	has(t, points, "certificate", "account", "claim", "ordered", "challenge", "accept", "finalize", "issue", "outcome")
	for i, p := range points {
		if !strings.HasPrefix(p, "certificate/") || strings.HasPrefix(p, "certificate/account/") || p == "certificate/order/"+fault.After {
			continue
		}
		t.Run(p, func(t *testing.T) {
			host := fmt.Sprintf("p%d.example.com", i)
			f.killedAt(t, p, func() { f.attempt(t, "route", "set", host, "--app", "shop") })
			c.serves(t, host, "")
		})
	}
	contains(t, "certificate list", f.r(t, "", "certificate", "list"), "first.example.com")
}
