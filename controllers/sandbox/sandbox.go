// Package sandbox makes the sandboxes that are placed on this node exist, finds
// out whether they are ready, and records how they end.
//
//	scheduled -> creating -> running (ready?) -> stopping -> stopped
//	                 \-> failed
//
// In: sandbox entities whose spec.node is this node, what the driver says. Out:
// sandboxes on the machine, sandbox.status. The reconciler keeps nothing that
// matters in memory: after a restart of the server it reads the entity, asks
// the driver what is there and goes on. What is on the machine without an entity
// is deleted, but only when the store has said that the entity does not exist;
// a store that cannot be asked deletes nothing.
package sandbox

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// setupPatience is how long a set-up is tried again while a part of the
	// machine does not answer.
	setupPatience = 2 * time.Minute
	// logTail is how many of the last lines are recorded of a bad end.
	logTail = 20
	// maxTailLine bounds one of them, in bytes.
	maxTailLine = 1000
	// reportEvery is how often what a sandbox that is not ready does is recorded.
	reportEvery = time.Second
)

// Reconciler runs the sandboxes of one node.
type Reconciler struct {
	Store  entity.Store
	Driver execution.Driver
	Node   id.Node
	Sealer *schema.Sealer // opens secrets
	Log    *slog.Logger
	Probe  Prober           // nil: over the network
	Now    func() time.Time // nil: time.Now
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// Mine reports whether a sandbox is placed on this node.
func (r *Reconciler) Mine(o schema.Object) bool {
	sb, ok := o.(*sandbox.Sandbox)
	return ok && sb.Spec.Node == r.Node
}

// Ended reports whether a sandbox is over.
func Ended(sb *sandbox.Sandbox) bool {
	return sb.Status.Phase == sandbox.SandboxPhaseStopped || sb.Status.Phase == sandbox.SandboxPhaseFailed
}

// Reconcile brings one sandbox closer to its spec.
func (r *Reconciler) Reconcile(ctx context.Context, sid schema.ID) (time.Duration, error) {
	sb, err := entity.Get[sandbox.Sandbox](ctx, r.Store, sid)
	if errs.Is(err, errs.NotFound) {
		return 0, r.remove(ctx, string(sid))
	}
	if err != nil {
		return 0, err
	}
	if sb.Spec.Node != r.Node {
		return 0, nil
	}
	if Ended(sb) {
		return 0, r.clear(ctx, string(sid))
	}
	if sb.Spec.Desired == sandbox.DesiredStateStopped {
		reason := sb.Spec.StopReason
		if reason == "" {
			reason = sandbox.EndReasonUser
		}
		return 0, r.stop(ctx, sb, reason)
	}
	if sb.Spec.TTL != nil && sb.Status.StartedAt != nil && r.now().Sub(*sb.Status.StartedAt) >= *sb.Spec.TTL {
		return 0, r.stop(ctx, sb, sandbox.EndReasonTTL)
	}
	if sb.Status.Phase == sandbox.SandboxPhaseRunning {
		return r.running(ctx, sb)
	}
	return r.create(ctx, sb)
}

// remove deletes what is left of a sandbox whose entity is gone.
func (r *Reconciler) remove(ctx context.Context, sid string) error {
	if err := r.clear(ctx, sid); err != nil {
		return err
	}
	return r.Driver.DeleteLogs(ctx, sid)
}

// clear removes a sandbox from the machine if anything of it is there. It asks
// first: a deletion is a change that the driver reports, which brings us here
// again.
func (r *Reconciler) clear(ctx context.Context, sid string) error {
	_, err := r.Driver.Get(ctx, sid)
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return r.Driver.Delete(ctx, sid)
}

// create sets the sandbox up, or takes over what an earlier attempt made.
func (r *Reconciler) create(ctx context.Context, sb *sandbox.Sandbox) (time.Duration, error) {
	if sb.Status.Phase != sandbox.SandboxPhaseCreating {
		sb.Status.Phase = sandbox.SandboxPhaseCreating
		if err := entity.UpdateStatus(ctx, r.Store, sb); err != nil {
			return 0, err
		}
	}
	spec, err := r.spec(sb)
	if err != nil {
		return 0, r.fail(ctx, sb, err)
	}
	inst, err := r.Driver.Ensure(ctx, spec)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case errs.Is(err, errs.Unavailable) && r.now().Sub(sb.CreatedAt) < setupPatience:
		return 0, err
	default:
		return 0, r.fail(ctx, sb, err)
	}
	if inst.Phase == execution.Exited {
		started := inst.StartedAt
		if !started.IsZero() {
			sb.Status.StartedAt = &started
		}
		return 0, r.exited(ctx, sb, inst)
	}
	started := inst.StartedAt
	if started.IsZero() {
		started = r.now()
	}
	sb.Status.Phase, sb.Status.Address, sb.Status.StartedAt, sb.Status.Message = sandbox.SandboxPhaseRunning, inst.Address, &started, ""
	if sb.Spec.Template.Probe == nil || sb.Spec.Template.Probe.Kind == sandbox.ProbeKindNone {
		sb.Status.Ready, sb.Status.ReadyAt = true, &started
	}
	if err := entity.UpdateStatus(ctx, r.Store, sb); err != nil {
		return 0, err
	}
	r.Log.Info("sandbox runs", "sandbox", string(sb.ID), "address", inst.Address)
	return r.running(ctx, sb)
}

