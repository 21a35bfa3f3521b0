package trust

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/oidctest"
)

const redirect = "https://runtime.example.com/back"

// visit follows a browser to the issuer, and returns what it comes back with.
func visit(t *testing.T, to string) url.Values {
	t.Helper()
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Get(to)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	back, err := resp.Location()
	if err != nil || !strings.HasPrefix(back.String(), redirect+"?") {
		t.Fatalf("%s leads to %v, %v", to, back, err)
	}
	return back.Query()
}

// TestLogin: a person logs in by the authorization code flow; a state, nonce, verifier,
// code or client that is not of this login is refused.
func TestLogin(t *testing.T) {
	p := oidctest.New(t)
	c := &Client{Issuer: p.URL, ID: p.ID, Secret: p.Secret, Scopes: []string{"openid"}}
	r, err := rulesOf(t, `
- {issuer: "`+p.URL+`", audience: "`+p.ID+`", claims: {groups: operators}, project: "*", roles: [admin], session: 8h}
- {issuer: "`+p.URL+`", audience: "`+p.ID+`", claims: {groups: shop}, project: shop, roles: [viewer]}
- {issuer: "`+p.URL+`", audience: other, claims: {groups: shop}, project: shop, roles: [admin]}
`)
	if err != nil {
		t.Fatal(err)
	}
	begin := func() (*Attempt, url.Values) {
		t.Helper()
		to, a, err := r.Begin(c, redirect)
		if err != nil {
			t.Fatal(err)
		}
		return a, visit(t, to)
	}
	for group, want := range map[string]struct {
		roles   []string
		session time.Duration
	}{"operators": {[]string{"admin"}, 8 * time.Hour}, "shop": {[]string{"viewer@shop"}, time.Hour}} {
		p.LogsIn(map[string]any{"sub": "ann", "groups": []string{"all", group}})
		a, q := begin()
		id, err := r.Finish(t.Context(), c, redirect, a, q.Get("state"), q.Get("code"))
		if left := time.Until(id.Expires); err != nil || id.Name != "token:ann" || !slices.Equal(id.Roles, want.roles) || left > want.session || left < want.session-time.Minute {
			t.Errorf("%s: %+v, %v", group, id, err)
		}
		if _, err := r.Finish(t.Context(), c, redirect, a, q.Get("state"), q.Get("code")); !errs.Is(err, errs.Unauthenticated) {
			t.Errorf("a code is used again: %v", err)
		}
	}
	for name, change := range map[string]func(c *Client, a *Attempt, q url.Values){
		"state":    func(_ *Client, _ *Attempt, q url.Values) { q.Set("state", "x") },
		"no state": func(_ *Client, a *Attempt, q url.Values) { q.Del("state") },
		"no code":  func(_ *Client, _ *Attempt, q url.Values) { q.Del("code") },
		"nonce":    func(_ *Client, a *Attempt, _ url.Values) { a.Nonce = "x" },
		"verifier": func(_ *Client, a *Attempt, _ url.Values) { a.Verifier = strings.Repeat("x", 43) },
		"secret":   func(c *Client, _ *Attempt, _ url.Values) { c.Secret = "x" },
	} {
		a, q := begin()
		other := *c
		change(&other, a, q)
		if id, err := r.Finish(t.Context(), &other, redirect, a, q.Get("state"), q.Get("code")); !errs.Is(err, errs.Unauthenticated) {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
	p.LogsIn(map[string]any{"sub": "bob", "groups": "strangers"})
	a, q := begin()
	if _, err := r.Finish(t.Context(), c, redirect, a, q.Get("state"), q.Get("code")); !errs.Is(err, errs.Unauthenticated) || !strings.Contains(err.Error(), "its claim groups is strangers") {
		t.Errorf("a stranger: %v", err)
	}
	a, q = begin()
	p.Close()
	if _, err := r.Finish(t.Context(), c, redirect, a, q.Get("state"), q.Get("code")); !errs.Is(err, errs.Unavailable) {
		t.Errorf("the issuer is away: %v", err)
	}
	if _, _, err := r.Begin(&Client{Issuer: "https://other.example.com"}, redirect); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("an issuer of no rule: %v", err)
	}
}
