package buildlog

import "time"

// EventKind says what an Event tells.
type EventKind string

// Kinds of events.
const (
	StepStarted  EventKind = "started"
	StepProgress EventKind = "progress" // of a transfer or export within a step
	StepLog      EventKind = "log"      // one line of output
	StepCached   EventKind = "cached"   // an end: the result of an earlier build is used
	StepDone     EventKind = "done"     // an end
	StepFailed   EventKind = "failed"   // an end
	StepCanceled EventKind = "canceled" // an end: the build was ended, or another step failed
	Warning      EventKind = "warning"
)

// Event is one thing that happened in a build; its JSON is one line of a log.
type Event struct {
	Kind EventKind `json:"kind"`
	// Step counts from 1 in the order in which steps began; 0 for what belongs to no step.
	Step int `json:"step"`
	// Name of the step as people know it: "[build 3/5] RUN go build ./...".
	Name string    `json:"name,omitempty"`
	At   time.Time `json:"at"`
	// Took is set at the ends.
	Took time.Duration `json:"took,omitempty"`
	// Text is a line of output without its end, what is in progress, or why it failed.
	Text string `json:"text,omitempty"`
	// Stderr tells on which stream Text came.
	Stderr bool `json:"stderr,omitempty"`
	// Current of Total are done, in bytes, where that is known.
	Current int64 `json:"current,omitempty"`
	Total   int64 `json:"total,omitempty"`
	// Internal marks steps that are not of the Dockerfile.
	Internal bool `json:"internal,omitempty"`
}
