package routes

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

func ptr[T any](v T) *T { return &v }

func TestConfigure(t *testing.T) {
	s := setup(t)
	s.Sealer = schema.NewSealer(filepath.Join(t.TempDir(), "key"))
	ctx, host := t.Context(), "shop.example.com"
	if _, err := s.Set(ctx, SetRequest{Host: host, App: "shop"}); err != nil {
		t.Fatal(err)
	}
	configure := func(req ConfigureRequest) *app.RouteSettings {
		t.Helper()
		req.Host = host
		r, err := s.Configure(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		return r.Spec.Settings
	}
	configure(ConfigureRequest{Settings: app.RouteSettings{Timeout: ptr(time.Minute), Rate: ptr[int64](5), Compress: ptr(true), Allow: []string{"10.0.0.0/8", "fd00::1"},
		ErrorPages: map[string]string{"503": "<p>busy</p>"}}, Passwords: map[string]string{"ann": "right", "bob": "too"}})
	got := configure(ConfigureRequest{Settings: app.RouteSettings{Burst: ptr[int64](9), Compress: ptr(false), ErrorPages: map[string]string{"default": "x"}}, RemoveUsers: []string{"bob"}})
	if *got.Timeout != time.Minute || *got.Rate != 5 || *got.Burst != 9 || !*got.Compress || len(got.Allow) != 2 || len(got.ErrorPages) != 2 || len(got.Users) != 1 {
		t.Errorf("what a request does not name changed: %+v", got)
	}
	list, last, err := s.Passwords(ctx, "")
	if err != nil || last != "" || len(list) != 1 || list[0].User != "ann" || bcrypt.CompareHashAndPassword([]byte(list[0].Hash), []byte("right")) != nil {
		t.Errorf("passwords %+v, %q, %v", list, last, err)
	}
	if r, err := s.Set(ctx, SetRequest{Host: host, App: "other"}); err != nil || r.Spec.Settings == nil || len(r.Spec.Settings.Users) != 1 {
		t.Errorf("a new target takes the settings away: %+v, %v", r, err)
	}

	for name, req := range map[string]ConfigureRequest{
		"timeout":           {Settings: app.RouteSettings{Timeout: ptr(time.Millisecond)}},
		"long timeout":      {Settings: app.RouteSettings{Timeout: ptr(25 * time.Hour)}},
		"body":              {Settings: app.RouteSettings{MaxBodyBytes: ptr[int64](0)}},
		"rate":              {Settings: app.RouteSettings{Rate: ptr[int64](-1)}},
		"burst alone":       {Settings: app.RouteSettings{Burst: ptr[int64](1)}, Reset: []string{"rate"}},
		"network":           {Settings: app.RouteSettings{Allow: []string{"10.0.0.0/33"}}},
		"networks":          {Settings: app.RouteSettings{Allow: make([]string, app.MaxRouteNetworks+1)}},
		"status":            {Settings: app.RouteSettings{ErrorPages: map[string]string{"200": "x"}}},
		"status as text":    {Settings: app.RouteSettings{ErrorPages: map[string]string{"5xx": "x"}}},
		"large page":        {Settings: app.RouteSettings{ErrorPages: map[string]string{"503": strings.Repeat("x", app.MaxErrorPage+1)}}},
		"setting":           {Reset: []string{"nothing"}},
		"hash":              {Settings: app.RouteSettings{Users: map[string]schema.Secret{"x": {}}}},
		"user":              {Passwords: map[string]string{"a:b": "x"}},
		"empty password":    {Passwords: map[string]string{"x": ""}},
		"long password":     {Passwords: map[string]string{"x": strings.Repeat("x", app.MaxUserPassword+1)}},
		"too many networks": {Settings: app.RouteSettings{Allow: make([]string, 1000)}},
	} {
		req.Host = host
		if _, err := s.Configure(ctx, req); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, req := range map[string]ConfigureRequest{
		"route": {Host: "none.example.com"}, "project": {Host: host, Project: "theirs"}, "user": {Host: host, RemoveUsers: []string{"zoe"}},
	} {
		if _, err := s.Configure(ctx, req); !errs.Is(err, errs.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := configure(ConfigureRequest{Reset: []string{"timeout", "allow", "rate", "users", "compress", "error_pages"}}); got != nil {
		t.Errorf("after all are reset: %+v", got)
	}
}

func TestMaintain(t *testing.T) {
	s := setup(t)
	a, err := s.Apps.Maintain(t.Context(), "", "shop", true, "Back soon.")
	if err != nil || a.Spec.Maintenance == nil || a.Spec.Maintenance.Message != "Back soon." {
		t.Fatalf("%+v, %v", a, err)
	}
	if _, err := s.Apps.Maintain(t.Context(), "", "shop", true, strings.Repeat("x", app.MaxMessage+1)); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("a long message: %v", err)
	}
	if a, err = s.Apps.Maintain(t.Context(), "", "shop", false, ""); err != nil || a.Spec.Maintenance != nil {
		t.Errorf("off: %+v, %v", a, err)
	}
}

// TestConfigureLogin: the secret of a login is sealed, stays while the provider and the
// id do, and reaches the ingress alone.
func TestConfigureLogin(t *testing.T) {
	s := setup(t)
	s.Sealer = schema.NewSealer(filepath.Join(t.TempDir(), "key"))
	ctx, host := t.Context(), "shop.example.com"
	if _, err := s.Set(ctx, SetRequest{Host: host, App: "shop"}); err != nil {
		t.Fatal(err)
	}
	login := func(issuer string) app.RouteSettings {
		return app.RouteSettings{Oidc: &app.RouteOidc{Issuer: issuer, ClientID: "shop", Domains: []string{"@Example.com"}}}
	}
	secrets := func() map[string]string {
		t.Helper()
		list, _, err := s.Passwords(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, p := range list {
			out[p.User] = p.Hash
		}
		return out
	}
	for _, c := range []struct {
		issuer, secret, want string
	}{
		{"https://login.example.com", "hunter2", "hunter2"},
		{"https://login.example.com", "", "hunter2"},
		{"https://login.example.org", "", ""},
		{"http://127.0.0.1:5556/dex", "other", "other"},
	} {
		before := secrets()[app.OidcKeyName]
		r, err := s.Configure(ctx, ConfigureRequest{Host: host, Settings: login(c.issuer), OIDCSecret: c.secret})
		if err != nil {
			t.Fatal(err)
		}
		if d := r.Spec.Settings.Oidc.Domains; len(d) != 1 || d[0] != "example.com" {
			t.Errorf("%q", d)
		}
		got := secrets()
		if got[app.OidcSecretName] != c.want || len(got[app.OidcKeyName]) != 64 || got[app.OidcKeyName] == before {
			t.Errorf("%+v: %d secrets, secret %q", c, len(got), got[app.OidcSecretName])
		}
		if text, err := json.Marshal(r); err != nil || strings.Contains(string(text), "hunter2") {
			t.Errorf("%s %v", text, err)
		}
	}
	for _, issuer := range []string{"", "login.example.com", "http://login.example.com", "https://u:p@login.example.com", "https://login.example.com?x=1", "file:///etc"} {
		if _, err := s.Configure(ctx, ConfigureRequest{Host: host, Settings: login(issuer)}); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q: %v", issuer, err)
		}
	}
	if _, err := s.Configure(ctx, ConfigureRequest{Host: host, OIDCSecret: "alone"}); !errs.Is(err, errs.InvalidArgument) {
		t.Error(err)
	}
	if _, err := s.Configure(ctx, ConfigureRequest{Host: host, Reset: []string{"oidc"}}); err != nil || len(secrets()) != 0 {
		t.Errorf("%v, %d secrets", err, len(secrets()))
	}
}
