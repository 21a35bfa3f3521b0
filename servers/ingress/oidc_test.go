package ingress

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/testsupport/oidctest"
	"miren.dev/runtime/testsupport/wait"
)

// gated is an ingress with a route that demands a login.
type gated struct {
	*running
	t        *testing.T
	provider *oidctest.Provider
}

func startGated(t *testing.T, allow []netip.Prefix, own app.RouteOidc) *gated {
	t.Helper()
	g := &gated{t: t, provider: oidctest.New(t)}
	own.ClientID = g.provider.ID
	if own.Issuer == "" {
		own.Issuer = g.provider.URL
	}
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s user=%q email=%q other=%q cookies=%q", r.URL, r.Header.Values("X-Auth-Request-User"), r.Header.Values("X-Auth-Request-Email"), r.Header.Values("X_Auth_Request_User"), r.Header.Values("Cookie"))
	})
	settings, err := json.Marshal(app.RouteSettings{Oidc: &own})
	if err != nil {
		t.Fatal(err)
	}
	st := oneApp(up.URL)
	st.Routes = []Route{{ID: "rt-1", Host: testHost, Path: "/admin", App: "app-1", Settings: string(settings)}, {ID: "rt-2", Host: testHost, Path: "/", App: "app-1"}}
	cfg := Config{TableFile: filepath.Join(t.TempDir(), "table"), OIDCNetworks: allow, Logger: quiet,
		Passwords: func(context.Context) ([]Password, error) {
			return []Password{{"rt-1", app.OidcSecretName, g.provider.Secret}, {"rt-1", app.OidcKeyName, strings.Repeat("7a", 32)}}, nil
		}}
	if err := saveState(cfg.TableFile, st); err != nil {
		t.Fatal(err)
	}
	g.running = start(t, cfg)
	wait.For(t, "the secrets are known", func() bool { return len(*g.passwords.set.Load()) > 1 })
	return g
}

// browser returns a client with cookies that finds the host at the ingress.
func (g *gated) browser() *http.Client {
	jar, err := cookiejar.New(nil)
	if err != nil {
		g.t.Fatal(err)
	}
	d := &net.Dialer{}
	tr := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if strings.HasPrefix(addr, testHost) {
			addr = g.addr
		}
		return d.DialContext(ctx, network, addr)
	}}
	g.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: tr, Timeout: wait.Limit}
}

