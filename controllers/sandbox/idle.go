package sandbox

import (
	"context"
	"time"

	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// busyCheck is the time between looks at a sandbox that is in use.
	busyCheck = 15 * time.Second
	// unknownCheck is the time after which the use of a sandbox is asked again
	// if its agent did not answer.
	unknownCheck = 5 * time.Second
)

// idle stops or pauses a sandbox that was not used for its idle time. It
// returns the time until it may be idle (0: never), and whether it acted.
func (r *Reconciler) idle(ctx context.Context, sb *sandbox.Sandbox) (again time.Duration, acted bool, err error) {
	if sb.Spec.IdleTimeout == nil || sb.Spec.WarmPool != "" {
		return 0, false, nil
	}
	if sb.Spec.OnIdle == sandbox.IdleActionPause && sb.Status.PauseRefused != "" {
		return 0, false, nil // it would be refused again
	}
	limit := *sb.Spec.IdleTimeout
	a, err := r.Driver.Activity(ctx, string(sb.ID))
	if err == nil {
		a.Processes, err = r.usedProcesses(ctx, sb, a.Processes)
	}
	if err != nil {
		if ctx.Err() == nil {
			r.Logger.Debug("the use of a sandbox is not known", "sandbox", string(sb.ID), "error", err)
		}
		return unknownCheck, false, ctx.Err() // unknown is not idle
	}
	if a.Processes > 0 || a.Connections > 0 {
		return min(limit, busyCheck), false, nil
	}
	if a.Idle, err = r.previewed(ctx, sb, a.Idle); err != nil {
		r.Logger.Debug("the use of a sandbox's previews is not known", "sandbox", string(sb.ID), "error", err)
		return unknownCheck, false, ctx.Err()
	}
	now := r.now()
	begun, _ := sandboxes.Begun(sb)
	since := min(a.Idle, now.Sub(begun), now.Sub(r.work.awakeSince(string(sb.ID), now)))
	if since < limit {
		return max(limit-since, time.Millisecond), false, nil
	}
	if sb.Spec.OnIdle != sandbox.IdleActionPause {
		r.Logger.Info("sandbox is idle, it is stopped", "sandbox", string(sb.ID), "idle", since)
		again, err = r.stop(ctx, sb, sandbox.EndReasonIdle)
		return again, true, err
	}
	r.Logger.Info("sandbox is idle, it is paused", "sandbox", string(sb.ID), "idle", since)
	_, err = entity.ModifySpec(ctx, r.Store, sb.ID, func(now *sandbox.Sandbox) error {
		if now.SpecRevision != sb.SpecRevision {
			return errs.New(errs.Conflict, "sandbox %s has changed", sb.ID) // it may be wanted again
		}
		now.Spec.Desired = sandbox.DesiredStatePaused
		return nil
	})
	return 0, true, err
}

// previewed returns since when a sandbox is idle, its previews included; 0 if one
// is in use.
func (r *Reconciler) previewed(ctx context.Context, sb *sandbox.Sandbox, idle time.Duration) (time.Duration, error) {
	if r.Previews == nil || idle < *sb.Spec.IdleTimeout {
		return idle, nil
	}
	a, err := r.Previews.Activity(ctx, sb.ID)
	switch {
	case ingress.Down(err):
		return idle, nil
	case err != nil:
		return 0, err
	case a.Requests > 0:
		return 0, nil
	}
	return min(idle, a.Idle), nil
}

// pauseAtEnd pauses a sandbox whose time to live has run out. It has none until
// it is resumed.
func (r *Reconciler) pauseAtEnd(ctx context.Context, sb *sandbox.Sandbox) error {
	r.Logger.Info("the time of a sandbox is over, it is paused", "sandbox", string(sb.ID), "ttl", *sb.Spec.TTL)
	_, err := entity.ModifySpec(ctx, r.Store, sb.ID, func(now *sandbox.Sandbox) error {
		if now.SpecRevision != sb.SpecRevision {
			return errs.New(errs.Conflict, "sandbox %s has changed", sb.ID) // it may have more time
		}
		now.Spec.Desired, now.Spec.TTL = sandbox.DesiredStatePaused, nil
		return nil
	})
	return err
}

// changesDesired is the condition under which the controller writes what users want of
// a sandbox.
func changesDesired(before, after schema.Object) bool {
	b, a := before.(*sandbox.Sandbox), after.(*sandbox.Sandbox)
	if putsBack(b, a) {
		return true
	}
	idle := b.Spec.IdleTimeout != nil && b.Spec.OnIdle == sandbox.IdleActionPause
	return (idle || pausesAtEnd(b, a)) && b.Spec.Desired == sandbox.DesiredStateRunning && a.Spec.Desired == sandbox.DesiredStatePaused
}

// changesTTL is the condition under which the controller changes the end of a sandbox.
func changesTTL(before, after schema.Object) bool {
	b, a := before.(*sandbox.Sandbox), after.(*sandbox.Sandbox)
	return pausesAtEnd(b, a) || putsBack(b, a) && b.Spec.ResumeTTL != nil && b.Spec.TTL == nil && a.Spec.TTL != nil
}

func pausesAtEnd(b, a *sandbox.Sandbox) bool {
	return b.Spec.ResumeTTL != nil && b.Spec.TTL != nil && a.Spec.TTL == nil && a.Spec.Desired == sandbox.DesiredStatePaused
}

// putsBack reports whether a sandbox whose pause was refused is wanted running again.
func putsBack(b, a *sandbox.Sandbox) bool {
	return b.Status.PauseRefused != "" && b.Spec.Desired == sandbox.DesiredStatePaused && a.Spec.Desired == sandbox.DesiredStateRunning
}
