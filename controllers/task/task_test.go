package task

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/domain/tasks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// env is an app with tasks, a clock that stands still, and controllers that a test
// calls.
type env struct {
	*testing.T
	store entity.Store
	app   *app.App
	clock time.Time
	*Schedule
	*Runs
}

// newEnv makes an app that serves a version with tasks. It is 10:00:30.
func newEnv(t *testing.T, list ...app.Task) *env {
	t.Helper()
	e := &env{T: t, store: pgtest.Store(t, api.Kinds()...), clock: time.Date(2026, 11, 24, 10, 0, 30, 0, time.UTC)}
	if err := projects.Ensure(t.Context(), e.store, projects.Default); err != nil {
		t.Fatal(err)
	}
	project, err := projects.Find(t.Context(), e.store, "")
	if err != nil {
		t.Fatal(err)
	}
	e.app = app.NewApp()
	e.app.Project, e.app.Name = project, "shop"
	if err := entity.Create(t.Context(), e.store, e.app); err != nil {
		t.Fatal(err)
	}
	e.serve(list...)
	e.use(e.store)
	return e
}

// use has the controllers use a store.
func (e *env) use(s entity.Store) {
	now := func() time.Time { return e.clock }
	log := slog.New(slog.NewTextHandler(e.Output(), nil))
	e.Schedule, e.Runs = &Schedule{Logger: log, Now: now}, &Runs{Logger: log, Now: now}
	e.Schedule.Store = kittest.Hold(e, s, e.Schedule.Controller())
	e.Runs.Store = kittest.Hold(e, s, e.Runs.Controller())
}

// serve gives the app a next version.
func (e *env) serve(list ...app.Task) {
	e.Helper()
	v := app.NewAppVersion()
	e.app.Spec.VersionCounter++
	n := e.app.Spec.VersionCounter
	v.Project, v.Name = e.app.Project, apps.VersionName("shop", n)
	v.Spec.App, v.Spec.Number, v.Spec.Image, v.Spec.Services = e.app.GetID(), n, "image", []app.Service{{}}
	v.Spec.Services[0].SetDefaults()
	v.Spec.Services[0].Name = app.DefaultService
	v.Spec.Env = map[string]string{"KEY": "value"}
	for _, t := range list {
		d := app.Task{}
		d.SetDefaults()
		d.Name, d.Command, d.Schedule, d.TimeZone = t.Name, []string{"run", t.Name}, t.Schedule, t.TimeZone
		if t.Overlap != "" {
			d.Overlap = t.Overlap
		}
		v.Spec.Tasks = append(v.Spec.Tasks, d)
	}
	if err := entity.Create(e.Context(), e.store, v); err != nil {
		e.Fatal(err)
	}
	a, err := entity.ModifyStatus(e.Context(), e.store, e.app.ID, func(a *app.App) error {
		a.Status.Activate(v.GetID())
		return nil
	})
	if err != nil {
		e.Fatal(err)
	}
	a.Spec.VersionCounter = n
	e.app = a
}

// settle reconciles until nothing more happens, and returns the time until the next
// start.
func (e *env) settle() (again time.Duration) {
	e.Helper()
	for range 3 {
		var err error
		if again, err = e.Schedule.Reconcile(e.Context(), e.app.ID); err != nil {
			e.Fatal(err)
		}
	}
	for _, r := range e.runs("") {
		if _, err := e.Runs.Reconcile(e.Context(), r.ID); err != nil {
			e.Fatal(err)
		}
	}
	return again
}

