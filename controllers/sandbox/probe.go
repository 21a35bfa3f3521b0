package sandbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

const (
	// readyEvery is the time between probes of a ready sandbox. After
	// readyMisses failed probes in a row the sandbox is not ready; one that
	// passes makes it ready again.
	readyEvery  = 10 * time.Second
	readyMisses = 3
	// reportEvery is the shortest time between two recorded messages of a
	// sandbox that is not ready. It grows with the sandbox's age, up to
	// slowReport.
	reportEvery = time.Second
	slowReport  = 30 * time.Second
	// minInterval and maxTimeout bound the values of a template.
	minInterval = 50 * time.Millisecond
	maxTimeout  = 30 * time.Second
	// unreachableTime is how long the node sees the probe's port on a loopback
	// address alone until the probe fails before its deadline. We know of no program
	// that listens on another address later.
	unreachableTime = 10 * time.Second
	// firstInterval is the time between the first two probes of a sandbox of an app.
	firstInterval = 20 * time.Millisecond
)

// probed reports whether a probe decides about readiness.
func probed(sb *sandbox.Sandbox) bool {
	p := sb.Spec.Template.Probe
	return p != nil && p.Kind != sandbox.ProbeKindNone
}

// settled reports whether a sandbox with a start command is its owner's, in
// which nothing is probed once it was ready.
func settled(sb *sandbox.Sandbox) bool {
	return hasStart(sb) && sb.Status.Ready && sb.Spec.WarmPool == ""
}

// probe probes once if a probe is due, and records a new outcome. It returns
// the time until the next probe.
func (r *Reconciler) probe(ctx context.Context, sb *sandbox.Sandbox) (time.Duration, error) {
	sid := string(sb.ID)
	if wait := r.work.untilProbe(sid, r.now()); wait > 0 {
		return wait, nil
	}
	release, ok := r.work.begin(probing)
	if !ok {
		return busyWait, nil
	}
	err := r.attempt(ctx, sb)
	release()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err == nil {
		return r.passed(ctx, sb)
	}
	message := brief(err.Error())
	if sb.Status.Ready {
		return r.missed(ctx, sb, message)
	}
	return r.notYet(ctx, sb, message)
}

// attempt probes once.
func (r *Reconciler) attempt(ctx context.Context, sb *sandbox.Sandbox) error {
	p := *sb.Spec.Template.Probe
	p.Port = probePort(sb)
	ctx, cancel := context.WithTimeout(ctx, min(p.Timeout, maxTimeout))
	defer cancel()
	if hasStart(sb) || p.Kind == sandbox.ProbeKindExec {
		return r.probeInside(ctx, sb, p)
	}
	if p.Port == 0 {
		return errs.New(errs.InvalidArgument, "its probe has no port")
	}
	if sb.Spec.Runner {
		return r.probeInside(ctx, sb, p)
	}
	if sb.Status.Address == "" {
		return r.probeListening(ctx, sb, p)
	}
	if r.Probe != nil {
		return r.Probe(ctx, sb.Status.Address, p)
	}
	return network(ctx, sb.Status.Address, p)
}

// probePort returns the port that is probed; 0: there is none.
func probePort(sb *sandbox.Sandbox) int64 {
	if p := sb.Spec.Template.Probe.Port; p != 0 || len(sb.Spec.Template.Ports) == 0 {
		return p
	}
	return sb.Spec.Template.Ports[0].Number
}

// probeListening probes a sandbox without network: it asks the driver for the
// ports on which the sandbox listens.
func (r *Reconciler) probeListening(ctx context.Context, sb *sandbox.Sandbox, p sandbox.Probe) error {
	if p.Kind == sandbox.ProbeKindHTTP {
		return errs.New(errs.InvalidArgument, "a sandbox without network cannot be probed with HTTP")
	}
	ports, err := r.Driver.Listening(ctx, string(sb.ID))
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(ports, func(l execution.Listener) bool { return int64(l.Port) == p.Port }) {
		return notListening(p.Port)
	}
	return nil
}

// passed records a probe that succeeded.
func (r *Reconciler) passed(ctx context.Context, sb *sandbox.Sandbox) (time.Duration, error) {
	sid, now := string(sb.ID), r.now()
	r.work.clearMisses(sid)
	if !sb.Status.Ready {
		first := sb.Status.ReadyAt == nil
		if first {
			sb.Status.ReadyAt = &now
		}
		sb.Status.Ready, sb.Status.Message, sb.Status.Overdue, sb.Status.LogTail = true, "", false, nil
		sb.Status.Listening, sb.Status.Unreachable = nil, nil
		fault.Point("sandbox", "ready", fault.Before)
		if err := entity.UpdateStatus(ctx, r.Store, sb); err != nil {
			return 0, err
		}
		fault.Point("sandbox", "ready", fault.After)
		r.Logger.Info("sandbox is ready", "sandbox", sid, "again", !first)
	}
	// The jitter keeps sandboxes that became ready together from being probed together.
	return r.work.probeAfter(sid, now, readyEvery-rand.N(readyEvery/5)), nil
}

