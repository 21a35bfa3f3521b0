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

func (e *edges) Logs(_ context.Context, _ id.Sandbox, q sandboxes.LogQuery, emit func(sandboxes.LogLine) error) error {
	for _, l := range e.lines {
		if l.Offset > q.Offset {
			if err := emit(l); err != nil {
				return err
			}
		}
	}
	return e.err
}

// TestRunners: the output of a sandbox on a runner is copied while the runner is connected. What a runner
// sends does not harm the log.
func TestRunners(t *testing.T) {
	ctx := t.Context()
	store, logs, shop := shop(t)
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.App, sb.Spec.Runner = shop.Project, shop.GetID(), true
	sb.Spec.Template.Image = "debian"
	if err := entity.Create(ctx, store, sb); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	e := &edges{lines: []sandboxes.LogLine{{Offset: 10, At: time.Now(), Text: "first"}, {Offset: 20, At: later, Text: "second"}}}
	set := informer.New(informer.Config{Reader: store})
	informer.Of[sandbox.Sandbox](set)
	following, stop := context.WithCancel(ctx)
	var followed sync.WaitGroup
	followed.Go(func() { _ = set.Run(following) }) // it ends with the test
	defer followed.Wait()
	defer stop()
	if err := set.WaitSynced(ctx); err != nil {
		t.Fatal(err)
	}
	c := &Collector{Logs: logs, Runners: e, Informers: set, Logger: slog.New(slog.DiscardHandler)}
	c.Store = kittest.Hold(t, store, c.Controller())
	copied := func(want string) {
		t.Helper()
		var got []string
		x, err := logs.Snapshot(string(shop.ID))
		if err != nil {
			t.Fatal(err)
		}
		err = x.Read(ctx, logstore.Query{}, func(l logstore.Line) error {
			got = append(got, l.Text)
			if l.At.After(time.Now()) {
				t.Errorf("line %q is of %s", l.Text, l.At)
			}
			return nil
		})
		x.Close()
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("the log has %q, %v; want %q", got, err, want)
		}
	}
	reconcile := func() error { _, err := c.Reconcile(ctx, sb.ID); return err }
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
