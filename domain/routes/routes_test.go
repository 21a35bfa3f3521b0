package routes

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/pgtest"
)

// setup makes a store with the apps shop and other, and a project theirs with
// the app shop.
func setup(t *testing.T) *Service {
	t.Helper()
	store := pgtest.Store(t, api.Kinds()...)
	s := &Service{Store: store, Apps: &apps.Service{Store: store, Logger: slog.New(slog.DiscardHandler)}}
	for _, project := range []string{projects.Default, "theirs"} {
		if err := projects.Ensure(t.Context(), store, project); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"shop", "other"} {
			if _, err := s.Apps.Create(t.Context(), project, name); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

func TestWritersOfOneRouteLeaveOneRoute(t *testing.T) {
	s := setup(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			req := SetRequest{Host: "Shop.Example.com.", App: []string{"shop", "other"}[i%2]}
			if _, err := s.Set(t.Context(), req); err != nil {
				t.Error(err)
			}
			if i%4 == 0 {
				if err := s.Delete(t.Context(), "", "shop.example.com", ""); err != nil && !errs.Is(err, errs.NotFound) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	r, err := s.Set(t.Context(), SetRequest{Host: "shop.example.com", Path: "/", App: "shop"})
	if err != nil || r.Spec.Service != app.DefaultService || r.Spec.Key != "shop.example.com/" {
		t.Fatalf("%+v, %v", r, err)
	}
	all, _, err := entity.List[app.Route](t.Context(), s.Store, entity.Query{})
	if err != nil || len(all) != 1 || all[0].Spec.App != r.Spec.App {
		t.Errorf("%d routes, %v", len(all), err)
	}
}

func TestRouteBelongsToItsProject(t *testing.T) {
	s := setup(t)
	if _, err := s.Set(t.Context(), SetRequest{Host: "*", App: "shop"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Set(t.Context(), SetRequest{Project: "theirs", Host: "*", App: "shop"}); !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("set by another project: %v", err)
	}
	if err := s.Delete(t.Context(), "theirs", "*", "/"); !errs.Is(err, errs.NotFound) {
		t.Errorf("deleted by another project: %v", err)
	}
	if err := s.Delete(t.Context(), "", "*", "/"); err != nil {
		t.Error(err)
	}
}

// A route that was made by hand holds the key of a host that is not its own.
func TestKeyThatAnotherRouteHoldsIsAnError(t *testing.T) {
	s := setup(t)
	a, err := s.Apps.Find(t.Context(), "", "shop")
	if err != nil {
		t.Fatal(err)
	}
	r := app.NewRoute()
	r.Project = a.Project
	r.Spec = app.RouteSpec{Host: "b.example.com", Path: "/", Key: "a.example.com/", App: a.GetID(), Service: app.DefaultService}
	if err := entity.Create(t.Context(), s.Store, r); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Set(t.Context(), SetRequest{Host: "a.example.com", App: "shop"}); !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("%v (%s)", err, errs.ClassOf(err))
	}
}

func TestNormalForm(t *testing.T) {
	for in, want := range map[[2]string]string{
		{" A.Example.COM. ", ""}: "a.example.com /",
		{"*.x.de", "/api/"}:      "*.x.de /api/",
		{"*", "/"}:               "* /",
	} {
		h, p, err := normalize(in[0], in[1])
		if got := fmt.Sprint(h, " ", p); got != want || err != nil {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, in := range [][2]string{{"", ""}, {"http://x", ""}, {"x:80", ""}, {"x.*", ""}, {"x", "y"}, {"x", "/a b"}, {"x", "/a?b"}} {
		if _, _, err := normalize(in[0], in[1]); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// TestHostBelongsToOneProject: no project takes a name of another one by a path, an
// exact host, a wildcard, or the name of an app in the local domain.
func TestHostBelongsToOneProject(t *testing.T) {
	s := setup(t)
	s.LocalDomains = []string{"localhost"}
	if _, err := s.Apps.Create(t.Context(), "theirs", "blog"); err != nil {
		t.Fatal(err)
	}
	set := func(project, host, path string) error {
		_, err := s.Set(t.Context(), SetRequest{Project: project, Host: host, Path: path, App: "shop"})
		return err
	}
	for _, host := range []string{"shop.example.com", "*.example.org", "a.b.example.net", "*"} {
		if err := set("", host, "/"); err != nil {
			t.Fatal(err)
		}
	}
	for host, class := range map[string]errs.Class{
		"shop.example.com": errs.AlreadyExists, "SHOP.example.com.": errs.AlreadyExists,
		"*.example.com": errs.AlreadyExists, "a.example.org": errs.AlreadyExists, "*.a.example.org": errs.AlreadyExists,
		"a.b.c.example.org": errs.AlreadyExists, "*.b.example.net": errs.AlreadyExists, "*.net": errs.AlreadyExists, "*": errs.AlreadyExists,
		"example.org": "", "other.example.com": "", "x.shop.example.com": "", "b.example.net": "",
		"shop.localhost": "", // both have an app with this name
	} {
		for _, path := range []string{"/", "/api"} {
			if err := set("theirs", host, path); errs.ClassOf(err) != class || err != nil && errs.HintOf(err) == "" {
				t.Errorf("%s%s: %v", host, path, err)
			}
		}
		if class == "" { // it is theirs now
			if err := set("", host, "/mine"); !errs.Is(err, errs.AlreadyExists) {
				t.Errorf("%s is taken from them: %v", host, err)
			}
		}
	}
	if err := set("", "blog.localhost", "/"); !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("the local name of an app of theirs: %v", err)
	}
	for _, more := range [][2]string{{"shop.example.com", "/api"}, {"a.example.org", "/"}, {"*.b.example.net", "/"}} {
		if err := set("", more[0], more[1]); err != nil {
			t.Errorf("another route of their own: %v", err)
		}
	}
	if err := s.Delete(t.Context(), "", "*.example.org", "/"); err != nil {
		t.Fatal(err)
	}
	if err := set("theirs", "b.example.org", "/"); err != nil {
		t.Errorf("a name that is free again: %v", err)
	}
}

// TestConcurrentClaimsLeaveOneOwner: of projects that claim overlapping hosts at the
// same time one gets them.
func TestConcurrentClaimsLeaveOneOwner(t *testing.T) {
	s := setup(t)
	for round := range 10 {
		hosts := []string{"*.example.com", "a.example.com", "*.a.example.com", "a.example.com"}
		var wg sync.WaitGroup
		for i, project := range []string{projects.Default, "theirs", projects.Default, "theirs"} {
			wg.Go(func() {
				_, err := s.Set(t.Context(), SetRequest{Project: project, Host: hosts[(i+round)%4], Path: fmt.Sprintf("/%d", i), App: "shop"})
				if err != nil && !errs.Is(err, errs.AlreadyExists) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		all, _, err := entity.List[app.Route](t.Context(), s.Store, entity.Query{})
		if err != nil || len(all) == 0 {
			t.Fatalf("%d routes, %v", len(all), err)
		}
		for i, a := range all {
			for _, b := range all[:i] {
				if a.Project != b.Project && overlap(a.Spec.Host, b.Spec.Host) {
					t.Errorf("round %d: %s and %s belong to two projects", round, a.Spec.Host, b.Spec.Host)
				}
			}
		}
		for _, r := range all {
			if err := entity.Delete(t.Context(), s.Store, r); err != nil {
				t.Fatal(err)
			}
		}
	}
}
