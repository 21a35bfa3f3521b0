package sandbox

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/text"
)

// hungGrace bounds the time between SIGTERM and SIGKILL of a sandbox that hangs or lost a disk: its process rarely
// hears a signal, or cannot save anything.
const hungGrace = 5 * time.Second

// stop ends a sandbox that was asked to stop. A sandbox that ended by itself
// before the request keeps its own reason.
func (r *Reconciler) stop(ctx context.Context, sb *sandbox.Sandbox, reason sandbox.EndReason) (time.Duration, error) {
	release, ok := r.work.begin(down)
	if !ok {
		return busyWait, nil
	}
	defer release()
	if sb.Status.Phase != sandbox.SandboxPhaseStopping {
		inst, err := r.Driver.Get(ctx, string(sb.ID))
		if err != nil && !errs.Is(err, errs.NotFound) {
			return 0, err
		}
		if err == nil && inst.Phase == execution.Exited {
			release()
			return r.exited(ctx, sb, inst)
		}
		sb.Status.Phase, sb.Status.Ready, sb.Status.Reason = sandbox.SandboxPhaseStopping, false, reason
		if err := r.write(ctx, sb); err != nil {
			return 0, err
		}
	}
	if sb.Status.Saved != "" { // there is no process to stop
		release()
		return r.end(ctx, sb, reason, nil, "")
	}
	grace := sb.Spec.Template.StopTimeout
	broken := sb.Status.Reason == sandbox.EndReasonHung || sb.Status.Reason == sandbox.EndReasonDisk
	if broken {
		grace = min(grace, hungGrace)
	}
	inst, err := r.Driver.Stop(ctx, string(sb.ID), grace)
	if err != nil && !errs.Is(err, errs.NotFound) {
		return 0, err
	}
	release()
	var code *int64
	message := ""
	if inst.Exit != nil {
		c := int64(inst.Exit.Code)
		code, message = &c, inst.Exit.Message
	}
	if broken {
		message = sb.Status.Message // it says why already
	}
	return r.end(ctx, sb, reason, code, message)
}

// lostDisk reports whether a disk of a running sandbox has lost its block device, and puts that into its message.
func (r *Reconciler) lostDisk(ctx context.Context, sb *sandbox.Sandbox) (bool, error) {
	if r.Disks == nil || len(sb.Spec.Template.Volumes) == 0 {
		return false, nil
	}
	m, err := disks.Lost(ctx, r.Store, sb.GetID())
	if m == nil || err != nil {
		return false, err
	}
	sb.Status.Message = fmt.Sprintf("the block device of its disk at %s was lost: another sandbox can use the disk", m.Spec.Path)
	return true, nil
}

// exited records the end that the driver reports.
func (r *Reconciler) exited(ctx context.Context, sb *sandbox.Sandbox, inst execution.Instance) (time.Duration, error) {
	e := inst.Exit
	if e == nil {
		return r.vanished(ctx, sb, "the sandbox died and left no trace of how")
	}
	code := int64(e.Code)
	switch e.Cause {
	case execution.CauseExit:
		return r.end(ctx, sb, sandbox.EndReasonExit, &code, e.Message)
	case execution.CauseOOM:
		message := e.Message
		if message == "" {
			message = fmt.Sprintf("used more than its limit of %d MiB memory", sb.Spec.Template.Resources.MemoryBytes>>20)
		}
		return r.end(ctx, sb, sandbox.EndReasonOOM, &code, message)
	}
	return r.vanished(ctx, sb, e.Message)
}

// vanished records an end that no process in the sandbox caused.
func (r *Reconciler) vanished(ctx context.Context, sb *sandbox.Sandbox, message string) (time.Duration, error) {
	booted := r.Booted
	if booted == nil {
		booted = bootTime
	}
	if at := booted(); sb.Status.StartedAt != nil && sb.Status.StartedAt.Before(at) {
		return r.end(ctx, sb, sandbox.EndReasonNode, nil, "the machine was restarted at "+at.UTC().Format(time.RFC3339))
	}
	if sb.Status.StartedAt != nil && sb.Status.StartedAt.Before(r.Stopped) {
		return r.end(ctx, sb, sandbox.EndReasonNode, nil, "the node was stopped at "+r.Stopped.UTC().Format(time.RFC3339))
	}
	return r.end(ctx, sb, sandbox.EndReasonCrash, nil, message)
}

// bootTime returns when the kernel started; the zero time if it is not known.
func bootTime() time.Time {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "btime "); ok {
			if s, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil {
				return time.Unix(s, 0)
			}
		}
	}
	return time.Time{}
}

