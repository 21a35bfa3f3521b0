package retention

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/domain/images"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// imageStore is an ImageStore in memory.
type imageStore struct {
	refs   []string
	labels func(ref string) map[string]string // nil: none
}

func (s *imageStore) List(context.Context, map[string]string) ([]containerd.Record, error) {
	var out []containerd.Record
	for _, r := range s.refs {
		rec := containerd.Record{Ref: r, CreatedAt: time.Now().Add(-2 * time.Hour)}
		if s.labels != nil {
			rec.Labels = s.labels(r)
		}
		out = append(out, rec)
	}
	return out, nil
}

func (s *imageStore) Delete(_ context.Context, ref string) error {
	s.refs = slices.DeleteFunc(s.refs, func(r string) bool { return r == ref })
	return nil
}

// unreadable is a store of which one kind cannot be read.
type unreadable struct{ entity.Store }

func (s unreadable) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	if q.Kind == sandbox.KindSandbox {
		return entity.Page{}, errs.New(errs.Unavailable, "no answer")
	}
	return s.Store.List(ctx, q)
}

func project(t *testing.T, s entity.Store) schema.ID {
	t.Helper()
	p := core.NewProject()
	p.Name = "p"
	if err := entity.Create(t.Context(), s, p); err != nil {
		t.Fatal(err)
	}
	return p.ID
}

const appImages = "runtime.local/app-"

func TestImagesThatNobodyNames(t *testing.T) {
	s := pgtest.Store(t, api.Kinds()...)
	pid := project(t, s)
	a := app.NewApp()
	a.Project, a.Name = pid, "shop"
	if err := entity.Create(t.Context(), s, a); err != nil {
		t.Fatal(err)
	}
	var web app.Service
	web.SetDefaults()
	web.Name = "web"
	v := app.NewAppVersion()
	v.Project, v.Name = pid, "shop-v1"
	v.Spec.App, v.Spec.Number, v.Spec.Image, v.Spec.Services = a.GetID(), 1, appImages+"a@sha256:1", []app.Service{web}
	if err := entity.Create(t.Context(), s, v); err != nil {
		t.Fatal(err)
	}
	st := &imageStore{refs: []string{appImages + "a@sha256:1", appImages + "a@sha256:2", "runtime.local/base/debian@sha256:3"}}
	c := &Images{Store: unreadable{s}, Images: st, Logger: slog.New(slog.DiscardHandler)}
	if n, err := c.Collect(t.Context()); n != 0 || !errs.Is(err, errs.Unavailable) || len(st.refs) != 3 {
		t.Fatalf("with an unreadable store: %d deleted, %v, left %v", n, err, st.refs)
	}
	c.Store = s
	if n, err := c.Collect(t.Context()); n != 1 || err != nil || slices.Contains(st.refs, appImages+"a@sha256:2") {
		t.Fatalf("%d deleted, %v, left %v", n, err, st.refs)
	}
}

// A base image goes when a later one replaced it and nothing names it. It stays if that cannot be read.
func TestReplacedBases(t *testing.T) {
	s := pgtest.Store(t, api.Kinds()...)
	sb := sandbox.NewSandbox()
	const of = images.BasePrefix + "debian:13@sha256:"
	sb.Project, sb.Spec.Template.Image = project(t, s), of+"used"
	if err := entity.Create(t.Context(), s, sb); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	bases := map[string]time.Time{"sha256:current": {}, "sha256:used": now.Add(-time.Hour), "sha256:old": now.Add(-time.Hour), "sha256:young": now}
	kept := []string{of + "current", of + "used", of + "young", of + "other", "runtime.local/snapshot/x@sha256:old"}
	st := &imageStore{refs: append([]string{of + "old", of + "removed"}, kept...), labels: func(ref string) map[string]string {
		_, made, _ := strings.Cut(ref, "@sha256:")
		if made == "other" {
			return nil
		}
		return map[string]string{images.LabelBase: made}
	}}
	c := &Images{Store: s, Images: st, Logger: slog.New(slog.DiscardHandler)}
	for _, bases := range []func() (map[string]time.Time, error){nil, func() (map[string]time.Time, error) { return nil, errs.New(errs.Unavailable, "no disk") }} {
		c.Bases = bases
		if n, err := c.Collect(t.Context()); n != 0 || (err == nil) != (bases == nil) {
			t.Fatalf("%d deleted, %v, left %v", n, err, st.refs)
		}
	}
	c.Bases = func() (map[string]time.Time, error) { return bases, nil }
	if n, err := c.Collect(t.Context()); n != 2 || err != nil || !slices.Equal(st.refs, kept) {
		t.Fatalf("%d deleted, %v, left %v", n, err, st.refs)
	}
	if err := entity.Delete(t.Context(), s, sb); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Collect(t.Context()); n != 1 || err != nil || slices.Contains(st.refs, of+"used") {
		t.Fatalf("after the sandbox: %d deleted, %v, left %v", n, err, st.refs)
	}
}