// missed records a failed probe of a sandbox that is ready.
func (r *Reconciler) missed(ctx context.Context, sb *sandbox.Sandbox, message string) (time.Duration, error) {
	sid, now := string(sb.ID), r.now()
	if r.work.addMiss(sid) < readyMisses {
		return r.work.probeAfter(sid, now, readyEvery), nil
	}
	if hasStart(sb) { // it waits in a pool, which replaces it
		return 0, r.notStarted(ctx, sb, "no longer answers: "+message)
	}
	sb.Status.Ready, sb.Status.Message = false, "it no longer answers: "+message
	r.listening(ctx, sb)
	if err := entity.UpdateStatus(ctx, r.Store, sb); err != nil {
		return 0, err
	}
	r.work.clearMisses(sid)
	r.Logger.Warn("sandbox is not ready any more", "sandbox", sid, "error", message)
	return r.work.probeAfter(sid, now, r.interval(sb)), nil
}

// notYet records a failed probe of a sandbox that is not ready.
func (r *Reconciler) notYet(ctx context.Context, sb *sandbox.Sandbox, message string) (time.Duration, error) {
	sid, now := string(sb.ID), r.now()
	age := r.age(sb)
	late := age >= sb.Spec.Template.Probe.Deadline && !sb.Status.Overdue && sb.Status.ReadyAt == nil
	if late && hasStart(sb) {
		return 0, r.notStarted(ctx, sb, fmt.Sprintf("was not ready within %s: %s", sb.Spec.Template.Probe.Deadline, message))
	}
	wait := r.work.probeAfter(sid, now, r.interval(sb))
	if !late && (age < reportEvery || !r.work.mayReport(sid, now, min(max(age/4, reportEvery), slowReport))) {
		return wait, nil
	}
	if sb.Status.ReadyAt != nil {
		message = "it no longer answers: " + message
	}
	ports, hopeless := r.listening(ctx, sb)
	late = late || hopeless && !sb.Status.Overdue && sb.Status.ReadyAt == nil
	changed := late || ports || sb.Status.Message != message
	sb.Status.Message = message
	if late {
		sb.Status.Overdue, sb.Status.LogTail = true, r.tail(ctx, sb)
	}
	if changed {
		if err := entity.UpdateStatus(ctx, r.Store, sb); err != nil {
			return 0, err
		}
	}
	return wait, nil
}

func (r *Reconciler) age(sb *sandbox.Sandbox) time.Duration {
	if sb.Status.StartedAt == nil {
		return 0
	}
	return r.now().Sub(*sb.Status.StartedAt)
}

// interval is the time between probes of a sandbox that is not ready. For a new sandbox of an app, or one that was resumed, it
// grows with the time that it runs, since a request may wait for it. It is longer once the sandbox is overdue, or was ready
// before.
func (r *Reconciler) interval(sb *sandbox.Sandbox) time.Duration {
	wait := max(sb.Spec.Template.Probe.Interval, minInterval)
	age, was := r.age(sb), sb.Status.ReadyAt != nil
	if sb.Status.PausedAt != nil {
		age = r.now().Sub(r.work.awakeSince(string(sb.ID), r.now()))
		was = was && age >= readyEvery
	}
	if sb.Spec.App != "" && !was {
		wait = min(wait, max(age/2, firstInterval))
	}
	if sb.Status.Overdue || was {
		wait = max(wait, min(max(r.age(sb)/60, time.Second), readyEvery/2))
	}
	return wait
}

// maxListening bounds the number of recorded ports.
const maxListening = 32

// listening records the ports on which the sandbox listens, if the driver knows
// them, and reports whether they changed. hopeless says that its probe cannot
// pass: for unreachableTime its port was one of a loopback address alone.
func (r *Reconciler) listening(ctx context.Context, sb *sandbox.Sandbox) (changed, hopeless bool) {
	ports, err := r.Driver.Listening(ctx, string(sb.ID))
	if err != nil {
		return false, false
	}
	st := &sb.Status
	// Where the agent connects to ports, it reaches those of loopback addresses too.
	outside := st.Address != "" && !sb.Spec.Runner && !hasStart(sb) && sb.Spec.Template.Probe.Kind != sandbox.ProbeKindExec
	var list, unreachable []int64
	for _, p := range ports[:min(len(ports), maxListening)] {
		list = append(list, int64(p.Port))
		if p.Loopback && outside {
			unreachable = append(unreachable, int64(p.Port))
		}
	}
	changed = !slices.Equal(list, st.Listening) || !slices.Equal(unreachable, st.Unreachable)
	st.Listening, st.Unreachable = list, unreachable
	return changed, r.work.unreachableFor(string(sb.ID), r.now(), slices.Contains(unreachable, probePort(sb))) >= unreachableTime
}

// notListening returns the error for a port on which no process listens.
func notListening(port int64) error { return fmt.Errorf("nothing listens on port %d", port) }
