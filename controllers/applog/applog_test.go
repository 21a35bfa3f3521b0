package applog

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// printed is the output of a sandbox.
type printed []execution.LogLine

func (p printed) Logs(_ context.Context, _ string, q execution.LogQuery, line func(execution.LogLine) error) error {
	for _, l := range p {
		if l.Offset > q.Offset {
			if err := line(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// shop returns a store with an app, and a store of logs without any.
func shop(t *testing.T) (entity.Store, *logstore.Store, *app.App) {
	t.Helper()
	store := pgtest.Store(t, api.Kinds()...)
	logs, err := logstore.Open(logstore.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(logs.Close)
	project, shop := core.NewProject(), app.NewApp()
	project.Name, shop.Name = "p", "shop"
	if err := entity.Create(t.Context(), store, project); err != nil {
		t.Fatal(err)
	}
	shop.Project = project.ID
	if err := entity.Create(t.Context(), store, shop); err != nil {
		t.Fatal(err)
	}
	return store, logs, shop
}

// TestFinishAfterTheApp: the last lines of a sandbox do not bring back the log of an app
// that was deleted; those of another app are kept.
func TestFinishAfterTheApp(t *testing.T) {
	ctx := t.Context()
	store, logs, lives := shop(t)
	c := &Collector{Logs: logs, Driver: printed{{Offset: 1, At: time.Now(), Text: "first"}, {Offset: 2, At: time.Now(), Text: "last"}}, Logger: slog.New(slog.DiscardHandler)}
	c.Store = kittest.Hold(t, store, c.Controller())
	for _, name := range []string{string(lives.ID), "app-gone"} {
		if err := logs.Append(name, logstore.Origin{Source: "sb-of-" + name}, []logstore.Line{{Offset: 1, At: time.Now(), Text: "first"}}); err != nil {
			t.Fatal(err)
		}
		if err := c.Finish(ctx, "sb-of-"+name); err != nil {
			t.Fatal(err)
		}
	}
	if names := logs.Names(); !slices.Equal(names, []string{string(lives.ID)}) {
		t.Errorf("the logs are of %v", names)
	}
}

// edges are runners, with the output of their sandboxes.
type edges struct {
	connected bool
	lines     []sandboxes.LogLine
	err       error // after the lines
}

func (e *edges) Connected(id.Node) bool { return e.connected }

func (e *edges) Logs(_ context.Context, _ id.Node, _ id.Sandbox, q sandboxes.LogQuery, emit func(sandboxes.LogLine) error) error {
	for _, l := range e.lines {
		if l.Offset > q.Offset {
			if err := emit(l); err != nil {
				return err
			}
		}
	}
	return e.err
}

// runnerFixture is an app with a sandbox on a runner, and a Collector that follows the store.
type runnerFixture struct {
	*testing.T
	store entity.Store
	logs  *logstore.Store
	shop  *app.App
	node  *core.Node // the runner
	sb    *sandbox.Sandbox
	edges *edges
	*Collector
}

func newRunnerFixture(t *testing.T) *runnerFixture {
	t.Helper()
	store, logs, shop := shop(t)
	f := &runnerFixture{T: t, store: store, logs: logs, shop: shop, node: core.NewNode(), sb: sandbox.NewSandbox(), edges: &edges{}}
	f.node.Name, f.node.Spec.Arch, f.node.Spec.CPUMillis, f.node.Spec.MemoryBytes = "edge", "amd64", 1000, 1<<30
	f.node.Spec.Runner, f.node.Spec.Apps = true, []string{string(shop.ID)}
	f.must(entity.Create(t.Context(), store, f.node))
	f.sb.Project, f.sb.Spec.App, f.sb.Spec.Runner, f.sb.Spec.Node = shop.Project, shop.GetID(), true, f.node.GetID()
	f.sb.Spec.Template.Image = "debian"
	f.must(entity.Create(t.Context(), store, f.sb))
	f.begin()
	return f
}

func (f *runnerFixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// begin is a new process of the server.
func (f *runnerFixture) begin() {
	f.Helper()
	set := informer.New(informer.Config{Reader: f.store})
	informer.Of[sandbox.Sandbox](set)
	following, stop := context.WithCancel(f.Context())
	var followed sync.WaitGroup
	followed.Go(func() { _ = set.Run(following) }) // it ends with the test
	f.Cleanup(followed.Wait)
	f.Cleanup(stop)
	f.must(set.WaitSynced(f.Context()))
	c := &Collector{Logs: f.logs, Runners: f.edges, Informers: set, Logger: slog.New(slog.DiscardHandler)}
	c.Store = kittest.Hold(f.T, f.store, c.Controller())
	f.Collector = c
}

// copied compares the log of the app.
func (f *runnerFixture) copied(want string) {
	f.Helper()
	var got []string
	x, err := f.logs.Snapshot(string(f.shop.ID))
	f.must(err)
	err = x.Read(f.Context(), logstore.Query{}, func(l logstore.Line) error {
		got = append(got, l.Text)
		if l.At.After(time.Now()) {
			f.Errorf("line %q is of %s", l.Text, l.At)
		}
		return nil
	})
	x.Close()
	if err != nil || strings.Join(got, " ") != want {
		f.Errorf("the log has %q, %v; want %q", got, err, want)
	}
}

// prints makes the sandbox print lines.
func (f *runnerFixture) prints(lines ...string) {
	for _, l := range lines {
		f.edges.lines = append(f.edges.lines, sandboxes.LogLine{Offset: int64(10 * (len(f.edges.lines) + 1)), At: time.Now(), Text: l})
	}
}

// removed deletes the sandbox, and waits until the Collector could know.
func (f *runnerFixture) removed() {
	f.Helper()
	sb, err := entity.Get[sandbox.Sandbox](f.Context(), f.store, f.sb.GetID())
	f.must(err)
	f.must(entity.Delete(f.Context(), f.store, sb))
	wait.For(f.T, "the deletion is known", func() bool { return informer.Of[sandbox.Sandbox](f.Informers).Get(f.sb.ID) == nil })
}

func (f *runnerFixture) reconcile() error {
	_, err := f.Reconcile(f.Context(), f.sb.ID)
	return err
}

func (f *runnerFixture) finish() error {
	return f.FinishRunner(f.Context(), f.node.GetID(), f.sb.GetID())
}

// TestDeletedOnARunner: what a sandbox on a runner printed until its end is in the log, although the sandbox is deleted. The
// runner keeps it until then.
func TestDeletedOnARunner(t *testing.T) {
	for name, deletion := range map[string]func(*runnerFixture){
		"the informer has told": func(f *runnerFixture) {
			f.removed()
			f.must(f.Controller().Deleted(f.Context(), f.sb))
			f.must(f.reconcile())
		},
		"the informer is behind": func(f *runnerFixture) { f.removed() },
		"another process":        func(f *runnerFixture) { f.removed(); f.begin() },
	} {
		t.Run(name, func(t *testing.T) {
			f := newRunnerFixture(t)
			f.edges.connected = true
			f.prints("first")
			f.must(f.reconcile())
			f.prints("second")
			if err := f.finish(); !errs.Is(err, errs.FailedPrecondition) {
				t.Errorf("before the deletion: %v", err)
			}
			deletion(f)
			f.prints("last")
			f.edges.err = errs.New(errs.Unavailable, "the connection was cut")
			lines := f.edges.lines
			f.edges.lines = lines[:2]
			if err := f.finish(); !errs.Is(err, errs.Unavailable) {
				t.Errorf("the connection was cut: %v", err)
			}
			f.copied("first second")
			f.edges.lines, f.edges.err = lines, nil
			other := core.NewNode()
			other.Name, other.Spec.Arch, other.Spec.CPUMillis, other.Spec.MemoryBytes, other.Spec.Runner = "other", "amd64", 1000, 1<<30, true
			f.must(entity.Create(t.Context(), f.store, other))
			if err := f.FinishRunner(t.Context(), other.GetID(), f.sb.GetID()); name != "another process" && !errs.Is(err, errs.PermissionDenied) {
				t.Errorf("another runner: %v", err)
			}
			f.copied("first second")
			for range 2 { // the runner did not get the answer
				f.must(f.finish())
				f.copied("first second last")
			}
			if len(f.sources) != 0 {
				t.Errorf("%d sources", len(f.sources))
			}
		})
	}
}

// TestDeletedAtOnce: also one whose output was never read before its deletion, and one whose runner sends no lines.
func TestDeletedAtOnce(t *testing.T) {
	f := newRunnerFixture(t)
	f.edges.connected = true
	f.prints("only")
	f.removed()
	f.must(f.Controller().Deleted(t.Context(), f.sb))
	f.must(f.finish())
	f.copied("only")
	f = newRunnerFixture(t)
	f.prints("two\nlines")
	f.removed()
	f.must(f.Controller().Deleted(t.Context(), f.sb))
	f.must(f.finish())
	f.copied("")
}

// TestRunners: the output of a sandbox on a runner is copied while the runner is connected. What a runner
// sends does not harm the log.
func TestRunners(t *testing.T) {
	f := newRunnerFixture(t)
	e, reconcile, copied := f.edges, f.reconcile, f.copied
	later := time.Now().Add(time.Hour)
	e.lines = []sandboxes.LogLine{{Offset: 10, At: time.Now(), Text: "first"}, {Offset: 20, At: later, Text: "second"}}
	if err := reconcile(); err != nil {
		t.Fatal(err)
	}
	copied("") // it is not connected
	e.connected, e.err = true, errs.New(errs.Unavailable, "the connection was cut")
	if err := reconcile(); err != nil {
		t.Fatal(err)
	}
	copied("first second")
	e.err = nil
	for _, bad := range []sandboxes.LogLine{
		{Offset: 30, Text: "again"}, {Offset: 40, Text: "two\nlines"}, {Offset: 40, Text: strings.Repeat("x", maxText+1)},
	} {
		e.lines = append(e.lines[:2:2], sandboxes.LogLine{Offset: 30, At: time.Now(), Text: "third"}, bad)
		if err := reconcile(); !errs.Is(err, errs.Corrupt) {
			t.Errorf("%.20q at %d: %v", bad.Text, bad.Offset, err)
		}
	}
	e.lines = e.lines[:3]
	if err := reconcile(); err != nil {
		t.Fatal(err)
	}
	copied("first second third")
}
