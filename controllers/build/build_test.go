package build

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/components/buildkit"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// flaky is a store whose writes a test can make unavailable.
type flaky struct {
	entity.Store
	away  atomic.Bool
	hangs atomic.Bool // while unavailable, the store does not answer at all
	tried atomic.Int64
}

func (f *flaky) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	if f.away.Load() {
		f.tried.Add(1)
		if f.hangs.Load() {
			<-ctx.Done()
		}
		return entity.TxnResult{}, errs.New(errs.Unavailable, "the store is away")
	}
	return f.Store.Txn(ctx, req)
}

type fixture struct {
	*testing.T
	store      *flaky
	app        *app.App
	logs       *buildlog.Logs
	temp       string
	do         func(ctx context.Context, attempt int64) error // the behaviour of the builder
	files      map[string]string                              // further files of the source
	links      map[string]string                              // symbolic links of the source, and where they lead
	noBase     error                                          // why no base image can be made
	dockerfile string                                         // of the source; empty: one that does nothing
	asked      atomic.Pointer[buildkit.Request]               // the last request
	calls      atomic.Int64
	sealer     *schema.Sealer // of the secrets of templates
}

func setup(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, store: &flaky{Store: pgtest.Store(t, api.Kinds()...)}, app: app.NewApp(), temp: t.TempDir()}
	f.logs = buildlog.New(filepath.Join(t.TempDir(), "logs"), 0)
	p := core.NewProject()
	p.Name = "default"
	f.create(p)
	f.app.Project, f.app.Name = p.ID, "shop"
	f.create(f.app)
	return f
}

func (f *fixture) create(o schema.Object) {
	f.Helper()
	if err := entity.Create(f.Context(), f.store, o); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) build() *app.Build {
	f.Helper()
	b := app.NewBuild()
	b.Project, b.Spec.App, b.Spec.Source = f.app.Project, f.app.GetID(), "src"
	f.create(b)
	return b
}

func (f *fixture) reconciler() *Reconciler {
	r := &Reconciler{
		Builder: f, Bases: f, Sources: f, Logs: f.logs, TempDir: f.temp, Parallel: 1, Timeout: time.Minute,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	r.Store = kittest.Hold(f, f.store, r.Controller())
	f.Cleanup(r.Stop)
	return r
}

func (f *fixture) Materialize(_ context.Context, _, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for name, text := range f.files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for name, to := range f.links {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	text := cmp.Or(f.dockerfile, "FROM scratch\nCMD [\"/x\"]\n")
	return os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o644)
}

func (f *fixture) Resolve(_ context.Context, names []string, progress func(string)) (map[string]*baseimage.Image, []string, error) {
	images := map[string]*baseimage.Image{}
	if len(names) > 0 {
		progress("making base image base 1.2.3")
		progress("base: writing the image")
	}
	if f.noBase != nil {
		return nil, nil, f.noBase
	}
	for _, n := range names {
		images[n] = &baseimage.Image{Name: "base", Version: "1.2.3", Dir: "/base", Digest: "sha256:base"}
	}
	return images, []string{"an image is not quite what its name says"}, nil
}

func (f *fixture) Build(ctx context.Context, req buildkit.Request, progress func(buildlog.Event)) (*buildkit.Result, error) {
	f.asked.Store(&req)
	progress(buildlog.Event{Kind: buildlog.StepStarted, Step: 1, Name: "[1/1] RUN make"})
	if err := f.do(ctx, f.calls.Add(1)); err != nil {
		return nil, err
	}
	return &buildkit.Result{Image: "x@sha256:" + strings.Repeat("0", 64)}, nil
}

func (f *fixture) reconcile(r *Reconciler, b *app.Build) time.Duration {
	f.Helper()
	d, err := r.Reconcile(f.Context(), b.ID)
	if err != nil {
		f.Fatal(err)
	}
	return d
}

func (f *fixture) phase(b *app.Build, want app.BuildPhase) *app.Build {
	f.Helper()
	var got *app.Build
	wait.For(f, "build is "+string(want), func() bool {
		var err error
		if got, err = entity.Get[app.Build](f.Context(), f.store, b.ID); err != nil {
			f.Fatal(err)
		}
		return got.Status.Phase == want
	})
	return got
}

func hang(ctx context.Context, _ int64) error { <-ctx.Done(); return ctx.Err() }

func TestEnds(t *testing.T) {
	for _, tc := range []struct {
		name    string
		do      func(ctx context.Context, attempt int64) error
		timeout time.Duration
		phase   app.BuildPhase
		reason  app.FailureReason
		message string
	}{
		{"works", func(context.Context, int64) error { return nil }, time.Minute, app.BuildPhaseSucceeded, "", ""},
		{"builder goes away twice", func(_ context.Context, n int64) error {
			if n < maxAttempts {
				return errs.New(errs.Unavailable, "connection refused")
			}
			return nil
		}, time.Minute, app.BuildPhaseSucceeded, "", ""},
		{"builder stays away", func(context.Context, int64) error { return errs.New(errs.Unavailable, "connection refused") },
			time.Minute, app.BuildPhaseFailed, app.FailureReasonInternal, "connection refused"},
		{"fails", func(context.Context, int64) error {
			return &buildkit.Failure{Step: "RUN x", ExitCode: 1, Log: []string{"no"}}
		},
			time.Minute, app.BuildPhaseFailed, app.FailureReasonBuild, "exit code 1"},
		{"panics", func(context.Context, int64) error { panic("oops") }, time.Minute, app.BuildPhaseFailed, app.FailureReasonInternal, "oops"},
		{"late", hang, 3 * time.Second, app.BuildPhaseFailed, app.FailureReasonTimeout, "longer than 3s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := setup(t)
			f.do = tc.do
			r := f.reconciler()
			r.Timeout = tc.timeout
			b := f.build()
			f.reconcile(r, b)
			b = f.phase(b, tc.phase)
			if b.Status.Reason != tc.reason || !strings.Contains(b.Status.Message, tc.message) || b.Status.EndedAt == nil || b.Status.Plan != "dockerfile" {
				t.Errorf("%+v", b.Status)
			}
			if tc.phase == app.BuildPhaseSucceeded && (b.Status.Image == "" || len(b.Status.Services) != 1 || b.Status.Services[0].MemoryBytes == 0) {
				t.Errorf("%+v", b.Status)
			}
			r.Stop()
			if left, err := os.ReadDir(f.temp); err != nil || len(left) != 0 {
				t.Errorf("left over: %v %v", left, err)
			}
		})
	}
}

