package server

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/history"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/testsupport/oidctest"
	"miren.dev/runtime/testsupport/wait"
)

// browser is a client with cookies, as a page of the dashboard is.
type browser struct {
	e *restEnv
	c *http.Client
}

func (e *restEnv) browser() *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		e.t.Fatal(err)
	}
	return &browser{e, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// do makes a request with the header of a page, and more headers.
func (b *browser) do(method, path, body string, header ...string) (*http.Response, string) {
	b.e.t.Helper()
	req, err := http.NewRequestWithContext(b.e.t.Context(), method, b.e.url+path, strings.NewReader(body))
	if err != nil {
		b.e.t.Fatal(err)
	}
	req.Header.Set("X-Dashboard", "1")
	for i := 0; i < len(header); i += 2 {
		req.Header.Del(header[i])
		if header[i+1] != "" {
			req.Header.Set(header[i], header[i+1])
		}
	}
	resp, err := b.c.Do(req)
	if err != nil {
		b.e.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.e.t.Fatal(err)
	}
	return resp, string(text)
}

func (b *browser) must(method, path, body string, status int, header ...string) string {
	b.e.t.Helper()
	resp, text := b.do(method, path, body, header...)
	if resp.StatusCode != status {
		b.e.t.Errorf("%s %s: %d, want %d: %s", method, path, resp.StatusCode, status, text)
	}
	return text
}

// TestDashboardSession: a key makes a session that scripts and other sites cannot
// use, and that ends with the logout, with its streams, or with the key.
func TestDashboardSession(t *testing.T) {
	e := newRestEnv(t)
	own := e.newTenant("own")
	key := e.key("own", "admin")
	b := e.browser()
	login := `{"key": "` + key + `"}`

	if text := b.must("GET", "/ui/session", "", http.StatusOK); text != "null\n" {
		t.Errorf("nobody: %q", text)
	}
	b.must("GET", "/ui/api/v1/sessions", "", http.StatusUnauthorized)
	b.must("POST", "/ui/login", login, http.StatusForbidden, "X-Dashboard", "")
	b.must("POST", "/ui/login", `{"key": ""}`, http.StatusUnauthorized)
	resp, text := b.do("POST", "/ui/login", login)
	if resp.StatusCode != http.StatusOK || !strings.Contains(text, `"project":"own"`) || strings.Contains(text, key) {
		t.Fatalf("%d, %s", resp.StatusCode, text)
	}
	c := resp.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/ui" || strings.Contains(c.Value, key) || time.Until(c.Expires) > 13*time.Hour {
		t.Errorf("%v", c)
	}
	if text := b.must("GET", "/ui/api/v1/sessions", "", http.StatusOK); !strings.Contains(text, string(own.sandbox.ID)) {
		t.Errorf("%s", text)
	}
	b.must("GET", "/ui/api/v1/sessions", "", http.StatusForbidden, "X-Dashboard", "")
	b.must("DELETE", "/ui/api/v1/sessions/"+string(own.sandbox.ID), "", http.StatusForbidden, "X-Dashboard", "")
	b.must("GET", "/ui/api/v1/sessions/"+string(own.sandbox.ID)+"/ports/80/", "", http.StatusForbidden)
	b.must("GET", "/ui/api/v1/containers/"+string(own.sandbox.ID)+"/terminal", "", http.StatusForbidden, "Connection", "Upgrade", "Upgrade", "websocket",
		"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==", "Origin", "https://example.com")
	// The REST face takes no cookie, wherever the browser would send it.
	b.must("GET", "/api/v1/sessions", "", http.StatusUnauthorized, "Cookie", c.Name+"="+c.Value)
	flipped := []byte(c.Value)
	flipped[len(flipped)/2] ^= 1
	other := e.browser()
	other.must("GET", "/ui/api/v1/sessions", "", http.StatusUnauthorized, "Cookie", c.Name+"="+string(flipped))

	// The logout ends a stream that is open, and the cookie is worth nothing to who kept it.
	req, err := http.NewRequestWithContext(t.Context(), "GET", e.url+"/ui/api/v1/entities/stream?kind=sandbox", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Dashboard", "1")
	st, err := b.c.Do(req)
	if err != nil || st.StatusCode != http.StatusOK {
		t.Fatal(err, st)
	}
	defer st.Body.Close()
	b.must("POST", "/ui/logout", "", http.StatusForbidden, "X-Dashboard", "")
	b.must("POST", "/ui/logout", "", http.StatusNoContent)
	ended := make(chan struct{}, 1)
	go func() {
		_, _ = io.Copy(io.Discard, st.Body)
		ended <- struct{}{}
	}()
	wait.Receive(t, "the end of the stream", ended)
	other.must("GET", "/ui/api/v1/sessions", "", http.StatusUnauthorized, "Cookie", c.Name+"="+c.Value)

	b.must("POST", "/ui/login", login, http.StatusOK)
	if err := core.NewKeysClient(e.root()).Delete(t.Context(), &core.KeyRequest{Project: "own", Name: "k-admin"}); err != nil {
		t.Fatal(err)
	}
	if resp, text := b.do("GET", "/ui/api/v1/sessions", ""); resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("after the key was deleted: %d, %s", resp.StatusCode, text)
	}
}