func (g *gated) open(c *http.Client, path string, change ...func(*http.Request)) (int, string) {
	g.t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+testHost+path, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	for _, f := range change {
		f(req)
	}
	resp, err := c.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// TestLogin: a visitor logs in once, and the app gets who it is; the headers of a
// client are not believed, and the end of the session is one.
func TestLogin(t *testing.T) {
	g := startGated(t, loopback, app.RouteOidc{Emails: []string{"ann@example.com"}, Domains: []string{"example.org"}, Groups: []string{"ops"}})
	g.provider.LogsIn(map[string]any{"sub": "u-1", "email": "Ann@example.com", "email_verified": true})
	c := g.browser()
	forged := func(r *http.Request) {
		r.Header.Set("X-Auth-Request-User", "root")
		r.Header["X_Auth_Request_User"] = []string{"root"}
	}
	want := `/admin/x?y=1 user=["u-1"] email=["ann@example.com"] other=[] cookies=[]`
	for range 2 {
		if code, body := g.open(c, "/admin/x?y=1", forged); code != 200 || body != want {
			t.Fatalf("%d %s", code, body)
		}
	}
	if n := g.provider.Logins(); n != 1 {
		t.Errorf("%d logins", n)
	}
	if code, body := g.open(c, "/", forged); code != 200 || !strings.Contains(body, "root") {
		t.Errorf("a route without a login: %d %s", code, body)
	}
	// Apps do not get the cookies of the ingress: one below /admin could pass the login of /admin with them.
	for path, user := range map[string]string{"/admin": `["u-1"]`, "/": "[]"} {
		code, body := g.open(c, path, func(r *http.Request) {
			r.Header.Set("Cookie", "a=1; "+sessionCookie+"=x; b=\"2\";"+loginCookie+" = x")
		})
		if code != 200 || body != path+" user="+user+" email="+strings.Replace(user, "u-1", "ann@example.com", 1)+` other=[] cookies=["a=1; b=\"2\""]` {
			t.Errorf("cookies: %d %s", code, body)
		}
	}
	// Programs are refused without a way around.
	if code, body := g.open(g.browser(), "/admin", func(r *http.Request) { r.Header.Set("Accept", "application/json") }); code != 401 || !strings.Contains(body, "login_required") {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := g.open(c, "/admin/_auth/logout"); code != 200 {
		t.Error(code)
	}
	g.provider.LogsIn(map[string]any{"sub": "u-2", "email": "eve@example.net", "email_verified": true})
	if code, body := g.open(c, "/admin"); code != 403 || !strings.Contains(body, "not_admitted") {
		t.Errorf("after the logout: %d %s", code, body)
	}
	for _, v := range []struct {
		claims map[string]any
		code   int
	}{
		{map[string]any{"sub": "1", "email": "x@example.org", "email_verified": true}, 200},
		{map[string]any{"sub": "2", "email": "x@example.org"}, 403}, // not verified
		{map[string]any{"sub": "3", "email": "ann@example.com", "email_verified": false}, 403},
		{map[string]any{"sub": "4", "groups": []string{"dev", "ops"}}, 200},
		{map[string]any{"sub": "5", "groups": "ops"}, 200},
		{map[string]any{"sub": "6", "groups": []string{"ops2"}}, 403},
		{map[string]any{"sub": "7\r\nX-Evil: 1", "groups": "ops"}, 403},
		{map[string]any{"groups": "ops"}, 400}, // no subject
	} {
		g.provider.LogsIn(v.claims)
		if code, body := g.open(g.browser(), "/admin"); code != v.code {
			t.Errorf("%v: %d %s", v.claims, code, body)
		}
	}
}

// TestLoginIsBound: a cookie that was changed, or comes from another route or key, and a
// callback that this visitor did not ask for, open nothing.
func TestLoginIsBound(t *testing.T) {
	g := startGated(t, loopback, app.RouteOidc{})
	g.provider.LogsIn(map[string]any{"sub": "u-1"})
	c := g.browser()
	var cookie string
	g.open(c, "/admin")
	g.open(c, "/admin", func(r *http.Request) { // what the jar sends
		for _, k := range c.Jar.Cookies(r.URL) {
			if k.Name == sessionCookie {
				cookie = k.Value
			}
		}
	})
	if cookie == "" {
		t.Fatal("no session")
	}
	with := func(value string) int {
		code, _ := g.open(g.browser(), "/admin", func(r *http.Request) {
			r.Header.Set("Accept", "*/*")
			r.AddCookie(&http.Cookie{Name: sessionCookie, Value: value})
		})
		return code
	}
	flip := []byte(cookie)
	flip[len(flip)/2] ^= 1
	other := &login{gate: &gate{route: "rt-2", path: "/"}}
	foreign := func(l *login, key byte, name string) string {
		aead, err := cookieCipher([]byte(strings.Repeat(string(key), 32)))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(session{User: "root", Expires: 1 << 40})
		return base64URL(aead.Seal(nil, nil, b, l.bound(name)))
	}
	own := &login{gate: &gate{route: "rt-1", path: "/admin"}}
	for what, c := range map[string]struct {
		value string
		code  int
	}{
		"its own": {cookie, 200}, "changed": {string(flip), 401}, "empty": {"", 401}, "made with the key": {foreign(own, 'z', sessionCookie), 200},
		"of another route": {foreign(other, 'z', sessionCookie), 401}, "of another key": {foreign(own, 'y', sessionCookie), 401}, "of another cookie": {foreign(own, 'z', loginCookie), 401},
	} {
		if code := with(c.value); code != c.code {
			t.Errorf("a session %s: %d, want %d", what, code, c.code)
		}
	}
	if code, body := g.open(g.browser(), "/admin/_auth/callback?code=x&state=y"); code != 400 || !strings.Contains(body, "login_failed") {
		t.Errorf("%d %s", code, body)
	}
}

// TestLoginReachesPublicProvidersOnly: a project chooses the provider, so one in a
// network that the operator did not allow is not called.
func TestLoginReachesPublicProvidersOnly(t *testing.T) {
	g := startGated(t, nil, app.RouteOidc{})
	if code, body := g.open(g.browser(), "/admin"); code != 502 || !strings.Contains(body, "login_away") {
		t.Errorf("%d %s", code, body)
	}
}

// TestLoginsWaitOnceForAProvider: visitors who wait while the ingress asks a provider that
// hangs do not each have it asked again.
func TestLoginsWaitOnceForAProvider(t *testing.T) {
	t.Parallel()
	url, calls := oidctest.NewHanging(t)
	g := startGated(t, loopback, app.RouteOidc{Issuer: url})
	g.providers.Timeout = providerPoll + 200*time.Millisecond
	var visitors sync.WaitGroup
	open := func() {
		if code, body := g.open(g.browser(), "/admin"); code != 502 || !strings.Contains(body, "login_away") {
			t.Errorf("%d %s", code, body)
		}
	}
	visitors.Go(open)
	<-calls
	for range 3 {
		visitors.Go(open)
	}
	visitors.Wait()
	if n := len(calls); n != 0 {
		t.Errorf("the ingress asked the provider %d more times", n)
	}
}

func base64URL(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
