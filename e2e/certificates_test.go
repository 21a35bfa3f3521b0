package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	h2client "golang.org/x/net/http2"

	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// TestCertificates: a host is served by HTTPS with the certificate of its project,
// also by the next ingress process, until the certificate is
// deleted.
func TestCertificates(t *testing.T) {
	t.Parallel()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	s := own(t, "certificates", "--ingress-https-address", address)
	s.r(t, copyExample(t, "go-http"), "deploy", "--app", "tls")
	s.r(t, "", "route", "set", "tls.example.com", "--app", "tls")

	ca := tlstest.New(t)
	dir := t.TempDir()
	set := func(names ...string) string {
		t.Helper()
		chain, key := ca.Issue(t, names...)
		for name, text := range map[string]string{"cert.pem": chain, "key.pem": key} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return s.r(t, dir, "certificate", "set", "tls", "--cert", "cert.pem", "--key", "key.pem")
	}
	// get asks on a connection of its own, and returns the names of the certificate.
	get := func(scheme, addr string) (*http.Response, string, error) {
		tr := &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: ca.Pool()}, ForceAttemptHTTP2: true, DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			},
		}
		defer tr.CloseIdleConnections()
		c := &http.Client{Transport: tr, Timeout: wait.Limit, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		resp, err := c.Get(scheme + "://tls.example.com/")
		if err != nil {
			return nil, "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return resp, string(b), err
	}
	served := func(what, name string) {
		t.Helper()
		wait.NoError(t, what, func() error {
			resp, body, err := get("https", address)
			if err != nil {
				return err
			}
			if names := resp.TLS.PeerCertificates[0].DNSNames; resp.StatusCode != 200 || resp.ProtoMajor != 2 || !strings.Contains(body, "v1") || names[0] != name {
				return fmt.Errorf("%s %s %q, certificate for %q", resp.Proto, resp.Status, body, names)
			}
			return nil
		}, wait.Within(converge))
	}

	if _, _, err := get("https", address); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("without a certificate: %v", err)
	}
	contains(t, "certificate set", set("tls.example.com"), "tls.example.com")
	served("the first certificate is served", "tls.example.com")
	resp, _, err := get("http", fmt.Sprintf("127.0.0.1:%d", s.port))
	if err != nil || resp.StatusCode != http.StatusPermanentRedirect || resp.Header.Get("Location") != "https://tls.example.com"+address[strings.LastIndex(address, ":"):]+"/" {
		t.Errorf("by HTTP: %v %v", resp, err)
	}
	// The ingress offers WebSockets by HTTP/2; this app answers one as a plain request.
	h2 := &h2client.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: "tls.example.com"}}
	defer h2.CloseIdleConnections()
	opening := &http.Request{Method: http.MethodConnect, URL: &url.URL{Scheme: "https", Host: address, Path: "/"}, Host: "tls.example.com",
		Header: http.Header{":protocol": {"websocket"}, "Sec-Websocket-Version": {"13"}}}
	if resp, err := h2.RoundTrip(opening.WithContext(t.Context())); err != nil || resp.StatusCode != http.StatusBadGateway {
		t.Errorf("a WebSocket by HTTP/2: %v %v", resp, err)
	}
	contains(t, "certificate list", s.r(t, "", "certificate", "list"), "tls.example.com", "valid until")
	contains(t, "certificate show", s.r(t, "", "certificate", "show", "tls"), "CN=test authority")

	set("*.example.com")
	served("the second certificate is served", "*.example.com")
	s.ingressIsConfined(t)
	if err := syscall.Kill(s.pid(t, "ingress"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	served("the next ingress serves the certificate", "*.example.com")

	s.r(t, "", "certificate", "delete", "tls")
	wait.NoError(t, "the deleted certificate is not served", func() error {
		if _, _, err := get("https", address); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			return fmt.Errorf("%v", err)
		}
		return nil
	}, wait.Within(converge))
}
