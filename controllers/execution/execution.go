// Package execution takes executions from their submission to the history.
//
//	waiting -> queued -> running -> ended -> history
//	   ^---------^---------/ another attempt
//
// In: execution, and the sandboxes that were made for them. Out: execution.status,
// processes in sandboxes, objects with output, records of the history.
//
// # The queue
//
// The dispatcher takes the executions in phase queued in the order of the index
// queue: priority, time, then id. It begins an attempt by one conditional write, so
// that two servers never begin the same one. Executions whose time has not come
// are in phase waiting, outside that order.
//
// # Attempts
//
// status.attempt counts the attempts that were begun. The end of each is one
// conditional write after its output is durable, so it is recorded once. An
// attempt in phase running that no process makes was interrupted: its server was
// killed, or its node is down. The sandboxes that were made for it are stopped, and
// have ended, before another attempt can begin. In a sandbox that outlives the
// execution the agent ends the process; another attempt waits for that
// (execution.InterruptDelay).
//
// Locks: Reconciler.mu, held for no IO.
package execution

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/executions"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/trace"
)

// Sandboxes are the operations of an attempt; *sandboxes.Service has them.
type Sandboxes interface {
	RunCode(ctx context.Context, project string, req sandboxes.RunCodeRequest) (id.Sandbox, sandboxes.Process, error)
	RunOnce(ctx context.Context, project string, req sandboxes.RunOnceRequest) (id.Sandbox, sandboxes.Process, error)
	Exec(ctx context.Context, req sandboxes.ExecRequest) (id.Sandbox, sandboxes.Process, error)
	Stats(ctx context.Context, sid id.Sandbox) (*sandbox.Stats, error)
}

// Reconciler takes executions to their end.
type Reconciler struct {
	Store      entity.Store
	Executions *executions.Service // also their objects and history
	Sandboxes  Sandboxes
	Sealer     *schema.Sealer
	Node       id.Node       // of this server
	Parallel   int           // most attempts at a time; 0: by the node's memory
	Linger     time.Duration // time from the end to the move to the history; 0: executions.Linger
	Logger     *slog.Logger
	Traces     *trace.Tracer // begins a trace for each attempt; nil: none

	server string // this process, among those of the node
	wake   chan struct{}

	mu       sync.Mutex
	attempts map[schema.ID]*attempt // under way in this process
}

// Controller describes the reconciler to the controller runtime.
func (r *Reconciler) Controller() kit.Controller {
	r.server = string(schema.NewID("server"))
	r.wake = make(chan struct{}, 1)
	r.attempts = map[schema.ID]*attempt{}
	c := kit.Controller{
		Name: "execution", Kind: execution.ExecutionKind, Reconcile: r.Reconcile, Workers: 4,
		Watches: []kit.Source{
			kit.Map(func(sb *sandbox.Sandbox) []id.Execution { return kit.Key(sb.Spec.Execution) }),
			kit.Map(func(n *core.Node) []id.Execution {
				if n.Status.Phase != core.NodePhaseDown {
					return nil
				}
				return r.Executions.OnNode(n.GetID())
			}),
			kit.Func(r.dispatch),
		},
		Access: kit.Access{
			Reads:   []*schema.Kind{core.ProjectKind, core.NodeKind},
			Deletes: []*schema.Kind{execution.ExecutionKind, sandbox.SandboxKind},
			Owns:    kit.Fields(execution.ExecutionKind, "status"),
		},
	}
	for _, f := range kit.Fields(sandbox.SandboxKind, "spec.desired", "spec.stop_reason") {
		c.Shares = append(c.Shares, kit.Share{
			Field: f, Owner: "api", Why: "to stop the sandbox of an attempt whose server was killed",
			When: func(before, after schema.Object) bool {
				return before.(*sandbox.Sandbox).Spec.Execution != "" && after.(*sandbox.Sandbox).Spec.Desired == sandbox.DesiredStateStopped
			},
		})
	}
	return c
}

// Reconcile takes one execution on, and returns after how long to look again.
func (r *Reconciler) Reconcile(ctx context.Context, key schema.ID) (time.Duration, error) {
	e, err := entity.Get[execution.Execution](ctx, r.Store, key)
	if errs.Is(err, errs.NotFound) {
		if a := r.attempt(key); a != nil {
			a.cancel(errDeleted)
		}
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	switch e.Status.Phase {
	case execution.PhaseWaiting, execution.PhaseQueued:
		if e.Spec.Cancel {
			defer r.signal() // it may have been first in the queue
			return 0, r.end(ctx, e, ending{outcome: execution.OutcomeCancelled, message: "before an attempt"})
		}
		if e.Status.Phase == execution.PhaseQueued {
			r.signal()
			return 0, nil
		}
		if wait := time.Until(e.Status.NotBefore); wait > 0 {
			return wait, nil
		}
		e.Status.Phase = execution.PhaseQueued
		return 0, r.write(ctx, "queued", e)
	case execution.PhaseRunning:
		if a := r.attempt(key); a != nil {
			switch {
			case e.Status.Server != r.server:
				a.cancel(errForeign)
			case e.Spec.Cancel:
				a.cancel(errCancelled)
			}
			return 0, nil
		}
		return r.recover(ctx, e)
	}
	return r.retire(ctx, e)
}

// signal wakes the dispatcher.
func (r *Reconciler) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// attempt returns the attempt of an execution that is under way in this process.
func (r *Reconciler) attempt(key schema.ID) *attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.attempts[key]
}

