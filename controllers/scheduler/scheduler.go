// Package scheduler assigns sandboxes to nodes. One loop decides for all of
// them, on one reading of all reservations, so that two decisions never count
// the same room twice.
//
// It owns spec.node and spec.runner, which it sets once, and the status of a sandbox as long
// as that has no node: the phase becomes scheduled in the same transaction, or
// the message says why nothing has room. A sandbox that a user stops before
// it has a node ends here.
//
// The choice of a node ([Plan]) is a pure function of the nodes and the sandboxes
// that are placed.
//
// A node fits if it is ready, not cordoned, of the right architecture, has disk
// space left, and has the CPU and memory that the sandbox reserves. For a sandbox
// that is of no app there must be room beside it for the largest of the pools'
// sandboxes: without that, an app could not be rolled out. Among the nodes that fit
// it takes
//
//  1. the one with the fewest sandboxes of the same group (a pool), so that
//     one lost machine takes as little as possible of a service away;
//  2. of these the fullest, by the scarcer of CPU and memory after the
//     placement (best fit), so that room for large sandboxes stays together;
//  3. of these the one with the smallest id.
//
// The answer does not depend on the order in which nodes and sandboxes are
// given. Sandboxes with disks, with secrets that are added to their requests, or of a copy
// of a snapshot do not fit on runners. A service fits on a runner if the runner may run its app
// (spec.apps of its node). A sandbox that mounts a disk goes to the node of the other sandboxes
// that mount it, or to the node whose directory has the data of the disk.
package scheduler

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

// everything is the only key: a decision concerns all sandboxes.
const everything = "everything"

// again is the time until sandboxes without room are tried again. A change that
// may make room wakes the Controller at once.
const again = 2 * time.Second

// Reconciler assigns sandboxes to nodes.
type Reconciler struct {
	Store  entity.Store
	Logger *slog.Logger
}

// Controller describes the reconciler to the controller runtime, woken by every
// change that may need room or free some.
func (r *Reconciler) Controller() kit.Controller {
	return kit.Controller{
		Name: "scheduler", Reconcile: r.Reconcile,
		Workers: 1, // decisions are made one after the other
		Access: kit.Access{
			Reads: []*schema.Kind{disk.DiskKind},
			Owns:  kit.Fields(sandbox.SandboxKind, "spec.node", "spec.runner"),
			Shares: []kit.Share{{
				Field: kit.Field{Kind: sandbox.SandboxKind, Path: "status"}, Owner: "sandbox",
				Why:  "while it has no node, and so no controller of one",
				When: func(before, _ schema.Object) bool { return before.(*sandbox.Sandbox).Spec.Node == "" },
			}},
		},
		Watches: []kit.Source{
			kit.Map(func(s *sandbox.Sandbox) []string {
				if sandboxes.AwaitsPlacement(s) || s.Status.Phase.Ended() {
					return kit.Key(everything)
				}
				return nil
			}),
			kit.Map(func(*core.Node) []string { return kit.Key(everything) }),
		},
	}
}

// Reconcile decides for all waiting sandboxes, whatever the key. It must not
// run concurrently with itself. It returns after how long to decide again, 0 if
// no sandbox waits.
func (r *Reconciler) Reconcile(ctx context.Context, _ schema.ID) (time.Duration, error) {
	pending, err := sandboxes.Pending(ctx, r.Store) // oldest first
	if err != nil {
		return 0, errs.Wrap(err, "list pending sandboxes")
	}
	if len(pending) == 0 {
		return 0, nil
	}
	plan, attached, err := r.plan(ctx)
	if err != nil {
		return 0, err
	}
	// A sandbox that does not fit does not delay later ones that do.
	var failed error
	waiting := false
	for _, s := range pending {
		if s.Spec.Desired == sandbox.DesiredStateStopped {
			if err := r.end(ctx, s); err != nil && failed == nil {
				failed = err
			}
			continue
		}
		node, err := plan.Place(attached.bind(reservation(s), s))
		if err != nil {
			waiting = true
			if err := r.reportWait(ctx, s, err); err != nil && failed == nil {
				failed = err
			}
			continue
		}
		if err := r.assign(ctx, s, id.Node(node), plan.byID[node].Runner); err != nil {
			plan.Remove(string(s.ID))
			if failed == nil {
				failed = err
			}
			continue
		}
		attached.add(s)
	}
	if failed != nil {
		return 0, failed
	}
	if waiting {
		return again, nil
	}
	return 0, nil
}

// attachments are the nodes of the disks that placed sandboxes mount. A disk is
// attached to one node at a time.
type attachments map[id.Disk]id.Node

// add records the disks of a sandbox that is placed and has not ended.
func (a attachments) add(s *sandbox.Sandbox) {
	for _, v := range s.Spec.Template.Volumes {
		a[v.Disk] = s.Spec.Node
	}
}