// spec turns the entity into what the driver needs.
func (r *Reconciler) spec(sb *sandbox.Sandbox) (execution.Spec, error) {
	t := &sb.Spec.Template
	var env []string
	for k, v := range t.Env {
		env = append(env, k+"="+v)
	}
	for k, sec := range t.Secrets {
		v, err := r.Sealer.Open(sec)
		if err != nil {
			return execution.Spec{}, errs.Wrap(err, "secret %s", k)
		}
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	network := execution.NetworkBridge
	if t.Network == sandbox.NetworkModeNone {
		network = execution.NetworkNone
	}
	return execution.Spec{
		ID: string(sb.ID), Labels: map[string]string{"name": sb.Name, "project": string(sb.Project), "app": string(sb.Spec.App)},
		Image: t.Image, Command: t.Command, WorkDir: t.Workdir, User: t.User, Env: env, Hostname: t.Hostname, Network: network,
		CPUMillis: t.Resources.CPUMillis, MemoryBytes: t.Resources.MemoryBytes, PIDs: t.Resources.PIDs, DiskBytes: t.Resources.DiskBytes,
		StopTimeout: t.StopTimeout,
	}, nil
}

// fail records that a sandbox could not be set up. The driver has taken down
// what it made.
func (r *Reconciler) fail(ctx context.Context, sb *sandbox.Sandbox, cause error) error {
	r.Log.Warn("sandbox could not be set up", "sandbox", string(sb.ID), "error", cause)
	now := r.now()
	sb.Status.Phase, sb.Status.Reason, sb.Status.EndedAt = sandbox.SandboxPhaseFailed, sandbox.EndReasonSetup, &now
	sb.Status.Ready, sb.Status.Address = false, ""
	sb.Status.Message = cause.Error()
	if hint := errs.HintOf(cause); hint != "" {
		sb.Status.Message += " (" + hint + ")"
	}
	if err := entity.UpdateStatus(ctx, r.Store, sb); err != nil {
		return err
	}
	return r.Driver.Delete(ctx, string(sb.ID))
}

// running looks after a sandbox whose process was started.
func (r *Reconciler) running(ctx context.Context, sb *sandbox.Sandbox) (time.Duration, error) {
	inst, err := r.Driver.Get(ctx, string(sb.ID))
	if errs.Is(err, errs.NotFound) {
		return 0, r.end(ctx, sb, sandbox.EndReasonCrash, nil, "nothing of the sandbox is left on the node, as after a restart of the machine")
	}
	if err != nil {
		return 0, err
	}
	switch inst.Phase {
	case execution.Exited:
		return 0, r.exited(ctx, sb, inst)
	case execution.Creating:
		// It was set up once, and what is there now is not whole.
		return 0, r.end(ctx, sb, sandbox.EndReasonCrash, nil, "the sandbox on the node is incomplete")
	}
	again := r.untilTTL(sb)
	if sb.Status.Ready {
		return again, nil
	}
	wait, err := r.probe(ctx, sb)
	return earlier(again, wait), err
}

func (r *Reconciler) untilTTL(sb *sandbox.Sandbox) time.Duration {
	if sb.Spec.TTL == nil || sb.Status.StartedAt == nil {
		return 0
	}
	return max(time.Millisecond, sb.Status.StartedAt.Add(*sb.Spec.TTL).Sub(r.now()))
}

func earlier(a, b time.Duration) time.Duration {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}

// stop ends a sandbox on request.
func (r *Reconciler) stop(ctx context.Context, sb *sandbox.Sandbox, reason sandbox.EndReason) error {
	if sb.Status.Phase != sandbox.SandboxPhaseStopping {
		sb.Status.Phase, sb.Status.Ready = sandbox.SandboxPhaseStopping, false
		if err := entity.UpdateStatus(ctx, r.Store, sb); err != nil {
			return err
		}
	}
	inst, err := r.Driver.Stop(ctx, string(sb.ID), sb.Spec.Template.StopTimeout)
	if err != nil && !errs.Is(err, errs.NotFound) {
		return err
	}
	var code *int64
	if inst.Exit != nil {
		c := int64(inst.Exit.Code)
		code = &c
	}
	return r.end(ctx, sb, reason, code, "")
}

// exited records the end that the driver reports.
func (r *Reconciler) exited(ctx context.Context, sb *sandbox.Sandbox, inst execution.Instance) error {
	reason, message := sandbox.EndReasonCrash, "the sandbox vanished"
	var code *int64
	if e := inst.Exit; e != nil {
		c := int64(e.Code)
		code, message = &c, e.Message
		switch e.Cause {
		case execution.CauseExit:
			reason = sandbox.EndReasonExit
		case execution.CauseOOM:
			reason = sandbox.EndReasonOOM
			if message == "" {
				message = fmt.Sprintf("used more than its limit of %d MiB memory", sb.Spec.Template.Resources.MemoryBytes>>20)
			}
		case execution.CauseCrash:
			code = nil
		}
	}
	return r.end(ctx, sb, reason, code, message)
}

// end records how a sandbox ended and removes what is left of it.
func (r *Reconciler) end(ctx context.Context, sb *sandbox.Sandbox, reason sandbox.EndReason, code *int64, message string) error {
	now := r.now()
	sb.Status.Phase, sb.Status.Reason, sb.Status.ExitCode, sb.Status.Message = sandbox.SandboxPhaseStopped, reason, code, message
	sb.Status.EndedAt, sb.Status.Ready, sb.Status.Address = &now, false, ""
	switch reason {
	case sandbox.EndReasonExit, sandbox.EndReasonOOM, sandbox.EndReasonCrash:
		sb.Status.LogTail = r.tail(ctx, sb)
	}
	if err := entity.UpdateStatus(ctx, r.Store, sb); err != nil {
		return err
	}
	r.Log.Info("sandbox ended", "sandbox", string(sb.ID), "reason", string(reason), "message", message)
	return r.Driver.Delete(ctx, string(sb.ID))
}

// tail reads the last lines of output; a failure leaves them out.
func (r *Reconciler) tail(ctx context.Context, sb *sandbox.Sandbox) []string {
	var lines []string
	err := r.Driver.Logs(ctx, string(sb.ID), execution.LogQuery{Tail: logTail}, func(l execution.LogLine) error {
		lines = append(lines, l.Text[:min(len(l.Text), maxTailLine)])
		return nil
	})
	if err != nil && !errs.Is(err, errs.NotFound) {
		r.Log.Warn("read the last output of a sandbox", "sandbox", string(sb.ID), "error", err)
	}
	return lines
}
