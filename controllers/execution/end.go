package execution

import (
	"context"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/pkg/text"
)

// retried are the outcomes after which another attempt is made unless the
// request says others.
var retried = []execution.Outcome{execution.OutcomeInterrupted, execution.OutcomeSetup}

// Bounds of the time after which an execution that met a quota tries again.
const (
	minQuotaDelay = time.Second
	maxQuotaDelay = 30 * time.Second
)

// quotaDelay returns that time by the age of the execution: many that wait for
// long do not keep the queue busy.
func quotaDelay(age time.Duration) time.Duration {
	return min(max(age/4, minQuotaDelay), maxQuotaDelay)
}

// maxMessage bounds the reason of an outcome, in bytes.
const maxMessage = 1000

// end records the end of an attempt, or of an execution that made none: in one
// write either another attempt is due, or the execution has ended. An attempt that
// a quota refused is made again, and does not count.
func (r *Reconciler) end(ctx context.Context, e *execution.Execution, end ending) error {
	now := time.Now()
	end.message = text.Cut(strings.ToValidUTF8(end.message, "\uFFFD"), maxMessage) // parts of it come from the sandbox
	st := &e.Status
	if end.refused {
		st.Phase, st.Attempt, st.Node, st.Server, st.Message = execution.PhaseWaiting, st.Attempt-1, "", "", end.message
		st.NotBefore, st.BegunAt, st.Metrics = now.Add(quotaDelay(now.Sub(e.CreatedAt))), nil, nil
		return r.write(ctx, "refused", e)
	}
	if st.Phase == execution.PhaseRunning {
		st.Attempts = append(st.Attempts, execution.Attempt{
			Number: st.Attempt, Outcome: end.outcome, ExitCode: end.exitCode, Message: end.message, Sandbox: st.Sandbox, Result: end.result, StartedAt: st.StartedAt, EndedAt: now,
		})
	}
	st.Node, st.Server = "", ""
	if again(e, end) {
		st.NotBefore = now.Add(max(delay(e), end.delay))
		st.Phase = execution.PhaseWaiting
		return r.write(ctx, "again", e)
	}
	st.Phase, st.EndedAt, st.Outcome, st.ExitCode, st.Message = execution.PhaseEnded, &now, end.outcome, end.exitCode, end.message
	if err := r.write(ctx, "end", e); err != nil {
		return err
	}
	r.Logger.Info("execution ended", "execution", string(e.ID), "outcome", string(end.outcome), "attempts", st.Attempt)
	return nil
}

// again reports whether another attempt follows an ending.
func again(e *execution.Execution, end ending) bool {
	if end.permanent || e.Spec.Cancel || end.outcome == execution.OutcomeCancelled || e.Status.Attempt >= e.Spec.Retry.Attempts {
		return false
	}
	on := e.Spec.Retry.On
	if len(on) == 0 {
		on = retried
	}
	return slices.Contains(on, end.outcome)
}

// delay returns the time before the next attempt.
func delay(e *execution.Execution) time.Duration {
	d := e.Spec.Retry.Delay
	for range e.Status.Attempt - 1 {
		d = min(2*d, execution.MaxRetryDelay)
	}
	return d
}
