package sandbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// savedName returns the driver's name for the snapshot of a sandbox's nth pause.
func savedName(sid schema.ID, n int64) string { return fmt.Sprintf("%s-p%d", sid, n) }

// savedOf returns the sandbox of a name that savedName made.
func savedOf(name string) (sid schema.ID, ok bool) {
	i := strings.LastIndex(name, "-p")
	if i < 0 || strings.Trim(name[i+2:], "0123456789") != "" || name[i+2:] == "" {
		return "", false
	}
	return schema.ID(name[:i]), true
}

// pause saves a running sandbox and ends its processes.
func (r *Reconciler) pause(ctx context.Context, sb *sandbox.Sandbox) (time.Duration, error) {
	release, ok := r.work.begin(down)
	if !ok {
		return busyWait, nil
	}
	defer release()
	if sb.Status.Phase != sandbox.SandboxPhasePausing {
		sb.Status.Pauses++
		sb.Status.PauseRefused = ""
		sb.Status.Phase, sb.Status.Ready, sb.Status.Saved = sandbox.SandboxPhasePausing, false, savedName(sb.ID, sb.Status.Pauses)
		if err := r.write(ctx, sb); err != nil {
			return 0, err
		}
	}
	if _, err := r.Driver.Snapshot(ctx, string(sb.ID), sb.Status.Saved, execution.SnapshotOptions{}); err != nil {
		return r.notPaused(ctx, sb, err)
	}
	now := r.now()
	sb.Status.Phase, sb.Status.Address, sb.Status.PausedAt, sb.Status.Message = sandbox.SandboxPhasePaused, "", &now, ""
	if err := r.write(ctx, sb); err != nil {
		return 0, err
	}
	r.Logger.Info("sandbox is paused", "sandbox", string(sb.ID))
	return 0, nil
}

// notPaused returns a sandbox that could not be saved to running, where it goes
// on. One that has ended meanwhile is recorded as that. If a retry cannot help, the
// sandbox is no longer wanted paused: first its status says why, so that a server
// that is killed in between is refused again by the driver.
func (r *Reconciler) notPaused(ctx context.Context, sb *sandbox.Sandbox, cause error) (time.Duration, error) {
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	inst, err := r.Driver.Get(ctx, string(sb.ID))
	switch {
	case errs.Is(err, errs.NotFound):
		return r.vanished(ctx, sb, "the sandbox died while it was saved")
	case err != nil:
		return 0, err
	case inst.Phase == execution.Exited:
		return r.exited(ctx, sb, inst)
	}
	sb.Status.Phase, sb.Status.Saved = sandbox.SandboxPhaseRunning, ""
	sb.Status.Ready = !probed(sb)
	sb.Status.Message = brief("it could not be paused: " + cause.Error())
	refused := isRefusal(cause)
	if refused {
		sb.Status.PauseRefused = brief(withHint(cause))
	}
	if err := r.write(ctx, sb); err != nil {
		return 0, err
	}
	if !refused {
		return 0, cause
	}
	r.Logger.Warn("a sandbox cannot be paused, it goes on", "sandbox", string(sb.ID), "error", cause)
	_, err = entity.ModifySpec(ctx, r.Store, sb.ID, func(now *sandbox.Sandbox) error {
		if now.SpecRevision != sb.SpecRevision {
			return errs.New(errs.Conflict, "sandbox %s has changed", sb.ID) // another state may be wanted
		}
		sandboxes.PutBack(now, r.now())
		return nil
	})
	if errs.Is(err, errs.Conflict) {
		return busyWait, nil // the change is reconciled
	}
	return 0, err
}

// isRefusal reports whether a snapshot failed for a reason that another attempt meets too.
func isRefusal(err error) bool {
	switch errs.ClassOf(err) {
	case errs.Unimplemented, errs.InvalidArgument, errs.FailedPrecondition:
		return true
	}
	return false
}

// withHint returns an error's text with its advice.
func withHint(err error) string {
	if hint := errs.HintOf(err); hint != "" {
		return err.Error() + "; " + hint
	}
	return err.Error()
}

// paused reconciles a sandbox that is saved and shall stay so.
func (r *Reconciler) paused(ctx context.Context, sb *sandbox.Sandbox) (time.Duration, error) {
	_, err := r.Driver.Get(ctx, string(sb.ID))
	if errs.Is(err, errs.NotFound) {
		return r.end(ctx, sb, sandbox.EndReasonNode, nil, "its node has lost what was saved of it")
	}
	return r.untilTTL(sb), err
}

// notResumed returns a sandbox that could not be continued to its pause: what
// was saved is still there. One of a pool fails instead if another attempt would fail too: the
// pool makes a new one, for which requests may wait.
func (r *Reconciler) notResumed(ctx context.Context, sb *sandbox.Sandbox, cause error) (time.Duration, error) {
	if sb.Spec.Pool != "" && !errs.Is(cause, errs.Unavailable) {
		return r.fail(ctx, sb, errs.Wrap(cause, "it could not be resumed"))
	}
	sb.Status.Phase, sb.Status.Message = sandbox.SandboxPhasePaused, brief("it could not be resumed: "+cause.Error())
	if err := r.write(ctx, sb); err != nil {
		return 0, err
	}
	return 0, cause
}

// forgetSaved deletes the snapshot of a sandbox's last pause, now that it runs
// again. What remains after a failure is swept.
func (r *Reconciler) forgetSaved(ctx context.Context, name string) {
	if name == "" {
		return
	}
	if err := r.Driver.DeleteSnapshot(ctx, name); err != nil && ctx.Err() == nil {
		r.Logger.Warn("delete what a pause saved; it is tried again", "snapshot", name, "error", err)
	}
}

// sweepSaved deletes the snapshots of pauses that no sandbox needs.
func (r *Reconciler) sweepSaved(ctx context.Context, name string, sid schema.ID) error {
	sb, err := entity.Get[sandbox.Sandbox](ctx, r.Store, sid)
	switch {
	case errs.Is(err, errs.NotFound):
	case err != nil:
		return err
	case sb.Status.Saved == name && !sb.Status.Phase.Ended():
		return nil
	}
	return r.Driver.DeleteSnapshot(ctx, name)
}