// TestDashboardLoginByOIDC: a person logs in at an issuer, and has a session as one with a
// key has, with the roles of the rule, for as long as the rule says. What another browser or
// site begins ends in no session.
func TestDashboardLoginByOIDC(t *testing.T) {
	p := oidctest.New(t)
	dir := t.TempDir()
	file, secret := filepath.Join(dir, "trust.yaml"), filepath.Join(dir, "secret")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(secret, p.Secret+"\n")
	write(file, fmt.Sprintf("- {issuer: %q, audience: %q, claims: {groups: shop}, project: shop, roles: [viewer], session: 2h}\n", p.URL, p.ID))
	e := newRestEnv(t, func(c *config.Config) {
		c.API.TrustFile, c.Dashboard.OidcIssuer, c.Dashboard.OidcClientID, c.Dashboard.OidcSecretFile = file, p.URL, p.ID, secret
	})
	e.follow()
	own := e.newTenant("shop")
	// come goes to the issuer and back, as far as the server's answer.
	come := func(b *browser, page string) string {
		t.Helper()
		resp, text := b.do("GET", "/ui/login/begin?return="+url.QueryEscape(page), "", "X-Dashboard", "")
		if resp.StatusCode != http.StatusSeeOther {
			t.Fatalf("begin: %d, %s", resp.StatusCode, text)
		}
		c := resp.Cookies()[0]
		if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/ui/login/callback" || c.MaxAge > 600 {
			t.Errorf("%v", c)
		}
		at, err := b.c.Get(resp.Header.Get("Location"))
		if err != nil {
			t.Fatal(err)
		}
		at.Body.Close()
		back, err := at.Location()
		if err != nil || !strings.HasPrefix(back.String(), e.url+"/ui/login/callback?") {
			t.Fatalf("the issuer leads to %v, %v", back, err)
		}
		return strings.TrimPrefix(back.String(), e.url)
	}
	b := e.browser()
	if text := b.must("GET", "/ui/login/methods", "", http.StatusOK); text != `{"oidc":"`+strings.TrimPrefix(p.URL, "http://")+`"}`+"\n" {
		t.Errorf("%q", text)
	}
	p.LogsIn(map[string]any{"sub": "ann", "groups": []string{"shop"}})
	back := come(b, "apps/shop?x=1")
	resp, _ := e.browser().do("GET", back, "")
	if to := resp.Header.Get("Location"); to != "/ui/?login=refused" || p.Logins() != 0 {
		t.Errorf("in another browser: %s, %d logins", to, p.Logins())
	}
	resp, text := b.do("GET", back, "", "X-Dashboard", "")
	if to := resp.Header.Get("Location"); resp.StatusCode != http.StatusSeeOther || to != "/ui/apps/shop?x=1" {
		t.Fatalf("%d to %s: %s", resp.StatusCode, to, text)
	}
	var session *http.Cookie
	for _, c := range resp.Cookies() {
		if c.Name == "runtime_session" {
			session = c
		}
	}
	if left := time.Until(session.Expires); !session.HttpOnly || session.SameSite != http.SameSiteStrictMode || session.Path != "/ui" || left > 2*time.Hour || left < 110*time.Minute {
		t.Errorf("%v", session)
	}
	if text := b.must("GET", "/ui/session", "", http.StatusOK); !strings.Contains(text, `"project":"shop","roles":["viewer"]`) {
		t.Errorf("%s", text)
	}
	if text := b.must("GET", "/ui/api/v1/sessions", "", http.StatusOK); !strings.Contains(text, string(own.sandbox.ID)) {
		t.Errorf("%s", text)
	}
	b.must("GET", "/ui/api/v1/sessions", "", http.StatusForbidden, "X-Dashboard", "")
	b.must("DELETE", "/ui/api/v1/sessions/"+string(own.sandbox.ID), "", http.StatusForbidden)
	// The audit log has who got which key.
	records, err := history.NewHistoryClient(e.root()).List(t.Context(), &history.ListRequest{Stream: history.StreamAudit, Action: "core.Keys/Exchange", Limit: 10})
	if err != nil || len(records.Records) != 1 || records.Records[0].Actor != "token:ann" {
		t.Errorf("%+v, %v", records, err)
	}
	// A code is used once, and the attempt too.
	resp, _ = b.do("GET", back, "")
	if to := resp.Header.Get("Location"); to != "/ui/?login=refused" {
		t.Errorf("again: %s", to)
	}
	b.must("POST", "/ui/logout", "", http.StatusNoContent)
	b.must("GET", "/ui/api/v1/sessions", "", http.StatusUnauthorized)

	// Another host is no page to return to.
	for _, evil := range []string{"//evil.example.com", `\\evil.example.com`, "/https://evil.example.com", "../x"} {
		resp, _ = b.do("GET", come(b, evil), "")
		if to := resp.Header.Get("Location"); !strings.HasPrefix(to, "/ui/") || strings.HasPrefix(to, "/ui//") {
			t.Errorf("%s leads to %s", evil, to)
		}
	}
	b.must("POST", "/ui/logout", "", http.StatusNoContent)
	old := come(b, "")
	come(b, "")
	resp, _ = b.do("GET", old, "")
	if to := resp.Header.Get("Location"); to != "/ui/?login=refused" {
		t.Errorf("the state of another attempt: %s", to)
	}
	p.LogsIn(map[string]any{"sub": "bob", "groups": "strangers"})
	resp, _ = b.do("GET", come(b, ""), "")
	if to := resp.Header.Get("Location"); to != "/ui/?login=refused" {
		t.Errorf("a stranger: %s", to)
	}
	b.must("GET", "/ui/api/v1/sessions", "", http.StatusUnauthorized)
	back = come(b, "")
	p.Close()
	resp, _ = b.do("GET", back, "")
	if to := resp.Header.Get("Location"); to != "/ui/?login=away" {
		t.Errorf("while the issuer is away: %s", to)
	}

	// Without an issuer there is only the key.
	none := newRestEnv(t).browser()
	if text := none.must("GET", "/ui/login/methods", "", http.StatusOK); text != "{}\n" {
		t.Errorf("%q", text)
	}
	none.must("GET", "/ui/login/begin", "", http.StatusNotFound)
	resp, _ = none.do("GET", "/ui/login/callback?code=x&state=y", "")
	if to := resp.Header.Get("Location"); to != "/ui/?login=refused" {
		t.Errorf("%s", to)
	}
}

