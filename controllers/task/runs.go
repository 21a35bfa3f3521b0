package task

import (
	"context"
	"log/slog"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/tasks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

// Runs records the ends of runs, and stops the cancelled ones.
type Runs struct {
	Store  entity.Store
	Logger *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// Controller describes it to the controller runtime.
func (c *Runs) Controller() kit.Controller {
	out := kit.Controller{
		Name: "task-run", Kind: app.TaskRunKind, Reconcile: c.Reconcile, Workers: 2,
		Filter: func(o schema.Object) bool { return !tasks.Ended(o.(*app.TaskRun)) },
		Watches: []kit.Source{kit.Map(func(sb *sandbox.Sandbox) []id.TaskRun {
			if run := sb.Labels[tasks.RunLabel]; run != "" {
				return kit.Key(id.TaskRun(run))
			}
			return nil
		})},
		Access: kit.Access{Owns: kit.Fields(app.TaskRunKind, "status")},
	}
	for _, f := range kit.Fields(sandbox.SandboxKind, "spec.desired", "spec.stop_reason") {
		out.Shares = append(out.Shares, kit.Share{
			Field: f, Owner: "api", Why: "to stop the run of a task that was cancelled",
			When: func(before, after schema.Object) bool {
				return before.(*sandbox.Sandbox).Labels[tasks.RunLabel] != "" && after.(*sandbox.Sandbox).Spec.Desired == sandbox.DesiredStateStopped
			},
		})
	}
	return out
}

// Reconcile brings the record of a run up to date with its sandbox.
func (c *Runs) Reconcile(ctx context.Context, rid schema.ID) (time.Duration, error) {
	r, err := entity.Get[app.TaskRun](ctx, c.Store, rid)
	if errs.Is(err, errs.NotFound) || err == nil && tasks.Ended(r) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	sb, err := find(ctx, c.Store, r.Spec.Sandbox)
	if err != nil {
		return 0, err
	}
	before := r.Status
	switch {
	case sb == nil:
		c.end(r, app.TaskRunPhaseFailed, nil)
		r.Status.Message, r.Status.Hint = "its sandbox was deleted before its end was known", "it may have run: look at what it does, and `r task run` again"
	case sb.Status.Phase.Ended():
		c.ended(r, sb)
	default:
		if r.Spec.Cancel && sb.Spec.Desired != sandbox.DesiredStateStopped {
			sb.Spec.Desired, sb.Spec.StopReason = sandbox.DesiredStateStopped, sandbox.EndReasonUser
			if err := entity.AsConflict(entity.UpdateSpec(ctx, c.Store, sb)); err != nil {
				return 0, err
			}
		}
		r.Status.StartedAt, r.Status.Message = sb.Status.StartedAt, sb.Status.Message
		if r.Status.Message == before.Message && (r.Status.StartedAt == nil) == (before.StartedAt == nil) {
			return 0, nil
		}
	}
	fault.Point("task", "end", fault.Before)
	err = entity.UpdateStatus(ctx, c.Store, r)
	fault.Point("task", "end", fault.After)
	if err == nil && tasks.Ended(r) {
		c.Logger.Info("task ended", "run", string(r.ID), "task", r.Spec.Task, "phase", string(r.Status.Phase), "message", r.Status.Message)
	}
	return 0, entity.AsConflict(err)
}

// find returns a sandbox, or nil if there is none.
func find(ctx context.Context, r entity.Reader, sid id.Sandbox) (*sandbox.Sandbox, error) {
	if sid == "" {
		return nil, nil
	}
	sb, err := entity.Get[sandbox.Sandbox](ctx, r, sid)
	if errs.Is(err, errs.NotFound) {
		return nil, nil
	}
	return sb, err
}

// ended records the end of a run whose sandbox has ended.
func (c *Runs) ended(r *app.TaskRun, sb *sandbox.Sandbox) {
	switch {
	case sb.Status.Reason == sandbox.EndReasonExit && sb.Status.ExitCode != nil && *sb.Status.ExitCode == 0:
		c.end(r, app.TaskRunPhaseSucceeded, sb)
	case r.Spec.Cancel:
		c.end(r, app.TaskRunPhaseCanceled, sb)
	default:
		c.end(r, app.TaskRunPhaseFailed, sb)
		ttl := time.Duration(0)
		if sb.Spec.TTL != nil {
			ttl = *sb.Spec.TTL
		}
		r.Status.Message, r.Status.Hint = tasks.Failure(sb, ttl)
		r.Status.LogTail = sb.Status.LogTail
	}
}

// end sets the end of a run. sb is nil if its sandbox is gone.
func (c *Runs) end(r *app.TaskRun, phase app.TaskRunPhase, sb *sandbox.Sandbox) {
	now := time.Now
	if c.Now != nil {
		now = c.Now
	}
	at := now().UTC()
	r.Status.Phase, r.Status.Message, r.Status.EndedAt = phase, "", &at
	if sb != nil {
		r.Status.StartedAt, r.Status.ExitCode = sb.Status.StartedAt, sb.Status.ExitCode
		if sb.Status.EndedAt != nil {
			r.Status.EndedAt = sb.Status.EndedAt
		}
	}
}
