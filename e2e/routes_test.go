package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/oidctest"
	"miren.dev/runtime/testsupport/tlstest"
	"miren.dev/runtime/testsupport/wait"
)

// visit opens a route that demands a login as a browser does.
func visit(t *testing.T, s *server, provider *oidctest.Provider) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if strings.HasPrefix(addr, "shop.example.com:") {
			addr = fmt.Sprintf("127.0.0.1:%d", s.port)
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://shop.example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	resp, err := (&http.Client{Jar: jar, Transport: tr}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || provider.Logins() != 1 {
		t.Errorf("a visitor who logs in: %s, %d logins", resp.Status, provider.Logins())
	}
}

// testTCPRoute leads a port to an app: what the client sends reaches it as it is.
func testTCPRoute(t *testing.T, s *server, app string, port int) {
	number := strconv.Itoa(port)
	if res := s.try(t, "", "route", "set", "--tcp", "1999", "--app", app); res.Code == 0 || !strings.Contains(res.Stderr, "ingress.tcp_ports") {
		t.Errorf("a port that the operator does not give: %s", res)
	}
	contains(t, "route set --tcp", s.r(t, "", "route", "set", "--tcp", number, "--app", app, "--service", "web", "--idle", "30m", "--allow", "127.0.0.0/8"), "port "+number)
	contains(t, "route list", s.r(t, "", "route", "list"), "tcp:"+number)
	wait.NoError(t, "the app answers at the port", func() error {
		resp, err := client.Get("http://127.0.0.1:" + number + "/")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("X-Request-Id") != "" {
			return fmt.Errorf("%s %q %v", resp.Status, b, err)
		}
		return nil
	}, wait.Within(converge))
	if res := s.try(t, "", "route", "set", "--tcp", number, "--host", "own.example.com", "--passthrough", "--app", app); res.Code == 0 || !strings.Contains(res.Stderr, "gets every connection") {
		t.Errorf("a name at a port that has a route for all: %s", res)
	}
	s.r(t, "", "route", "delete", "--tcp", number)
	testTCPByName(t, s, app, number)
}

// testTCPByName leads connections of one port to services by the server name of TLS.
func testTCPByName(t *testing.T, s *server, app, number string) {
	ca, dir := tlstest.New(t), t.TempDir()
	chain, key := ca.Issue(t, "db.example.com")
	for name, text := range map[string]string{"cert.pem": chain, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.r(t, dir, "certificate", "set", "db", "--cert", "cert.pem", "--key", "key.pem")
	contains(t, "route set --host", s.r(t, "", "route", "set", "--tcp", number, "--host", "db.example.com", "--tls", "--app", app, "--service", "web"), "db.example.com at port "+number)
	s.r(t, "", "route", "set", "--tcp", number, "--host", "own.example.com", "--passthrough", "--app", app, "--service", "web")
	contains(t, "route list", s.r(t, "", "route", "list"), "tcp:"+number+"/db.example.com", "tcp:"+number+"/own.example.com")
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: "db.example.com"}}
	defer tr.CloseIdleConnections()
	wait.NoError(t, "the app answers by the name", func() error {
		resp, err := (&http.Client{Transport: tr, Timeout: wait.Limit}).Get("https://127.0.0.1:" + number + "/")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	}, wait.Within(converge))
	if c, err := tls.Dial("tcp", "127.0.0.1:"+number, &tls.Config{RootCAs: ca.Pool(), ServerName: "other.example.com"}); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		if err == nil {
			c.Close()
		}
		t.Errorf("a name without a route: %v", err)
	}
	s.r(t, "", "route", "delete", "--tcp", number, "--host", "own.example.com")
	s.r(t, "", "route", "delete", "--tcp", number, "--host", "db.example.com")
	s.r(t, "", "certificate", "delete", "db")
}

// testRoutesGuide runs the commands of docs/routes.md for an app that serves.
func testRoutesGuide(t *testing.T, s *server, app string) {
	g := newGuide(t, s, "routes")
	g.words["--app shop"] = "--app " + app
	g.file("busy.html", "<p>busy</p>")
	// answers waits until the host answers with a status, since the ingress follows
	// the server.
	answers := func(path string, want int, change func(*http.Request), check func(*http.Response, string) bool) {
		t.Helper()
		wait.NoError(t, fmt.Sprintf("%s answers %d", path, want), func() error {
			req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", s.port, path), nil)
			if err != nil {
				return err
			}
			req.Host = "shop.example.com"
			if change != nil {
				change(req)
			}
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				return err
			}
			if resp.StatusCode != want || check != nil && !check(resp, string(b)) {
				return fmt.Errorf("%s %v %s", resp.Status, resp.Header, b)
			}
			return nil
		}, wait.Within(converge))
	}
	g.run("r route set")
	g.run("r route configure", "configured shop.example.com/")
	answers("/", http.StatusOK, nil, func(r *http.Response, _ string) bool { return r.Header.Get("Set-Cookie") != "" })
	g.run("r route configure shop.example.com --rate")
	g.run("r route configure shop.example.com --error-page")
	g.run("r route set shop.example.com --path /admin")
	g.run("ADMIN_PASSWORD=", "configured shop.example.com/admin")
	answers("/admin", http.StatusUnauthorized, nil, nil)
	answers("/x/../admin", http.StatusUnauthorized, func(r *http.Request) { r.SetBasicAuth("ann", "wrong") }, nil)
	right := func(r *http.Request) { r.SetBasicAuth("ann", "long and secret") }
	ofApp := func(_ *http.Response, body string) bool { return body == "404 page not found\n" }
	answers("/admin", http.StatusNotFound, right, ofApp)
	g.run("r route configure shop.example.com --path /admin --reset allow")
	answers("/admin", http.StatusNotFound, right, ofApp)
	provider := oidctest.New(t)
	provider.LogsIn(map[string]any{"sub": "u-1", "email": "ann@example.com", "email_verified": true})
	g.words["https://login.example.com"], g.words["--oidc-client-id shop"], g.words["'of the client'"] = provider.URL, "--oidc-client-id "+provider.ID, provider.Secret
	g.run("SECRET=", "configured shop.example.com/")
	answers("/", http.StatusUnauthorized, nil, nil)
	visit(t, s, provider)
	s.r(t, "", "route", "configure", "shop.example.com", "--reset", "oidc")
	answers("/", http.StatusOK, nil, nil)
	g.run("r app maintenance on", "is on")
	html := func(r *http.Request) { r.Header.Set("Accept", "text/html") }
	answers("/", http.StatusServiceUnavailable, html, func(_ *http.Response, body string) bool { return body == "<p>busy</p>" })
	g.run("r app maintenance off", "is off")
	g.run("r route configure shop.example.com --reset")
	answers("/", http.StatusOK, html, nil)
	s.r(t, "", "route", "delete", "shop.example.com", "--path", "/admin")
	s.r(t, "", "route", "delete", "shop.example.com")
}