// TestDashboardFiles: pages come with a strict policy and load nothing from
// elsewhere; paths of pages are the page, unknown files are not found.
func TestDashboardFiles(t *testing.T) {
	b := newRestEnv(t).browser()
	resp, _ := b.do("GET", "/", "")
	if resp.StatusCode != http.StatusFound || resp.Header.Get("Location") != "/ui/" {
		t.Errorf("%d, %s", resp.StatusCode, resp.Header.Get("Location"))
	}
	for path, want := range map[string]string{"/ui/": "text/html", "/ui/apps/shop": "text/html", "/ui/app.js": "text/javascript", "/ui/style.css": "text/css", "/ui/vendor/xterm.js": "text/javascript"} {
		resp, text := b.do("GET", path, "")
		policy := resp.Header.Get("Content-Security-Policy")
		if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), want) || text == "" {
			t.Errorf("%s: %d, %s", path, resp.StatusCode, resp.Header.Get("Content-Type"))
		}
		if strings.Contains(policy, "unsafe") || !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") {
			t.Errorf("%s: %s", path, policy)
		}
		if again, _ := b.do("GET", path, "", "If-None-Match", resp.Header.Get("ETag")); again.StatusCode != http.StatusNotModified {
			t.Errorf("%s again: %d", path, again.StatusCode)
		}
		if strings.HasSuffix(path, "/") && (strings.Contains(text, "://") || strings.Contains(text, "<style") || strings.Contains(text, "onclick")) {
			t.Errorf("%s: %s", path, text)
		}
	}
	b.must("GET", "/ui/none.js", "", http.StatusNotFound)
	b.must("GET", "/ui/../server.go", "", http.StatusTemporaryRedirect)
}
