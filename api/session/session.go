// Package session shows sandboxes and executions as sessions, as the REST face
// and `r session` do: a sandbox is a persistent session, an execution an
// ephemeral one.
package session

import (
	"time"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
)

// Modes of sessions.
const (
	Persistent = "persistent"
	Ephemeral  = "ephemeral"
)

// Labels that the REST face sets and does not show.
const (
	LabelKey     = "runtime/idempotency-key"     // hash of the Idempotency-Key with which a sandbox was created
	LabelRequest = "runtime/idempotency-request" // hash of the body of that request
	LabelHandler = "runtime/handler"             // marks an execution that invokes a handler
)

// Purposes of sandboxes.
const (
	ForSession   = "session"
	ForApp       = "app"
	ForExecution = "execution"
	ForPool      = "pool"
)

// Session is a sandbox, or an execution with a sandbox of its own.
type Session struct {
	ID                 string            `json:"id" doc:"Id of the sandbox or execution." example:"sb-4k2j7q"`
	Mode               string            `json:"mode" enum:"persistent,ephemeral" doc:"persistent: it stays until it is deleted or expires. ephemeral: it runs one program and ends."`
	Name               string            `json:"name,omitempty" doc:"Name."`
	State              string            `json:"state" enum:"creating,running,pausing,paused,ending,ended,failed" doc:"State."`
	Labels             map[string]string `json:"labels,omitempty" doc:"Labels."`
	Agent              string            `json:"agent,omitempty" doc:"Name of the agent that it is for."`
	Image              string            `json:"image,omitempty" doc:"Image."`
	Origin             string            `json:"origin,omitempty" doc:"session: the agent had it; pool: it was warm; cold: it was made for the request."`
	Reason             string            `json:"reason,omitempty" doc:"Reason of its end, or the outcome of its program."`
	Message            string            `json:"message,omitempty" doc:"Problem and advice."`
	ExitCode           *int64            `json:"exit_code,omitempty" doc:"Exit code of its main process or program."`
	CPUMillis          int64             `json:"cpu_millis,omitempty" doc:"CPU, in thousandths."`
	MemoryBytes        int64             `json:"memory_bytes,omitempty" doc:"Memory."`
	DiskBytes          int64             `json:"disk_bytes,omitempty" doc:"Bytes that it may write."`
	IdleTimeoutSeconds *int64            `json:"idle_timeout_seconds,omitempty" doc:"Time without use after which on_idle happens."`
	OnIdle             string            `json:"on_idle,omitempty" enum:"stop,pause" doc:"What happens then."`
	CreatedAt          time.Time         `json:"created_at" doc:"Time of its creation."`
	StartedAt          *time.Time        `json:"started_at,omitempty" doc:"Time of its start."`
	ExpiresAt          *time.Time        `json:"expires_at,omitempty" doc:"Time at which it ends; absent: it has no time to live, or has not begun."`
	EndedAt            *time.Time        `json:"ended_at,omitempty" doc:"Time of its end."`
}

// PurposeOf says what a sandbox is for.
func PurposeOf(sb *sandbox.Sandbox) string {
	switch {
	case sb.Spec.App != "" || sb.Spec.Pool != "":
		return ForApp
	case sb.Spec.Execution != "":
		return ForExecution
	case sb.Spec.WarmPool != "":
		return ForPool
	}
	return ForSession
}

// State returns the state of a session from the phase of its sandbox.
func State(p sandbox.SandboxPhase) string {
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

// VisibleLabels returns the labels that clients set.
func VisibleLabels(labels map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range labels {
		if k != LabelKey && k != LabelRequest && k != LabelHandler {
			out[k] = v
		}
	}
	return out
}

// Of returns the session that a sandbox is.
func Of(sb *sandbox.Sandbox) Session {
	t, st := &sb.Spec.Template, &sb.Status
	s := Session{
		ID: string(sb.ID), Mode: Persistent, Name: sb.Name, State: State(st.Phase), Agent: sb.Spec.Agent, Image: t.Image,
		Origin: string(sb.Spec.Origin), Reason: string(st.Reason), Message: st.Message, CreatedAt: sb.CreatedAt, StartedAt: st.StartedAt, EndedAt: st.EndedAt,
		CPUMillis: t.Resources.CPUMillis, MemoryBytes: t.Resources.MemoryBytes, DiskBytes: t.Resources.DiskBytes,
		IdleTimeoutSeconds: inSeconds(sb.Spec.IdleTimeout), OnIdle: string(sb.Spec.OnIdle), ExitCode: st.ExitCode, Labels: VisibleLabels(sb.Labels),
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

// OfExecution returns the session that an execution is.
func OfExecution(e *execution.Execution) Session {
	s := Session{
		ID: string(e.ID), Mode: Ephemeral, Agent: e.Spec.Agent, Reason: string(e.Status.Outcome), Message: e.Status.Message, CreatedAt: e.CreatedAt,
		StartedAt: e.Status.StartedAt, EndedAt: e.Status.EndedAt, ExitCode: e.Status.ExitCode, Labels: VisibleLabels(e.Labels), State: "creating",
	}
	switch e.Status.Phase {
	case execution.PhaseRunning:
		s.State = "running"
	case execution.PhaseEnded:
		s.State = "ended"
	}
	return s
}

// inSeconds returns a duration for an answer; nil for an absent one.
func inSeconds(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	n := int64(*d / time.Second)
	return &n
}