// bind binds a request to the node of its disks.
func (a attachments) bind(request Sandbox, s *sandbox.Sandbox) Sandbox {
	for _, v := range s.Spec.Template.Volumes {
		request.Only = cmp.Or(request.Only, string(a[v.Disk]))
	}
	return request
}

// plan reads all nodes, reservations and attachments of disks.
func (r *Reconciler) plan(ctx context.Context) (*Plan, attachments, error) {
	nodes, _, err := entity.List[core.Node](ctx, r.Store, entity.Query{})
	if err != nil {
		return nil, nil, errs.Wrap(err, "list nodes")
	}
	var list []Node
	for _, n := range nodes {
		list = append(list, Node{ID: string(n.ID), Name: cmp.Or(n.Name, n.Spec.Hostname), Arch: n.Spec.Arch,
			Ready: n.Status.Phase == core.NodePhaseReady, Cordoned: n.Spec.Cordoned,
			Capacity: Resources{CPUMillis: n.Spec.CPUMillis, MemoryBytes: n.Spec.MemoryBytes},
			DiskFull: n.Status.DiskFull, DiskFree: value(n.Status.DiskFreeBytes), Runner: n.Spec.Runner, Apps: n.Spec.Apps})
	}
	plan, attached := NewPlan(list), attachments{}
	all, _, err := entity.List[sandbox.Sandbox](ctx, r.Store, entity.Query{})
	if err != nil {
		return nil, nil, errs.Wrap(err, "list sandboxes")
	}
	if err := r.addHomes(ctx, nodes, attached); err != nil {
		return nil, nil, err
	}
	for _, s := range all {
		if s.Spec.Node != "" && !s.Status.Phase.Ended() {
			plan.Add(string(s.Spec.Node), reservation(s))
			attached.add(s)
		}
	}
	return plan, attached, nil
}

// addHomes adds the disks whose data is in a directory of a node.
func (r *Reconciler) addHomes(ctx context.Context, nodes []*core.Node, a attachments) error {
	if len(nodes) < 2 {
		return nil
	}
	all, _, err := entity.List[disk.Disk](ctx, r.Store, entity.Query{})
	if err != nil {
		return errs.Wrap(err, "list disks")
	}
	for _, d := range all {
		home := id.Node(d.Status.Home)
		if d.Spec.Store == "" && slices.ContainsFunc(nodes, func(n *core.Node) bool { return n.GetID() == home }) {
			a[d.GetID()] = home
		}
	}
	return nil
}

func reservation(s *sandbox.Sandbox) Sandbox {
	cpu, memory := s.Reserved()
	return Sandbox{ID: string(s.ID), App: string(s.Spec.App), Home: sandboxes.NotOnRunners(s), Group: string(s.Spec.Pool), Arch: s.Spec.Template.Arch, Only: string(s.Spec.OnlyNode),
		Extra: s.Spec.Pool == "" && s.Spec.App == "", Reserve: Resources{CPUMillis: cpu, MemoryBytes: memory}}
}

func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// assign writes the decision, if the sandbox has not changed since it was read.
func (r *Reconciler) assign(ctx context.Context, s *sandbox.Sandbox, node id.Node, runner bool) error {
	s.Spec.Node, s.Spec.Runner = node, runner
	s.Status.Phase, s.Status.Message = sandbox.SandboxPhaseScheduled, ""
	spec, err := entity.UpdateSpecOp(s)
	if err != nil {
		return err
	}
	status, err := entity.UpdateStatusOp(s)
	if err != nil {
		return err
	}
	fault.Point("sandbox", "placed", fault.Before)
	_, err = r.Store.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{spec, status}})
	fault.Point("sandbox", "placed", fault.After)
	if errs.Is(err, errs.NotFound) {
		return nil // deleted meanwhile
	}
	if err != nil {
		return errs.Wrap(err, "assign sandbox %s", s.ID)
	}
	r.Logger.Info("sandbox scheduled", "sandbox", s.ID, "node", node)
	return nil
}

// reportWait records in the sandbox's status why it waits.
func (r *Reconciler) reportWait(ctx context.Context, s *sandbox.Sandbox, why error) error {
	if s.Status.Message == why.Error() {
		return nil
	}
	s.Status.Message = why.Error()
	err := entity.UpdateStatus(ctx, r.Store, s)
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	if err != nil {
		return errs.Wrap(err, "report why sandbox %s waits", s.ID)
	}
	r.Logger.Warn("no node has room for a sandbox", "sandbox", s.ID, "error", why)
	return nil
}

// end ends a sandbox that was told to stop before it had a node.
func (r *Reconciler) end(ctx context.Context, s *sandbox.Sandbox) error {
	now := time.Now()
	s.Status.Phase, s.Status.EndedAt = sandbox.SandboxPhaseStopped, &now
	s.Status.Reason = cmp.Or(s.Spec.StopReason, sandbox.EndReasonUser)
	err := entity.UpdateStatus(ctx, r.Store, s)
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	return errs.Wrap(err, "end sandbox %s", s.ID)
}
