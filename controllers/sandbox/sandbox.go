// Package sandbox sets up the sandboxes that are placed on this node, probes
// whether they are ready and alive, and records how they end.
//
//	scheduled -> creating -> running (ready?) -> stopping -> stopped
//	                 \-> failed
//
// In: sandbox entities whose spec.node is this node, and the driver's instances.
// Out: sandboxes on the machine, sandbox.status. After a restart of the server the
// reconciler reads the entity, asks the driver for the instance and continues. The
// workTracker (next probe, misses in a row, start of the set-up) begins anew, which
// only makes deadlines longer.
//
// An end is written before anything is removed, so that its reason is not lost; the
// next reconciliation removes the rest. A sandbox without an entity is deleted from
// the machine only when the store has said that the entity does not exist: while
// the store is unavailable nothing is deleted, and while the driver is unavailable
// nothing ends.
//
// A stop in phase stopping is finished for the reason that was written first,
// whatever the spec says meanwhile.
//
// Set-ups, teardowns and probes may take long, so the number of each that runs at a
// time is bounded. A key beyond the bound comes back after busyWait. That leaves
// workers for quick reconciliations, above all for recording ends.
//
// Locks: workTracker.mu is held for moments only.
package sandbox

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

const (
	// setupTimeout is how long a set-up is retried while a part of the machine
	// is unavailable.
	setupTimeout = 2 * time.Minute
	// claimGrace is how long after a claim the node looks whether it is complete.
	claimGrace = 3 * time.Second
	// logTail is how many last lines of output are recorded with a failure.
	logTail = 20
	// maxTailLine bounds one of them, in bytes.
	maxTailLine = 1000
)

// Reconciler runs the sandboxes of one node.
type Reconciler struct {
	Store  entity.Store
	Driver execution.Driver
	Node   id.Node
	Sealer *schema.Sealer // opens sealed secrets
	Logger *slog.Logger
	Disks  Disks  // nil: sandboxes have no volumes
	Copies Copies // of snapshots
	// Previews says how much sandboxes are used by their previews; nil: there are
	// none.
	Previews Previews
	// Kept has the output of apps' sandboxes when theirs is deleted; nil: it is gone.
	Kept   Kept
	Probe  Prober           // nil: over the network
	Live   LiveProber       // nil: over the network
	Now    func() time.Time // nil: time.Now
	Booted func() time.Time // when the machine started; nil: ask the kernel
	// Stopped is when all sandboxes of this node were last stopped on purpose; the
	// zero time: never.
	Stopped time.Time

	work workTracker
}

// Kept keeps output; controllers/applog does.
type Kept interface {
	// Finish copies the last lines of a sandbox whose entity was deleted.
	Finish(ctx context.Context, sid string) error
}

// Previews says how much a sandbox is used by its previews; the ingress does.
type Previews interface {
	Activity(ctx context.Context, sandbox schema.ID) (ingress.Activity, error)
}