// at sets the clock to a time of the day, and settles.
func (e *env) at(clock string) time.Duration {
	e.Helper()
	t, err := time.Parse("15:04:05", clock)
	if err != nil {
		e.Fatal(err)
	}
	e.clock = time.Date(2026, 11, 24, t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
	return e.settle()
}

// runs returns the runs of a task, or of all, the oldest first.
func (e *env) runs(task string) []*app.TaskRun {
	e.Helper()
	all, err := tasks.Of(e.Context(), e.store, e.app.GetID())
	if err != nil {
		e.Fatal(err)
	}
	slices.Reverse(all)
	return slices.DeleteFunc(all, func(r *app.TaskRun) bool { return task != "" && r.Spec.Task != task })
}

// history describes the runs of a task: their times and phases.
func (e *env) history(task string) string {
	e.Helper()
	var out []string
	for _, r := range e.runs(task) {
		due := "-"
		if r.Spec.Due != nil {
			due = r.Spec.Due.UTC().Format("15:04")
		}
		out = append(out, fmt.Sprintf("%s %s", due, r.Status.Phase))
	}
	return strings.Join(out, ", ")
}

func (e *env) schedule(task string) *app.TaskSchedule {
	e.Helper()
	all, err := tasks.Schedules(e.Context(), e.store, e.app.GetID())
	if err != nil {
		e.Fatal(err)
	}
	for _, x := range all {
		if x.Spec.Task == task {
			return x
		}
	}
	return nil
}

// sandboxes returns the sandboxes of runs.
func (e *env) sandboxes() []*sandbox.Sandbox {
	e.Helper()
	all, _, err := entity.List[sandbox.Sandbox](e.Context(), e.store, entity.Query{})
	if err != nil {
		e.Fatal(err)
	}
	return all
}

// finish ends the sandbox of a run as the node does.
func (e *env) finish(r *app.TaskRun, reason sandbox.EndReason, code int64) {
	e.Helper()
	_, err := entity.ModifyStatus(e.Context(), e.store, r.Spec.Sandbox, func(sb *sandbox.Sandbox) error {
		at := e.clock
		sb.Status.Phase, sb.Status.Reason, sb.Status.StartedAt, sb.Status.EndedAt = sandbox.SandboxPhaseStopped, reason, &at, &at
		if reason == sandbox.EndReasonExit {
			sb.Status.ExitCode, sb.Status.LogTail = &code, []string{"last words"}
		}
		return nil
	})
	if err != nil {
		e.Fatal(err)
	}
	e.settle()
}

var nightly = app.Task{Name: "nightly", Schedule: "*/10 * * * *"}

func TestTaskRunsAtItsTimes(t *testing.T) {
	e := newEnv(t, nightly, app.Task{Name: "by-hand"})
	if again := e.settle(); again != recheck || e.history("") != "" || e.schedule("by-hand") != nil {
		t.Fatalf("again after %s, runs %s", again, e.history(""))
	}
	if x := e.schedule("nightly"); x == nil || x.Status.Next.Format("15:04") != "10:10" {
		t.Fatalf("schedule %+v", x)
	}
	if again := e.at("10:09:50"); again != 10*time.Second || e.history("") != "" {
		t.Fatalf("again after %s, runs %s", again, e.history(""))
	}
	e.at("10:10:02")
	e.settle()
	if got := e.history("nightly"); got != "10:10 running" {
		t.Fatalf("runs %s", got)
	}
	all := e.sandboxes()
	if len(all) != 1 {
		t.Fatalf("%d sandboxes", len(all))
	}
	sb := all[0]
	if env := sb.Spec.Template.Env; env["KEY"] != "value" || env["RUNTIME_SERVICE"] != "nightly" || env["PORT"] != "" || len(sb.Spec.Template.Ports) > 0 ||
		sb.Spec.Pool != "" || *sb.Spec.TTL != app.DefaultTaskTimeout || !slices.Equal(sb.Spec.Template.Command, []string{"run", "nightly"}) {
		t.Errorf("sandbox %+v", sb.Spec)
	}
	e.finish(e.runs("nightly")[0], sandbox.EndReasonExit, 0)
	e.at("10:20:00")
	if got := e.history("nightly"); got != "10:10 succeeded, 10:20 running" {
		t.Errorf("runs %s", got)
	}
	e.finish(e.runs("nightly")[1], sandbox.EndReasonExit, 3)
	r := e.runs("nightly")[1]
	if r.Status.Phase != app.TaskRunPhaseFailed || *r.Status.ExitCode != 3 || r.Status.Message != "it ended with exit code 3" || len(r.Status.LogTail) != 1 || r.Status.EndedAt == nil {
		t.Errorf("%+v", r.Status)
	}
}

func TestOverlap(t *testing.T) {
	e := newEnv(t, app.Task{Name: "skip", Schedule: nightly.Schedule}, app.Task{Name: "allow", Schedule: nightly.Schedule, Overlap: app.TaskOverlapAllow},
		app.Task{Name: "replace", Schedule: nightly.Schedule, Overlap: app.TaskOverlapReplace})
	e.settle()
	e.at("10:10:01")
	e.at("10:20:01")
	for task, want := range map[string]string{
		"skip": "10:10 running, 10:20 skipped", "allow": "10:10 running, 10:20 running", "replace": "10:10 running, 10:20 running",
	} {
		if got := e.history(task); got != want {
			t.Errorf("%s: %s", task, got)
		}
	}
	old := e.runs("replace")[0]
	sb, err := entity.Get[sandbox.Sandbox](t.Context(), e.store, old.Spec.Sandbox)
	if err != nil || !old.Spec.Cancel || sb.Spec.Desired != sandbox.DesiredStateStopped || sb.Spec.StopReason != sandbox.EndReasonUser {
		t.Fatalf("%+v, %v", old.Spec, err)
	}
	e.finish(old, sandbox.EndReasonUser, 0)
	if got := e.history("replace"); got != "10:10 canceled, 10:20 running" {
		t.Errorf("replace: %s", got)
	}
	if r := e.runs("skip")[1]; !strings.Contains(r.Status.Message, string(e.runs("skip")[0].ID)) || r.Status.EndedAt == nil || r.Spec.Sandbox != "" {
		t.Errorf("%+v", r)
	}
}

// TestTimesWithoutAServer: the last time that passed is made up for if it is not
// longer ago than catch_up; the others are counted.
func TestTimesWithoutAServer(t *testing.T) {
	e := newEnv(t, nightly, app.Task{Name: "hourly", Schedule: "0 * * * *"})
	e.settle()
	e.at("13:34:00")
	if got := e.history("nightly"); got != "13:30 running" {
		t.Errorf("nightly: %s", got)
	}
	if got := e.history("hourly"); got != "13:00 skipped" || e.schedule("hourly").Status.Missed != 3 {
		t.Errorf("hourly: %s, %d missed", got, e.schedule("hourly").Status.Missed)
	}
	if n := e.schedule("nightly").Status.Missed; n != 20 {
		t.Errorf("nightly: %d missed", n)
	}
	if got := e.schedule("hourly").Status.Next.Format("15:04"); got != "14:00" {
		t.Errorf("the next is %s", got)
	}
}

// TestClockThatWasSetBack: a machine whose clock was years ahead for a while starts its tasks again once the clock is right;
// one that was ahead for hours does not run a time again.
func TestClockThatWasSetBack(t *testing.T) {
	e := newEnv(t, nightly)
	e.settle()
	e.clock = e.clock.AddDate(10, 0, 0)
	e.settle()
	e.at("10:35:00")
	if got := e.schedule("nightly").Status.Next.Format(time.DateTime); got != "2026-11-24 10:40:00" {
		t.Errorf("after ten years ahead the next is %s", got)
	}
	e.at("15:05:00")
	before := e.history("nightly")
	e.at("11:05:00")
	e.at("14:55:00")
	if got := e.history("nightly"); got != before {
		t.Errorf("after four hours ahead: %s, was %s", got, before)
	}
}

// refusing is a store that takes no run of one task.
type refusing struct {
	entity.Store
	task string
}

func (r refusing) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	for _, op := range req.Ops {
		if run, err := entity.Decode[app.TaskRun](&op.Record); err == nil && run.Spec.Task == r.task {
			return entity.TxnResult{}, errs.New(errs.ResourceExhausted, "the entity is too large")
		}
	}
	return r.Store.Txn(ctx, req)
}

