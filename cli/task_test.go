package cli_test

import (
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/testsupport/wait"
)

// withTasks gives the app shop a version with two tasks.
func (f *fake) withTasks() *app.App {
	f.t.Helper()
	a := f.shop()
	_, err := entity.ModifySpec(f.t.Context(), f.store, id.AppVersion("ver-2"), func(v *app.AppVersion) error {
		for _, name := range []string{"cleanup", "once"} {
			t := app.Task{}
			t.SetDefaults()
			t.Name, t.Command = name, []string{"bin/" + name}
			v.Spec.Tasks = append(v.Spec.Tasks, t)
		}
		v.Spec.Tasks[0].Schedule, v.Spec.Tasks[0].TimeZone = "30 3 * * *", "Europe/Berlin"
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	next := time.Now().Add(5 * time.Hour)
	s := app.NewTaskSchedule()
	s.Spec.App, s.Spec.Task, s.Spec.Key, s.Status.Next = a.GetID(), "cleanup", "key", &next
	f.create(s)
	return a
}

// lastRun returns the newest run.
func (f *fake) lastRun() *app.TaskRun {
	f.t.Helper()
	var all []*app.TaskRun
	wait.For(f.t, "a run", func() bool {
		var err error
		all, _, err = entity.List[app.TaskRun](f.t.Context(), f.store, entity.Query{})
		return err == nil && len(all) > 0
	})
	last := all[0]
	for _, r := range all {
		if r.CreatedAt.After(last.CreatedAt) {
			last = r
		}
	}
	return last
}

func TestTasks(t *testing.T) {
	f := newFake(t)
	f.withTasks()
	list := ok(t, "task", "list", "-a", "shop")
	contains(t, list, "cleanup")
	contains(t, list, "30 3 * * * Europe/Berlin")
	contains(t, list, "in 4h")
	contains(t, list, "by hand")
	contains(t, ok(t, "task", "suspend", "cleanup", "-a", "shop"), "suspended")
	contains(t, ok(t, "task", "list", "-a", "shop"), "suspended")
	contains(t, ok(t, "task", "resume", "cleanup", "-a", "shop"), "resumed")
	if r := run(t, false, "", "task", "suspend", "once", "-a", "shop"); r.code != exit.Failed || !strings.Contains(r.err, "has no schedule") {
		t.Errorf("suspend a task without times: %+v", r)
	}
	if r := run(t, false, "", "task", "run", "nothing", "-a", "shop"); r.code != exit.Failed || !strings.Contains(r.err, "cleanup, once") {
		t.Errorf("a task that does not exist: %+v", r)
	}

	rid := strings.TrimSpace(ok(t, "task", "run", "once", "-a", "shop", "--detach"))
	contains(t, ok(t, "task", "history", "-a", "shop"), rid)
	contains(t, ok(t, "task", "cancel", rid), "is stopped")
	if last := f.lastRun(); string(last.ID) != rid || !last.Spec.Cancel {
		t.Errorf("after cancel: %+v", last)
	}
	if r := run(t, false, "", "task", "logs", "trun-0000000000000000"); r.code != exit.Failed || !strings.Contains(r.err, "does not exist") {
		t.Errorf("logs of no run: %+v", r)
	}
}

// TestTaskRunHasTheExitCodeOfItsCommand: r waits for the end of the run.
func TestTaskRunHasTheExitCodeOfItsCommand(t *testing.T) {
	f := newFake(t)
	f.withTasks()
	done := make(chan result, 1)
	go func() { done <- run(t, false, "", "task", "run", "once", "-a", "shop", "--json") }()
	last := f.lastRun()
	code := int64(7)
	last.Status.Phase, last.Status.ExitCode, last.Status.Message = app.TaskRunPhaseFailed, &code, "it ended with exit code 7"
	if err := entity.UpdateStatus(t.Context(), f.store, last); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.code != 7 || !strings.Contains(r.out, string(last.ID)) || !strings.Contains(r.err, "exit code 7") {
		t.Errorf("%+v", r)
	}
	if _, err := entity.Get[sandbox.Sandbox](t.Context(), f.store, last.Spec.Sandbox); err != nil {
		t.Error(err)
	}
}
