package deployment

import (
	"cmp"
	"context"
	"slices"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
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
	if !slices.ContainsFunc(r.dep.Status.Yielded, func(y app.YieldedPool) bool { return y.Disk == "" }) {
		return message
	}
	return message + "; no node has room for both versions, so sandboxes are replaced one at a time"
}

// makeRoom stops one sandbox of the active version, if it can of the service that lacks room, and reports whether it
// did. If the new version never gets the traffic, scale restores the sandboxes.
func (r *rollout) makeRoom(ctx context.Context, service string) (bool, error) {
	now := r.now()
	if r.dep.Spec.Canary > 0 || r.preview() != nil {
		return false, nil // the active version keeps most of the requests, or all
	}
	if now.Sub(r.crowdedSince(r.stepStart("start"))) < crowdedFor || r.app.Status.Active() == "" {
		return false, nil
	}
	all, err := apps.Pools(ctx, r.Store, r.app.GetID())
	if err != nil {
		return false, err
	}
	var from *sandbox.SandboxPool
	for _, p := range apps.PoolsOfVersion(all, r.app.Status.Active()) {
		sbs, err := sandboxes.InPool(ctx, r.Store, p.GetID())
		if err != nil {
			return false, err
		}
		members := sandboxes.Classify(sbs)
		if len(members.Stopping)+len(sandboxes.Draining(members.Live)) > 0 {
			return false, nil // its room will become free
		}
		if p.Wanted() > 0 && (from == nil || yieldsBefore(p, from, service)) {
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
	from.Spec.Replicas = from.Wanted() - 1
	if err := r.yield(ctx, from); err != nil {
		return false, err
	}
	r.Logger.Info("no room for a sandbox of the new version; stopping one of the active version", "deployment", r.dep.ID, "pool", from.ID, "left", from.Spec.Replicas)
	return true, nil
}

// yield writes the smaller pools of the old version, together with the record from
// which scale restores them.
func (r *rollout) yield(ctx context.Context, pools ...*sandbox.SandboxPool) error {
	check, err := entity.CheckOp(r.lease)
	if err != nil {
		return err
	}
	status, err := entity.UpdateStatusOp(r.dep)
	if err != nil {
		return err
	}
	ops := []entity.Op{check, status}
	for _, p := range pools {
		op, err := entity.UpdateSpecOp(p)
		if err != nil {
			return err
		}
		ops = append(ops, op)
	}
	fault.Point("deployment", "yield", fault.Before)
	_, err = r.Store.Txn(ctx, entity.TxnRequest{Ops: ops})
	fault.Point("deployment", "yield", fault.After)
	return entity.AsConflict(err)
}

// yieldsBefore reports whether to stop a sandbox of a rather than of b: prefer the
// service that lacks room, then the larger pool.
func yieldsBefore(a, b *sandbox.SandboxPool, service string) bool {
	if (a.Spec.Service == service) != (b.Spec.Service == service) {
		return a.Spec.Service == service
	}
	return cmp.Compare(a.Wanted(), b.Wanted()) > 0
}

// scale returns the operations that give the pools of the versions that serve the
// number of sandboxes that the app's scale says. It returns sandboxes that they gave
// up, also to a deployment that lost its lease to this one, and applies a scale that a
// user set during the rollout.
func (r *rollout) scale(ctx context.Context) ([]entity.Op, error) {
	var ops []entity.Op
	pools, err := apps.Pools(ctx, r.Store, r.app.GetID())
	for _, v := range r.app.Status.Versions() {
		if err != nil {
			break
		}
		var more []entity.Op
		more, err = r.scaleVersion(ctx, v, pools)
		ops = append(ops, more...)
	}
	return ops, err
}

func (r *rollout) scaleVersion(ctx context.Context, version id.AppVersion, pools []*sandbox.SandboxPool) ([]entity.Op, error) {
	ver, err := get[app.AppVersion](ctx, r.Store, version)
	if errs.Is(err, errs.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ops []entity.Op
	services := apps.Services(ver)
	for _, p := range apps.PoolsOfVersion(pools, ver.GetID()) {
		i := slices.IndexFunc(services, func(s *app.Service) bool { return s.Name == p.Spec.Service })
		if i < 0 || !apps.Rescale(p, r.app, ver, services[i]) && p.Spec.State == sandbox.PoolStateActive {
			continue
		}
		p.Spec.State = sandbox.PoolStateActive
		op, err := entity.UpdateSpecOp(p)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}
