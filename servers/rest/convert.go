package rest

import (
	"time"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/session"
)

// seconds returns a duration of a request; nil for an absent one.
func seconds(n *int64) *time.Duration {
	if n == nil {
		return nil
	}
	d := time.Duration(*n) * time.Second
	return &d
}

// optional returns nil, an absent field, for the zero value.
func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func deref[T any](p *T) T {
	var v T
	if p != nil {
		v = *p
	}
	return v
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
			x.Metrics.CPUMillis = optional(m.CPU.Milliseconds())
		}
	}
	return x
}
