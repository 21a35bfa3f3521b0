package routes

import (
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// TestPreviewHosts: a host belongs to one preview of one project; a route that a user sets of it does so no longer.
func TestPreviewHosts(t *testing.T) {
	s := setup(t)
	s.LocalDomains = []string{".Apps.Example.com"}
	find := func(project, name string) *app.App {
		t.Helper()
		a, err := s.Apps.Find(t.Context(), project, name)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	ours, other, theirs := find(projects.Default, "shop"), find(projects.Default, "other"), find("theirs", "shop")
	one, two := &app.PreviewRequest{Name: "one"}, &app.PreviewRequest{Name: "two", Host: "Two.Example.com."}
	for _, c := range []struct {
		a    *app.App
		req  *app.PreviewRequest
		want string // "": refused
	}{
		{ours, one, "one--shop.apps.example.com"},
		{ours, one, "one--shop.apps.example.com"}, // again
		{theirs, one, ""},
		{theirs, &app.PreviewRequest{Name: "one", Host: "theirs.example.org"}, "theirs.example.org"},
		{ours, two, "two.example.com"},
		{ours, &app.PreviewRequest{Name: "three", Host: "two.example.com"}, ""},
		{other, two, ""},
		{ours, &app.PreviewRequest{Name: "three", Host: "other.apps.example.com"}, ""}, // that of an app
		{ours, &app.PreviewRequest{Name: "three", Host: "x.theirs.example.org"}, "x.theirs.example.org"},
	} {
		checked, cerr := s.PreviewHost(t.Context(), c.a, c.req)
		host, err := s.ClaimPreview(t.Context(), c.a, c.req)
		if c.want == "" {
			if !errs.Is(err, errs.AlreadyExists) || !errs.Is(cerr, errs.AlreadyExists) {
				t.Errorf("%s %+v: %q, %v, %v", c.a.Project, c.req, host, err, cerr)
			}
		} else if host != c.want || checked != c.want || err != nil || cerr != nil {
			t.Errorf("%s %+v: %q %q, %v, %v", c.a.Project, c.req, host, checked, err, cerr)
		}
	}
	r, err := s.Set(t.Context(), SetRequest{Host: "two.example.com", App: "shop"})
	if err != nil || r.Spec.Preview != "" {
		t.Errorf("a user took the host: %+v, %v", r, err)
	}
	if _, err := s.ClaimPreview(t.Context(), ours, two); !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("the preview took it back: %v", err)
	}
	all, _, err := entity.List[app.Route](t.Context(), s.Store, entity.Query{})
	if err != nil || len(all) != 4 {
		t.Errorf("%d routes, %v", len(all), err)
	}
}
