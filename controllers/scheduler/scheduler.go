// Package scheduler assigns sandboxes to nodes. One loop decides for all of
// them, on one reading of all reservations, so that two decisions never count
// the same room twice; which node is components/scheduler's choice.
//
// It owns spec.node, which it sets once, and the status of a sandbox as long
// as that has no node: the phase becomes scheduled in the same transaction, or
// the message says why nothing has room.
package scheduler

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/scheduler"
	"miren.dev/runtime/controllers/runtime"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// everything is the only key: a decision looks at all sandboxes.
const everything = "everything"

// again is how soon it looks at sandboxes again that had no room, besides
// every change that may have made some.
const again = 10 * time.Second

// Controller assigns sandboxes to nodes.
type Controller struct {
	store entity.Store
	log   *slog.Logger
}

// New returns a scheduler over store.
func New(store entity.Store, log *slog.Logger) *Controller {
	return &Controller{store: store, log: log}
}

// Controller describes it to the controller runtime.
func (c *Controller) Controller() runtime.Controller {
	return runtime.Controller{
		Name:      "scheduler",
		Reconcile: func(ctx context.Context, _ schema.ID) (runtime.Result, error) { return c.place(ctx) },
		Workers:   1, // decisions are made one after the other
		Watches: []runtime.Source{
			runtime.Map(func(s *sandbox.Sandbox) []string {
				// A new one wants room; one that has ended has made some.
				if wantsNode(s) || ended(s) {
					return runtime.Key(everything)
				}
				return nil
			}),
			runtime.Map(func(*core.Node) []string { return runtime.Key(everything) }),
		},
	}
}

func wantsNode(s *sandbox.Sandbox) bool {
	return s.Spec.Node == "" && s.Spec.Desired == sandbox.DesiredStateRunning && s.Status.Phase == sandbox.SandboxPhasePending
}

func ended(s *sandbox.Sandbox) bool {
	return s.Status.Phase == sandbox.SandboxPhaseStopped || s.Status.Phase == sandbox.SandboxPhaseFailed
}

func (c *Controller) place(ctx context.Context) (runtime.Result, error) {
	pending, _, err := entity.List[sandbox.Sandbox](ctx, c.store, entity.Query{Index: []entity.IndexMatch{
		{Attr: sandbox.SandboxAttrPhase, Op: entity.IndexEq, Value: schema.EncodeIndexString(string(sandbox.SandboxPhasePending))}}})
	if err != nil {
		return runtime.Result{}, errs.Wrap(err, "list pending sandboxes")
	}
	pending = slices.DeleteFunc(pending, func(s *sandbox.Sandbox) bool { return !wantsNode(s) })
	if len(pending) == 0 {
		return runtime.Result{}, nil
	}
	plan, err := c.plan(ctx)
	if err != nil {
		return runtime.Result{}, err
	}
	// First come, first served; what does not fit does not hold up what does.
	slices.SortFunc(pending, func(a, b *sandbox.Sandbox) int {
		return cmp.Or(cmp.Compare(a.CreateRevision, b.CreateRevision), cmp.Compare(a.ID, b.ID))
	})
	var failed error
	waiting := false
	for _, s := range pending {
		node, err := plan.Place(reservation(s))
		if err != nil {
			waiting = true
			if err := c.explain(ctx, s, err); err != nil && failed == nil {
				failed = err
			}
			continue
		}
		if err := c.assign(ctx, s, id.Node(node)); err != nil {
			plan.Remove(string(s.ID))
			if failed == nil {
				failed = err
			}
		}
	}
	if failed != nil {
		return runtime.Result{}, failed
	}
	if waiting {
		return runtime.Result{RequeueAfter: again}, nil
	}
	return runtime.Result{}, nil
}

// plan reads all nodes and reservations.
func (c *Controller) plan(ctx context.Context) (*scheduler.Plan, error) {
	nodes, _, err := entity.List[core.Node](ctx, c.store, entity.Query{})
	if err != nil {
		return nil, errs.Wrap(err, "list nodes")
	}
	var list []scheduler.Node
	for _, n := range nodes {
		list = append(list, scheduler.Node{ID: string(n.ID), Name: cmp.Or(n.Name, n.Spec.Hostname), Arch: n.Spec.Arch,
			Ready: n.Status.Phase == core.NodePhaseReady, Cordoned: n.Spec.Cordoned,
			Capacity: scheduler.Resources{CPUMillis: n.Spec.CPUMillis, MemoryBytes: n.Spec.MemoryBytes}})
	}
	plan := scheduler.New(list)
	all, _, err := entity.List[sandbox.Sandbox](ctx, c.store, entity.Query{})
	if err != nil {
		return nil, errs.Wrap(err, "list sandboxes")
	}
	for _, s := range all {
		if s.Spec.Node != "" && !ended(s) {
			plan.Add(string(s.Spec.Node), reservation(s))
		}
	}
	return plan, nil
}

func reservation(s *sandbox.Sandbox) scheduler.Sandbox {
	r := s.Spec.Template.Resources
	return scheduler.Sandbox{ID: string(s.ID), Group: string(s.Spec.Pool),
		Reserve: scheduler.Resources{CPUMillis: r.CPUMillis, MemoryBytes: r.MemoryBytes}}
}

// assign writes the decision, if nothing of the sandbox changed since it was
// read.
func (c *Controller) assign(ctx context.Context, s *sandbox.Sandbox, node id.Node) error {
	s.Spec.Node = node
	s.Status.Phase, s.Status.Message = sandbox.SandboxPhaseScheduled, ""
	spec, err := entity.UpdateSpecOp(s)
	if err != nil {
		return err
	}
	status, err := entity.UpdateStatusOp(s)
	if err != nil {
		return err
	}
	_, err = c.store.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{spec, status}})
	if errs.Is(err, errs.NotFound) {
		return nil // deleted meanwhile
	}
	if err != nil {
		return errs.Wrap(err, "assign sandbox %s", s.ID)
	}
	c.log.Info("sandbox scheduled", "sandbox", s.ID, "node", node)
	return nil
}

// explain says in the sandbox's status why it waits.
func (c *Controller) explain(ctx context.Context, s *sandbox.Sandbox, why error) error {
	if s.Status.Message == why.Error() {
		return nil
	}
	s.Status.Message = why.Error()
	err := entity.UpdateStatus(ctx, c.store, s)
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	if err != nil {
		return errs.Wrap(err, "explain sandbox %s", s.ID)
	}
	c.log.Warn("no node has room for a sandbox", "sandbox", s.ID, "error", why)
	return nil
}
