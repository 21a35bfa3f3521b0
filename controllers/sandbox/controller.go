package sandbox

import (
	"context"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/pkg/schema"
)

const (
	// sweepEvery is how often all instances of the driver are reconciled, and
	// sweepAgain the wait after a failure.
	sweepEvery = time.Minute
	sweepAgain = 5 * time.Second
	// watchAgain is the pause before a watch of the driver is begun again.
	watchAgain = time.Second
)

// Controller describes the reconciler to the controller runtime: changes of
// sandboxes of this node and of the driver's instances wake it. A sweep of all
// instances finds those without an entity.
func (r *Reconciler) Controller() kit.Controller {
	watches, reads := []kit.Source{kit.Func(r.watchDriver)}, []*schema.Kind{core.NodeKind, sandbox.SnapshotKind}
	if r.Disks != nil {
		watches, reads = append(watches, kit.Map(ofLostMount)), append(reads, disk.DiskMountKind)
	}
	return kit.Controller{
		Name: "sandbox", Kind: sandbox.SandboxKind, Filter: r.Mine, Workers: workers, Resync: time.Minute,
		Reconcile: r.Reconcile,
		Watches:   watches,
		Access: kit.Access{Reads: reads, Owns: kit.Fields(sandbox.SandboxKind, "status"), Shares: []kit.Share{{
			Field: kit.Field{Kind: sandbox.SandboxKind, Path: "spec.desired"}, Owner: "api", Why: "to pause an idle one or one whose time is over, and to go on with one that cannot be paused", When: changesDesired,
		}, {
			Field: kit.Field{Kind: sandbox.SandboxKind, Path: "spec.ttl"}, Owner: "api", Why: "to pause one whose time is over, or to give it time if it cannot be paused", When: changesTTL,
		}}},
	}
}

// ofLostMount returns the sandbox of a mount whose block device is gone.
func ofLostMount(m *disk.DiskMount) []id.Sandbox {
	if m.Status.LostAt == nil {
		return nil
	}
	return kit.Key(m.Spec.Sandbox)
}

// watchDriver adds each sandbox whose instance changes, and all of them with
// every sweep, until ctx ends. The first sweep comes after the watch has begun,
// so that no change in between is missed.
func (r *Reconciler) watchDriver(ctx context.Context, add func(schema.ID)) {
	for ctx.Err() == nil {
		changes, err := r.Driver.Watch(ctx)
		if err != nil && ctx.Err() == nil {
			r.Logger.Warn("watch the driver", "error", err)
		}
		if err == nil {
			r.followDriver(ctx, changes, add)
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

// followDriver adds changes until changes is closed or ctx ends.
func (r *Reconciler) followDriver(ctx context.Context, changes <-chan string, add func(schema.ID)) {
	t := time.NewTimer(r.sweep(ctx, add))
	defer t.Stop()
	for {
		select {
		case sid, ok := <-changes:
			if !ok {
				return
			}
			add(schema.ID(sid))
		case <-ctx.Done():
			return
		case <-t.C:
			t.Reset(r.sweep(ctx, add))
		}
	}
}

// logLister is a driver that can list the sandboxes whose logs it keeps.
type logLister interface {
	LogIDs(ctx context.Context) ([]string, error)
}

// sweep adds all instances and logs of the driver, and returns the time until
// the next sweep.
func (r *Reconciler) sweep(ctx context.Context, add func(schema.ID)) time.Duration {
	again := sweepEvery
	list, err := r.Driver.List(ctx)
	if err != nil {
		again = sweepAgain
	}
	for i := range list {
		add(schema.ID(list[i].ID))
	}
	if l, ok := r.Driver.(logLister); ok {
		ids, lerr := l.LogIDs(ctx)
		if lerr != nil {
			err, again = lerr, sweepAgain
		}
		for _, sid := range ids {
			add(schema.ID(sid))
		}
	}
	if err != nil && ctx.Err() == nil {
		r.Logger.Warn("list what is on this node", "error", err)
	}
	return again
}
