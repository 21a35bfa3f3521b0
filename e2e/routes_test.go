package e2e

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"miren.dev/runtime/testsupport/wait"
)

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
	g.run("r app maintenance on", "is on")
	html := func(r *http.Request) { r.Header.Set("Accept", "text/html") }
	answers("/", http.StatusServiceUnavailable, html, func(_ *http.Response, body string) bool { return body == "<p>busy</p>" })
	g.run("r app maintenance off", "is off")
	g.run("r route configure shop.example.com --reset")
	answers("/", http.StatusOK, html, nil)
	s.r(t, "", "route", "delete", "shop.example.com", "--path", "/admin")
	s.r(t, "", "route", "delete", "shop.example.com")
}
