package events

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/event"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Types are the types of events.
var Types = []string{
	"sandbox.running", "sandbox.paused", "sandbox.ended",
	"execution.running", "execution.succeeded", "execution.failed", "execution.cancelled",
	"snapshot.ready", "snapshot.failed",
	"template.ready", "template.failed",
	"deployment.succeeded", "deployment.failed", "deployment.canceled",
}

// Kinds are the kinds whose changes are events.
var Kinds = []string{sandbox.KindSandbox, execution.KindExecution, sandbox.KindSnapshot, sandbox.KindTemplateVersion, app.KindDeployment}

// Match reports whether a pattern selects a type: itself, or NOUN.*, or *.
func Match(pattern, eventType string) bool {
	noun, ok := strings.CutSuffix(pattern, "*")
	return pattern == eventType || ok && (noun == "" || strings.HasSuffix(noun, ".") && strings.HasPrefix(eventType, noun))
}

// Event is what happened to an entity. The store has it as an event.Event.
type Event struct {
	// ID depends on the entity and its state alone, so that the same event is made
	// from the same state again.
	ID      string
	Type    string
	At      time.Time
	Project schema.ID
	Data    Data
	// Ends says that the entity ended by it. At may be long before the store learned of it.
	Ends bool
}

// Data says what the event happened to. It has no variables, code, output or
// message of a program.
type Data struct {
	Kind            string            `json:"kind"`
	ID              string            `json:"id"`
	Name            string            `json:"name,omitempty"`
	Phase           string            `json:"phase"`
	Reason          string            `json:"reason,omitempty"`
	ExitCode        *int64            `json:"exit_code,omitempty"`
	Attempt         int64             `json:"attempt,omitempty"`
	App             string            `json:"app,omitempty"`
	Service         string            `json:"service,omitempty"`
	Version         string            `json:"version,omitempty"`
	Template        string            `json:"template,omitempty"`
	TemplateVersion string            `json:"template_version,omitempty"`
	Sandbox         string            `json:"sandbox,omitempty"`
	Execution       string            `json:"execution,omitempty"`
	Agent           string            `json:"agent,omitempty"`
	Batch           string            `json:"batch,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
}

// Of returns the event that the state of an entity is; nil if it is none.
// Each state has a mark besides its phase, by which the same phase at another
// time is another event.
func Of(o schema.Object) *Event {
	switch o := o.(type) {
	case *sandbox.Sandbox:
		return sandboxEvent(o)
	case *execution.Execution:
		return executionEvent(o)
	case *sandbox.Snapshot:
		e := New(o, "snapshot", string(o.Status.Phase), "", first(o.Status.ReadyAt, o.UpdatedAt))
		e.Data.Sandbox = string(o.Spec.Sandbox)
		return known(e)
	case *sandbox.TemplateVersion:
		e := New(o, "template", string(o.Status.Phase), "", o.UpdatedAt)
		e.Data.Template = string(o.Spec.Template)
		return known(e)
	case *app.Deployment:
		e := New(o, "deployment", string(o.Status.Phase), "", first(o.Status.EndedAt, o.UpdatedAt))
		e.Data.App, e.Data.Version = string(o.Spec.App), string(o.Status.Version)
		if o.Status.Failure != nil {
			e.Data.Reason = string(o.Status.Failure.Reason)
		}
		return known(e)
	}
	return nil
}

// OfDeleted returns the event that the deletion of an entity is, from its last
// state; nil if it is none. A sandbox that had not ended ends by it.
func OfDeleted(o schema.Object) *Event {
	sb, ok := o.(*sandbox.Sandbox)
	if !ok || sb.Status.Phase.Ended() || sb.Status.Phase == sandbox.SandboxPhasePending {
		return nil
	}
	sb.Status.Phase = sandbox.SandboxPhaseStopped
	sb.Status.Reason = cmp.Or(sb.Status.Reason, sb.Spec.StopReason, sandbox.EndReasonUser)
	return sandboxEvent(sb)
}

func sandboxEvent(sb *sandbox.Sandbox) *Event {
	if sb.Spec.WarmPool != "" { // nobody's
		return nil
	}
	st := &sb.Status
	var e *Event
	switch {
	case st.Phase == sandbox.SandboxPhaseRunning:
		e = New(sb, "sandbox", "running", fmt.Sprint(st.Pauses), later(st.StartedAt, sb.Spec.ClaimedAt, sb.UpdatedAt))
		if st.Pauses > 0 {
			e.At = sb.UpdatedAt // it started before its pauses
		}
	case st.Phase == sandbox.SandboxPhasePaused:
		e = New(sb, "sandbox", "paused", fmt.Sprint(st.Pauses), first(st.PausedAt, sb.UpdatedAt))
	case st.Phase.Ended():
		e = New(sb, "sandbox", "ended", "", first(st.EndedAt, sb.UpdatedAt))
		e.Ends = true
	default:
		return nil
	}
	e.Data.Phase, e.Data.Reason, e.Data.ExitCode = string(st.Phase), string(st.Reason), st.ExitCode
	e.Data.App, e.Data.Version, e.Data.Service = string(sb.Spec.App), string(sb.Spec.AppVersion), sb.Spec.Service
	e.Data.TemplateVersion, e.Data.Agent, e.Data.Execution = string(sb.Spec.TemplateVersion), sb.Spec.Agent, string(sb.Spec.Execution)
	return e
}

func executionEvent(x *execution.Execution) *Event {
	st := &x.Status
	var e *Event
	switch {
	case st.Phase == execution.PhaseRunning && st.StartedAt != nil:
		e = New(x, "execution", "running", fmt.Sprint(st.Attempt), *st.StartedAt)
	case st.Phase == execution.PhaseEnded:
		state := "failed"
		if st.Outcome == execution.OutcomeSucceeded || st.Outcome == execution.OutcomeCancelled {
			state = string(st.Outcome)
		}
		e = New(x, "execution", state, "", first(st.EndedAt, x.UpdatedAt))
		e.Ends, e.Data.Reason, e.Data.ExitCode = true, string(st.Outcome), st.ExitCode
	default:
		return nil
	}
	e.Data.Phase, e.Data.Attempt, e.Data.Sandbox = string(st.Phase), st.Attempt, st.Sandbox
	e.Data.Template, e.Data.Agent, e.Data.Batch = x.Spec.Template, x.Spec.Agent, x.Spec.Batch
	return e
}

// New returns the event of a type NOUN.STATE that happened to an entity. mark
// distinguishes it from others of that type.
func New(o schema.Object, noun, state, mark string, at time.Time) *Event {
	m := o.GetMeta()
	eventType := noun + "." + state
	h := sha256.Sum256([]byte(strings.Join([]string{string(m.ID), eventType, mark}, "\x00")))
	return &Event{
		ID: "evt-" + hex.EncodeToString(h[:16]), Type: eventType, At: at.UTC(), Project: m.Project,
		Data: Data{Kind: o.EntityKind().Name, ID: string(m.ID), Name: m.Name, Phase: state, Labels: m.Labels},
	}
}

// known returns e if its type is one of Types, else nil.
func known(e *Event) *Event {
	for _, t := range Types {
		if t == e.Type {
			return e
		}
	}
	return nil
}

// first returns the time that is set.
func first(t *time.Time, or time.Time) time.Time {
	if t != nil {
		return *t
	}
	return or
}

// later returns the later of two times that may be unset, or else a third.
func later(a, b *time.Time, or time.Time) time.Time {
	if a == nil || b != nil && b.After(*a) {
		a = b
	}
	return first(a, or)
}

// Body returns what people and programs get of the event: JSON. Labels that make it
// too long are left out.
func (e *Event) Body() (string, error) {
	data := e.Data
	for {
		b, err := json.Marshal(struct {
			Type      string    `json:"type"`
			Timestamp time.Time `json:"timestamp"`
			Data      Data      `json:"data"`
		}{e.Type, e.At, data})
		if err != nil {
			return "", errs.New(errs.Internal, "encode the event %s: %w", e.ID, err)
		}
		if len(b) <= event.MaxBody || data.Labels == nil {
			return string(b), nil
		}
		data.Labels = nil
	}
}

// Entity returns the event as it is stored, without its number.
func (e *Event) Entity() (*event.Event, error) {
	body, err := e.Body()
	if err != nil {
		return nil, err
	}
	o := event.NewEvent()
	o.ID, o.Project = schema.ID(e.ID), e.Project
	o.Spec = event.EventSpec{
		Project: string(e.Project), Type: e.Type, SubjectKind: e.Data.Kind, Subject: e.Data.ID, OccurredAt: e.At, Body: body,
	}
	return o, nil
}
