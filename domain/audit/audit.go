// Package audit records in the history which calls change something, and which
// are refused: identity, where it called from, method, subject, project, outcome
// and request id. Requests and error messages are not recorded, since they may
// hold secrets.
//
// # What is promised
//
// The record of a call is durable before its caller has the answer. If it cannot
// be written, the answer is an error of class Unavailable with outcome unknown,
// although the change may have happened. A change without a record is therefore
// one whose caller has no answer: the server was killed in between.
//
// A call with streams has two records. The first says that it started, and is
// durable before the call ends. The second says how it ended; it is written after
// the answer, and is lost if the server is killed before that.
//
// Refused calls are recorded without making anybody wait, up to a rate. The next
// record says how many were left out.
package audit

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/text"
)

// Outcomes besides the classes of package errs.
const (
	OutcomeOK      = "ok"
	OutcomeStarted = "started"
)

const (
	// writeTimeout bounds how long a call waits for its record.
	writeTimeout = 5 * time.Second
	// maxSubjects bounds the subjects that one record names.
	maxSubjects = 50
)

// Refused calls that are recorded: a burst, and so many a second after it.
const (
	anonymousBurst, anonymousRate rate.Limit = 20, 1
	knownBurst, knownRate         rate.Limit = 100, 10
)

// Recorder is an rpc.Auditor that writes to a history. It is safe for concurrent
// use.
type Recorder struct {
	history   entity.History
	projectOf func(context.Context, rpc.Target) (string, error)
	logger    *slog.Logger

	anonymous, known *rate.Limiter
	omitted          atomic.Int64 // refused calls without a record
	background       sync.WaitGroup
}

var _ rpc.Auditor = (*Recorder)(nil)

// NewRecorder makes a recorder; projectOf returns the name of the project that a
// request concerns.
func NewRecorder(h entity.History, projectOf func(context.Context, rpc.Target) (string, error), log *slog.Logger) *Recorder {
	return &Recorder{
		history: h, projectOf: projectOf, logger: log,
		anonymous: rate.NewLimiter(anonymousRate, int(anonymousBurst)), known: rate.NewLimiter(knownRate, int(knownBurst)),
	}
}

// Wait waits until everything was written; no call may be under way.
func (r *Recorder) Wait() { r.background.Wait() }

// Begin implements rpc.Auditor.
func (r *Recorder) Begin(ctx context.Context, c *rpc.AuditCall) func(error) error {
	ctx = context.WithoutCancel(ctx) // the record is written although the caller has gone
	if c.Method.Stream != rpc.StreamNone {
		return r.beginStream(ctx, c)
	}
	project := r.project(ctx, c) // now: the call may delete what leads to it
	return func(err error) error {
		return r.write(ctx, c, record(c, project, outcomeOf(err)))
	}
}

func (r *Recorder) beginStream(ctx context.Context, c *rpc.AuditCall) func(error) error {
	first := record(c, "", OutcomeStarted)
	var project string
	started := make(chan error, 1)
	r.background.Go(func() {
		project = r.project(ctx, c)
		first.Project = project
		started <- r.write(ctx, c, first)
	})
	return func(err error) error {
		if e := <-started; e != nil {
			return e
		}
		last := record(c, project, outcomeOf(err))
		r.background.Go(func() { _ = r.write(ctx, c, last) }) // it is logged
		return nil
	}
}

// Refused implements rpc.Auditor.
func (r *Recorder) Refused(c *rpc.AuditCall, err error) {
	limiter := r.known
	if c.Identity.How == "" {
		limiter = r.anonymous
	}
	if !limiter.Allow() {
		r.omitted.Add(1)
		return
	}
	rec := record(c, "", outcomeOf(err))
	if n := r.omitted.Swap(0); n > 0 {
		rec.Detail = detail(c, n)
	}
	r.background.Go(func() {
		rec.Project = r.project(context.Background(), c)
		_ = r.write(context.Background(), c, rec) // it is logged
	})
}

// project returns the name of the project that a call concerns; empty if it is
// none, or cannot be found out.
func (r *Recorder) project(ctx context.Context, c *rpc.AuditCall) string {
	if c.Target == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	name, err := r.projectOf(ctx, *c.Target)
	if err != nil && !errs.Is(err, errs.NotFound) {
		r.logger.Warn("cannot find the project of a call", "method", c.Method.Full, "error", err)
	}
	return valid(name)
}

func (r *Recorder) write(ctx context.Context, c *rpc.AuditCall, rec entity.HistoryRecord) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := r.history.Append(ctx, rec)
	if err == nil {
		return nil
	}
	r.logger.Error("cannot record a call", "method", c.Method.Full, "identity", c.Identity.String(), "request_id", c.RequestID, "outcome", rec.Outcome, "error", err)
	return errs.New(errs.Unavailable, "%s was carried out, but could not be recorded: %w", c.Method.Full, err).With("outcome", "unknown").
		WithHint("look at what is there before repeating it; the server's log says what the store lacks")
}

func outcomeOf(err error) string {
	if err == nil {
		return OutcomeOK
	}
	return string(errs.ClassOf(err))
}

// record describes a call as it is now.
func record(c *rpc.AuditCall, project, outcome string) entity.HistoryRecord {
	rec := entity.HistoryRecord{
		Stream: entity.StreamAudit, Project: project, Actor: valid(c.Identity.String()), Action: c.Method.Full, Outcome: outcome,
		RequestID: valid(c.RequestID), Detail: detail(c, 0),
	}
	if len(c.Subjects) > 0 {
		rec.SubjectKind, rec.SubjectID = valid(c.Subjects[0].Kind), valid(c.Subjects[0].ID)
	}
	return rec
}

// Detail is the detail of a record.
type Detail struct {
	From    string        `json:"from"`              // local, certified or anonymous
	Address string        `json:"address,omitempty"` // of the caller, if not local
	Serial  string        `json:"serial,omitempty"`  // of its certificate
	Micros  int64         `json:"us"`                // since the call began
	All     []rpc.Subject `json:"subjects,omitempty"`
	More    int           `json:"more_subjects,omitempty"`
	Omitted int64         `json:"omitted,omitempty"` // refused calls that were not recorded before this one
}

func detail(c *rpc.AuditCall, omitted int64) json.RawMessage {
	d := Detail{From: c.Peer.Class, Address: c.Peer.Address, Serial: c.Identity.Serial, Micros: time.Since(c.Began).Microseconds(), Omitted: omitted}
	if len(c.Subjects) > 1 || len(c.Subjects) == 1 && c.Subjects[0].Op != "" {
		for _, s := range c.Subjects[:min(len(c.Subjects), maxSubjects)] {
			d.All = append(d.All, rpc.Subject{Kind: short(s.Kind), ID: short(s.ID), Op: short(s.Op)})
		}
	}
	for {
		d.More = len(c.Subjects) - len(d.All)
		if d.All == nil {
			d.More = 0
		}
		b, err := json.Marshal(d)
		if err != nil {
			return nil // strings and numbers can be encoded
		}
		if len(b) <= entity.MaxHistoryDetail {
			return b
		}
		d.All = d.All[:len(d.All)/2] // names of many escaped characters
	}
}

// short bounds a name of the detail, so that all of them fit.
func short(s string) string { return text.Cut(valid(s), 80) }

// valid makes s what a record can hold.
func valid(s string) string {
	return text.Cut(strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD"), entity.MaxHistoryField)
}
