package logsink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logsink/httpsink"
	"miren.dev/runtime/pkg/logstore"
)

const (
	batchLines = 1000
	batchBytes = 1 << 20
	// visitBatches bounds the batches of one log before those of the next.
	visitBatches = 100
	// pollEvery is how often logs are looked at for new lines.
	pollEvery  = time.Second
	firstRetry = time.Second
)

// Owner says whose lines a log has: the names of its project and app. NotFound: the log
// is that of no app any more.
type Owner func(ctx context.Context, log string) (project, app string, err error)

// Config describes a delivery.
type Config struct {
	Name   string // of the sink, in messages
	Sink   Sink
	Logs   *logstore.Store
	File   string // that records how far it came
	Owner  Owner
	Logger *slog.Logger
	// Poll is the time between two looks at the logs, and Retry the wait after the first
	// error; 0: a second.
	Poll, Retry time.Duration
}

// Stats is what a delivery did since it was first configured, as far as it was recorded.
type Stats struct {
	Sent    int64  `json:"sent"`    // lines
	Refused int64  `json:"refused"` // lines that the other system refused for good
	Lost    int64  `json:"lost"`    // lines that were deleted before they were sent
	Error   string `json:"-"`       // why it waits; "": it does not
}

// Delivery sends the kept logs to one sink.
type Delivery struct {
	c Config

	mu    sync.Mutex
	state state
	err   string
	told  int64 // lost lines that were logged
}

// state is the content of the file.
type state struct {
	Stats
	Logs map[string]logstore.Cursor `json:"logs"`
}

// NewDelivery reads how far an earlier one came. A sink without a record begins at the
// present end of each log; a log that appears later is sent from its beginning.
func NewDelivery(c Config) (*Delivery, error) {
	if c.Poll <= 0 {
		c.Poll = pollEvery
	}
	if c.Retry <= 0 {
		c.Retry = firstRetry
	}
	d := &Delivery{c: c, state: state{Logs: map[string]logstore.Cursor{}}}
	b, err := os.ReadFile(c.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		for _, name := range c.Logs.Names() {
			d.state.Logs[name] = c.Logs.End(name)
		}
		return d, d.save()
	case err != nil:
		return nil, errs.New(errs.Unavailable, "read how far the log sink %s came: %w", c.Name, err)
	}
	if err := json.Unmarshal(b, &d.state); err != nil {
		return nil, errs.New(errs.Corrupt, "how far the log sink %s came: %w", c.Name, err).WithHint("delete %s: then it begins at the present end of the logs", c.File)
	}
	if d.state.Logs == nil {
		d.state.Logs = map[string]logstore.Cursor{}
	}
	d.told = d.state.Lost
	return d, nil
}

// Stats returns what was done.
func (d *Delivery) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.state.Stats
	s.Error = d.err
	return s
}

// Expired counts the lines of a deleted segment that were not sent. It is for
// logstore.Config.Expired.
func (d *Delivery) Expired(name string, segment, lines int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.state.Logs[name]
	if c.Segment > segment {
		return
	}
	if c.Segment == segment {
		lines -= c.Lines
	}
	d.state.Lost += max(0, lines)
	d.state.Logs[name] = logstore.Cursor{Segment: segment + 1}
}

// Run sends lines until ctx ends. It does not return errors of the sink: it waits and
// tries again.
func (d *Delivery) Run(ctx context.Context) error {
	defer d.c.Sink.Close()
	Rounds(ctx, d.c.Poll, d.c.Retry, d.Round, d.fail)
	return nil
}

// fail records why the sink waits, and tells a change, and lines that were lost.
func (d *Delivery) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if lost := d.state.Lost - d.told; lost > 0 {
		d.told = d.state.Lost
		d.c.Logger.Error("lines were deleted before they were sent", "sink", d.c.Name, "lines", lost)
	}
	switch {
	case err == nil && d.err != "":
		d.err = ""
		d.c.Logger.Info("the log sink works again", "sink", d.c.Name)
	case err != nil:
		if d.err == "" {
			d.c.Logger.Error("lines cannot be sent; they stay in the kept logs, and are sent later", "sink", d.c.Name, "error", err)
		}
		d.err = err.Error()
	}
}

