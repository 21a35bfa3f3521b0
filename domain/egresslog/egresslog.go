// Package egresslog keeps what sandboxes asked for on the network in the store's
// history (entity.StreamEgress), where it outlives them.
//
//	action       dns, tls, http, https or tcp
//	subject      the sandbox
//	outcome      ok, permission_denied (by the policy), or unavailable (permitted, but it failed)
//	detail       the egress.Record, which has the time of the request
//
// A sandbox can ask faster than a store should write: above a rate its records
// are counted only, in the field "missed" of the next one.
package egresslog

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"golang.org/x/time/rate"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/text"
)

const (
	queued       = 4096
	batchSize    = 200
	batchTime    = 500 * time.Millisecond // that a record waits for others
	writeTimeout = 10 * time.Second
	perSecond    = 5   // records of one sandbox, in the long run
	burst        = 500 // and at once
	forgetAfter  = 10 * time.Minute
	maxReason    = 512 // bytes
)

// Recorder appends records to a history. Its method Add may be called by any
// goroutine.
type Recorder struct {
	history   entity.History
	projectOf func(ctx context.Context, sandbox string) (string, error)
	logger    *slog.Logger
	queue     chan egress.Record
	sandboxes map[string]*sandbox // of the goroutine of Run
}

// sandbox is the state of one that asked for something lately.
type sandbox struct {
	project string
	limit   *rate.Limiter
	missed  int64
	last    time.Time
}

// New makes a recorder; projectOf returns the name of the project of a sandbox.
func New(h entity.History, projectOf func(ctx context.Context, sandbox string) (string, error), log *slog.Logger) *Recorder {
	return &Recorder{history: h, projectOf: projectOf, logger: log, queue: make(chan egress.Record, queued), sandboxes: map[string]*sandbox{}}
}

// Add hands over a record. It waits while the store does not keep up.
func (r *Recorder) Add(ctx context.Context, rec egress.Record) {
	select {
	case r.queue <- rec:
	case <-ctx.Done():
	}
}

// Run appends records until ctx ends, and then those that are queued.
func (r *Recorder) Run(ctx context.Context) error {
	var batch []entity.HistoryRecord
	flush := time.NewTimer(batchTime)
	flush.Stop()
	for {
		select {
		case rec := <-r.queue:
			if h, ok := r.record(ctx, rec); ok {
				if batch = append(batch, h); len(batch) == 1 {
					flush.Reset(batchTime)
				}
			}
			if len(batch) == batchSize {
				batch = r.write(ctx, batch)
			}
		case <-flush.C:
			batch = r.write(ctx, batch)
		case <-ctx.Done():
			for len(r.queue) > 0 && len(batch) < entity.MaxHistoryPage {
				if h, ok := r.record(ctx, <-r.queue); ok {
					batch = append(batch, h)
				}
			}
			r.write(ctx, batch)
			return nil
		}
	}
}

// record returns the record of the history; false if the sandbox has too many.
func (r *Recorder) record(ctx context.Context, rec egress.Record) (entity.HistoryRecord, bool) {
	now := time.Now()
	s := r.sandboxes[rec.Sandbox]
	if s == nil {
		for id, other := range r.sandboxes {
			if now.Sub(other.last) > forgetAfter {
				delete(r.sandboxes, id)
			}
		}
		s = &sandbox{limit: rate.NewLimiter(perSecond, burst)}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
		defer cancel()
		project, err := r.projectOf(ctx, rec.Sandbox)
		if err != nil { // then only admins see it
			r.logger.Warn("cannot find the project of a sandbox", "sandbox", rec.Sandbox, "error", err)
		}
		s.project = project
		r.sandboxes[rec.Sandbox] = s
	}
	s.last = now
	if !s.limit.AllowN(now, 1) {
		s.missed += 1 + rec.Missed
		return entity.HistoryRecord{}, false
	}
	rec.Missed, s.missed = rec.Missed+s.missed, 0
	rec.Reason = text.Cut(rec.Reason, maxReason)
	detail, err := json.Marshal(rec)
	if err != nil {
		return entity.HistoryRecord{}, false // strings and numbers can be encoded
	}
	outcome := "ok"
	switch {
	case !rec.Allowed:
		outcome = string(errs.PermissionDenied)
	case rec.Reason != "":
		outcome = string(errs.Unavailable)
	}
	return entity.HistoryRecord{
		Stream: entity.StreamEgress, Project: s.project, SubjectKind: "sandbox", SubjectID: rec.Sandbox, Action: rec.Protocol,
		Outcome: outcome, Detail: detail,
	}, true
}

// write appends a batch, also when ctx has ended, and returns an empty one.
func (r *Recorder) write(ctx context.Context, batch []entity.HistoryRecord) []entity.HistoryRecord {
	if len(batch) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if err := r.history.Append(ctx, batch...); err != nil {
		r.logger.Error("cannot record what sandboxes asked for on the network", "records", len(batch), "error", err)
	}
	return nil
}
