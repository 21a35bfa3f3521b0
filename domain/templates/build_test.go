package templates

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/source"
	"miren.dev/runtime/testsupport/pgtest"
)

type fixture struct {
	*testing.T
	*Service
	project schema.ID
}

func setup(t *testing.T) *fixture {
	t.Helper()
	store := pgtest.Store(t, api.Kinds()...)
	s := New(store, informer.New(informer.Config{Reader: store}), nil, slog.New(slog.DiscardHandler))
	s.Sealer = schema.NewSealer(filepath.Join(t.TempDir(), "key"))
	s.Sources = source.NewStore(source.StoreConfig{Dir: t.TempDir()})
	f := &fixture{T: t, Service: s}
	f.must(projects.Ensure(t.Context(), store, projects.Default))
	f.must(s.Ship(t.Context()))
	var err error
	f.project, err = projects.Find(t.Context(), store, "")
	f.must(err)
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// built builds a version of shop, and ends its build in a phase.
func (f *fixture) built(phase app.BuildPhase, req BuildRequest) *Built {
	f.Helper()
	req.Image = "debian"
	b, err := f.Build(f.Context(), "", "shop", req)
	f.must(err)
	f.end(b, phase)
	return b
}

func (f *fixture) end(b *Built, phase app.BuildPhase) {
	f.Helper()
	_, err := entity.ModifyStatus(f.Context(), f.Store, b.Build.ID, func(o *app.Build) error {
		o.Status.Phase, o.Status.Image, o.Status.Message = phase, "image-"+string(b.Version.ID), "it broke"
		return nil
	})
	f.must(err)
	v, err := entity.Get[sandbox.TemplateVersion](f.Context(), f.Store, b.Version.ID)
	f.must(err)
	f.must(f.Settle(f.Context(), v))
}

// selects fails unless name selects a version.
func (f *fixture) selects(name string, number int64) {
	f.Helper()
	_, v, err := f.Describe(f.Context(), f.project, name)
	f.must(err)
	if v == nil || v.Spec.Number != number {
		f.Fatalf("%s selects %+v, want version %d", name, v, number)
	}
}

func (f *fixture) class(what string, err error, want errs.Class) {
	f.Helper()
	if !errs.Is(err, want) {
		f.Errorf("%s: %v, want %s", what, err, want)
	}
}

// A name alone selects the tag latest: the last version that was built, or the
// one that a user set.
func TestWhichVersionIsSelected(t *testing.T) {
	f := setup(t)
	first, err := f.Build(t.Context(), "", "shop", BuildRequest{Image: "debian"})
	f.must(err)
	_, _, err = f.Find(t.Context(), f.project, "shop")
	f.class("nothing is built", err, errs.FailedPrecondition)
	_, err = f.Image(t.Context(), first.Version)
	f.class("the image of a version that is being built", err, errs.FailedPrecondition)
	f.end(first, app.BuildPhaseRunning)
	if v, err := entity.Get[sandbox.TemplateVersion](t.Context(), f.Store, first.Version.ID); err != nil || v.Status.Phase != sandbox.TemplatePhaseBuilding {
		t.Fatalf("%+v, %v", v, err)
	}
	f.end(first, app.BuildPhaseSucceeded)
	f.selects("shop", 1)
	f.selects("shop:latest", 1)

	failed := f.built(app.BuildPhaseFailed, BuildRequest{})
	f.selects("shop", 1)
	v, err := entity.Get[sandbox.TemplateVersion](t.Context(), f.Store, failed.Version.ID)
	if err != nil || v.Status.Phase != sandbox.TemplatePhaseFailed || v.Status.Message != "it broke" {
		t.Errorf("%+v, %v", v, err)
	}
	_, err = f.Image(t.Context(), v)
	f.class("the image of a failed version", err, errs.FailedPrecondition)
	_, err = f.Tag(t.Context(), "", "shop:2", TagLatest)
	f.class("a tag of a failed version", err, errs.FailedPrecondition)

	f.built(app.BuildPhaseSucceeded, BuildRequest{Tags: []string{"beta"}})
	f.selects("shop", 1)
	f.selects("shop:beta", 3)
	_, err = f.Tag(t.Context(), "", "shop:beta", TagLatest)
	f.must(err)
	f.selects("shop", 3)
	_, err = f.Tag(t.Context(), "", "shop:1", TagLatest)
	f.must(err)
	f.selects("shop", 1)

	// Of two builds at a time the later version stays, whichever ends last.
	fourth, err := f.Build(t.Context(), "", "shop", BuildRequest{Image: "debian"})
	f.must(err)
	f.built(app.BuildPhaseSucceeded, BuildRequest{})
	f.selects("shop", 5)
	f.end(fourth, app.BuildPhaseSucceeded)
	f.selects("shop", 5)

	f.must(f.Delete(t.Context(), "", "shop:latest"))
	f.selects("shop", 4)
	_, _, err = f.Find(t.Context(), f.project, "shop:latest")
	f.class("the tag of the deleted version", err, errs.NotFound)
	_, err = f.Untag(t.Context(), "", "shop", "beta")
	f.must(err)
	_, _, err = f.Find(t.Context(), f.project, "shop:beta")
	f.class("a removed tag", err, errs.NotFound)

	f.must(f.Delete(t.Context(), "", "shop"))
	_, _, err = f.Find(t.Context(), f.project, "shop")
	f.class("a deleted template", err, errs.NotFound)
	if builds, _, err := entity.List[app.Build](t.Context(), f.Store, entity.Query{}); err != nil || len(builds) != 0 {
		t.Errorf("%d builds of the deleted template are left, %v", len(builds), err)
	}
}

// Versions beyond Keep are deleted, with their builds, unless a tag or the name
// selects them.
func TestOldVersionsAreDeleted(t *testing.T) {
	f := setup(t)
	f.Keep = 2
	for _, c := range []struct {
		phase app.BuildPhase
		tags  []string
	}{
		{app.BuildPhaseSucceeded, []string{"first"}}, {app.BuildPhaseSucceeded, nil}, {app.BuildPhaseFailed, nil}, {app.BuildPhaseSucceeded, []string{"other"}},
		{app.BuildPhaseSucceeded, []string{"other"}}, {app.BuildPhaseFailed, nil}, {app.BuildPhaseFailed, nil},
	} {
		f.built(c.phase, BuildRequest{Tags: c.tags})
	}
	f.selects("shop", 2)
	tpl, _, err := f.Describe(t.Context(), f.project, "shop")
	f.must(err)
	versions, err := f.Versions(t.Context(), tpl)
	f.must(err)
	var left []int64
	for _, v := range versions {
		left = append(left, v.Spec.Number)
	}
	if want := []int64{7, 6, 5, 2, 1}; !slices.Equal(left, want) {
		t.Errorf("versions %v are left, want %v", left, want)
	}
	if builds, _, err := entity.List[app.Build](t.Context(), f.Store, entity.Query{}); err != nil || len(builds) != len(left) {
		t.Errorf("%d builds are left, %v", len(builds), err)
	}
}

// A template has a bounded number of tags; a build that is one too many says so.
func TestTagsAreBounded(t *testing.T) {
	f := setup(t)
	var tags []string
	for i := range sandbox.MaxTemplateTags {
		tags = append(tags, fmt.Sprintf("t%d", i))
	}
	f.built(app.BuildPhaseSucceeded, BuildRequest{Tags: tags})
	b := f.built(app.BuildPhaseSucceeded, BuildRequest{Tags: []string{"t1", "more"}})
	f.selects("shop:t1", 2)
	v, err := entity.Get[sandbox.TemplateVersion](t.Context(), f.Store, b.Version.ID)
	if err != nil || !strings.Contains(v.Status.Message, "tag more is not set") {
		t.Errorf("%+v, %v", v.Status, err)
	}
	_, err = f.Tag(t.Context(), "", "shop:1", "more")
	f.class("one tag too many", err, errs.ResourceExhausted)
	_, err = f.Tag(t.Context(), "", "shop:1", "t1")
	f.must(err)
	f.selects("shop:t1", 1)
}

// A version whose image is gone before its build is recorded has failed.
func TestImageIsGone(t *testing.T) {
	f := setup(t)
	f.Size = func(context.Context, string) (int64, error) { return 0, errs.New(errs.NotFound, "no such image") }
	b := f.built(app.BuildPhaseSucceeded, BuildRequest{})
	if v, err := entity.Get[sandbox.TemplateVersion](t.Context(), f.Store, b.Version.ID); err != nil || v.Status.Phase != sandbox.TemplatePhaseFailed {
		t.Errorf("%+v, %v", v, err)
	}
}

// A build whose entity was deleted does not leave its version behind.
func TestDeletedBuild(t *testing.T) {
	f := setup(t)
	b, err := f.Build(t.Context(), "", "shop", BuildRequest{Image: "debian"})
	f.must(err)
	f.must(entity.Delete(t.Context(), f.Store, b.Build))
	f.must(f.Settle(t.Context(), b.Version))
	if v, err := entity.Get[sandbox.TemplateVersion](t.Context(), f.Store, b.Version.ID); err != nil || v.Status.Phase != sandbox.TemplatePhaseFailed {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestBuildRefusals(t *testing.T) {
	f := setup(t)
	f.built(app.BuildPhaseSucceeded, BuildRequest{Aliases: []string{"store"}})
	f.selects("store", 1)
	server := []string{"server"}
	for what, c := range map[string]struct {
		name string
		req  BuildRequest
		want errs.Class
		says string
	}{
		"a name with capitals":     {"Shop", BuildRequest{Image: "debian"}, errs.InvalidArgument, `name "Shop"`},
		"a long name":              {strings.Repeat("x", 64), BuildRequest{Image: "debian"}, errs.InvalidArgument, "at most 63"},
		"a shipped template":       {"python", BuildRequest{Image: "debian"}, errs.AlreadyExists, "comes with the system"},
		"the alias of another":     {"store", BuildRequest{Image: "debian"}, errs.AlreadyExists, "store is template shop"},
		"an alias that is shipped": {"new", BuildRequest{Image: "debian", Aliases: []string{"base"}}, errs.AlreadyExists, "comes with the system"},
		"an alias of another":      {"new", BuildRequest{Image: "debian", Aliases: []string{"shop"}}, errs.AlreadyExists, "shop is template shop"},
		"a tag with a colon":       {"new", BuildRequest{Image: "debian", Tags: []string{"a:b"}}, errs.InvalidArgument, `tag "a:b"`},
		"a tag like a number":      {"new", BuildRequest{Image: "debian", Tags: []string{"v2"}}, errs.InvalidArgument, "would hide"},
		"too many tags":            {"new", BuildRequest{Image: "debian", Tags: make([]string, 101)}, errs.InvalidArgument, "at most 100"},
		"a variable":               {"new", BuildRequest{Image: "debian", Env: map[string]string{"A=B": "c"}}, errs.InvalidArgument, "name of a variable"},
		"a NUL in the command":     {"new", BuildRequest{Image: "debian", Start: []string{"a\x00"}}, errs.InvalidArgument, "NUL"},
		"a user of two lines":      {"new", BuildRequest{Image: "debian", User: "a\nRUN b"}, errs.InvalidArgument, "not a user"},
		"a workdir of two lines":   {"new", BuildRequest{Image: "debian", Workdir: "/a\nRUN b"}, errs.InvalidArgument, "workdir"},
		"a relative workdir":       {"new", BuildRequest{Image: "debian", Workdir: "a"}, errs.InvalidArgument, "absolute"},
		"a long line":              {"new", BuildRequest{Steps: []sandbox.BuildStep{step("run", strings.Repeat("x", 100<<10))}}, errs.InvalidArgument, "steps: "},
		"an option as a directory": {"new", BuildRequest{Steps: []sandbox.BuildStep{step("workdir", "--x")}}, errs.InvalidArgument, "steps: "},
		"secrets of an image":      {"new", BuildRequest{Image: "debian", Secrets: map[string]string{"A": "s3cret"}}, errs.InvalidArgument, "no build that could read secrets"},
		"a secret without a name":  {"new", BuildRequest{Steps: []sandbox.BuildStep{step("run", "true")}, Secrets: map[string]string{"A-B": "s3cret"}}, errs.InvalidArgument, "A-B"},
		"nothing":                  {"new", BuildRequest{}, errs.InvalidArgument, "exactly one"},
		"image and Dockerfile":     {"new", BuildRequest{Image: "debian", Dockerfile: "Dockerfile"}, errs.InvalidArgument, "exactly one"},
		"Dockerfile of nothing":    {"new", BuildRequest{Dockerfile: "Dockerfile"}, errs.InvalidArgument, "needs the source"},
		"an unknown source":        {"new", BuildRequest{Dockerfile: "Dockerfile", Source: source.Digest(strings.Repeat("a", 64))}, errs.NotFound, "source"},
		"an unknown template":      {"new", BuildRequest{Steps: []sandbox.BuildStep{{Kind: "from_template", Args: []string{"pyhton"}}}}, errs.NotFound, `step 1 (from_template): template "pyhton"`},
		"ready without start":      {"new", BuildRequest{Image: "debian", Ready: &Ready{Port: 80}}, errs.InvalidArgument, "no start command"},
		"a port out of range":      {"new", BuildRequest{Image: "debian", Start: server, Ready: &Ready{Port: 70000}}, errs.InvalidArgument, "70000 is not a port"},
		"port and command":         {"new", BuildRequest{Image: "debian", Start: server, Ready: &Ready{Port: 80, Command: server}}, errs.InvalidArgument, "not both"},
		"a relative path":          {"new", BuildRequest{Image: "debian", Start: server, Ready: &Ready{Port: 80, Path: "x"}}, errs.InvalidArgument, "does not begin with /"},
		"a timeout of nothing":     {"new", BuildRequest{Image: "debian", Start: server, Ready: &Ready{Port: 80, Timeout: time.Millisecond}}, errs.InvalidArgument, "shorter than"},
		"too little memory":        {"new", BuildRequest{Image: "debian", MemoryBytes: 1}, errs.InvalidArgument, "memory_bytes"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := f.Build(t.Context(), "", c.name, c.req)
			if !errs.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v (%s), want %s with %q", err, errs.ClassOf(err), c.want, c.says)
			}
		})
	}
	b, err := f.Build(t.Context(), "", "sealed", BuildRequest{Steps: []sandbox.BuildStep{step("run", "true")}, Secrets: map[string]string{"A": "s3cret"}})
	f.must(err)
	if s, err := f.Sealer.Open(b.Build.Spec.Secrets["A"]); err != nil || s != "s3cret" {
		t.Errorf("the secret is stored as %q (%v)", s, err)
	}
	_, err = f.Build(t.Context(), System, "python", BuildRequest{Image: "debian"})
	f.class("a build of a shipped template", err, errs.FailedPrecondition)
	f.class("deletion of a shipped template", f.Delete(t.Context(), "", "python"), errs.FailedPrecondition)
	f.class("deletion of no version", f.Delete(t.Context(), "", "shop:"), errs.InvalidArgument)
	_, err = f.Tag(t.Context(), "", "shop:1", "1")
	f.class("a tag that is a number", err, errs.InvalidArgument)
	_, err = f.Tag(t.Context(), "", "python:1", "mine")
	f.class("a tag of a shipped template", err, errs.FailedPrecondition)
	_, err = f.Alias(t.Context(), "", "shop", "python", false)
	f.class("an alias that is shipped", err, errs.AlreadyExists)
	if all, err := f.List(t.Context(), f.project); err != nil || len(all) != 13 {
		t.Errorf("%d templates are left, %v", len(all), err)
	}
}
