package ingress

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/testsupport/wait"
)

// routed is oneApp with a route of a host that has settings.
func routed(t testing.TB, settings, path string, addrs ...string) *State {
	t.Helper()
	var s app.RouteSettings
	if err := json.Unmarshal([]byte(settings), &s); err != nil {
		t.Fatal(err)
	}
	st := oneApp(addrs...)
	st.Routes = []Route{{ID: "rt-1", Host: "example.com", Path: path, App: "app-1", Service: "web",
		Settings: settingsOf(&app.Route{Spec: app.RouteSpec{Settings: &s}})}}
	return st
}

// visit asks for a URL of example.com and returns the status and the body.
func visit(t testing.TB, in *running, path string, change func(*http.Request)) (*http.Response, string) {
	t.Helper()
	r := request(t, "GET", in.url+path, "example.com")
	if change != nil {
		change(r)
	}
	resp, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func TestRouteAllow(t *testing.T) {
	up := upstream(t, says("in"))
	in := start(t, Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
	in.install(routed(t, `{"allow": ["10.1.0.0/16", "fd00::/64", "192.0.2.7"]}`, "/", up.URL))
	for from, want := range map[string]int{"10.1.2.3": 200, "fd00::1": 200, "192.0.2.7": 200, "::ffff:10.1.2.3": 200, "10.2.0.1": 403, "fd01::1": 403, "192.0.2.8": 403, "": 403} {
		resp, _ := visit(t, in, "/", func(r *http.Request) { r.Header.Set("X-Forwarded-For", from) })
		if resp.StatusCode != want {
			t.Errorf("from %q: %d, want %d", from, resp.StatusCode, want)
		}
	}
	resp, _ := visit(t, in, "/", func(r *http.Request) { r.Host = testHost; r.Header.Set("X-Forwarded-For", "10.2.0.1") })
	if resp.StatusCode != 403 {
		t.Errorf("the name of the app below the local domain: %d", resp.StatusCode)
	}
	s := oneApp(up.URL)
	s.Routes = []Route{{ID: "rt-1", Host: "example.com", Path: "/", App: "app-1", Service: "web", Settings: `{"of_tomorrow": 1}`}}
	in.install(s)
	if resp, body := visit(t, in, "/", nil); resp.StatusCode != 503 || !strings.Contains(body, "upgrade the ingress") {
		t.Errorf("settings that it does not know: %d %s", resp.StatusCode, body)
	}
}

func TestRouteGateHoldsForEveryWayToWriteItsPath(t *testing.T) {
	up := upstream(t, says("in"))
	in := start(t, Config{})
	s := routed(t, `{"allow": ["192.0.2.1"]}`, "/admin", up.URL)
	s.Routes = append(s.Routes, Route{ID: "rt-2", Host: "example.com", Path: "/", App: "app-1", Service: "web"})
	in.install(s)
	for _, path := range []string{"/admin", "/admin/", "/admin/x", "//admin", "/x/../admin", "/./admin/x", "/%61dmin", "/x/%2e%2e/admin", "/x%2F..%2Fadmin"} {
		r := request(t, "GET", in.url, "example.com")
		r.URL.Opaque = path
		if strings.HasPrefix(path, "//") {
			r.URL.Opaque, r.URL.Path = "", path
		}
		resp, err := client(t).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
	if resp, _ := visit(t, in, "/administrator", nil); resp.StatusCode != 200 {
		t.Errorf("a path beside it: %d", resp.StatusCode)
	}
}

// TestRestrictedAppHasNoLocalName: an app that a route restricts is not open to everyone by its name below the local
// domain, unless a route of that name says so.
func TestRestrictedAppHasNoLocalName(t *testing.T) {
	up := upstream(t, says("in"))
	in := start(t, Config{})
	get := func(host string) (int, string) {
		resp, body := visit(t, in, "/", func(r *http.Request) { r.Host = host; r.Header.Set("Accept", "application/json") })
		return resp.StatusCode, body
	}
	open := routed(t, `{"rate": 100}`, "/", up.URL)
	in.install(open)
	local := open.Apps[0].Name + ".localhost"
	if code, body := get(local); code != http.StatusOK {
		t.Errorf("an app without a restriction: %d %s", code, body)
	}
	preview := routed(t, `{"allow": ["192.0.2.1"]}`, "/", up.URL)
	preview.Routes[0].Preview = "pr-1"
	preview.Apps[0].Versions = append(preview.Apps[0].Versions, Share{Version: "ver-2", Preview: "pr-1"})
	in.install(preview)
	if code, body := get(local); code != http.StatusOK {
		t.Errorf("an app with a preview that is restricted: %d %s", code, body)
	}
	for _, settings := range []string{`{"allow": ["192.0.2.1"]}`, `{"users": {"ann": "[secret]"}}`} {
		closed := routed(t, settings, "/admin", up.URL)
		in.install(closed)
		if code, body := get(local); code != http.StatusForbidden || !strings.Contains(body, "no_route") {
			t.Errorf("%s: %d %s", settings, code, body)
		}
		closed.Routes = append(closed.Routes, Route{ID: "rt-2", Host: local, Path: "/", App: "app-1", Service: "web"})
		in.install(closed)
		if code, body := get(local); code != http.StatusOK {
			t.Errorf("%s, with a route of the name: %d %s", settings, code, body)
		}
	}
}

// TestRouteGateAgainstApps: apps differ in what they make of dot segments, empty segments and
// backslashes. A path is refused if an app may take it for one of another route, which the request
// would need permission for.
func TestRouteGateAgainstApps(t *testing.T) {
	up := upstream(t, says("in"))
	in := start(t, Config{})
	open := Route{ID: "rt-2", Host: "example.com", Path: "/", App: "app-1", Service: "web"}
	admin := routed(t, `{"allow": ["192.0.2.1"]}`, "/admin", up.URL)
	admin.Routes = append(admin.Routes, open)
	get := func(path string) int {
		t.Helper()
		c, err := net.Dial("tcp", in.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n", path)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	in.install(admin)
	for path, want := range map[string]int{
		"/admin/..": 400, "/admin/x/../../y": 400, "/admin/%2e%2e/y": 400, "/admin/..%2fy": 400, `/x\..\admin`: 400, `/\admin`: 400,
		"/x/../admin": 403, "//admin": 403, "/x/../y": 200, "//y": 200, `/a\b`: 200,
		"//x/admin": 400, "///x/admin/y": 400, `/\x/admin`: 400, "//x/y": 200, "http:http://x/admin": 400, "http:/admin": 403,
	} {
		if got := get(path); got != want {
			t.Errorf("%s beside a closed /admin: %d, want %d", path, got, want)
		}
	}
	open.Path = "/public"
	closed := routed(t, `{"allow": ["192.0.2.1"]}`, "/", up.URL)
	closed.Routes = append(closed.Routes, open)
	in.install(closed)
	for path, want := range map[string]int{"/public/x": 200, "/secret/../public": 400, "//public": 400, "/public/./x": 200, "/public/../secret": 403} {
		if got := get(path); got != want {
			t.Errorf("%s beside an open /public: %d, want %d", path, got, want)
		}
	}
	open.Settings = `{"allow": ["127.0.0.1"]}`
	closed.Routes[1] = open
	limited := routed(t, `{"rate": 100}`, "/", up.URL)
	limited.Routes = append(limited.Routes, open)
	in.install(limited)
	if got := get("//public"); got != 200 {
		t.Errorf("a path of two routes, of which the other one is open: %d", got)
	}
}

func TestRouteRate(t *testing.T) {
	up := upstream(t, says("in"))
	in := start(t, Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
	in.install(routed(t, `{"rate": 1, "burst": 3}`, "/", up.URL))
	from := func(ip string) int {
		resp, _ := visit(t, in, "/", func(r *http.Request) { r.Header.Set("X-Forwarded-For", ip) })
		if resp.StatusCode == 429 && resp.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		return resp.StatusCode
	}
	count := func(ips ...string) (n int) {
		for i := range 20 {
			if from(ips[i%len(ips)]) == 200 {
				n++
			}
		}
		return n
	}
	if n := count("2001:db8::1", "2001:db8::2"); n < 3 || n > 10 { // more than 3 only if 20 requests take seconds
		t.Errorf("%d of 20 requests of one network passed", n)
	}
	if from("2001:db8:0:1::1") != 200 {
		t.Error("another network is refused too")
	}
	in.install(routed(t, `{"rate": 1, "burst": 3}`, "/", up.URL)) // a new table has the same counts
	if n := count("2001:db8::3"); n > 5 {
		t.Errorf("%d requests passed after a new table", n)
	}
}

func TestLimiterIsBounded(t *testing.T) {
	l := newLimiter(1, 1)
	ip := netip.MustParseAddr("10.0.0.0")
	for range maxClients + 1000 {
		if !l.allow(ip) {
			t.Fatalf("the first request of %s is refused", ip)
		}
		ip = ip.Next()
	}
	if n := len(l.clients); n > maxClients {
		t.Errorf("%d clients", n)
	}
}

func TestRouteUsers(t *testing.T) {
	seen := make(chan string, 10)
	up := upstream(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header.Get("Authorization") })
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	in := start(t, Config{})
	in.install(routed(t, `{"users": {"ann": "[secret]"}}`, "/", up.URL))
	as := func(user, password string) *http.Response {
		resp, _ := visit(t, in, "/", func(r *http.Request) {
			if user != "" {
				r.SetBasicAuth(user, password)
			}
		})
		return resp
	}
	if r := as("ann", "right"); r.StatusCode != 503 {
		t.Errorf("before the passwords are known: %d", r.StatusCode)
	}
	in.passwords.install([]Password{{Route: "rt-1", User: "ann", Hash: string(hash)}, {Route: "rt-2", User: "bob", Hash: string(hash)}})
	for range 2 { // the second time it is known
		if r := as("ann", "right"); r.StatusCode != 200 {
			t.Fatalf("the right password: %d", r.StatusCode)
		}
		if a := <-seen; a != "" {
			t.Errorf("the app got %q", a)
		}
	}
	for user, password := range map[string]string{"": "", "ann": "wrong", "bob": "right"} {
		if r := as(user, password); r.StatusCode != 401 || !strings.HasPrefix(r.Header.Get("WWW-Authenticate"), "Basic ") {
			t.Errorf("%s %s: %d", user, password, r.StatusCode)
		}
	}
	if r := as("ann", strings.Repeat("x", 73)); r.StatusCode != 401 {
		t.Errorf("a long password: %d", r.StatusCode)
	}
	other, err := bcrypt.GenerateFromPassword([]byte("new"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	in.passwords.install([]Password{{Route: "rt-1", User: "ann", Hash: string(other)}})
	if r := as("ann", "right"); r.StatusCode != 401 {
		t.Errorf("the old password: %d", r.StatusCode)
	}
	if r := as("ann", "new"); r.StatusCode != 200 {
		t.Errorf("the new password: %d", r.StatusCode)
	}
}

func TestPasswordsAreKept(t *testing.T) {
	file := t.TempDir() + "/passwords"
	want := []Password{{Route: "rt-1", User: "ann", Hash: "h"}}
	in := start(t, Config{PasswordFile: file, Passwords: func(context.Context) ([]Password, error) { return want, nil }})
	wait.For(t, "the passwords", func() bool { return (*in.passwords.set.Load())[userKey{"rt-1", "ann"}] == "h" })
	in.stop()
	again := start(t, Config{PasswordFile: file})
	if (*again.passwords.set.Load())[userKey{"rt-1", "ann"}] != "h" {
		t.Error("a new process does not know them")
	}
}

func TestRouteTimeoutAndBody(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
			return
		}
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	})
	in := start(t, Config{Logger: quiet, MaxBodyBytes: 1000})
	in.install(routed(t, `{"timeout": "1s", "max_body_bytes": 100}`, "/", up.URL))
	begin := time.Now()
	if resp, _ := visit(t, in, "/slow", nil); resp.StatusCode != http.StatusGatewayTimeout || time.Since(begin) > wait.Limit/2 {
		t.Errorf("slow: %d after %v", resp.StatusCode, time.Since(begin))
	}
	for _, tt := range []struct {
		host   string
		length int
		want   int
	}{{"example.com", 100, 200}, {"example.com", 101, 413}, {testHost, 1000, 200}, {testHost, 1001, 413}} {
		for _, chunked := range []bool{false, true} {
			r := request(t, "POST", in.url, tt.host)
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", tt.length))), int64(tt.length)
			if chunked {
				r.ContentLength = -1
			}
			resp, err := client(t).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != tt.want {
				t.Errorf("%s %d bytes, chunked %v: %d, want %d", tt.host, tt.length, chunked, resp.StatusCode, tt.want)
			}
		}
	}
	in.install(routed(t, `{"max_body_bytes": 5000}`, "/", up.URL))
	r := request(t, "POST", in.url, "example.com")
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 1001))), 1001
	resp, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 413 {
		t.Errorf("more than the ingress permits: %d", resp.StatusCode)
	}
}

func TestMaintenanceAndOwnPages(t *testing.T) {
	up := upstream(t, says("in"))
	in := start(t, Config{})
	s := routed(t, `{"error_pages": {"503": "<p>ours</p>", "default": "<p>other</p>"}, "allow": ["127.0.0.1"]}`, "/", up.URL)
	s.Apps[0].Away = away(&app.App{Spec: app.AppSpec{Maintenance: &app.Maintenance{Message: "Moving house."}}})
	s.Routes = append(s.Routes, Route{ID: "rt-2", Host: testHost, Path: "/", App: "app-1", Service: "web"})
	in.install(s)
	html := func(r *http.Request) { r.Header.Set("Accept", "text/html,*/*") }
	if resp, body := visit(t, in, "/", html); resp.StatusCode != 503 || body != "<p>ours</p>" || resp.Header.Get("Retry-After") == "" {
		t.Errorf("for people: %d %s", resp.StatusCode, body)
	}
	if resp, body := visit(t, in, "/", nil); resp.StatusCode != 503 || !strings.Contains(body, "Moving house.") {
		t.Errorf("for programs: %d %s", resp.StatusCode, body)
	}
	if resp, body := visit(t, in, "/", func(r *http.Request) { html(r); r.Host = testHost }); resp.StatusCode != 503 || !strings.Contains(body, "Moving house.") {
		t.Errorf("at another address of the app: %d %s", resp.StatusCode, body)
	}
	s = routed(t, `{"error_pages": {"503": "<p>ours</p>", "default": "<p>other</p>"}, "allow": ["192.0.2.1"]}`, "/", up.URL)
	in.install(s)
	if resp, body := visit(t, in, "/", html); resp.StatusCode != 403 || body != "<p>other</p>" {
		t.Errorf("default: %d %s", resp.StatusCode, body)
	}
}

func TestSticky(t *testing.T) {
	one, two, three := upstream(t, says("1")), upstream(t, says("2")), upstream(t, says("3"))
	in := start(t, Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
	in.install(routed(t, `{"sticky": true}`, "/", one.URL, two.URL, three.URL))
	resp, first := visit(t, in, "/", nil)
	cookies := resp.Cookies()
	if len(cookies) != 1 || cookies[0].Name != stickyCookie || !cookies[0].HttpOnly || cookies[0].Secure {
		t.Fatalf("cookies %v", cookies)
	}
	resp, _ = visit(t, in, "/", func(r *http.Request) { r.Header.Set("X-Forwarded-Proto", "https") })
	if c := resp.Cookies(); len(c) != 1 || !c[0].Secure {
		t.Errorf("cookies of a client of HTTPS: %v", c)
	}
	with := func(r *http.Request) { r.AddCookie(cookies[0]) }
	for range 20 {
		resp, body := visit(t, in, "/", with)
		if body != first || len(resp.Cookies()) != 0 {
			t.Fatalf("the answer of %s, not %s; cookies %v", body, first, resp.Cookies())
		}
	}
	all := map[string]bool{}
	for range 60 {
		_, body := visit(t, in, "/", nil)
		all[body] = true
	}
	if len(all) != 3 {
		t.Errorf("without the cookie: %v", all)
	}
	left := map[string][]string{"1": {two.URL, three.URL}, "2": {one.URL, three.URL}, "3": {one.URL, two.URL}}[first]
	in.install(routed(t, `{"sticky": true}`, "/", left...))
	if resp, body := visit(t, in, "/", with); body == first || len(resp.Cookies()) != 1 {
		t.Errorf("after its sandbox went: %s, cookies %v", body, resp.Cookies())
	}
}
