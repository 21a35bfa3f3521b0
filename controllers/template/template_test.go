package template_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/components/buildkit"
	"miren.dev/runtime/controllers/build"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/controllers/template"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// mortal is a store of a server that dies at a write: before it, or after it.
type mortal struct {
	entity.Store
	left  atomic.Int64
	after bool
	dead  atomic.Bool
}

var errKilled = errs.New(errs.Unavailable, "the server was killed")

func (m *mortal) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	if m.dead.Load() {
		return entity.TxnResult{}, errKilled
	}
	last := m.left.Add(-1) == 0
	if last && !m.after {
		m.dead.Store(true)
		return entity.TxnResult{}, errKilled
	}
	res, err := m.Store.Txn(ctx, req)
	if last {
		m.dead.Store(true)
		return entity.TxnResult{}, errKilled
	}
	return res, err
}

// machine is what outlives a server: the store, the logs, and the builder.
type machine struct {
	*testing.T
	store entity.Store
	logs  *buildlog.Logs
	temp  string
	fails error
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{T: t, store: pgtest.Store(t, api.Kinds()...), logs: buildlog.New(filepath.Join(t.TempDir(), "logs"), 0), temp: t.TempDir()}
	m.must(projects.Ensure(t.Context(), m.store, projects.Default))
	m.must(templates.New(m.store, informer.New(informer.Config{Reader: m.store}), nil, slog.New(slog.DiscardHandler)).Ship(t.Context()))
	return m
}

func (m *machine) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *machine) Build(_ context.Context, req buildkit.Request, _ func(buildlog.Event)) (*buildkit.Result, error) {
	return &buildkit.Result{Image: req.ImageName + "@sha256:1"}, m.fails
}

func (m *machine) Resolve(_ context.Context, names []string, _ func(string)) (map[string]*baseimage.Image, []string, error) {
	return map[string]*baseimage.Image{}, nil, nil
}

func (m *machine) Materialize(context.Context, string, string) error { return errors.New("no source") }

// serve runs the controllers of a server over s, until stop is called.
func (m *machine) serve(s entity.Store) (svc *templates.Service, stop func()) {
	m.Helper()
	log := slog.New(slog.DiscardHandler)
	informers := informer.New(informer.Config{Reader: s})
	svc = templates.New(s, informers, nil, log)
	svc.Size = func(context.Context, string) (int64, error) { return 7, nil }
	builds := &build.Reconciler{Builder: m, Bases: m, Sources: m, Logs: m.logs, TempDir: m.temp, Parallel: 1, Logger: log}
	builds.Store = kittest.Hold(m, s, builds.Controller())
	settling := templates.New(s, informers, nil, log)
	settling.Size = svc.Size
	rec := &template.Reconciler{Templates: settling}
	settling.Store = kittest.Hold(m, s, rec.Controller())
	var controllers []kit.Controller
	for _, c := range []kit.Controller{builds.Controller(), rec.Controller()} {
		c.Backoff = kit.Backoff{Base: 5 * time.Millisecond, MaxUnavailable: 20 * time.Millisecond}
		controllers = append(controllers, c)
	}
	_, end := kittest.Run(m, informers, kit.Config{StopGrace: time.Millisecond, Logger: log}, controllers...)
	return svc, func() {
		builds.Stop()
		end()
	}
}

var steps = []sandbox.BuildStep{{Kind: sandbox.BuildStepKindRun, Args: []string{"true"}}}

// A server that dies before or after any write leaves a template that selects
// the previous version, and the next server completes the build.
func TestDiesAtEveryWrite(t *testing.T) {
	for what, fails := range map[string]error{"built": nil, "fails": errs.New(errs.FailedPrecondition, "exit code 1")} {
		t.Run(what, func(t *testing.T) {
			m := newMachine(t)
			for _, after := range []bool{false, true} {
				for n := int64(1); ; n++ {
					if !m.once(fmt.Sprintf("t%d-%v", n, after), n, after, fails) {
						if n < 4 {
							t.Errorf("only %d writes", n)
						}
						break
					}
				}
			}
			left, err := os.ReadDir(m.temp)
			if err != nil || len(left) > 0 {
				t.Errorf("%d sources are left in the temporary directory, %v", len(left), err)
			}
		})
	}
}

