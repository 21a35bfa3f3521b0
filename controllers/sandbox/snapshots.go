package sandbox

import (
	"context"
	"log/slog"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

// Snapshots takes the snapshots of the sandboxes of one node, and deletes those
// without an entity.
type Snapshots struct {
	Sandboxes *Reconciler // of the same node
	Logger    *slog.Logger
}

// Controller describes it to the controller runtime.
func (r *Snapshots) Controller() kit.Controller {
	return kit.Controller{
		Name: "snapshot", Kind: sandbox.SnapshotKind, Reconcile: r.Reconcile, Workers: 4,
		Filter: func(o schema.Object) bool {
			s, ok := o.(*sandbox.Snapshot)
			return ok && s.Spec.Node == r.Sandboxes.Node
		},
		Watches: []kit.Source{kit.Func(r.sweep)},
		Access:  kit.Access{Reads: []*schema.Kind{sandbox.SandboxKind}, Owns: kit.Fields(sandbox.SnapshotKind, "status")},
	}
}

// sweep adds every snapshot that the node has, now and every minute, until ctx
// ends.
func (r *Snapshots) sweep(ctx context.Context, add func(schema.ID)) {
	for {
		list, err := r.Sandboxes.Driver.ListSnapshots(ctx)
		if err != nil && ctx.Err() == nil {
			r.Logger.Warn("list the snapshots of this node", "error", err)
		}
		for _, s := range list {
			add(schema.ID(s.ID))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(sweepEvery):
		}
	}
}

// Reconcile takes one snapshot, or deletes it.
func (r *Snapshots) Reconcile(ctx context.Context, key schema.ID) (time.Duration, error) {
	d := r.Sandboxes.Driver
	if sid, ok := savedOf(string(key)); ok {
		return 0, r.Sandboxes.sweepSaved(ctx, string(key), sid)
	}
	s, err := entity.Get[sandbox.Snapshot](ctx, r.Sandboxes.Store, key)
	if errs.Is(err, errs.NotFound) {
		return 0, d.DeleteSnapshot(ctx, string(key))
	}
	if err != nil || s.Status.Phase != sandbox.SnapshotPhasePending {
		return 0, err
	}
	info, err := r.take(ctx, s)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	now := r.Sandboxes.now()
	if err != nil {
		s.Status.Phase, s.Status.Message = sandbox.SnapshotPhaseFailed, brief(err.Error())
	} else {
		s.Status.Phase, s.Status.ReadyAt = sandbox.SnapshotPhaseReady, &now
		s.Status.Bytes, s.Status.RunscVersion, s.Status.Agent = info.Bytes, info.RunscVersion, info.Agent
	}
	fault.Point("snapshot", string(s.Status.Phase), fault.Before)
	err = entity.UpdateStatus(ctx, r.Sandboxes.Store, s)
	fault.Point("snapshot", string(s.Status.Phase), fault.After)
	return 0, err
}

// take takes the snapshot, or returns the one that an earlier attempt took.
func (r *Snapshots) take(ctx context.Context, s *sandbox.Snapshot) (execution.SnapshotInfo, error) {
	d := r.Sandboxes.Driver
	if s.Spec.Sandbox == "" {
		return execution.SnapshotInfo{}, errs.New(errs.FailedPrecondition, "its sandbox was deleted")
	}
	info, err := d.Snapshot(ctx, string(s.Spec.Sandbox), string(s.ID), execution.SnapshotOptions{Leave: true})
	if !errs.Is(err, errs.AlreadyExists) {
		return info, err
	}
	list, err := d.ListSnapshots(ctx)
	if err != nil {
		return execution.SnapshotInfo{}, err
	}
	for _, have := range list {
		if have.ID == string(s.ID) && id.Sandbox(have.Sandbox) == s.Spec.Sandbox {
			return have, nil
		}
	}
	return execution.SnapshotInfo{}, errs.New(errs.Internal, "the node has a snapshot %s and does not list it", s.ID)
}
