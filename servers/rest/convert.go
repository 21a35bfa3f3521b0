package rest

import (
	"time"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/session"
	"miren.dev/runtime/pkg/opt"
)

// seconds returns a duration of a request; nil for an absent one.
func seconds(n *int64) *time.Duration {
	if n == nil {
		return nil
	}
	d := time.Duration(*n) * time.Second
	return &d
}

// executionOf returns an execution for an answer.
func executionOf(e *execution.Execution) Execution {
	x := Execution{
		ID: string(e.ID), Session: e.Spec.Sandbox, Language: e.Spec.Language, State: string(e.Status.Phase), Outcome: string(e.Status.Outcome),
		ExitCode: e.Status.ExitCode, Message: e.Status.Message, Attempt: e.Status.Attempt, Labels: session.VisibleLabels(e.Labels), Batch: e.Spec.Batch,
		CreatedAt: e.CreatedAt, StartedAt: e.Status.StartedAt, EndedAt: e.Status.EndedAt,
	}
	if m := e.Status.Metrics; m != nil {
		x.Metrics = &Metrics{
			QueueMillis: m.Queue.Milliseconds(), SetupMillis: m.Setup.Milliseconds(), WallMillis: m.Wall.Milliseconds(), MemoryBytes: m.MemoryBytes,
		}
		if m.CPU != nil {
			x.Metrics.CPUMillis = opt.Of(m.CPU.Milliseconds())
		}
	}
	return x
}
