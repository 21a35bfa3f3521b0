package pool

import (
	"cmp"
	"context"
	"slices"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// askTimeout bounds the questions to the ingress in one reconciliation.
	askTimeout = time.Second
	// ingressBack is how long the server takes to start an ingress that died again. The new one may begin with a table
	// from before a sandbox was marked as draining.
	ingressBack = 3 * time.Second
	// lastDrain bounds the wait for requests to the last sandboxes of a pool that is scaled to zero by hand, or gives up a
	// disk: new requests wait meanwhile.
	lastDrain = 5 * time.Second
	// drainPoll and maxDrainPoll bound the time between two questions about a draining sandbox.
	drainPoll    = 50 * time.Millisecond
	maxDrainPoll = 5 * time.Second
)

// Drainer reports the requests that the ingress is serving; ingress.Client is one.
type Drainer interface {
	// Synced waits until the ingress has read the store up to revision.
	Synced(ctx context.Context, rev schema.Revision) error
	// Inflight counts the requests under way to sandboxes of the version.
	Inflight(ctx context.Context, version schema.ID) (ingress.Inflight, error)
}

// Node lists the processes that were executed in a sandbox, beside its main one.
type Node interface {
	Processes(ctx context.Context, sid id.Sandbox) ([]sandbox.Process, error)
}

// shrink brings the live sandboxes of a pool down to wanted. It first marks a sandbox that the ingress may use as
// draining, so the ingress sends it no new requests. It stops the sandbox when its last request and its last executed
// process have ended. If the pool wants more meanwhile, shrink removes the mark. It returns the operations, and removes
// the draining sandboxes from m.Live.
func (r *Reconciler) shrink(ctx context.Context, p *sandbox.SandboxPool, m *sandboxes.Members, wanted int, now time.Time) (ops []entity.Op, again time.Duration, err error) {
	draining := sandboxes.Draining(m.Live)
	m.Live = slices.DeleteFunc(slices.Clone(m.Live), func(sb *sandbox.Sandbox) bool { return sb.Spec.DrainingAt != nil })
	slices.SortFunc(draining, func(a, b *sandbox.Sandbox) int { return b.Spec.DrainingAt.Compare(*a.Spec.DrainingAt) })
	back := wanted - len(m.Live)
	for _, sb := range slices.Clone(draining) {
		if back > 0 && sb.Status.HungAt == nil {
			back--
			sb.Spec.DrainingAt = nil
			op, err := entity.UpdateSpecOp(sb)
			if err != nil {
				return nil, 0, err
			}
			ops = append(ops, op)
			m.Live = append(m.Live, sb)
		}
	}
	draining = sandboxes.Draining(draining)
	slices.SortFunc(m.Live, sandboxes.ByAge)
	finished, again := r.finished(ctx, p, draining, now)
	asleep, finished, err := suspend(p, m, finished, wanted)
	if err != nil {
		return nil, 0, err
	}
	more, err := stop(finished, sandbox.EndReasonUser)
	if err != nil {
		return nil, 0, err
	}
	ops = slices.Concat(ops, asleep, more)
	excess := min(len(m.Live)-wanted, maxAtOnce)
	if excess <= 0 {
		return ops, again, nil
	}
	surplus := r.surplus(ctx, p, m.Live)[:excess]
	m.Live = slices.DeleteFunc(m.Live, func(sb *sandbox.Sandbox) bool { return slices.Contains(surplus, sb) })
	for _, sb := range surplus {
		if !r.drains(p) || sb.Status.ReadyAt == nil { // the ingress never used it
			sb.Spec.Desired, sb.Spec.StopReason = sandbox.DesiredStateStopped, sandbox.EndReasonUser
		} else {
			sb.Spec.DrainingAt, again = &now, earlier(again, drainPoll)
		}
		op, err := entity.UpdateSpecOp(sb)
		if err != nil {
			return nil, 0, err
		}
		ops = append(ops, op)
	}
	return ops, again, nil
}

// drains reports whether sandboxes of a pool finish their requests before they stop. Those of a retired one have: the
// rollout has waited for that.
func (r *Reconciler) drains(p *sandbox.SandboxPool) bool {
	return r.Drainer != nil && p.Spec.State != sandbox.PoolStateRetired && len(p.Spec.Template.Ports) > 0
}

// surplus returns live sandboxes in the order in which to stop them: those not ready, those with the fewest requests, the
// newest.
func (r *Reconciler) surplus(ctx context.Context, p *sandbox.SandboxPool, live []*sandbox.Sandbox) []*sandbox.Sandbox {
	var requests map[schema.ID]int64 // nil if the ingress does not answer
	if r.drains(p) {
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		if n, err := r.Drainer.Inflight(ask, schema.ID(p.Spec.AppVersion)); err == nil {
			requests = n.Sandboxes
		}
	}
	order := slices.Clone(live)
	slices.SortFunc(order, func(a, b *sandbox.Sandbox) int {
		if a.Status.Ready != b.Status.Ready {
			if b.Status.Ready {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(requests[a.ID], requests[b.ID]), sandboxes.ByAge(b, a))
	})
	return order
}

// finished returns those of the draining sandboxes of a pool that can stop, and after how long to ask about the others.
// A number that follows the load ends neither a request nor an executed process: such a sandbox stays until the last one
// has ended, a WebSocket too. If a user said the number, DrainTimeout bounds the wait.
func (r *Reconciler) finished(ctx context.Context, p *sandbox.SandboxPool, draining []*sandbox.Sandbox, now time.Time) (done []*sandbox.Sandbox, again time.Duration) {
	if len(draining) == 0 || !r.drains(p) {
		return draining, 0
	}
	limit, bounded := r.DrainTimeout, p.Spec.Autoscale == nil || p.Spec.Replicas == 0
	if p.Spec.Replicas == 0 {
		limit = min(limit, lastDrain)
	}
	rev := schema.Revision(0)
	for _, sb := range draining {
		rev = max(rev, sb.SpecRevision)
	}
	ask, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var n ingress.Inflight
	// In this order: once the ingress knows that they drain, the counts only fall.
	err := r.Drainer.Synced(ask, rev)
	if err == nil {
		n, err = r.Drainer.Inflight(ask, schema.ID(p.Spec.AppVersion))
	}
	for _, sb := range draining {
		waited := now.Sub(*sb.Spec.DrainingAt)
		unused := err == nil && n.Sandboxes[sb.ID] == 0 || ingress.Down(err) && waited >= ingressBack
		if bounded && waited >= limit || unused && !r.executes(ask, sb) {
			done = append(done, sb)
			continue
		}
		again = earlier(again, min(max(waited/10, drainPoll), maxDrainPoll))
		if bounded {
			again = earlier(again, limit-waited)
		}
	}
	return done, again
}

// executes reports whether a process that was executed in a sandbox runs, such as a shell, or whether that is not known.
func (r *Reconciler) executes(ctx context.Context, sb *sandbox.Sandbox) bool {
	if r.Node == nil {
		return false
	}
	list, err := r.Node.Processes(ctx, sb.GetID())
	if err != nil {
		return !errs.Is(err, errs.NotFound)
	}
	return slices.ContainsFunc(list, func(p sandbox.Process) bool { return p.ExitCode == nil })
}