// The image of a template stays while a version, a sandbox or a snapshot names
// it.
func TestImagesOfTemplates(t *testing.T) {
	s := pgtest.Store(t, api.Kinds()...)
	pid := project(t, s)
	create := func(o schema.Object) {
		t.Helper()
		o.GetMeta().Project = pid
		if err := entity.Create(t.Context(), s, o); err != nil {
			t.Fatal(err)
		}
	}
	const of = "runtime.local/tpl-a@sha256:"
	tpl := sandbox.NewTemplate()
	tpl.Name = "shop"
	create(tpl)
	v := sandbox.NewTemplateVersion()
	v.Spec.Template, v.Spec.Number, v.Status.Image = tpl.GetID(), 1, of+"1"
	create(v)
	sb := sandbox.NewSandbox()
	sb.Spec.Template.Image = of + "2"
	create(sb)
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "n", "amd64", 1000, 1<<30
	if err := entity.Create(t.Context(), s, n); err != nil {
		t.Fatal(err)
	}
	snap := sandbox.NewSnapshot()
	snap.Spec.Node, snap.Spec.Template.Image = n.GetID(), of+"3"
	create(snap)
	st := &imageStore{refs: []string{of + "1", of + "2", of + "3", of + "4"}}
	c := &Images{Store: s, Images: st, Logger: slog.New(slog.DiscardHandler)}
	if n, err := c.Collect(t.Context()); n != 1 || err != nil || !slices.Equal(st.refs, []string{of + "1", of + "2", of + "3"}) {
		t.Fatalf("%d deleted, %v, left %v", n, err, st.refs)
	}
	if err := entity.Delete(t.Context(), s, tpl); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Collect(t.Context()); n != 1 || err != nil || !slices.Equal(st.refs, []string{of + "2", of + "3"}) {
		t.Fatalf("after the template: %d deleted, %v, left %v", n, err, st.refs)
	}
}

func TestEndedSandboxesAreForgotten(t *testing.T) {
	s := pgtest.Store(t, api.Kinds()...)
	pid := project(t, s)
	sb := sandbox.NewSandbox()
	sb.Project = pid
	sb.Spec.Template.Image = "x@sha256:1"
	ended := time.Now()
	sb.Status.Phase, sb.Status.EndedAt = sandbox.SandboxPhaseStopped, &ended
	if err := entity.Create(t.Context(), s, sb); err != nil {
		t.Fatal(err)
	}
	now := ended
	r := &Sandboxes{Logger: slog.New(slog.DiscardHandler), After: time.Hour, Now: func() time.Time { return now }}
	r.Store = kittest.Hold(t, s, r.Controller())
	if d, err := r.Reconcile(t.Context(), sb.ID); err != nil || d <= 59*time.Minute || d > time.Hour {
		t.Fatalf("looks again after %s, %v", d, err)
	}
	now = ended.Add(time.Hour)
	if _, err := r.Reconcile(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), sandbox.KindSandbox, sb.ID); !errs.Is(err, errs.NotFound) {
		t.Errorf("still there: %v", err)
	}
}

// copyStore is a CopyStore in memory, in which each image uses 10 bytes. Its images were made in the order of refs.
type copyStore struct {
	imageStore
	began time.Time
}

func (s *copyStore) List(ctx context.Context, labels map[string]string) ([]containerd.Record, error) {
	list, err := s.imageStore.List(ctx, labels)
	for i := range list {
		list[i].CreatedAt = s.began.Add(time.Duration(i) * time.Second)
	}
	return list, err
}

func (s *copyStore) Usage(context.Context, string) (int64, error) { return 10, nil }

// Of the copies of images that nothing on a runner names, those that were used last stay within the budget.
func TestCopiesOfImages(t *testing.T) {
	s := pgtest.Store(t, api.Kinds()...)
	pid := project(t, s)
	const tpl, base, own = "runtime.local/tpl-a@sha256:", images.BasePrefix + "debian:13@sha256:", "runtime.local/snapshot/x@sha256:"
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Template.Image = pid, tpl+"sandbox"
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "n", "amd64", 1000, 1<<30
	if err := entity.Create(t.Context(), s, n); err != nil {
		t.Fatal(err)
	}
	snap := sandbox.NewSnapshot()
	snap.Project, snap.Spec.Node, snap.Spec.Template.Image = pid, n.GetID(), tpl+"snapshot"
	for _, o := range []schema.Object{sb, snap} {
		if err := entity.Create(t.Context(), s, o); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	kept := []string{tpl + "sandbox", tpl + "snapshot", own + "1"}
	st := &copyStore{began: now, imageStore: imageStore{refs: append([]string{tpl + "1", base + "2", tpl + "3", tpl + "4"}, kept...)}}
	c := &Copies{Store: unreadable{s}, Images: st, MaxBytes: 20, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }}
	collect := func(what string, want int, wantRefs ...string) {
		t.Helper()
		wantRefs = append(wantRefs, kept...)
		if n, err := c.Collect(t.Context()); n != want || err != nil || !slices.Equal(st.refs, wantRefs) {
			t.Errorf("%s: %d deleted, %v, left %v, want %v", what, n, err, st.refs, wantRefs)
		}
	}
	now = now.Add(time.Hour)
	if n, err := c.Collect(t.Context()); n != 0 || !errs.Is(err, errs.Unavailable) {
		t.Errorf("with an unreadable store: %d deleted, %v", n, err)
	}
	c.Store = s
	c.Use(base + "2")
	collect("the ones that were used or made last stay", 2, base+"2", tpl+"4")
	collect("nothing is over the budget", 0, base+"2", tpl+"4")

	// The sandbox ends: its image was used last.
	if err := entity.Delete(t.Context(), s, sb); err != nil {
		t.Fatal(err)
	}
	kept = kept[1:]
	now = now.Add(time.Hour)
	collect("the image of a sandbox that ended", 1, base+"2", tpl+"sandbox")

	// A sandbox needs an image at the moment of its deletion.
	c.MaxBytes = 0
	c.Use(base + "2")
	collect("one that is about to be used", 1, base+"2")
	now = now.Add(youngImage)
	collect("when it was not", 1)
	collect("again", 0)
	if len(c.last) != 1 { // of the snapshot's image
		t.Errorf("times of %v", c.last)
	}
}