// write writes the status; name is that of the fault point.
func (r *Reconciler) write(ctx context.Context, name string, e *execution.Execution) error {
	fault.Point("execution", name, fault.Before)
	if err := entity.UpdateStatus(ctx, r.Store, e); err != nil {
		return err
	}
	fault.Point("execution", name, fault.After)
	return nil
}

// recover ends an attempt of a server that has ended. First it takes the
// attempt from its server; then it waits until the sandboxes have ended.
func (r *Reconciler) recover(ctx context.Context, e *execution.Execution) (time.Duration, error) {
	if e.Status.Server != "" {
		return 0, r.disown(ctx, e)
	}
	remain, err := r.stopSandboxes(ctx, e)
	if err != nil || remain {
		return 0, err // their changes cause the next look
	}
	r.Logger.Warn("attempt interrupted", "execution", string(e.ID), "attempt", e.Status.Attempt)
	end := ending{outcome: execution.OutcomeInterrupted, message: "the server ended while it was made"}
	if e.Spec.Sandbox != "" || e.Spec.Agent != "" {
		end.delay = execution.InterruptDelay
	}
	if e.Spec.Cancel {
		end.outcome = execution.OutcomeCancelled
	}
	return 0, r.end(ctx, e, end)
}

// disown takes an attempt from a server that is dead, or from this one, which
// does not make it. From then on no server records an end of it. It does nothing
// while the node of that server is up; the change of the node causes the next look.
func (r *Reconciler) disown(ctx context.Context, e *execution.Execution) error {
	if n := e.Status.Node; n != "" && n != r.Node { // a node has one server at a time
		node, err := entity.Get[core.Node](ctx, r.Store, n)
		if err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
		if err == nil && node.Status.Phase != core.NodePhaseDown {
			return nil
		}
	}
	e.Status.Server = ""
	return r.write(ctx, "disown", e)
}

// stopSandboxes stops the sandboxes that were made for an execution, deletes
// those that have ended or were never placed, and reports whether others remain.
func (r *Reconciler) stopSandboxes(ctx context.Context, e *execution.Execution) (remain bool, err error) {
	all, _, err := entity.List[sandbox.Sandbox](ctx, r.Store, entity.Where(sandbox.SandboxAttrExecution, e.GetID()))
	if err != nil {
		return false, err
	}
	for _, sb := range all {
		var err error
		switch {
		case sb.Status.Phase.Ended(), sb.Spec.Node == "":
			err = entity.Delete(ctx, r.Store, sb)
		case sb.Spec.Desired != sandbox.DesiredStateStopped:
			remain = true
			sb.Spec.Desired, sb.Spec.StopReason = sandbox.DesiredStateStopped, sandbox.EndReasonUser
			err = entity.UpdateSpec(ctx, r.Store, sb)
		default:
			remain = true
		}
		if err != nil && !errs.Is(err, errs.NotFound) {
			return false, err
		}
	}
	return remain, nil
}

// retire moves an execution that has ended to the history, some time after its
// end. Its sandbox goes with it.
func (r *Reconciler) retire(ctx context.Context, e *execution.Execution) (time.Duration, error) {
	if e.Status.EndedAt != nil {
		if wait := cmp.Or(r.Linger, executions.Linger) - time.Since(*e.Status.EndedAt); wait > 0 {
			return wait, nil
		}
	}
	p, err := entity.Get[core.Project](ctx, r.Store, e.Project)
	if err != nil {
		return 0, err
	}
	fault.Point("execution", "record", fault.Before)
	if err := executions.Record(ctx, r.Executions.History, p.Name, e); err != nil {
		return 0, err
	}
	fault.Point("execution", "record", fault.After)
	if err := r.Executions.DeleteRequest(ctx, e); err != nil { // a collection deletes it later
		r.Logger.Warn("delete the request of an execution", "execution", string(e.ID), "error", err)
	}
	if err := entity.Delete(ctx, r.Store, e); err != nil && !errs.Is(err, errs.NotFound) {
		return 0, err
	}
	return 0, nil
}