// once builds a template twice, the second time by a server that dies at its
// n-th write. It reports whether that server died.
func (m *machine) once(name string, n int64, after bool, fails error) bool {
	m.Helper()
	svc, stop := m.serve(m.store)
	m.fails = nil
	first, err := svc.Build(m.Context(), "", name, templates.BuildRequest{Steps: steps})
	m.must(err)
	m.settled(first.Version.ID)
	stop()

	m.fails = fails
	s := &mortal{Store: m.store, after: after}
	s.left.Store(n)
	svc, stop = m.serve(s)
	_, err = svc.Build(m.Context(), "", name, templates.BuildRequest{Steps: steps, Tags: []string{"latest", "beta"}})
	if err != nil && !errs.Is(err, errs.Unavailable) {
		m.Fatal(err)
	}
	accepted := func() *sandbox.TemplateVersion {
		all, _, err := entity.List[sandbox.TemplateVersion](m.Context(), m.store, entity.Where(sandbox.TemplateVersionAttrTemplate, first.Template.ID))
		m.must(err)
		for _, v := range all {
			if v.Spec.Number == 2 {
				return v
			}
		}
		return nil
	}
	wait.For(m, "the server dies, or the build ends", func() bool {
		v := accepted()
		return s.dead.Load() || v != nil && v.Status.Phase != sandbox.TemplatePhaseBuilding
	})
	died := s.dead.Load()
	stop()
	t, err := entity.Get[sandbox.Template](m.Context(), m.store, first.Template.ID)
	m.must(err)
	if v := accepted(); v == nil || v.Status.Phase != sandbox.TemplatePhaseReady {
		if t.Status.Version != first.Version.GetID() || t.Spec.Tags[templates.TagLatest] != 1 {
			m.Errorf("%s: while it is not built: %+v, %+v", name, t.Spec, t.Status)
		}
	}

	_, stop = m.serve(m.store)
	defer stop()
	v := accepted()
	if v == nil { // nothing of the request was written
		if n != 1 || after {
			m.Errorf("%s: the build was lost", name)
		}
		return died
	}
	v = m.settled(v.ID)
	t, err = entity.Get[sandbox.Template](m.Context(), m.store, first.Template.ID)
	m.must(err)
	want, selected, tag := sandbox.TemplatePhaseReady, v.GetID(), int64(2)
	if fails != nil {
		want, selected, tag = sandbox.TemplatePhaseFailed, first.Version.GetID(), 1
	}
	if v.Status.Phase != want || t.Status.Version != selected || t.Spec.Tags["latest"] != tag || (t.Spec.Tags["beta"] == 2) != (fails == nil) {
		m.Errorf("%s: %+v; %+v, %+v", name, v.Status, t.Spec, t.Status)
	}
	if fails == nil && (v.Status.Image == "" || v.Status.Bytes != 7) {
		m.Errorf("%s: %+v", name, v.Status)
	}
	return died
}

// settled waits until a version is no longer being built, and its build has
// ended.
func (m *machine) settled(vid schema.ID) *sandbox.TemplateVersion {
	m.Helper()
	var v *sandbox.TemplateVersion
	wait.For(m, "the version is settled", func() bool {
		var err error
		v, err = entity.Get[sandbox.TemplateVersion](m.Context(), m.store, vid)
		m.must(err)
		return v.Status.Phase != sandbox.TemplatePhaseBuilding
	})
	builds, err := templates.Builds(m.Context(), m.store, v)
	m.must(err)
	if len(builds) != 1 || !builds[0].Status.Phase.Ended() {
		m.Errorf("%d builds of %s", len(builds), v.ID)
	}
	return v
}

// The deletion of a version under way ends its build.
func TestDeletedWhileBuilding(t *testing.T) {
	m := newMachine(t)
	blocked := &blocking{machine: m, begun: make(chan struct{}), ended: make(chan struct{})}
	log := slog.New(slog.DiscardHandler)
	informers := informer.New(informer.Config{Reader: m.store})
	svc := templates.New(m.store, informers, nil, log)
	builds := &build.Reconciler{Builder: blocked, Bases: m, Sources: m, Logs: m.logs, TempDir: m.temp, Parallel: 1, Logger: log, Store: m.store}
	_, stop := kittest.Run(t, informers, kit.Config{StopGrace: time.Millisecond, Logger: log}, builds.Controller())
	defer stop()
	defer builds.Stop()
	b, err := svc.Build(t.Context(), "", "shop", templates.BuildRequest{Steps: steps})
	m.must(err)
	<-blocked.begun
	m.must(svc.Delete(t.Context(), "", "shop"))
	<-blocked.ended
	wait.For(t, "its log is gone", func() bool {
		err := m.logs.Read(t.Context(), string(b.Build.ID), 0, false, func(buildlog.Event, int64) error { return nil })
		return errs.Is(err, errs.NotFound)
	})
	if all, _, err := entity.List[app.Build](t.Context(), m.store, entity.Query{}); err != nil || len(all) != 0 {
		t.Errorf("%d builds are left, %v", len(all), err)
	}
}

// blocking is a builder whose builds end when they are cancelled.
type blocking struct {
	*machine
	begun, ended chan struct{}
}

func (b *blocking) Build(ctx context.Context, _ buildkit.Request, _ func(buildlog.Event)) (*buildkit.Result, error) {
	close(b.begun)
	<-ctx.Done()
	close(b.ended)
	return nil, ctx.Err()
}
