package rest

import (
	"time"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
)

// seconds returns a duration of a request; nil for an absent one.
func seconds(n *int64) *time.Duration {
	if n == nil {
		return nil
	}
	d := time.Duration(*n) * time.Second
	return &d
}

// inSeconds returns a duration for an answer; nil for an absent one.
func inSeconds(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	n := int64(*d / time.Second)
	return &n
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

// sessionState returns the state of a session from the phase of its sandbox.
func sessionState(p sandbox.SandboxPhase) string {
	switch p {
	case sandbox.SandboxPhasePending, sandbox.SandboxPhaseScheduled, sandbox.SandboxPhaseCreating:
		return "creating"
	case sandbox.SandboxPhaseStopping:
		return "ending"
	case sandbox.SandboxPhaseStopped:
		return "ended"
	}
	return string(p) // running, pausing, paused, failed
}

// visibleLabels returns the labels that clients set.
func visibleLabels(labels map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range labels {
		if k != labelKey && k != labelRequest && k != labelHandler {
			out[k] = v
		}
	}
	return out
}

// sessionOf returns the session that a sandbox is.
func sessionOf(sb *sandbox.Sandbox) Session {
	t, st := &sb.Spec.Template, &sb.Status
	s := Session{
		ID: string(sb.ID), Mode: modePersistent, Name: sb.Name, State: sessionState(st.Phase), Agent: sb.Spec.Agent, Image: t.Image,
		Origin: string(sb.Spec.Origin), Reason: string(st.Reason), Message: st.Message, CreatedAt: sb.CreatedAt, StartedAt: st.StartedAt, EndedAt: st.EndedAt,
		CPUMillis: t.Resources.CPUMillis, MemoryBytes: t.Resources.MemoryBytes, DiskBytes: t.Resources.DiskBytes,
		IdleTimeoutSeconds: inSeconds(sb.Spec.IdleTimeout), OnIdle: string(sb.Spec.OnIdle), ExitCode: st.ExitCode, Labels: visibleLabels(sb.Labels),
	}
	begin := sb.Spec.ClaimedAt
	if begin == nil {
		begin = st.StartedAt
	}
	if sb.Spec.TTL != nil && begin != nil {
		end := begin.Add(*sb.Spec.TTL)
		s.ExpiresAt = &end
	}
	return s
}

// ephemeralOf returns the session that an execution is.
func ephemeralOf(e *execution.Execution) Session {
	s := Session{
		ID: string(e.ID), Mode: modeEphemeral, Agent: e.Spec.Agent, Reason: string(e.Status.Outcome), Message: e.Status.Message, CreatedAt: e.CreatedAt,
		StartedAt: e.Status.StartedAt, EndedAt: e.Status.EndedAt, ExitCode: e.Status.ExitCode, Labels: visibleLabels(e.Labels), State: "creating",
	}
	switch e.Status.Phase {
	case execution.PhaseRunning:
		s.State = "running"
	case execution.PhaseEnded:
		s.State = "ended"
	}
	return s
}

// executionOf returns an execution for an answer.
func executionOf(e *execution.Execution) Execution {
	x := Execution{
		ID: string(e.ID), Session: e.Spec.Sandbox, Language: e.Spec.Language, State: string(e.Status.Phase), Outcome: string(e.Status.Outcome),
		ExitCode: e.Status.ExitCode, Message: e.Status.Message, Attempt: e.Status.Attempt, Labels: visibleLabels(e.Labels), Batch: e.Spec.Batch,
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
