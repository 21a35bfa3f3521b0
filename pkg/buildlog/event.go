package buildlog

import "time"

// EventKind is the kind of an Event.
type EventKind string

// Kinds of events.
const (
	StepStarted  EventKind = "started"
	StepProgress EventKind = "progress" // of a transfer or export within a step
	StepLog      EventKind = "log"      // one line of output
	StepCached   EventKind = "cached"   // an end: the step reused the result of an earlier build
	StepDone     EventKind = "done"     // an end
	StepFailed   EventKind = "failed"   // an end
	StepCanceled EventKind = "canceled" // an end: the build was cancelled, or another step failed
	Warning      EventKind = "warning"
)

// Event is one event of a build; its JSON is one line of a log.
type Event struct {
	Kind EventKind `json:"kind"`
	// Step counts from 1 in the order in which steps began; 0 for an event of no step.
	Step int `json:"step"`
	// Name is the step as users know it: "[build 3/5] RUN go build ./...".
	Name string    `json:"name,omitempty"`
	At   time.Time `json:"at"`
	// Took is the step's duration, set at its end.
	Took time.Duration `json:"took,omitempty"`
	// Text is a line of output without its newline, the name of the transfer in
	// progress, or the reason of a failure.
	Text string `json:"text,omitempty"`
	// Stderr reports whether Text came on the error stream.
	Stderr bool `json:"stderr,omitempty"`
	// Current of Total bytes are done; 0 where that is not known.
	Current int64 `json:"current,omitempty"`
	Total   int64 `json:"total,omitempty"`
	// Internal marks steps that are not in the Dockerfile.
	Internal bool `json:"internal,omitempty"`
}