func (f *fixture) cancel(b *app.Build) {
	f.Helper()
	if _, err := entity.ModifySpec(f.Context(), f.store, b.ID, func(b *app.Build) error { b.Spec.Cancel = true; return nil }); err != nil {
		f.Fatal(err)
	}
}

// One build at a time: the second waits, and both can be cancelled.
func TestCancel(t *testing.T) {
	f := setup(t)
	f.do = hang
	r := f.reconciler()
	b1, b2 := f.build(), f.build()
	f.reconcile(r, b1)
	f.phase(b1, app.BuildPhaseRunning)
	if d := f.reconcile(r, b2); d <= 0 {
		t.Error("a build that waits for its turn is not looked at again")
	}
	f.phase(b2, app.BuildPhasePending)
	f.cancel(b2)
	f.reconcile(r, b2)
	f.phase(b2, app.BuildPhaseCanceled)
	f.cancel(b1)
	f.reconcile(r, b1)
	f.phase(b1, app.BuildPhaseCanceled)
}

// The next server runs the builds that a stopped server did not finish.
func TestDoneAgain(t *testing.T) {
	f := setup(t)
	f.do = hang
	r := f.reconciler()
	b := f.build()
	f.reconcile(r, b)
	f.phase(b, app.BuildPhaseRunning)
	r.Stop()
	f.phase(b, app.BuildPhaseRunning)
	if d := f.reconcile(r, b); d <= 0 {
		t.Error("a stopped reconciler takes no work, and forgets none")
	}
	f.do = func(context.Context, int64) error { return nil }
	f.reconcile(f.reconciler(), b)
	f.phase(b, app.BuildPhaseSucceeded)
}

// A store that is unavailable when a build ends loses nothing of it.
func TestStoreAway(t *testing.T) {
	f := setup(t)
	var once sync.Once
	f.do = func(context.Context, int64) error { once.Do(func() { f.store.away.Store(true) }); return nil }
	r := f.reconciler()
	b := f.build()
	f.reconcile(r, b)
	wait.For(f, "the end was tried to be recorded", func() bool { return f.store.tried.Load() >= 2 })
	f.store.away.Store(false)
	f.phase(b, app.BuildPhaseSucceeded)
	if n := f.calls.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
}