// TestOneTaskThatCannotStart keeps no other of its app from starting.
func TestOneTaskThatCannotStart(t *testing.T) {
	e := newEnv(t, app.Task{Name: "bad", Schedule: nightly.Schedule}, nightly)
	e.use(refusing{e.store, "bad"})
	e.settle()
	e.clock = time.Date(2026, 11, 24, 10, 10, 5, 0, time.UTC)
	if _, err := e.Schedule.Reconcile(t.Context(), e.app.ID); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("the error of the task is %v", err)
	}
	if got := e.history("nightly"); got != "10:10 running" {
		t.Errorf("the other task: %q", got)
	}
}

// TestOtherTimes: a version with other times, or none, changes what comes, not what was.
func TestOtherTimes(t *testing.T) {
	e := newEnv(t, nightly)
	e.settle()
	e.at("10:05:00")
	e.serve(app.Task{Name: "nightly", Schedule: "4 * * * *"}) // it was just then
	e.settle()
	if got := e.schedule("nightly").Status.Next.Format("15:04"); got != "11:04" || e.history("") != "" {
		t.Errorf("the next is %s, runs %s", got, e.history(""))
	}
	e.serve(app.Task{Name: "nightly", Schedule: "4 * * * *", TimeZone: "Asia/Kolkata"})
	e.settle()
	if got := e.schedule("nightly").Status.Next.Format("15:04"); got != "10:34" {
		t.Errorf("in another time zone the next is %s", got)
	}
	e.serve(app.Task{Name: "nightly"})
	e.settle()
	if e.schedule("nightly") != nil {
		t.Error("a task without times has a schedule")
	}
}

