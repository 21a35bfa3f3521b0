package trust

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/oidctest"
)

const audience = "https://runtime.example.com"

func rulesOf(t *testing.T, text string) (*Rules, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trust.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

// forShop has a rule for the main branch of acme/shop, and one for its tags.
func forShop(t *testing.T, issuer string) *Rules {
	t.Helper()
	r, err := rulesOf(t, `
- issuer: `+issuer+`
  audience: `+audience+`
  claims: {repository: acme/shop, ref: refs/heads/main}
  project: shop
  roles: [deployer]
- issuer: `+issuer+`
  audience: `+audience+`
  claims: {repository: acme/shop, ref: refs/tags/v*, groups: release}
  project: shop
  roles: [viewer, agent]
`)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTokens(t *testing.T) {
	p := oidctest.New(t)
	r := forShop(t, p.URL)
	claims := func(more map[string]any) map[string]any {
		c := map[string]any{"sub": "repo:acme/shop:ref:refs/heads/main", "repository": "acme/shop", "ref": "refs/heads/main"}
		for k, v := range more {
			c[k] = v
		}
		return c
	}
	for name, tc := range map[string]struct {
		audience string
		life     time.Duration
		claims   map[string]any
		change   func(string) string
		roles    []string // "": refused
		err      string
	}{
		"main":           {roles: []string{"deployer@shop"}},
		"a tag":          {claims: map[string]any{"ref": "refs/tags/v1.2", "groups": []any{"all", "release"}}, roles: []string{"viewer@shop", "agent@shop"}},
		"no group":       {claims: map[string]any{"ref": "refs/tags/v1.2", "groups": "all"}, err: "its claim ref is refs/tags/v1.2"},
		"other audience": {audience: "https://other.example.com", err: "its audience is https://other.example.com"},
		"a fork":         {claims: map[string]any{"repository": "mallory/shop"}, err: "its claim repository is mallory/shop"},
		"a branch":       {claims: map[string]any{"ref": "refs/heads/main2"}, err: "its claim ref is refs/heads/main2"},
		"expired":        {life: -time.Minute, err: "expired"},
		"valid for long": {life: 25 * time.Hour, err: "valid for longer than 24h"},
		"changed": {change: func(s string) string {
			parts := strings.Split(s, ".")
			b, _ := base64.RawURLEncoding.DecodeString(parts[1])
			parts[1] = base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(b), "acme/shop", "acme/plop", 1)))
			return strings.Join(parts, ".")
		}, err: "not valid"},
		"not signed": {change: func(s string) string {
			return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + strings.Split(s, ".")[1] + "."
		}, err: "not valid"},
		"no token":     {change: func(string) string { return "ey.ey.ey" }, err: "no JSON Web Token"},
		"other issuer": {change: func(string) string { return oidctest.New(t).Token(t, audience, time.Minute, claims(nil)) }, err: "not trusted here"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.audience == "" {
				tc.audience = audience
			}
			if tc.life == 0 {
				tc.life = time.Minute
			}
			token := p.Token(t, tc.audience, tc.life, claims(tc.claims))
			if tc.change != nil {
				token = tc.change(token)
			}
			if !IsToken(token) {
				t.Fatalf("%q is no token", token)
			}
			id, err := r.Authenticate(t.Context(), token)
			if tc.err != "" {
				if !errs.Is(err, errs.Unauthenticated) || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%+v, %v", id, err)
				}
				return
			}
			if err != nil || id.Name != "token:repo:acme/shop:ref:refs/heads/main" || id.How != rpc.HowToken || !slices.Equal(id.Roles, tc.roles) || time.Until(id.Expires) > Session {
				t.Errorf("%+v, %v", id, err)
			}
		})
	}
}

