package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/testsupport/wait"
)

// TestTasks: an app's tasks run on request and at their times, each time once, also
// if the server is killed in the middle. The commands are those of docs/tasks.md.
func TestTasks(t *testing.T) {
	t.Parallel()
	s := own(t, "tasks")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "Dockerfile"), "FROM debian\n")
	write(t, filepath.Join(dir, "app.toml"), `
name = "shop"
[env]
GREETING = "hello"
[services.web]
port = 0
command = "sleep infinity"
[tasks.cleanup]
command = "echo $GREETING from $RUNTIME_SERVICE"
[tasks.fails]
command = "echo no; exit 7"
[tasks.long]
command = "echo begun; sleep 20; echo done"
timeout = "10m"
[tasks.every-minute]
command = "date"
schedule = "* * * * *"
`)
	s.r(t, dir, "app", "deploy")
	contains(t, "task list", s.r(t, dir, "task", "list"), "cleanup", "by hand", "every-minute", "* * * * *")
	contains(t, "task run", s.r(t, dir, "task", "run", "cleanup"), "hello from cleanup")
	if res := s.try(t, dir, "task", "run", "fails"); res.Code != 7 || !strings.Contains(res.Stdout, "no") || !strings.Contains(res.Stderr, "exit code 7") {
		t.Errorf("a task that fails: %s", res)
	}
	contains(t, "app run", s.r(t, dir, "app", "run", "--", "sh", "-c", "echo $GREETING there"), "hello there")
	if res := s.try(t, dir, "app", "run", "--", "sh", "-c", "exit 9"); res.Code != 9 {
		t.Errorf("app run: %s", res)
	}

	// The server is killed while a task runs, and is away when a time comes.
	run := strings.TrimSpace(s.r(t, dir, "task", "run", "long", "--detach"))
	wait.NoError(t, "the task runs", func() error {
		if out := s.r(t, dir, "task", "logs", run); !strings.Contains(out, "begun") {
			return fmt.Errorf("%q", out)
		}
		return nil
	}, wait.Within(converge))
	kill(t, s.pid(t, "server"))
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	runs := func(task string) (all []*app.TaskRun) {
		t.Helper()
		s.json(t, &all, "task", "history", task, "-a", "shop")
		return all
	}
	wait.For(t, "the end of the task", func() bool {
		all := runs("long")
		return len(all) == 1 && all[0].Status.Phase == app.TaskRunPhaseSucceeded
	}, wait.Within(2*time.Minute), wait.State(func() any { return runs("long") }))
	contains(t, "task logs", s.r(t, dir, "task", "logs", run), "begun", "done")

	wait.For(t, "two times of the schedule", func() bool {
		ended := 0
		for _, r := range runs("every-minute") {
			if r.Status.Phase == app.TaskRunPhaseSucceeded {
				ended++
			}
		}
		return ended >= 2
	}, wait.Within(4*time.Minute), wait.State(func() any { return runs("every-minute") }))
	seen := map[int64]bool{}
	for _, r := range runs("every-minute") {
		if due := r.Spec.Due.Unix(); seen[due] || due%60 != 0 {
			t.Errorf("it ran twice for one time, or at no full minute: %+v", r.Spec)
		} else {
			seen[due] = true
		}
	}
	s.r(t, dir, "task", "suspend", "every-minute")
	contains(t, "task list", s.r(t, dir, "task", "list"), "suspended")
	s.r(t, dir, "task", "resume", "every-minute")

	run = strings.TrimSpace(s.r(t, dir, "task", "run", "long", "--detach"))
	s.r(t, dir, "task", "cancel", run)
	wait.For(t, "the run to be cancelled", func() bool { return runs("long")[0].Status.Phase == app.TaskRunPhaseCanceled },
		wait.Within(converge), wait.State(func() any { return runs("long") }))
	contains(t, "task history", s.r(t, dir, "task", "history"), "canceled", "succeeded", "failed")
}
