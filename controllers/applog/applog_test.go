package applog

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/entity"
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

// TestFinishAfterTheApp: the last lines of a sandbox do not bring back the log of an app
// that was deleted; those of another app are kept.
func TestFinishAfterTheApp(t *testing.T) {
	ctx := t.Context()
	store := pgtest.Store(t, api.Kinds()...)
	logs, err := logstore.Open(logstore.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(logs.Close)
	project, lives := core.NewProject(), app.NewApp()
	project.Name, lives.Name = "p", "shop"
	if err := entity.Create(ctx, store, project); err != nil {
		t.Fatal(err)
	}
	lives.Project = project.ID
	if err := entity.Create(ctx, store, lives); err != nil {
		t.Fatal(err)
	}
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