// A stop does not wait for an unavailable store.
func TestStopWhileStoreAway(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		f := setup(t)
		f.do = func(context.Context, int64) error { f.store.away.Store(true); f.store.hangs.Store(hangs); return nil }
		r := f.reconciler()
		b := f.build()
		f.reconcile(r, b)
		wait.For(f, "the end was tried to be recorded", func() bool { return f.store.tried.Load() >= 1 })
		stopped := make(chan struct{})
		go func() { r.Stop(); close(stopped) }()
		wait.Receive(t, fmt.Sprintf("Stop of a store that hangs %v", hangs), stopped, wait.Within(5*time.Second))
		f.store.away.Store(false)
		f.phase(b, app.BuildPhaseRunning)
	}
}

// Reconcile retries a build that could not begin.
func TestStoreAwayAtTheBeginning(t *testing.T) {
	f := setup(t)
	f.do = func(context.Context, int64) error { return nil }
	r := f.reconciler()
	b := f.build()
	f.store.away.Store(true)
	if d := f.reconcile(r, b); d <= 0 {
		t.Fatal("not looked at again")
	}
	wait.For(f, "it gave up", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.running) == 0 })
	f.store.away.Store(false)
	f.reconcile(r, b)
	f.phase(b, app.BuildPhaseSucceeded)
}

func TestDeleted(t *testing.T) {
	f := setup(t)
	f.do = hang
	r := f.reconciler()
	b := f.build()
	f.reconcile(r, b)
	b = f.phase(b, app.BuildPhaseRunning)
	wait.For(f, "the builder works", func() bool { return f.calls.Load() == 1 })
	b = f.phase(b, app.BuildPhaseRunning)
	if err := entity.Delete(t.Context(), f.store, b); err != nil {
		t.Fatal(err)
	}
	wait.For(f, "build and log are gone", func() bool {
		f.reconcile(r, b)
		logs, err := f.logs.List()
		if err != nil {
			t.Fatal(err)
		}
		return len(logs) == 0
	})
}

// The Dockerfile of a folder hides what else it could be built as.
func TestFailureOffersAnotherStack(t *testing.T) {
	f := setup(t)
	f.files = map[string]string{"index.html": "home"}
	f.do = func(context.Context, int64) error {
		return errs.New(errs.FailedPrecondition, "%w", error(&buildkit.Failure{Step: "RUN x", ExitCode: 1, Log: []string{"no"}})).WithHint("mend x")
	}
	b := f.build()
	f.reconcile(f.reconciler(), b)
	b = f.phase(b, app.BuildPhaseFailed)
	if !strings.Contains(b.Status.Hint, "mend x\n") || !strings.Contains(b.Status.Hint, "`r deploy --stack static`") || len(b.Status.LogTail) != 1 {
		t.Errorf("hint %q, tail %q", b.Status.Hint, b.Status.LogTail)
	}
}

// A stack that the user asks for overrides the Dockerfile; the plan names the versions of its images.
func TestStackThatWasAskedFor(t *testing.T) {
	f := setup(t)
	f.files = map[string]string{"index.html": "home", "Procfile": "release: migrate\n"}
	f.do = func(context.Context, int64) error { return nil }
	b := app.NewBuild()
	b.Project, b.Spec.App, b.Spec.Source, b.Spec.Stack = f.app.Project, f.app.GetID(), "src", "static"
	f.create(b)
	f.reconcile(f.reconciler(), b)
	b = f.phase(b, app.BuildPhaseSucceeded)
	steps := strings.Join(b.Status.PlanSteps, "\n")
	if b.Status.Plan != "static" || !strings.Contains(steps, "runtime/static is base 1.2.3") || !strings.Contains(f.asked.Load().Dockerfile, "FROM runtime/static") {
		t.Errorf("plan %s: %s", b.Status.Plan, steps)
	}
	if len(b.Status.Warnings) != 1 || !strings.Contains(b.Status.Warnings[0], "not quite") || len(b.Status.Release) == 0 {
		t.Errorf("warnings %q, release %q", b.Status.Warnings, b.Status.Release)
	}
}