// Round sends some batches of each log, and reports whether there may be more.
func (d *Delivery) Round(ctx context.Context) (more bool, err error) {
	names := d.c.Logs.Names()
	d.forget(names)
	for _, name := range names {
		d.mu.Lock()
		at := d.state.Logs[name]
		d.mu.Unlock()
		if at == d.c.Logs.End(name) {
			continue
		}
		sent, err := d.batches(ctx, name, at)
		if errs.Is(err, errs.NotFound) {
			continue // its log is about to be deleted
		}
		if err != nil {
			return false, err
		}
		more = more || sent
	}
	return more, nil
}

// forget drops the positions of logs that are gone.
func (d *Delivery) forget(names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.state.Logs) <= len(names) {
		return
	}
	there := map[string]bool{}
	for _, n := range names {
		there[n] = true
	}
	maps.DeleteFunc(d.state.Logs, func(n string, _ logstore.Cursor) bool { return !there[n] })
}

// batches sends the next lines of a log, in several batches while they are of one
// segment. It reports whether there were any.
func (d *Delivery) batches(ctx context.Context, name string, at logstore.Cursor) (sent bool, err error) {
	tail := d.c.Logs.Tail(name, at)
	for range visitBatches {
		lines, next, err := tail.Next(batchLines, batchBytes)
		if errs.Is(err, errs.Corrupt) {
			// No later try reads it. The rest of the segment is left out.
			d.c.Logger.Error("a part of a log cannot be read and is not sent", "sink", d.c.Name, "log", name, "error", err)
			d.advance(name, logstore.Cursor{Segment: next.Segment + 1}, 0, func(*Stats) {})
			return true, d.save()
		}
		if err != nil {
			return sent, err
		}
		if len(lines) == 0 {
			d.advance(name, next, 0, func(*Stats) {})
			return sent, nil
		}
		if sent && next.Segment != at.Segment {
			return true, nil
		}
		if err := d.send(ctx, name, at, next, lines); err != nil {
			return sent, err
		}
		sent, at = true, next
		tail.Advance(next)
	}
	return sent, nil
}

// send sends one batch.
func (d *Delivery) send(ctx context.Context, name string, at, next logstore.Cursor, lines []logstore.Line) error {
	project, app, err := d.c.Owner(ctx, name)
	if err != nil {
		return err
	}
	b := Batch{Entries: make([]Entry, len(lines)), ID: fmt.Sprintf("%s-%d-%d-%d-%d", name, at.Segment, at.Offset, at.Skip, len(lines))}
	for i := range lines {
		b.Entries[i] = Entry{Project: project, App: app, Line: lines[i]}
	}
	sctx, cancel := context.WithTimeout(ctx, httpsink.SendTime)
	defer cancel()
	err = d.c.Sink.Send(sctx, b)
	n := int64(len(lines))
	var some *httpsink.Refused
	switch {
	case err == nil:
		d.advance(name, next, n, func(s *Stats) { s.Sent += n })
	case errors.As(err, &some):
		d.c.Logger.Error("lines are refused and not sent again", "sink", d.c.Name, "lines", some.N, "error", err)
		d.advance(name, next, n, func(s *Stats) { s.Sent += max(0, n-some.N); s.Refused += some.N })
	case errs.Is(err, errs.InvalidArgument):
		d.c.Logger.Error("lines are refused and not sent again", "sink", d.c.Name, "lines", n, "error", err)
		d.advance(name, next, n, func(s *Stats) { s.Refused += n })
	default:
		return err
	}
	return d.save()
}

// advance moves the position of a log. If the segment of the n lines that were sent was
// deleted meanwhile, they were counted as lost, which they are not.
func (d *Delivery) advance(name string, to logstore.Cursor, n int64, count func(*Stats)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	count(&d.state.Stats)
	if d.state.Logs[name].Segment > to.Segment {
		d.state.Lost = max(0, d.state.Lost-n)
		return
	}
	d.state.Logs[name] = to
}

// save records the positions. Until it returns a killed process sends the batch again.
func (d *Delivery) save() error {
	d.mu.Lock()
	b, err := json.Marshal(d.state)
	d.mu.Unlock()
	if err != nil {
		return errs.New(errs.Internal, "encode how far a log sink came: %w", err)
	}
	if err := atomicfile.Write(d.c.File, b, 0o600); err != nil {
		return errs.New(errs.Unavailable, "record how far the log sink %s came: %w", d.c.Name, err)
	}
	return nil
}
