package node

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Defaults of Liveness.
const (
	defaultGrace    = leaseTTL
	defaultEndAfter = 5 * time.Minute
	// removeAgain is the wait before a node that was deleted is looked at again.
	removeAgain = time.Minute
)

// Liveness marks nodes as down whose lease has lapsed, and ends the sandboxes of
// nodes that stay down, so that their pools replace them elsewhere.
type Liveness struct {
	Store  entity.Store
	Logger *slog.Logger
	// Grace is how long a node without a lease still counts as alive; 0: the lease's TTL.
	Grace time.Duration
	// EndAfter is how long a node is down before its sandboxes end; 0: 5
	// minutes.
	EndAfter time.Duration
	Now      func() time.Time // nil: time.Now

	mu      sync.Mutex
	missing map[schema.ID]time.Time // when this process first saw each node without a lease
}

// Controller describes it to the controller runtime.
func (r *Liveness) Controller() kit.Controller {
	return kit.Controller{
		Name: "node", Kind: core.NodeKind, Reconcile: r.Reconcile,
		Watches: []kit.Source{kit.Map(func(l *core.NodeLease) []id.Node { return kit.Key(l.Spec.Node) })},
		Access: kit.Access{
			Reads:   []*schema.Kind{sandbox.SandboxKind, sandbox.SnapshotKind},
			Deletes: []*schema.Kind{core.NodeKind, sandbox.SnapshotKind},
			Shares:  append(downShares(), endShare),
		},
	}
}

// downShares declares the fields that it writes of a node that cannot write
// them itself.
func downShares() []kit.Share {
	var out []kit.Share
	for _, f := range kit.Fields(core.NodeKind, "status.phase", "status.down_since", "status.message") {
		out = append(out, kit.Share{
			Field: f, Owner: registrar, Why: "once its lease has lapsed and it is down",
			When: func(_, after schema.Object) bool { return after.(*core.Node).Status.Phase == core.NodePhaseDown },
		})
	}
	return out
}

// endShare declares the end of a sandbox whose node cannot record it.
var endShare = kit.Share{
	Field: kit.Field{Kind: sandbox.SandboxKind, Path: "status"}, Owner: "sandbox", Why: "to end it when its node stays down",
	When: func(before, after schema.Object) bool {
		return before.(*sandbox.Sandbox).Spec.Node != "" && after.(*sandbox.Sandbox).Status.Reason == sandbox.EndReasonNode
	},
}

// Reconcile checks one node. It returns after how long to check again; 0 if the
// lease exists, since its end is a change.
func (r *Liveness) Reconcile(ctx context.Context, nid schema.ID) (time.Duration, error) {
	n, err := entity.Get[core.Node](ctx, r.Store, nid)
	if errs.Is(err, errs.NotFound) {
		r.seen(nid)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if n.Spec.Removed {
		r.seen(nid)
		return r.remove(ctx, n)
	}
	_, err = nodes.LeaseOf(ctx, r.Store, n.GetID())
	if err == nil {
		r.seen(nid)
		return 0, nil
	}
	if !errs.Is(err, errs.NotFound) {
		return 0, err
	}
	now := time.Now()
	if r.Now != nil {
		now = r.Now()
	}
	switch n.Status.Phase {
	case core.NodePhaseReady:
		if wait := cmp.Or(r.Grace, defaultGrace) - now.Sub(r.since(nid, now)); wait > 0 {
			return wait, nil
		}
		n.Status.Phase, n.Status.DownSince = core.NodePhaseDown, &now
		n.Status.Message = "its lease has lapsed: the server on it does not run, or does not reach the store"
		if err := entity.UpdateStatus(ctx, r.Store, n); err != nil {
			return 0, err
		}
		r.Logger.Warn("node is down", "node", string(nid), "name", n.Name)
		return cmp.Or(r.EndAfter, defaultEndAfter), nil
	case core.NodePhaseDown:
		if n.Status.DownSince == nil {
			n.Status.DownSince = &now
			return cmp.Or(r.EndAfter, defaultEndAfter), entity.UpdateStatus(ctx, r.Store, n)
		}
		if wait := cmp.Or(r.EndAfter, defaultEndAfter) - now.Sub(*n.Status.DownSince); wait > 0 {
			return wait, nil
		}
		return 0, r.endSandboxes(ctx, n, now, "has been down since "+n.Status.DownSince.UTC().Format(time.RFC3339))
	}
	return 0, nil // the node has never been ready, so no sandbox is placed on it
}

// seen forgets that a lease was missing.
func (r *Liveness) seen(nid schema.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.missing, nid)
}