// Disks makes the disks of sandboxes usable on this node; controllers/disk does.
type Disks interface {
	// Mounts returns where the disks of a sandbox are. It may be repeated.
	Mounts(ctx context.Context, sb *sandbox.Sandbox, volumes []disks.Volume) ([]execution.Mount, error)
	// Release detaches the disks of a deleted sandbox that no other one uses.
	Release(ctx context.Context, sb id.Sandbox) error
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// write stores the status of a sandbox.
func (r *Reconciler) write(ctx context.Context, sb *sandbox.Sandbox) error {
	fault.Point("sandbox", string(sb.Status.Phase), fault.Before)
	err := entity.UpdateStatus(ctx, r.Store, sb)
	fault.Point("sandbox", string(sb.Status.Phase), fault.After)
	return err
}

// Mine reports whether a sandbox is placed on this node.
func (r *Reconciler) Mine(o schema.Object) bool {
	sb, ok := o.(*sandbox.Sandbox)
	return ok && sb.Spec.Node == r.Node
}

// Reconcile brings one sandbox closer to its spec and returns after how long to
// reconcile it again (0: only after a change).
func (r *Reconciler) Reconcile(ctx context.Context, sid schema.ID) (time.Duration, error) {
	sb, err := entity.Get[sandbox.Sandbox](ctx, r.Store, sid)
	if errs.Is(err, errs.NotFound) {
		r.work.forget(string(sid))
		return r.remove(ctx, string(sid))
	}
	if err != nil {
		return 0, err
	}
	if sb.Spec.Node != r.Node {
		return 0, nil
	}
	if sb.Status.Phase.Ended() {
		return r.clear(ctx, sb)
	}
	if reason := r.stopReason(sb); reason != "" {
		return r.stop(ctx, sb, reason)
	}
	wantPaused := sb.Spec.Desired == sandbox.DesiredStatePaused
	if sandboxes.Expired(sb, r.now()) && (wantPaused || sb.Status.Phase == sandbox.SandboxPhaseRunning) { // it does not end then
		return 0, r.pauseAtEnd(ctx, sb)
	}
	switch {
	case sb.Status.Phase == sandbox.SandboxPhasePausing, wantPaused && sb.Status.Phase == sandbox.SandboxPhaseRunning:
		return r.pause(ctx, sb) // one that is wanted again is resumed afterwards
	case wantPaused && sb.Status.Phase == sandbox.SandboxPhasePaused:
		return r.paused(ctx, sb)
	case sb.Status.Phase == sandbox.SandboxPhaseRunning:
		return r.running(ctx, sb)
	}
	return r.create(ctx, sb)
}

// stopReason returns why a sandbox has to end, or "".
func (r *Reconciler) stopReason(sb *sandbox.Sandbox) sandbox.EndReason {
	switch {
	case sb.Status.Phase == sandbox.SandboxPhaseStopping:
		return cmp.Or(sb.Status.Reason, sb.Spec.StopReason, sandbox.EndReasonUser)
	case sb.Spec.Desired == sandbox.DesiredStateStopped:
		return cmp.Or(sb.Spec.StopReason, sandbox.EndReasonUser)
	case sb.Spec.ResumeTTL == nil && sandboxes.Expired(sb, r.now()):
		return sandbox.EndReasonTTL
	}
	return ""
}

// create sets the sandbox up, or adopts the instance of an earlier attempt.
func (r *Reconciler) create(ctx context.Context, sb *sandbox.Sandbox) (time.Duration, error) {
	release, ok := r.work.begin(setup)
	if !ok {
		return busyWait, nil
	}
	defer release()
	if awaitsRoom(sb) {
		err := r.room(ctx, sb)
		if errs.Is(err, errs.ResourceExhausted) {
			return r.withoutRoom(ctx, sb, err)
		}
		if err != nil {
			return 0, err
		}
	}
	if sb.Status.Phase != sandbox.SandboxPhaseCreating {
		sb.Status.Phase = sandbox.SandboxPhaseCreating
		if err := r.write(ctx, sb); err != nil {
			return 0, err
		}
	}
	spec, err := r.spec(sb)
	if err == nil && len(sb.Spec.Template.Volumes) > 0 {
		spec.Mounts, err = r.Disks.Mounts(ctx, sb, sandboxes.VolumesOf(sb))
	}
	if err == nil {
		err = r.fetch(ctx, sb)
	}
	var inst execution.Instance
	if err == nil {
		inst, err = r.Driver.Ensure(ctx, spec)
	}
	if err != nil {
		return r.notSetUp(ctx, sb, err)
	}
	release()
	if !inst.StartedAt.IsZero() {
		sb.Status.StartedAt = &inst.StartedAt
	}
	if inst.Phase == execution.Exited {
		return r.exited(ctx, sb, inst)
	}
	if sb.Status.StartedAt == nil {
		now := r.now()
		sb.Status.StartedAt = &now
	}
	saved := sb.Status.Saved
	sb.Status.Phase, sb.Status.Address, sb.Status.Message, sb.Status.Saved = sandbox.SandboxPhaseRunning, inst.Address, "", ""
	if !probed(sb) && (!hasStart(sb) || sb.Status.ReadyAt != nil) {
		sb.Status.Ready, sb.Status.ReadyAt = true, sb.Status.StartedAt
	}
	if err := r.write(ctx, sb); err != nil {
		return 0, err
	}
	r.forgetSaved(ctx, saved)
	r.work.forget(string(sb.ID))
	r.work.awakeSince(string(sb.ID), r.now())
	r.Logger.Info("sandbox runs", "sandbox", string(sb.ID), "address", inst.Address)
	return r.running(ctx, sb)
}

// notSetUp fails a sandbox that could not be set up, or returns the cause, for
// a retry, while a part of the machine is unavailable.
func (r *Reconciler) notSetUp(ctx context.Context, sb *sandbox.Sandbox, cause error) (time.Duration, error) {
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if sb.Status.Saved != "" {
		return r.notResumed(ctx, sb, cause)
	}
	now := r.now()
	if !errs.Is(cause, errs.Unavailable) || now.Sub(r.work.firstSetup(string(sb.ID), now)) >= setupTimeout {
		return r.fail(ctx, sb, cause)
	}
	if message := brief(cause.Error()); sb.Status.Message != message && r.work.mayReport(string(sb.ID), now, reportEvery) {
		sb.Status.Message = message
		if err := r.write(ctx, sb); err != nil {
			return 0, err
		}
	}
	return 0, cause
}

// spec turns the entity into the driver's spec.
func (r *Reconciler) spec(sb *sandbox.Sandbox) (execution.Spec, error) {
	t := &sb.Spec.Template
	env, err := sandboxes.Environment(t, r.Sealer)
	if err != nil {
		return execution.Spec{}, err
	}
	policy, err := sandboxes.Egress(sb)
	if err != nil {
		return execution.Spec{}, err
	}
	network := execution.NetworkBridge
	if t.Network == sandbox.NetworkModeNone {
		network = execution.NetworkNone
	}
	capabilities := execution.CapabilitiesNone
	if t.Capabilities == sandbox.CapabilitySetDefault {
		capabilities = execution.CapabilitiesDefault
	}
	return execution.Spec{
		ID: string(sb.ID), Labels: map[string]string{"name": sb.Name, "project": string(sb.Project), "app": string(sb.Spec.App)},
		Image: t.Image, Command: t.Command, Idle: t.Idle, Warm: sb.Spec.WarmPool != "", WorkDir: t.Workdir, User: t.User, Env: env, Hostname: t.Hostname, Network: network,
		CPUMillis: t.Resources.CPUMillis, MemoryBytes: t.Resources.MemoryBytes, PIDs: t.Resources.PIDs, DiskBytes: t.Resources.DiskBytes,
		DiskFiles: t.Resources.DiskFiles, OpenFiles: t.Resources.OpenFiles, FileBytes: t.Resources.FileBytes, Bandwidth: t.Resources.BandwidthBytes,
		Capabilities: capabilities, StopTimeout: t.StopTimeout, Egress: &policy, Restore: cmp.Or(sb.Status.Saved, sb.Spec.Restore),
	}, nil
}

// running reconciles a sandbox whose process was started.
func (r *Reconciler) running(ctx context.Context, sb *sandbox.Sandbox) (time.Duration, error) {
	inst, err := r.Driver.Get(ctx, string(sb.ID))
	if errs.Is(err, errs.NotFound) {
		return r.vanished(ctx, sb, "nothing of the sandbox is left on the node")
	}
	if err != nil {
		return 0, err
	}
	switch inst.Phase {
	case execution.Exited:
		return r.exited(ctx, sb, inst)
	case execution.Paused: // the server ended before it recorded the pause or the start
		sb.Status.Phase, sb.Status.Saved, sb.Status.Ready = sandbox.SandboxPhasePausing, inst.Snapshot, false
		return 0, r.write(ctx, sb)
	case execution.Creating:
		return r.vanished(ctx, sb, "what is left of the sandbox on the node is incomplete")
	}
	lost, err := r.lostDisk(ctx, sb)
	if err != nil {
		return 0, err
	}
	if lost {
		return r.stop(ctx, sb, sandbox.EndReasonDisk)
	}
	untilRepair := r.untilRepair(sb)
	if untilRepair == 0 {
		if err := r.configure(ctx, sb); err != nil {
			return 0, err
		}
		if err := r.permit(ctx, sb); err != nil {
			return 0, err
		}
	}
	if hasStart(sb) && sb.Status.ReadyAt == nil {
		if done, err := r.start(ctx, sb); done || err != nil {
			return 0, err
		}
	}
	again, acted, err := r.idle(ctx, sb)
	if acted || err != nil {
		return earlier(again, untilRepair), err
	}
	again = earlier(earlier(r.untilTTL(sb), again), untilRepair)
	if probed(sb) && !settled(sb) && sb.Status.HungAt == nil {
		wait, err := r.probe(ctx, sb)
		if err != nil {
			return again, err
		}
		again = earlier(again, wait)
	}
	wait, err := r.live(ctx, sb)
	return earlier(again, wait), err
}

func (r *Reconciler) untilTTL(sb *sandbox.Sandbox) time.Duration {
	if sb.Spec.TTL == nil || sb.Status.StartedAt == nil {
		return 0
	}
	begun, _ := sandboxes.Begun(sb)
	return max(time.Millisecond, begun.Add(*sb.Spec.TTL).Sub(r.now()))
}

// untilRepair returns how long the server that claimed a sandbox still has for its own calls. Made at the same time, the
// same calls would delay the request.
func (r *Reconciler) untilRepair(sb *sandbox.Sandbox) time.Duration {
	if sb.Spec.Claim == "" || sb.Spec.ClaimedAt == nil || r.work.configured(string(sb.ID)) {
		return 0
	}
	return max(0, min(sb.Spec.ClaimedAt.Add(claimGrace).Sub(r.now()), claimGrace)) // its clock may be ahead
}

// configure gives a claimed sandbox to its claim, in case the server that
// claimed it ended before.
func (r *Reconciler) configure(ctx context.Context, sb *sandbox.Sandbox) error {
	if sb.Spec.Claim == "" || r.work.configured(string(sb.ID)) {
		return nil
	}
	c, err := sandboxes.IdentityOf(sb, r.Sealer)
	if err != nil {
		return err
	}
	mounts, err := mounts(ctx, r.Disks, sb, c.Volumes)
	if err == nil {
		err = configure(ctx, r.Driver, string(sb.ID), c, mounts)
	}
	if err != nil {
		return errs.Wrap(err, "configure the claimed sandbox")
	}
	r.work.setConfigured(string(sb.ID))
	return nil
}

// permit tells the node the network policy of a sandbox after each change: one
// may have been stored while the sandbox was set up, or by a server that ended
// before it told the node.
func (r *Reconciler) permit(ctx context.Context, sb *sandbox.Sandbox) error {
	id, e := string(sb.ID), sb.Spec.Template.Egress
	if e == nil || sb.Spec.WarmPool != "" || sb.Spec.Template.Network == sandbox.NetworkModeNone || r.work.permitted(id, e) {
		return nil
	}
	policy, err := sandboxes.Egress(sb)
	if err == nil {
		err = r.Driver.SetEgress(ctx, id, policy)
	}
	if errs.Is(err, errs.InvalidArgument) || errs.Is(err, errs.FailedPrecondition) { // it stays so
		r.Logger.Warn("the network policy of a sandbox cannot be applied", "sandbox", id, "error", err)
		err = nil
	}
	if err == nil {
		r.work.setPermitted(id, e)
	}
	return err
}

func earlier(a, b time.Duration) time.Duration {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}