// TestIssuerChanges: keys of an issuer rotate, and one that is away is asked again.
func TestIssuerChanges(t *testing.T) {
	p := oidctest.New(t)
	r := forShop(t, p.URL)
	claims := map[string]any{"sub": "s", "repository": "acme/shop", "ref": "refs/heads/main"}
	old := p.Token(t, audience, time.Minute, claims)
	if _, err := r.Authenticate(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	p.RotateKey(t)
	if _, err := r.Authenticate(t.Context(), p.Token(t, audience, time.Minute, claims)); err != nil {
		t.Errorf("with a new key: %v", err)
	}
	p.Close()
	p.RotateKey(t)
	if _, err := r.Authenticate(t.Context(), p.Token(t, audience, time.Minute, claims)); !errs.Is(err, errs.Unavailable) {
		t.Errorf("the issuer is away, and the key unknown: %v", err)
	}
	if _, err := forShop(t, p.URL).Authenticate(t.Context(), old); !errs.Is(err, errs.Unavailable) {
		t.Errorf("the issuer was away from the begin: %v", err)
	}
}

// TestTokensWaitOnceForAnIssuer: callers who wait while the server asks an issuer that hangs
// do not each have it asked again.
func TestTokensWaitOnceForAnIssuer(t *testing.T) {
	t.Parallel()
	url, calls := oidctest.NewHanging(t)
	p := oidctest.New(t)
	p.URL = url
	token := p.Token(t, audience, time.Minute, map[string]any{"sub": "s", "repository": "acme/shop", "ref": "refs/heads/main"})
	r := forShop(t, url)
	r.now.Load().issuers[url].client.Timeout = askAgain + 200*time.Millisecond
	var callers sync.WaitGroup
	call := func() {
		if _, err := r.Authenticate(t.Context(), token); !errs.Is(err, errs.Unavailable) {
			t.Error(err)
		}
	}
	callers.Go(call)
	<-calls
	for range 3 {
		callers.Go(call)
	}
	callers.Wait()
	if n := len(calls); n != 0 {
		t.Errorf("the server asked the issuer %d more times", n)
	}
}

// TestTooManyTokens: who sends many tokens does not have the issuer asked for its keys each
// time.
func TestTooManyTokens(t *testing.T) {
	p := oidctest.New(t)
	r := forShop(t, p.URL)
	token := p.Token(t, audience, time.Minute, map[string]any{"sub": "s"})
	p.RotateKey(t)
	for range 10 * burst {
		if _, err := r.Authenticate(t.Context(), token); errs.Is(err, errs.ResourceExhausted) {
			return
		}
	}
	t.Error("none was refused")
}

func TestWrongRules(t *testing.T) {
	for text, want := range map[string]string{
		"- issuer: https://a\n  audience: b\n  claims: {c: d}\n  project: e\n  role: f\n":           "role",
		"- issuer: http://a\n  audience: b\n  claims: {c: d}\n  project: e\n  roles: [viewer]\n":    `rule 1, of the issuer "http://a": its issuer is no URL with https`,
		"- issuer: https://a\n  claims: {c: d}\n  project: e\n  roles: [viewer]\n":                  "no audience",
		"- issuer: https://a\n  audience: b\n  project: e\n  roles: [viewer]\n":                     "no claims",
		"- issuer: https://a\n  audience: b\n  claims: {c: '*'}\n  project: e\n  roles: [viewer]\n": "may be anything",
		"- issuer: https://a\n  audience: b\n  claims: {c: d}\n  roles: [viewer]\n":                 "no project",
		"- issuer: https://a\n  audience: b\n  claims: {c: d}\n  project: e\n":                      "no roles",
		"- issuer: https://a\n  audience: b\n  claims: {c: d}\n  project: e\n  roles: [captain]\n":  `no role "captain"`,
	} {
		if _, err := rulesOf(t, text); !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		} else if hint := errs.HintOf(err); !strings.Contains(hint, "`sudoedit /") {
			t.Errorf("%q: hint %q", text, hint)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none")); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("no file: %v", err)
	}
	if r, err := Load(""); err != nil || len(r.now.Load().rules) != 0 {
		t.Errorf("not configured: %v", err)
	}
}

func TestPatterns(t *testing.T) {
	for _, tc := range []struct {
		pattern, value string
		want           bool
	}{
		{"main", "main", true}, {"main", "main2", false}, {"v*", "v1", true}, {"v*", "w1", false}, {"*-rc", "1-rc", true},
		{"a*b*c", "a1b2c", true}, {"a*b*c", "a1c", false}, {"a*a", "a", false}, {"a*", "a", true},
	} {
		if got := matches(tc.pattern, tc.value); got != tc.want {
			t.Errorf("%q of %q: %v", tc.pattern, tc.value, got)
		}
	}
}
