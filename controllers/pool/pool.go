// Package pool reconciles pools of sandboxes. Reconciler does so for the sandbox
// pools of apps: it keeps the wanted number of sandboxes of a pool alive,
// replaces those that ended after a growing delay and those that hang, one at a time, stops those above the wanted
// number once their requests have ended, and deletes old ended ones. A pool that suspends pauses its last one instead, and
// resumes it when it wakes. Warm does so for the warm pools of
// templates, whose wanted number follows demand.
//
// A pool creates as many sandboxes as the quota of its project permits, and the
// others later.
//
// In: sandbox_pool.spec or warm_pool.spec, the sandboxes that reference the
// pool, and for a warm pool its template and demand. Out: sandbox entities
// (created, told to stop, deleted) and the pool's status.
// A sandbox is created in one transaction with the pool's counter, so a crash
// in the middle neither loses nor doubles one.
//
// A pool whose sandboxes write to a disk makes the next one when no other sandbox
// of the app does, and the last one has released the disk.
package pool

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

const (
	// minBackoff and maxBackoff bound the delay before a failed sandbox is replaced.
	minBackoff = 500 * time.Millisecond
	maxBackoff = time.Minute
	// stableAfter is how long a sandbox must be ready to reset the count of failures.
	stableAfter = 30 * time.Second
	// keepEnded is how many ended sandboxes of a pool stay, for their logs.
	keepEnded = 3
	// maxAtOnce bounds, for one reconciliation, the sandboxes that it creates,
	// the ended ones that it counts, those that it stops, and those that it
	// deletes. The rest waits for the next reconciliation, which follows at
	// once.
	maxAtOnce = 100
	// diskPoll is how often a pool reads whether a disk that its next sandbox
	// writes to is free.
	diskPoll = 200 * time.Millisecond
	// quotaRetry is the time after which a pool that met the quota of its project
	// tries again.
	quotaRetry = 5 * time.Second
)

