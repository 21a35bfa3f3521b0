package deployment

import (
	"context"
	"fmt"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/entity"
)

// bake waits until the new version has held with the traffic. If one of its
// processes ends, or its probe fails, the version before serves again.
func (r *rollout) bake(ctx context.Context) (time.Duration, error) {
	ver, failure, err := r.version(ctx)
	if err != nil {
		return 0, err
	}
	if failure == nil {
		st, err := r.assessReadiness(ctx, ver)
		if err != nil {
			return 0, err
		}
		failure = st.failure
	}
	if failure != nil {
		if err := r.takeBack(ctx); err != nil {
			return 0, err
		}
		failure.Message += ", when it had the traffic"
		if r.dep.Status.Previous != "" {
			failure.Message += "; the version before serves again"
		}
		return 0, r.fail(ctx, *failure)
	}
	if left := r.Bake - r.now().Sub(r.stepStart("bake")); left > 0 {
		return min(left, poll), nil
	}
	// A cancel since the deployment was read is a change of its spec, and a Conflict here.
	unchanged, err := entity.UpdateSpecOp(r.dep)
	if err != nil {
		return 0, err
	}
	r.step("drain", "")
	return time.Millisecond, r.enter(ctx, app.DeploymentPhaseDraining, unchanged)
}

// takeBack gives the traffic back to the version before, if the new one has it, in
// memory: end writes it, with the pools of that version.
func (r *rollout) takeBack(ctx context.Context) error {
	if r.dep.Status.Phase != app.DeploymentPhaseBaking {
		return nil
	}
	if r.dep.Spec.Kind == app.RolloutKindRollback && r.dep.Status.Previous != "" {
		prev, err := get[app.AppVersion](ctx, r.Store, r.dep.Status.Previous)
		if err != nil {
			return fmt.Errorf("the version before: %w", entity.AsConflict(err))
		}
		secrets, err := addons.Current(ctx, r.Store, r.app, &prev.Spec)
		if err != nil {
			return err
		}
		r.app.Spec.Env, r.app.Spec.Secrets = prev.Spec.Env, secrets
	}
	if p := r.preview(); p != nil {
		r.restorePreview(p)
		return nil
	}
	r.app.Status.Activate(r.dep.Status.Previous)
	return nil
}
