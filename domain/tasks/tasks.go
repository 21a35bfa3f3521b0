// Package tasks has the operations on the tasks of apps: commands of a version that
// run to their end in a sandbox of their own, at times or on request.
//
//	Find             a task of a version
//	NewRun           a run with its sandbox, for surfaces and the controller
//	Of, Schedules    the runs and the schedules of an app
//	Service.Run      a run on request
//	Service.Cancel   the end of a run under way
//	Service.Suspend  a schedule without runs, until it is resumed
//
// A run and its sandbox are created in one transaction, and the sandbox is not made
// again: a command runs once, or its run says that it may not have.
package tasks

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

// RunLabel is the label of a sandbox that has the id of its run.
const RunLabel = "runtime/task-run"

// Service is the operations on tasks. It is safe for concurrent use.
type Service struct {
	Store entity.Store // within quotas
	Apps  *apps.Service
}

// Find returns a task of a version. NotFound if it has none of that name.
func Find(ver *app.AppVersion, name string) (*app.Task, error) {
	var names []string
	for i := range ver.Spec.Tasks {
		if ver.Spec.Tasks[i].Name == name {
			return &ver.Spec.Tasks[i], nil
		}
		names = append(names, ver.Spec.Tasks[i].Name)
	}
	err := errs.New(errs.NotFound, "v%d has no task %q", ver.Spec.Number, name)
	if len(names) == 0 {
		return nil, err.WithHint("a task is a table of app.toml: [tasks.%s] with its command", name)
	}
	return nil, err.WithHint("its tasks: %s", strings.Join(names, ", "))
}

// Of lists the runs of an app, the newest first.
func Of(ctx context.Context, r entity.Reader, a id.App) ([]*app.TaskRun, error) {
	all, _, err := entity.List[app.TaskRun](ctx, r, entity.Where(app.TaskRunAttrApp, a))
	slices.SortFunc(all, func(a, b *app.TaskRun) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(string(b.ID), string(a.ID))
	})
	return all, err
}

// Schedules lists the schedules of an app.
func Schedules(ctx context.Context, r entity.Reader, a id.App) ([]*app.TaskSchedule, error) {
	all, _, err := entity.List[app.TaskSchedule](ctx, r, entity.Where(app.TaskScheduleAttrApp, a))
	return all, err
}

// ScheduleKey returns the key of the schedule of a task.
func ScheduleKey(a id.App, task string) string { return string(a) + " " + task }

// NewRun makes a run of a task of a version. With due it is for that time of its
// schedule.
func NewRun(a *app.App, ver *app.AppVersion, t *app.Task, due *time.Time) *app.TaskRun {
	r := app.NewTaskRun()
	r.Project = a.Project
	r.Spec.App, r.Spec.Task, r.Spec.Version, r.Spec.Trigger = a.GetID(), t.Name, ver.GetID(), app.TaskTriggerUser
	if due != nil {
		r.Spec.Trigger, r.Spec.Due = app.TaskTriggerSchedule, due
		r.Spec.Key = fmt.Sprintf("%s %s %d", a.ID, t.Name, due.Unix())
	}
	return r
}

// Start returns the operations that create a run with its sandbox.
func Start(a *app.App, ver *app.AppVersion, t *app.Task, r *app.TaskRun) ([]entity.Op, error) {
	var svc app.Service
	svc.SetDefaults()
	svc.Name, svc.Command, svc.Env = t.Name, t.Command, t.Env
	svc.CPUMillis, svc.MemoryBytes, svc.PIDs = t.CPUMillis, t.MemoryBytes, t.PIDs
	r.ID = schema.ID(id.NewTaskRun())
	suffix := string(r.ID)
	if i := strings.LastIndexByte(suffix, '-'); i >= 0 {
		suffix = suffix[i+1:]
	}
	sb := apps.JobFor(a, ver, svc, schema.ChildName(a.Name+"-"+t.Name, suffix, schema.MaxName), t.Timeout)
	sb.ID, sb.Labels[RunLabel] = schema.ID(id.NewSandbox()), string(r.ID)
	r.Spec.Sandbox = sb.GetID()
	r.Status.Phase = app.TaskRunPhaseRunning
	create, err := entity.CreateOp(sb)
	if err != nil {
		return nil, err
	}
	run, err := entity.CreateOp(r)
	return []entity.Op{create, run}, err
}