func TestSuspended(t *testing.T) {
	e := newEnv(t, nightly)
	e.settle()
	service := &tasks.Service{Store: e.store, Apps: &apps.Service{Store: e.store}}
	if _, err := service.Suspend(t.Context(), "", "shop", "nightly", true); err != nil {
		t.Fatal(err)
	}
	e.at("10:20:00")
	if x := e.schedule("nightly"); e.history("") != "" || x.Status.Next != nil || x.Status.Message != "suspended" {
		t.Errorf("runs %s, %+v", e.history(""), x.Status)
	}
	if _, err := service.Suspend(t.Context(), "", "shop", "nightly", false); err != nil {
		t.Fatal(err)
	}
	if e.settle(); e.history("") != "" {
		t.Errorf("it made up for times in which it was suspended: %s", e.history(""))
	}
	if e.at("10:30:00"); e.history("") != "10:30 running" {
		t.Errorf("runs %s", e.history(""))
	}
	if _, err := service.Suspend(t.Context(), "", "shop", "other", true); !errs.Is(err, errs.NotFound) {
		t.Errorf("a task that does not exist: %v", err)
	}
}

// TestRunOnRequest: a person runs a task, and cancels it.
func TestRunOnRequest(t *testing.T) {
	e := newEnv(t, app.Task{Name: "by-hand"})
	service := &tasks.Service{Store: e.store, Apps: &apps.Service{Store: e.store}}
	r, err := service.Run(t.Context(), "", "shop", "by-hand", "anna")
	if err != nil || r.Spec.RequestedBy != "anna" || r.Spec.Trigger != app.TaskTriggerUser {
		t.Fatalf("%+v, %v", r, err)
	}
	e.settle()
	if _, err := service.Cancel(t.Context(), r.GetID()); err != nil {
		t.Fatal(err)
	}
	e.settle()
	e.finish(r, sandbox.EndReasonUser, 0)
	if got := e.history(""); got != "- canceled" {
		t.Errorf("runs %s", got)
	}
	if _, err := service.Run(t.Context(), "", "shop", "none", "anna"); !errs.Is(err, errs.NotFound) || !strings.Contains(errs.HintOf(err), "by-hand") {
		t.Errorf("a task that does not exist: %v", err)
	}
	gone, err := service.Run(t.Context(), "", "shop", "by-hand", "anna")
	if err != nil {
		t.Fatal(err)
	}
	sb, err := entity.Get[sandbox.Sandbox](t.Context(), e.store, gone.Spec.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := entity.Delete(t.Context(), e.store, sb); err != nil {
		t.Fatal(err)
	}
	e.settle()
	if got := e.history(""); got != "- canceled, - failed" {
		t.Errorf("after its sandbox was deleted: %s", got)
	}
	if n := len(e.sandboxes()); n != 1 {
		t.Errorf("%d sandboxes: the deleted one was made again", n)
	}
}

func TestOldRunsAreDeleted(t *testing.T) {
	e := newEnv(t, nightly)
	e.settle()
	for i := range app.KeptRuns + 3 {
		e.clock = time.Date(2026, 11, 24, 11, 0, 0, 0, time.UTC).Add(time.Duration(i) * 10 * time.Minute)
		e.settle()
		all := e.runs("nightly")
		e.finish(all[len(all)-1], sandbox.EndReasonExit, 0)
	}
	e.settle()
	if n := len(e.runs("nightly")); n != app.KeptRuns {
		t.Errorf("%d runs are kept", n)
	}
}

// TestQuotaIsSaid: a run for which the project has no room is recorded as skipped.
func TestQuotaIsSaid(t *testing.T) {
	e := newEnv(t, nightly)
	one := int64(0)
	if _, err := entity.ModifySpec(t.Context(), e.store, e.app.Project, func(p *core.Project) error {
		p.Spec.Quota = &core.Quota{Sandboxes: &one}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	set := informer.New(informer.Config{Reader: e.store})
	within := quotas.New(policies.New(e.store, set), set)
	_, stop := kittest.Run(t, set, kit.Config{})
	defer stop()
	e.use(within)
	e.settle()
	wait.For(t, "the quota to be known", func() bool {
		e.clock = e.clock.Add(10 * time.Minute)
		e.settle()
		all := e.runs("nightly")
		last := all[len(all)-1]
		return last.Status.Phase == app.TaskRunPhaseSkipped && strings.Contains(last.Status.Message, "quota")
	})
}

// dying is the store of a server that is killed at a write: before it, or when it
// has happened but its answer is lost.
type dying struct {
	entity.Store
	mu     sync.Mutex
	left   int
	before bool
	dead   bool
}

func (d *dying) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gone := errs.New(errs.Unavailable, "the server is dead")
	if d.dead {
		return entity.TxnResult{}, gone
	}
	d.left--
	if d.left == 0 {
		d.dead = true
		if !d.before {
			_, _ = d.Store.Txn(ctx, req)
		}
		return entity.TxnResult{}, gone
	}
	return d.Store.Txn(ctx, req)
}

// TestStartsOnceWhenKilled: the server is killed at each of its writes, and started
// again: each time has one run, and each run one sandbox.
func TestStartsOnceWhenKilled(t *testing.T) {
	for _, before := range []bool{true, false} {
		for writes, died := 1, true; died; writes++ {
			t.Run(fmt.Sprintf("before=%v/%d", before, writes), func(t *testing.T) { died = killedAt(t, writes, before) })
		}
	}
}

// killedAt runs tasks with a server that is killed at a write, and reports whether
// there were so many.
func killedAt(t *testing.T, writes int, before bool) bool {
	e := newEnv(t, nightly, app.Task{Name: "replace", Schedule: nightly.Schedule, Overlap: app.TaskOverlapReplace})
	d := &dying{Store: e.store, left: writes, before: before}
	e.use(d)
	for _, minute := range []int{0, 10, 20} {
		e.clock = time.Date(2026, 11, 24, 10, minute, 5, 0, time.UTC)
		for range 4 {
			_, err := e.Schedule.Reconcile(t.Context(), e.app.ID)
			for _, r := range e.runs("") {
				if _, rerr := e.Runs.Reconcile(t.Context(), r.ID); err == nil {
					err = rerr
				}
			}
			if err != nil && d.dead {
				e.use(e.store) // the next server
			} else if err != nil && !errs.Is(err, errs.Conflict) {
				t.Fatal(err)
			}
		}
	}
	if got := e.history("nightly"); got != "10:10 running, 10:20 skipped" {
		t.Error(got)
	}
	if got := e.history("replace"); got != "10:10 running, 10:20 running" || !e.runs("replace")[0].Spec.Cancel {
		t.Error(got)
	}
	if n := len(e.sandboxes()); n != 3 {
		t.Errorf("%d sandboxes", n)
	}
	return d.dead
}

// TestTwoServersStartOnce: two servers reconcile at the same time.
func TestTwoServersStartOnce(t *testing.T) {
	e := newEnv(t, nightly)
	e.settle()
	for minute := 10; minute < 60; minute += 10 {
		e.clock = time.Date(2026, 11, 24, 10, minute, 1, 0, time.UTC)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, err := e.Schedule.Reconcile(t.Context(), e.app.ID); err != nil && !errs.Is(err, errs.Conflict) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	if n, m := len(e.runs("")), len(e.sandboxes()); n != 5 || m != 1 {
		t.Errorf("%d runs, %d sandboxes: %s", n, m, e.history(""))
	}
}