// since returns when this process first saw the node without a lease. A restart of
// the server begins anew, which makes the grace longer.
func (r *Liveness) since(nid schema.ID, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.missing == nil {
		r.missing = map[schema.ID]time.Time{}
	}
	if t, ok := r.missing[nid]; ok {
		return t
	}
	r.missing[nid] = now
	return now
}

// remove ends the sandboxes of a node that was deleted, forgets its snapshots, which
// nobody reaches any more, and deletes it. It stays until the last ended sandbox is
// forgotten, so that this one can say where it ran.
func (r *Liveness) remove(ctx context.Context, n *core.Node) (time.Duration, error) {
	now := time.Now()
	if r.Now != nil {
		now = r.Now()
	}
	if n.Status.Phase != core.NodePhaseDown {
		n.Status.Phase, n.Status.DownSince = core.NodePhaseDown, &now
		n.Status.Message = "it was deleted; it goes with the last record of a sandbox that ran on it"
		return time.Millisecond, entity.UpdateStatus(ctx, r.Store, n)
	}
	if err := r.endSandboxes(ctx, n, now, "was deleted"); err != nil {
		return 0, err
	}
	all, _, err := entity.List[sandbox.Snapshot](ctx, r.Store, entity.Where(sandbox.SnapshotAttrNode, n.GetID()))
	if err != nil {
		return 0, err
	}
	for _, s := range all {
		if err := entity.Delete(ctx, r.Store, s); err != nil && !errs.Is(err, errs.NotFound) {
			return 0, err
		}
	}
	rest, err := sandboxes.OnNode(ctx, r.Store, n.GetID())
	if err != nil {
		return 0, err
	}
	if len(rest) > 0 {
		return removeAgain, nil
	}
	r.Logger.Info("node deleted", "node", string(n.ID), "name", n.Name)
	return 0, entity.Delete(ctx, r.Store, n)
}

// endSandboxes ends the sandboxes on n, each only if n is still down.
func (r *Liveness) endSandboxes(ctx context.Context, n *core.Node, now time.Time, why string) error {
	all, err := sandboxes.OnNode(ctx, r.Store, n.GetID())
	if err != nil {
		return err
	}
	check, err := entity.CheckOp(n)
	if err != nil {
		return err
	}
	ended := 0
	for _, sb := range all {
		if sb.Status.Phase.Ended() {
			continue
		}
		sb.Status.Phase, sb.Status.Reason, sb.Status.Ready, sb.Status.Address = sandbox.SandboxPhaseStopped, sandbox.EndReasonNode, false, ""
		sb.Status.EndedAt = &now
		sb.Status.Message = fmt.Sprintf("its node %s %s", cmp.Or(n.Name, string(n.ID)), why)
		op, err := entity.UpdateStatusOp(sb)
		if err != nil {
			return err
		}
		if _, err := r.Store.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{op, check}}); errs.Is(err, errs.NotFound) {
			continue // the sandbox was deleted; if the node was, the next write fails as well
		} else if err != nil {
			return err
		}
		ended++
	}
	if ended > 0 {
		r.Logger.Warn("sandboxes of a node that is down have ended", "node", string(n.ID), "sandboxes", ended)
	}
	return nil
}