// Run runs a task of the active version of an app. Errors: NotFound,
// FailedPrecondition if the app serves no version, ResourceExhausted if the quota
// of the project has no room, PermissionDenied if its policy forbids it.
func (s *Service) Run(ctx context.Context, project, name, task, by string) (*app.TaskRun, error) {
	a, err := s.Apps.Find(ctx, project, name)
	if err != nil {
		return nil, err
	}
	ver, err := apps.ActiveVersion(ctx, s.Store, a)
	if err != nil {
		return nil, err
	}
	t, err := Find(ver, task)
	if err != nil {
		return nil, err
	}
	r := NewRun(a, ver, t, nil)
	r.Spec.RequestedBy = by
	ops, err := Start(a, ver, t, r)
	if err != nil {
		return nil, err
	}
	fault.Point("task", "run", fault.Before)
	_, err = s.Store.Txn(ctx, entity.TxnRequest{Ops: ops})
	fault.Point("task", "run", fault.After)
	if err != nil {
		return nil, err
	}
	return entity.Get[app.TaskRun](ctx, s.Store, r.GetID())
}

// Cancel asks for the end of a run. One that has ended stays as it is.
func (s *Service) Cancel(ctx context.Context, run id.TaskRun) (*app.TaskRun, error) {
	return entity.ModifySpec(ctx, s.Store, run, func(r *app.TaskRun) error {
		if !Ended(r) {
			r.Spec.Cancel = true
		}
		return nil
	})
}

// Ended reports whether a run has ended.
func Ended(r *app.TaskRun) bool { return r.Status.Phase != app.TaskRunPhaseRunning }

// Suspend stops or starts the schedule of a task, for this version and later ones.
// Times that pass meanwhile are not made up for. NotFound if the active version has
// no such task, FailedPrecondition if that has no schedule.
func (s *Service) Suspend(ctx context.Context, project, name, task string, suspended bool) (*app.TaskSchedule, error) {
	a, err := s.Apps.Find(ctx, project, name)
	if err != nil {
		return nil, err
	}
	all, err := Schedules(ctx, s.Store, a.GetID())
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(x *app.TaskSchedule) bool { return x.Spec.Task == task })
	if i < 0 {
		ver, err := apps.ActiveVersion(ctx, s.Store, a)
		if err != nil {
			return nil, err
		}
		if _, err := Find(ver, task); err != nil {
			return nil, err
		}
		return nil, errs.New(errs.FailedPrecondition, "task %s has no schedule", task).WithHint("set schedule in [tasks.%s] of app.toml, and `r deploy`", task)
	}
	return entity.ModifySpec(ctx, s.Store, all[i].GetID(), func(x *app.TaskSchedule) error {
		x.Spec.Suspended = suspended
		return nil
	})
}

// Failure describes the end of a sandbox whose command did not succeed.
func Failure(sb *sandbox.Sandbox, t time.Duration) (message, hint string) {
	code := int64(-1)
	if sb.Status.ExitCode != nil {
		code = *sb.Status.ExitCode
	}
	switch sb.Status.Reason {
	case sandbox.EndReasonExit:
		hint = "the last lines that it printed say why"
		if code == 126 || code == 127 {
			hint = "it could not be run: check its command in app.toml"
		}
		return fmt.Sprintf("it ended with exit code %d", code), hint
	case sandbox.EndReasonOOM:
		return fmt.Sprintf("it used more than its %d MiB of memory and was killed", sb.Spec.Template.Resources.MemoryBytes>>20), "raise memory of the task in app.toml"
	case sandbox.EndReasonTTL:
		return fmt.Sprintf("it did not end within %s", t), "raise timeout of the task in app.toml; what never ends belongs in a service"
	case sandbox.EndReasonUser:
		return "its sandbox was stopped", ""
	}
	if sb.Status.Message == "" {
		return "its sandbox failed", "`r doctor` checks the server"
	}
	return "its sandbox failed: " + sb.Status.Message, "`r doctor` checks the server"
}