// end records how a sandbox ended and removes it from the machine.
func (r *Reconciler) end(ctx context.Context, sb *sandbox.Sandbox, reason sandbox.EndReason, code *int64, message string) (time.Duration, error) {
	now := r.now()
	sb.Status.Phase, sb.Status.Reason, sb.Status.ExitCode, sb.Status.Message = sandbox.SandboxPhaseStopped, reason, code, brief(message)
	sb.Status.EndedAt, sb.Status.Ready, sb.Status.Address = &now, false, ""
	switch reason {
	case sandbox.EndReasonExit, sandbox.EndReasonOOM, sandbox.EndReasonCrash, sandbox.EndReasonHung, sandbox.EndReasonDisk:
		sb.Status.LogTail = r.tail(ctx, sb)
	}
	if err := r.write(ctx, sb); err != nil {
		return 0, err
	}
	r.Logger.Info("sandbox ended", "sandbox", string(sb.ID), "reason", string(reason), "message", sb.Status.Message)
	return r.clear(ctx, sb)
}

// fail records that a sandbox could not be set up, and removes the parts that
// the driver could not remove.
func (r *Reconciler) fail(ctx context.Context, sb *sandbox.Sandbox, cause error) (time.Duration, error) {
	now := r.now()
	sb.Status.Phase, sb.Status.Reason, sb.Status.EndedAt = sandbox.SandboxPhaseFailed, sandbox.EndReasonSetup, &now
	sb.Status.Ready, sb.Status.Address = false, ""
	message := cause.Error()
	if hint := errs.HintOf(cause); hint != "" {
		message += " (" + hint + ")"
	}
	sb.Status.Message = brief(message)
	if err := r.write(ctx, sb); err != nil {
		return 0, err
	}
	r.Logger.Warn("sandbox could not be set up", "sandbox", string(sb.ID), "error", cause)
	return r.clear(ctx, sb)
}

// remove deletes a sandbox whose entity does not exist, its logs included; those of
// an app's are kept elsewhere first.
func (r *Reconciler) remove(ctx context.Context, sid string) (time.Duration, error) {
	wait, err := r.delete(ctx, sid)
	if wait != 0 || err != nil {
		return wait, err
	}
	if r.Kept != nil {
		if err := r.Kept.Finish(ctx, sid); err != nil {
			return 0, err
		}
	}
	return 0, r.Driver.DeleteLogs(ctx, sid)
}

// clear removes a sandbox that has ended from the machine, except its logs.
func (r *Reconciler) clear(ctx context.Context, sb *sandbox.Sandbox) (time.Duration, error) {
	r.work.forget(string(sb.ID))
	wait, err := r.delete(ctx, string(sb.ID))
	if wait != 0 || err != nil {
		return wait, err
	}
	if sb.Status.Saved != "" {
		r.forgetSaved(ctx, sb.Status.Saved)
	}
	if len(sb.Spec.Template.Volumes) > 0 {
		return 0, r.Disks.Release(ctx, sb.GetID())
	}
	return 0, nil
}

// delete removes a sandbox from the machine if the driver has any part of it.
// It asks first, because the driver reports each deletion as a change, which
// calls delete again.
func (r *Reconciler) delete(ctx context.Context, sid string) (time.Duration, error) {
	_, err := r.Driver.Get(ctx, sid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	release, ok := r.work.begin(down)
	if !ok {
		return busyWait, nil
	}
	defer release()
	return 0, r.Driver.Delete(ctx, sid)
}

// tail reads the last lines of output. It logs a failure and then returns no
// lines.
func (r *Reconciler) tail(ctx context.Context, sb *sandbox.Sandbox) []string {
	var lines []string
	err := r.Driver.Logs(ctx, string(sb.ID), execution.LogQuery{Tail: logTail}, func(l execution.LogLine) error {
		lines = append(lines, text.Cut(l.Text, maxTailLine))
		return nil
	})
	if err != nil && !errs.Is(err, errs.NotFound) {
		r.Logger.Warn("read the last output of a sandbox", "sandbox", string(sb.ID), "error", err)
	}
	return lines
}

// maxMessage bounds a status message, in bytes.
const maxMessage = 1000

// brief makes a status message of text that a process in a sandbox may have
// influenced: control characters become spaces, and the length is bounded.
func brief(s string) string {
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == utf8.RuneError {
			return ' '
		}
		return c
	}, s)
	return text.Cut(s, maxMessage)
}
