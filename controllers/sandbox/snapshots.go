package sandbox

import (
	"context"
	"log/slog"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

// otherNode is how often a deleted snapshot of another node is reconciled: this
// one deletes its copy if that one is down.
const otherNode = time.Minute

// Snapshots takes the snapshots of the sandboxes of one node, copies them, and
// deletes those without an entity.
//
//	pending -> ready    a snapshot with a store is ready when its copy is complete
//	      \-> failed
type Snapshots struct {
	Sandboxes *Reconciler // of the same node
	Logger    *slog.Logger
}

// Copies are the copies of snapshots.
type Copies struct {
	execution.SnapshotCopier
	// Objects are those of a snapshot in the store with a URL.
	Objects func(store, snapshot string) (execution.Objects, error)
}

// Controller describes it to the controller runtime.
func (r *Snapshots) Controller() kit.Controller {
	return kit.Controller{
		Name: "snapshot", Kind: sandbox.SnapshotKind, Reconcile: r.Reconcile, Workers: 4,
		Filter: func(o schema.Object) bool {
			s, ok := o.(*sandbox.Snapshot)
			return ok && (s.Spec.Node == r.Sandboxes.Node || s.Spec.Deleted)
		},
		Watches: []kit.Source{kit.Func(r.sweep)},
		Access:  kit.Access{Reads: []*schema.Kind{sandbox.SandboxKind, core.NodeKind, core.NodeLeaseKind}, Deletes: []*schema.Kind{sandbox.SnapshotKind}, Owns: kit.Fields(sandbox.SnapshotKind, "status")},
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
	if err != nil {
		return 0, err
	}
	if s.Spec.Deleted {
		return r.delete(ctx, s)
	}
	if s.Spec.Node != r.Sandboxes.Node || s.Status.Phase != sandbox.SnapshotPhasePending {
		return 0, nil
	}
	info, err := r.take(ctx, s)
	if err == nil && s.Spec.Store != "" {
		err = r.copy(ctx, s)
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if errs.Is(err, errs.Unavailable) {
		return 0, r.report(ctx, s, err)
	}
	now := r.Sandboxes.now()
	if err != nil {
		s.Status.Phase, s.Status.Message = sandbox.SnapshotPhaseFailed, brief(err.Error())
	} else {
		s.Status.Phase, s.Status.ReadyAt, s.Status.Message = sandbox.SnapshotPhaseReady, &now, ""
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

// copy copies a snapshot that was taken to its store.
func (r *Snapshots) copy(ctx context.Context, s *sandbox.Snapshot) error {
	o, err := r.Sandboxes.Copies.Objects(s.Spec.Store, string(s.ID))
	if err != nil {
		return err
	}
	c, err := r.Sandboxes.Copies.CopySnapshot(ctx, string(s.ID), o)
	s.Status.CopySum, s.Status.CopyBytes = c.Sum, c.Bytes
	return errs.Wrap(err, "copy it to %s", s.Spec.Store)
}

// report records why a snapshot or its copy is not complete, or not deleted, and returns
// it for a retry.
func (r *Snapshots) report(ctx context.Context, s *sandbox.Snapshot, cause error) error {
	if message := brief(cause.Error()); s.Status.Message != message {
		s.Status.Message = message
		if err := entity.UpdateStatus(ctx, r.Sandboxes.Store, s); err != nil {
			return err
		}
	}
	return cause
}

// delete deletes the copy of a snapshot, complete or not, and then its entity. A
// node does it for another one that is down.
func (r *Snapshots) delete(ctx context.Context, s *sandbox.Snapshot) (time.Duration, error) {
	if s.Spec.Node != r.Sandboxes.Node {
		down, err := nodes.Down(ctx, r.Sandboxes.Store, s.Spec.Node)
		if err != nil || !down {
			return otherNode, err
		}
	}
	o, err := r.Sandboxes.Copies.Objects(s.Spec.Store, string(s.ID))
	if err == nil {
		err = r.Sandboxes.Copies.DeleteSnapshotCopy(ctx, o)
	}
	if err != nil && !errs.Is(err, errs.InvalidArgument) { // a URL of no store has no copy
		return 0, r.report(ctx, s, errs.Wrap(err, "delete the copy in %s", s.Spec.Store))
	}
	if err := entity.Delete(ctx, r.Sandboxes.Store, s); err != nil && !errs.Is(err, errs.NotFound) {
		return 0, err
	}
	return 0, nil
}

// fetch gets the snapshot that a new sandbox is made of, if this node lacks it and
// there is a copy.
func (r *Reconciler) fetch(ctx context.Context, sb *sandbox.Sandbox) error {
	if sb.Spec.Restore == "" || sb.Status.Saved != "" {
		return nil
	}
	s, err := entity.Get[sandbox.Snapshot](ctx, r.Store, schema.ID(sb.Spec.Restore))
	if errs.Is(err, errs.NotFound) { // the driver says so, unless it has the snapshot
		return nil
	}
	if err != nil || s.Spec.Node == r.Node || s.Status.CopySum == "" {
		return err
	}
	o, err := r.Copies.Objects(s.Spec.Store, string(s.ID))
	if err != nil {
		return err
	}
	return errs.Wrap(r.Copies.FetchSnapshot(ctx, string(s.ID), s.Status.CopySum, o), "from %s", s.Spec.Store)
}
