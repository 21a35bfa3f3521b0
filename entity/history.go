package entity

import (
	"context"
	"encoding/json"
	"time"
	"unicode/utf8"

	"miren.dev/runtime/pkg/errs"
)

// Stream is one of the histories that a store keeps beside its entities. Each
// has a retention of its own.
type Stream string

// Streams.
const (
	StreamAudit     Stream = "audit"     // calls that change something, and refused ones
	StreamEvent     Stream = "event"     // nothing: events are entities (package api/event)
	StreamExecution Stream = "execution" // submitted code and how it ended
	StreamEgress    Stream = "egress"    // what sandboxes asked for on the network
)

// Streams are all of them.
var Streams = []Stream{StreamAudit, StreamEvent, StreamExecution, StreamEgress}

// Bounds of a HistoryRecord.
const (
	MaxHistoryField  = 512      // bytes of each field but Detail
	MaxHistoryDetail = 16 << 10 // bytes of Detail
	MaxHistoryPage   = 1000     // records of one page
)

// HistoryRecord says that something happened. Once appended it does not change.
type HistoryRecord struct {
	ID   string    // the store's, at the time of the append
	Time time.Time // of the append, by the database's clock, in microseconds

	Stream      Stream
	Project     string // name of the project; empty: the installation
	Actor       string // identity that caused it
	SubjectKind string // what it happened to
	SubjectID   string
	Action      string
	Outcome     string // "ok", "started", or a class of package errs
	RequestID   string
	// Detail is a JSON object, or nil. It must not hold secrets.
	Detail json.RawMessage
}

// Validate returns an error of class InvalidArgument for a record that is not
// within the bounds.
func (r *HistoryRecord) Validate() error {
	known := false
	for _, s := range Streams {
		known = known || s == r.Stream
	}
	if !known {
		return errs.New(errs.InvalidArgument, "there is no history %q", r.Stream).WithHint("histories are %v", Streams)
	}
	for _, f := range []struct{ name, value string }{
		{"project", r.Project}, {"actor", r.Actor}, {"subject kind", r.SubjectKind}, {"subject id", r.SubjectID}, {"action", r.Action},
		{"outcome", r.Outcome}, {"request id", r.RequestID},
	} {
		if len(f.value) > MaxHistoryField {
			return errs.New(errs.InvalidArgument, "the %s of a history record has %d bytes, more than %d", f.name, len(f.value), MaxHistoryField)
		}
		if !validText(f.value) {
			return errs.New(errs.InvalidArgument, "the %s of a history record is not text", f.name)
		}
	}
	if r.Action == "" {
		return errs.New(errs.InvalidArgument, "a history record has no action")
	}
	if len(r.Detail) > MaxHistoryDetail {
		return errs.New(errs.InvalidArgument, "the detail of a history record has %d bytes, more than %d", len(r.Detail), MaxHistoryDetail)
	}
	var object map[string]json.RawMessage
	if len(r.Detail) > 0 && (!validText(string(r.Detail)) || json.Unmarshal(r.Detail, &object) != nil) {
		return errs.New(errs.InvalidArgument, "the detail of a history record is not a JSON object")
	}
	return nil
}

// validText reports whether every backend can hold s as text.
func validText(s string) bool {
	for i := range len(s) {
		if s[i] == 0 {
			return false
		}
	}
	return utf8.ValidString(s)
}

// HistoryQuery selects records of one stream. All conditions must hold; zero
// fields are none.
type HistoryQuery struct {
	Stream      Stream
	Projects    []string // any of these; nil: all, also records of the installation
	Actor       string
	SubjectKind string
	SubjectID   string
	Action      string
	Since       time.Time // at this time or later
	Until       time.Time // before this time
	Limit       int       // of one page; 0: MaxHistoryPage, which is also the most
	Cursor      string    // of the previous page
}

// HistoryPage is one page, newest record first. Records that are appended
// meanwhile do not move what the following pages show.
type HistoryPage struct {
	Records []HistoryRecord
	Cursor  string // empty on the last page
}

// History is append-only: records are added, listed, and dropped by age. It is
// safe for concurrent use.
type History interface {
	// Append adds records, all or none, and returns when they are durable. Errors:
	// InvalidArgument; Unavailable, with detail "outcome"="unknown" if they may be
	// there.
	Append(ctx context.Context, records ...HistoryRecord) error
	// Records lists what Append added. Errors: InvalidArgument, Unavailable.
	Records(ctx context.Context, q HistoryQuery) (HistoryPage, error)
}
