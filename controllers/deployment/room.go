package deployment

import (
	"cmp"
	"context"
	"slices"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

// crowdedFor is how long a sandbox of the new version waits for room that
// others free, and for the room that a stopped sandbox of the old version
// frees.
const crowdedFor = 3 * time.Second

// crowdedSince returns since when a sandbox of the new version counts as
// without room: its start, or when the old version last gave up a sandbox.
func (r *rollout) crowdedSince(started time.Time) time.Time {
	if at := r.dep.Status.YieldedAt; at != nil && at.After(started) {
		return *at
	}
	return started
}

// withRoomNote adds to a message that the old version makes room.
func (r *rollout) withRoomNote(message string) string {
	if len(r.dep.Status.Yielded) == 0 {
		return message
	}
	return message + "; no node has room for both versions, so sandboxes are replaced one at a time"
}

// makeRoom stops one sandbox of the active version, if it can of the service that lacks room, and reports whether it
// did. If the new version never gets the traffic, giveBack restores the sandboxes.
func (r *rollout) makeRoom(ctx context.Context, service string) (bool, error) {
	now := r.now()
	if now.Sub(r.crowdedSince(r.stepStart("start"))) < crowdedFor || r.app.Status.ActiveVersion == "" {
		return false, nil
	}
	all, err := apps.Pools(ctx, r.Store, r.app.GetID())
	if err != nil {
		return false, err
	}
	var from *sandbox.SandboxPool
	for _, p := range apps.PoolsOfVersion(all, r.app.Status.ActiveVersion) {
		sbs, err := sandboxes.InPool(ctx, r.Store, p.GetID())
		if err != nil {
			return false, err
		}
		if len(sandboxes.Classify(sbs).Stopping) > 0 {
			return false, nil // its room will become free
		}
		if p.Spec.Replicas > 0 && (from == nil || yieldsBefore(p, from, service)) {
			from = p
		}
	}
	if from == nil {
		return false, nil
	}
	if !slices.ContainsFunc(r.dep.Status.Yielded, func(y app.YieldedPool) bool { return y.Pool == from.GetID() }) {
		r.dep.Status.Yielded = append(r.dep.Status.Yielded, app.YieldedPool{Pool: from.GetID(), Replicas: from.Spec.Replicas})
	}
	r.dep.Status.YieldedAt = &now
	from.Spec.Replicas--
	check, err := entity.CheckOp(r.lease)
	if err != nil {
		return false, err
	}
	fewer, err := entity.UpdateSpecOp(from)
	if err != nil {
		return false, err
	}
	status, err := entity.UpdateStatusOp(r.dep)
	if err != nil {
		return false, err
	}
	fault.Point("deployment", "yield", fault.Before)
	_, err = r.Store.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{check, fewer, status}})
	fault.Point("deployment", "yield", fault.After)
	if err != nil {
		return false, entity.AsConflict(err)
	}
	r.Logger.Info("no room for a sandbox of the new version; stopping one of the active version", "deployment", r.dep.ID, "pool", from.ID, "left", from.Spec.Replicas)
	return true, nil
}

// yieldsBefore reports whether to stop a sandbox of a rather than of b: prefer the
// service that lacks room, then the larger pool.
func yieldsBefore(a, b *sandbox.SandboxPool, service string) bool {
	if (a.Spec.Service == service) != (b.Spec.Service == service) {
		return a.Spec.Service == service
	}
	return cmp.Compare(a.Spec.Replicas, b.Spec.Replicas) > 0
}

// giveBack returns the operations that restore the sandboxes that the active
// version gave up.
func (r *rollout) giveBack(ctx context.Context) ([]entity.Op, error) {
	var ops []entity.Op
	for _, y := range r.dep.Status.Yielded {
		p, err := entity.Get[sandbox.SandboxPool](ctx, r.Store, y.Pool)
		if errs.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if p.Spec.AppVersion != r.app.Status.ActiveVersion || p.Spec.Replicas >= y.Replicas {
			continue
		}
		p.Spec.Replicas = y.Replicas
		op, err := entity.UpdateSpecOp(p)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}