// Reconciler keeps the wanted number of sandboxes of each pool.
type Reconciler struct {
	Store   entity.Store // within quotas
	Drainer Drainer      // nil: there is no ingress, and sandboxes stop at once
	Node    Node         // nil: nothing is executed in sandboxes
	Logger  *slog.Logger
	// DrainTimeout bounds the wait for requests to a sandbox that is one too many for a fixed number.
	DrainTimeout time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Controller describes the reconciler to the controller runtime.
func (r *Reconciler) Controller() kit.Controller {
	c := kit.Controller{
		Name: "pool", Kind: sandbox.SandboxPoolKind, Reconcile: r.Reconcile, Workers: 4,
		Watches: []kit.Source{kit.Map(func(sb *sandbox.Sandbox) []id.SandboxPool { return kit.Key(sb.Spec.Pool) })},
		Access: kit.Access{
			Reads:   []*schema.Kind{disk.DiskMountKind},
			Creates: []*schema.Kind{sandbox.SandboxKind},
			Deletes: []*schema.Kind{sandbox.SandboxKind},
			Owns:    append(kit.Fields(sandbox.SandboxPoolKind, "status"), kit.Fields(sandbox.SandboxKind, "spec.draining_at")...),
			Shares:  []kit.Share{countedShare()},
		},
	}
	for _, f := range kit.Fields(sandbox.SandboxKind, "spec.desired", "spec.stop_reason") {
		c.Shares = append(c.Shares, kit.Share{
			Field: f, Owner: "api", Why: "to stop one of its own that is too many",
			When: func(before, after schema.Object) bool {
				return before.(*sandbox.Sandbox).Spec.Pool != "" && after.(*sandbox.Sandbox).Spec.Desired == sandbox.DesiredStateStopped
			},
		})
	}
	c.Shares = append(c.Shares, suspendedShare())
	return c
}

// Reconcile brings one pool closer to its spec and returns after how long to
// reconcile it again (0: when something changes).
func (r *Reconciler) Reconcile(ctx context.Context, pid schema.ID) (time.Duration, error) {
	now := time.Now
	if r.Now != nil {
		now = r.Now
	}
	p, err := entity.Get[sandbox.SandboxPool](ctx, r.Store, pid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil // the deletion of the pool cascades to its sandboxes
	}
	if err != nil {
		return 0, err
	}
	all, err := sandboxes.InPool(ctx, r.Store, p.GetID())
	if err != nil {
		return 0, err
	}
	members := sandboxes.Classify(all)
	surplus := surplusEnded(members.Ended)
	before := p.Status
	counted, again := account(p, members, now())
	ops, err := markCounted(counted)
	if err != nil {
		return 0, err
	}
	wanted := int(p.Wanted())
	if p.Spec.State == sandbox.PoolStateRetired {
		wanted = 0
	}
	if p.Status.Failures == 0 {
		p.Status.Message = ""
	}
	more, wait, err := r.shrink(ctx, p, &members, wanted, now())
	if err != nil {
		return 0, err
	}
	ops = append(ops, more...)
	if wait > 0 {
		again = earlier(again, wait)
	}
	if more, err = resume(p, &members, wanted); err != nil {
		return 0, err
	}
	ops = append(ops, more...)
	if len(members.Live) <= wanted {
		hung, wait, err := replaceHung(p, &members, now())
		if err != nil {
			return 0, err
		}
		ops = append(ops, hung...)
		if wait > 0 {
			again = earlier(again, wait)
		}
	}
	missing := max(0, wanted-len(members.Live))
	if missing > 0 && p.Status.NextStart != nil && now().Before(*p.Status.NextStart) {
		missing, again = 0, earlier(again, p.Status.NextStart.Sub(now()))
	}
	held := ""
	if missing > 0 {
		if held, err = r.heldDisk(ctx, p); err != nil {
			return 0, err
		}
		if held != "" {
			missing, again = 0, earlier(again, diskPoll)
		}
	}
	if p.Status.Failures == 0 && held != "" {
		p.Status.Message = held
	}
	if max(missing, len(counted), len(surplus)) >= maxAtOnce {
		missing, again = min(missing, maxAtOnce), time.Millisecond
	}
	if len(members.Live) > wanted {
		again = time.Millisecond
	}
	full, err := r.fill(ctx, p, before, ops, missing)
	if err != nil {
		return 0, err
	}
	if full {
		again = earlier(again, quotaRetry)
	}
	return again, deleteEnded(ctx, r.Store, surplus[:min(len(surplus), maxAtOnce)])
}

// fill applies operations, and with them creates n sandboxes of p, or as many of
// them as the quota of the project permits. full reports that it permits no more.
// before is the status of p in the store.
func (r *Reconciler) fill(ctx context.Context, p *sandbox.SandboxPool, before sandbox.SandboxPoolStatus, ops []entity.Op, n int) (full bool, err error) {
	status := p.Status
	for ; ; n /= 2 {
		more, err := create(p, n)
		if err != nil {
			return false, err
		}
		if !reflect.DeepEqual(before, p.Status) {
			op, err := entity.UpdateStatusOp(p)
			if err != nil {
				return false, err
			}
			more = append(more, op)
		}
		err = write(ctx, r.Store, "pool", slices.Concat(ops, more))
		if !quotas.Refused(err) || n == 0 {
			return full, err
		}
		full, status.Message = true, err.Error()
		p.Status = status
	}
}

// write applies operations, if there are any, between the fault points of a
// name.
func write(ctx context.Context, s entity.Store, name string, ops []entity.Op) error {
	if len(ops) == 0 {
		return nil
	}
	fault.Point(name, "write", fault.Before)
	if _, err := s.Txn(ctx, entity.TxnRequest{Ops: ops}); err != nil {
		return entity.AsConflict(err)
	}
	fault.Point(name, "write", fault.After)
	return nil
}

// account sets the counters and the back-off of p. It returns the ended
// sandboxes that it added to the count of failures (oldest first, at most
// maxAtOnce), and after how long the count may next change.
func account(p *sandbox.SandboxPool, st sandboxes.Members, now time.Time) (counted []*sandbox.Sandbox, again time.Duration) {
	p.Status.Total = int64(len(st.Live) + len(st.Suspended) + len(st.Stopping))
	p.Status.Ready = int64(st.Ready)
	b := backoff{&p.Status.Failures, &p.Status.NextStart, &p.Status.Message}
	return b.account(st, now)
}

// stop returns the operations that tell sandboxes to stop.
func stop(list []*sandbox.Sandbox, reason sandbox.EndReason) ([]entity.Op, error) {
	var ops []entity.Op
	for _, sb := range list {
		sb.Spec.Desired, sb.Spec.StopReason = sandbox.DesiredStateStopped, reason
		op, err := entity.UpdateSpecOp(sb)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// create returns the operations that create n sandboxes, and counts them in p.
func create(p *sandbox.SandboxPool, n int) ([]entity.Op, error) {
	var ops []entity.Op
	for range n {
		p.Status.Created++
		p.Status.Total++
		sb := sandbox.NewSandbox()
		sb.Project, sb.Labels = p.Project, maps.Clone(p.Labels)
		sb.Name = schema.ChildName(cmp.Or(p.Name, string(p.ID)), strconv.FormatInt(p.Status.Created, 10), schema.MaxName)
		sb.Spec.Pool, sb.Spec.App, sb.Spec.AppVersion, sb.Spec.Service = p.GetID(), p.Spec.App, p.Spec.AppVersion, p.Spec.Service
		sb.Spec.Template = p.Spec.Template
		op, err := entity.CreateOp(sb)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}
