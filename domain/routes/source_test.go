package routes

import (
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/pkg/errs"
)

// TestSource: what app.toml states counts at each deployment, the rest stays, and what
// it stated before and does not any more is taken away.
func TestSource(t *testing.T) {
	s := setup(t)
	ctx := t.Context()
	shop, err := s.Apps.Find(ctx, projects.Default, "shop")
	if err != nil {
		t.Fatal(err)
	}
	apply := func(list ...app.SourceRoute) {
		t.Helper()
		if err := s.CheckSource(ctx, shop, list); err != nil {
			t.Fatal(err)
		}
		for range 2 { // again, as after an interruption
			if err := s.ApplySource(ctx, shop, list); err != nil {
				t.Fatal(err)
			}
		}
	}
	get := func(host, path string) *app.Route {
		t.Helper()
		r, err := s.find(ctx, host, path)
		if err != nil && !errs.Is(err, errs.NotFound) {
			t.Fatal(err)
		}
		return r
	}
	if _, err := s.Set(ctx, SetRequest{Host: "old.example.com", App: "shop"}); err != nil {
		t.Fatal(err)
	}
	one := app.SourceRoute{Host: "shop.example.com", Path: "/api", Service: "api", Settings: &app.RouteSettings{
		Timeout: ptr(30 * time.Second), Rate: ptr[int64](5), Compress: ptr(true), ErrorPages: map[string]string{"503": "a", "404": "b"}}}
	old := app.SourceRoute{Host: "old.example.com", Path: "/", Service: "web", Settings: &app.RouteSettings{Sticky: ptr(true)}}
	apply(one, old)
	r := get("shop.example.com", "/api")
	if r == nil || !r.Spec.FromSource || r.Spec.Service != "api" || *r.Spec.Settings.Timeout != 30*time.Second || len(r.Spec.SourceSettings) != 4 {
		t.Fatalf("%+v", r)
	}
	if o := get("old.example.com", "/"); o.Spec.FromSource || !*o.Spec.Settings.Sticky {
		t.Errorf("%+v", o)
	}
	// By hand: of these the source states the timeout alone, which it takes back.
	if _, err := s.Configure(ctx, ConfigureRequest{Host: "shop.example.com", Path: "/api", Settings: app.RouteSettings{Timeout: ptr(time.Minute), MaxBodyBytes: ptr[int64](9), Sticky: ptr(true)}}); err != nil {
		t.Fatal(err)
	}
	one.Settings = &app.RouteSettings{Timeout: ptr(30 * time.Second), Compress: ptr(false), ErrorPages: map[string]string{"503": "c"}}
	apply(one, old)
	n := get("shop.example.com", "/api").Spec.Settings
	if *n.Timeout != 30*time.Second || *n.MaxBodyBytes != 9 || !*n.Sticky || n.Rate != nil || n.Compress != nil || len(n.ErrorPages) != 1 || n.ErrorPages["503"] != "c" {
		t.Errorf("%+v", n)
	}
	// The route that was set by hand stays, without what the source said of it.
	apply()
	if r := get("shop.example.com", "/api"); r != nil {
		t.Errorf("%+v", r)
	}
	if o := get("old.example.com", "/"); o == nil || o.Spec.Settings != nil || o.Spec.SourceSettings != nil {
		t.Errorf("%+v", o)
	}

	if _, err := s.Set(ctx, SetRequest{Host: "other.example.com", App: "other"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Set(ctx, SetRequest{Project: "theirs", Host: "theirs.example.com", App: "shop"}); err != nil {
		t.Fatal(err)
	}
	for host, class := range map[string]errs.Class{"other.example.com": errs.AlreadyExists, "theirs.example.com": errs.AlreadyExists, "*.example.com": errs.AlreadyExists, "a b": errs.InvalidArgument} {
		list := []app.SourceRoute{{Host: host, Path: "/"}}
		if err := s.CheckSource(ctx, shop, list); !errs.Is(err, class) {
			t.Errorf("check %s: %v", host, err)
		}
		if err := s.ApplySource(ctx, shop, list); !errs.Is(err, class) {
			t.Errorf("apply %s: %v", host, err)
		}
	}
	bad := []app.SourceRoute{{Host: "x.example.com", Path: "/", Settings: &app.RouteSettings{Allow: []string{"no network"}}}}
	if err := s.CheckSource(ctx, shop, bad); !errs.Is(err, errs.InvalidArgument) {
		t.Error(err)
	}
	if err := s.CheckSource(ctx, shop, []app.SourceRoute{one, one}); !errs.Is(err, errs.InvalidArgument) {
		t.Error(err)
	}
}
