// Package scheduler places sandboxes on nodes: it sets sandbox.spec.node of
// those that have none, one decision at a time, so that what one decision
// reserves is seen by the next.
//
// In: nodes, and every sandbox with its reservation. Out: sandbox.spec.node
// and phase scheduled, or status.message with why no node fits. A sandbox is
// placed once and never moved.
package scheduler

import (
	"context"
	"log/slog"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/scheduler"
	"miren.dev/runtime/controllers/pool"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// retry is how soon a sandbox that fits nowhere is tried again; an ended
// sandbox frees its place sooner than that only by chance.
const retry = 2 * time.Second

// Reconciler places sandboxes. Reconcile must not run concurrently with itself.
type Reconciler struct {
	Store entity.Store
	Log   *slog.Logger
}

// Wants reports whether a sandbox waits for a node.
func Wants(sb *sandbox.Sandbox) bool {
	return sb.Spec.Node == "" && !pool.Ended(sb)
}

// Reconcile places one sandbox if it waits for that.
func (r *Reconciler) Reconcile(ctx context.Context, sid schema.ID) (time.Duration, error) {
	sb, err := entity.Get[sandbox.Sandbox](ctx, r.Store, sid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if !Wants(sb) {
		return 0, nil
	}
	if sb.Spec.Desired == sandbox.DesiredStateStopped {
		return 0, r.endUnplaced(ctx, sb)
	}
	nodes, err := r.nodes(ctx)
	if err != nil {
		return 0, err
	}
	node, err := scheduler.Pick(nodes, scheduler.Request{Need: Reservation(sb)})
	if errs.Is(err, errs.ResourceExhausted) || errs.Is(err, errs.Unavailable) {
		if sb.Status.Message != err.Error() {
			sb.Status.Message = err.Error()
			if err := entity.UpdateStatus(ctx, r.Store, sb); err != nil {
				return 0, err
			}
		}
		return retry, nil
	}
	if err != nil {
		return 0, err
	}
	sb.Spec.Node = id.Node(node)
	place, err := entity.UpdateSpecOp(sb)
	if err != nil {
		return 0, err
	}
	sb.Status.Phase, sb.Status.Message = sandbox.SandboxPhaseScheduled, ""
	status, err := entity.UpdateStatusOp(sb)
	if err != nil {
		return 0, err
	}
	_, err = r.Store.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{place, status}})
	return 0, err
}

// endUnplaced ends a sandbox that was told to stop before it had a node.
func (r *Reconciler) endUnplaced(ctx context.Context, sb *sandbox.Sandbox) error {
	now := time.Now()
	sb.Status.Phase, sb.Status.EndedAt = sandbox.SandboxPhaseStopped, &now
	if sb.Status.Reason = sb.Spec.StopReason; sb.Status.Reason == "" {
		sb.Status.Reason = sandbox.EndReasonUser
	}
	return entity.UpdateStatus(ctx, r.Store, sb)
}

// Reservation returns what a sandbox reserves on its node.
func Reservation(sb *sandbox.Sandbox) scheduler.Resources {
	res := sb.Spec.Template.Resources
	return scheduler.Resources{CPUMillis: res.CPUMillis, MemoryBytes: res.MemoryBytes}
}

// nodes reads the nodes with what is reserved on them.
func (r *Reconciler) nodes(ctx context.Context) ([]scheduler.Node, error) {
	list, _, err := entity.List[core.Node](ctx, r.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	sandboxes, _, err := entity.List[sandbox.Sandbox](ctx, r.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	reserved := map[id.Node]scheduler.Resources{}
	for _, sb := range sandboxes {
		if sb.Spec.Node != "" && !pool.Ended(sb) {
			reserved[sb.Spec.Node] = reserved[sb.Spec.Node].Add(Reservation(sb))
		}
	}
	var nodes []scheduler.Node
	for _, n := range list {
		nodes = append(nodes, scheduler.Node{
			ID: string(n.ID), Arch: n.Spec.Arch, Ready: n.Status.Phase == core.NodePhaseReady, Cordoned: n.Spec.Cordoned,
			Capacity: scheduler.Resources{CPUMillis: n.Spec.CPUMillis, MemoryBytes: n.Spec.MemoryBytes}, Reserved: reserved[n.GetID()],
		})
	}
	return nodes, nil
}
