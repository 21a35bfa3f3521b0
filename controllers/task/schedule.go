// Package task runs the tasks of apps. Schedule does so at their times: it keeps a
// schedule entity for each task with times of the version that serves, and makes a
// run with its sandbox when one comes. Runs records how runs end, and stops those
// that are cancelled.
//
// In: app.status.traffic and the tasks of that version, task_schedule.spec,
// task_run.spec, and the sandboxes of runs. Out: task_schedule and task_run entities
// with their status, and the sandboxes.
//
// A time is counted, and its run made, in one transaction on condition that the
// schedule did not change: two servers, or one that is killed and started again,
// start a task once for each time. After a clock that was more than maxAhead ahead is set
// back, times that it showed come again.
package task

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/domain/tasks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/crontime"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

const (
	// recheck is how often the clock is compared with the next time, since it may
	// be set, or stand still while the machine does.
	recheck = time.Minute
	// onTime is how late a run may begin in any case.
	onTime = time.Minute
	// maxAhead is how far the last counted time may be ahead of the clock: no clock was
	// ahead by more because of a wrong time zone. Beyond, the clock was set back since, and
	// the task would wait for years.
	maxAhead = 24 * time.Hour
)

// Schedule starts tasks at their times.
type Schedule struct {
	Store  entity.Store // within quotas
	Logger *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// Controller describes it to the controller runtime.
func (s *Schedule) Controller() kit.Controller {
	return kit.Controller{
		Name: "task-schedule", Kind: app.AppKind, Reconcile: s.Reconcile, Workers: 2,
		Watches: []kit.Source{
			kit.Map(func(x *app.TaskSchedule) []id.App { return kit.Key(x.Spec.App) }),
			kit.Map(func(r *app.TaskRun) []id.App { return kit.Key(r.Spec.App) }),
		},
		Access: kit.Access{
			Reads:   []*schema.Kind{app.AppVersionKind},
			Creates: []*schema.Kind{app.TaskScheduleKind, app.TaskRunKind, sandbox.SandboxKind},
			Deletes: []*schema.Kind{app.TaskScheduleKind, app.TaskRunKind},
			Owns:    kit.Fields(app.TaskScheduleKind, "status"),
			Shares: []kit.Share{{
				Field: kit.Field{Kind: app.TaskRunKind, Path: "spec.cancel"}, Owner: "api", Why: "to replace a run by the next one",
				When: func(_, after schema.Object) bool { return after.(*app.TaskRun).Spec.Cancel },
			}},
		},
	}
}

func (s *Schedule) now() time.Time {
	if s.Now != nil {
		return s.Now().UTC()
	}
	return time.Now().UTC()
}

// Reconcile starts what is due of one app, and returns the time until the next
// start, or 0 if it has no times.
func (s *Schedule) Reconcile(ctx context.Context, aid schema.ID) (time.Duration, error) {
	a, err := entity.Get[app.App](ctx, s.Store, aid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil // what belongs to it goes with it
	}
	if err != nil {
		return 0, err
	}
	var ver *app.AppVersion
	if a.Status.Active() != "" {
		if ver, err = apps.ActiveVersion(ctx, s.Store, a); errs.Is(err, errs.NotFound) {
			return 0, nil // another change follows
		} else if err != nil {
			return 0, err
		}
	}
	runs, err := tasks.Of(ctx, s.Store, a.GetID())
	if err != nil {
		return 0, err
	}
	if err := s.expire(ctx, runs); err != nil {
		return 0, err
	}
	schedules, err := tasks.Schedules(ctx, s.Store, a.GetID())
	if err != nil {
		return 0, err
	}
	again := time.Duration(0)
	var failed error
	if ver != nil {
		for i := range ver.Spec.Tasks {
			t := &ver.Spec.Tasks[i]
			if t.Schedule == "" {
				continue
			}
			wait, err := s.task(ctx, a, ver, t, schedules, runs)
			if err != nil { // the others start
				failed = errors.Join(failed, errs.Wrap(err, "task %s", t.Name))
			} else if wait > 0 && (again == 0 || wait < again) {
				again = wait
			}
		}
	}
	if err := errors.Join(failed, s.sweep(ctx, ver, schedules)); err != nil {
		return 0, err
	}
	return again, nil
}

// sweep deletes the schedules of tasks that the version has no times for.
func (s *Schedule) sweep(ctx context.Context, ver *app.AppVersion, all []*app.TaskSchedule) error {
	for _, x := range all {
		if ver != nil && slices.ContainsFunc(ver.Spec.Tasks, func(t app.Task) bool { return t.Name == x.Spec.Task && t.Schedule != "" }) {
			continue
		}
		if err := entity.Delete(ctx, s.Store, x); err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
	}
	return nil
}

// expire deletes the oldest ended runs of each task. runs are sorted, the newest
// first.
func (s *Schedule) expire(ctx context.Context, runs []*app.TaskRun) error {
	kept := map[string]int{}
	for _, r := range runs {
		if !tasks.Ended(r) {
			continue
		}
		if kept[r.Spec.Task]++; kept[r.Spec.Task] <= app.KeptRuns {
			continue
		}
		if err := entity.Delete(ctx, s.Store, r); err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
	}
	return nil
}

// task starts a task if it is due, and returns the time until it is.
func (s *Schedule) task(ctx context.Context, a *app.App, ver *app.AppVersion, t *app.Task, all []*app.TaskSchedule, runs []*app.TaskRun) (time.Duration, error) {
	now := s.now()
	i := slices.IndexFunc(all, func(x *app.TaskSchedule) bool { return x.Spec.Task == t.Name })
	if i < 0 {
		x := app.NewTaskSchedule()
		x.Project, x.Spec.App, x.Spec.Task, x.Spec.Key = a.Project, a.GetID(), t.Name, tasks.ScheduleKey(a.GetID(), t.Name)
		err := entity.Create(ctx, s.Store, x)
		return 0, entity.AsConflict(err) // its creation is a change
	}
	x := all[i]
	before := x.Status
	times, err := crontime.Parse(t.Schedule, t.TimeZone)
	if err != nil {
		// app.toml was checked, so this is another release of the server.
		x.Status.Next, x.Status.Message = nil, err.Error()
		return 0, s.record(ctx, x, before)
	}
	text := strings.TrimSpace(t.Schedule + " " + t.TimeZone)
	switch {
	case x.Spec.Suspended:
		x.Status.Next, x.Status.Message = nil, "suspended"
		return 0, s.record(ctx, x, before)
	case x.Status.Next == nil || x.Status.CountedTo == nil || x.Status.Times != text || x.Status.CountedTo.Sub(now) > maxAhead:
		// It is new, was suspended, has other times now, or the clock was set back: the times
		// before do not count.
		x.Status.CountedTo, x.Status.Times, x.Status.Message = &now, text, ""
		s.plan(x, times, now)
		return s.wait(x, now), s.record(ctx, x, before)
	}
	due, n := times.Due(*x.Status.CountedTo, now)
	if n == 0 {
		s.plan(x, times, *x.Status.CountedTo)
		return s.wait(x, now), s.record(ctx, x, before)
	}
	x.Status.CountedTo, x.Status.Message = &due, ""
	x.Status.Missed += int64(n - 1)
	s.plan(x, times, due)
	return s.wait(x, now), s.start(ctx, a, ver, t, x, before, due, runs)
}

// plan sets the next time after t.
func (s *Schedule) plan(x *app.TaskSchedule, times *crontime.Schedule, t time.Time) {
	x.Status.Next = nil
	if n := times.Next(t); !n.IsZero() {
		x.Status.Next = &n
	}
}

// wait returns the time until the next start, at most recheck.
func (s *Schedule) wait(x *app.TaskSchedule, now time.Time) time.Duration {
	if x.Status.Next == nil {
		return recheck
	}
	return min(max(x.Status.Next.Sub(now), time.Millisecond), recheck)
}

// start makes the run for a time that has come, and counts it. x is the schedule
// as it will be, before its status in the store.
func (s *Schedule) start(ctx context.Context, a *app.App, ver *app.AppVersion, t *app.Task, x *app.TaskSchedule, before app.TaskScheduleStatus, due time.Time, runs []*app.TaskRun) error {
	r := tasks.NewRun(a, ver, t, &due)
	under := slices.DeleteFunc(slices.Clone(runs), func(r *app.TaskRun) bool { return tasks.Ended(r) || r.Spec.Task != t.Name })
	var ops []entity.Op
	var err error
	switch late := s.now().Sub(due); {
	case late > max(t.CatchUp, onTime):
		x.Status.Missed++
		ops, err = s.skip(r, fmt.Sprintf("no server ran at its time; the task may begin %s late at most (catch_up)", max(t.CatchUp, onTime)))
	case len(under) > 0 && t.Overlap == app.TaskOverlapSkip:
		ops, err = s.skip(r, fmt.Sprintf("run %s went on (overlap)", under[0].ID))
	default:
		if t.Overlap == app.TaskOverlapReplace {
			if ops, err = cancel(under); err != nil {
				return err
			}
		}
		var more []entity.Op
		more, err = tasks.Start(a, ver, t, r)
		ops = append(ops, more...)
	}
	if err != nil {
		return err
	}
	err = s.count(ctx, x, ops)
	if quotas.Refused(err) || policies.Refused(err) {
		r.Spec.Sandbox = ""
		if ops, err = s.skip(r, err.Error()); err != nil {
			return err
		}
		err = s.count(ctx, x, ops)
	}
	if err != nil {
		x.Status = before
		return err
	}
	s.Logger.Info("task", "app", a.Name, "task", t.Name, "run", string(r.ID), "phase", string(r.Status.Phase), "message", r.Status.Message)
	return nil
}

// skip returns the operations that record a run that does not take place.
func (s *Schedule) skip(r *app.TaskRun, why string) ([]entity.Op, error) {
	now := s.now()
	r.Status = app.TaskRunStatus{Phase: app.TaskRunPhaseSkipped, Message: why, EndedAt: &now}
	op, err := entity.CreateOp(r)
	return []entity.Op{op}, err
}

// cancel returns the operations that cancel runs.
func cancel(runs []*app.TaskRun) ([]entity.Op, error) {
	var ops []entity.Op
	for _, r := range runs {
		if r.Spec.Cancel {
			continue
		}
		r.Spec.Cancel = true
		op, err := entity.UpdateSpecOp(r)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// count writes the status of a schedule with the operations of a run.
func (s *Schedule) count(ctx context.Context, x *app.TaskSchedule, ops []entity.Op) error {
	op, err := entity.UpdateStatusOp(x)
	if err != nil {
		return err
	}
	fault.Point("task", "start", fault.Before)
	_, err = s.Store.Txn(ctx, entity.TxnRequest{Ops: append([]entity.Op{op}, ops...)})
	fault.Point("task", "start", fault.After)
	return entity.AsConflict(err)
}

// record writes the status of a schedule if it changed.
func (s *Schedule) record(ctx context.Context, x *app.TaskSchedule, before app.TaskScheduleStatus) error {
	if same(x.Status, before) {
		return nil
	}
	return entity.AsConflict(entity.UpdateStatus(ctx, s.Store, x))
}

func same(a, b app.TaskScheduleStatus) bool {
	at := func(t *time.Time) int64 {
		if t == nil {
			return 0
		}
		return t.UnixNano()
	}
	return at(a.Next) == at(b.Next) && at(a.CountedTo) == at(b.CountedTo) && a.Message == b.Message && a.Missed == b.Missed && a.Times == b.Times
}
