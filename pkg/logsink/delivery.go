package logsink

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/pkg/sink"
	"miren.dev/runtime/pkg/sink/httpsink"
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

// Stats counts the lines of a delivery since it was first configured, up to its last record.
type Stats struct {
	Sent    int64  `json:"sent"`    // lines
	Refused int64  `json:"refused"` // lines that the other system refused for good
	Lost    int64  `json:"lost"`    // lines that were deleted before they were sent
	Error   string `json:"-"`       // why it waits; "": it does not
}

// Delivery sends the kept logs to one sink.
type Delivery struct {
	c Config
	*sink.Progress[state]
	told int64 // lost lines that were logged; of the goroutine of Run
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
	p, err := sink.Open(sink.Options{
		Kind: "log sink", Name: c.Name, File: c.File, Begins: "at the present end of the logs", Logger: c.Logger, Poll: c.Poll, Retry: c.Retry,
		Stays: "lines cannot be sent; they stay in the kept logs, and are sent later",
	}, func() state {
		st := state{Logs: map[string]logstore.Cursor{}}
		for _, name := range c.Logs.Names() {
			st.Logs[name] = c.Logs.End(name)
		}
		return st
	})
	if err != nil {
		return nil, err
	}
	d := &Delivery{c: c, Progress: p}
	d.Do(func(st *state) {
		if st.Logs == nil {
			st.Logs = map[string]logstore.Cursor{}
		}
		d.told = st.Lost
	})
	return d, nil
}

// Stats returns what was done.
func (d *Delivery) Stats() (s Stats) {
	d.Do(func(st *state) { s = st.Stats })
	s.Error = d.Waits()
	return s
}

// Expired counts the lines of a deleted segment that were not sent. It is for
// logstore.Config.Expired.
func (d *Delivery) Expired(name string, segment, lines int64) {
	d.Do(func(st *state) {
		c := st.Logs[name]
		if c.Segment > segment {
			return
		}
		if c.Segment == segment {
			lines -= c.Lines
		}
		st.Lost += max(0, lines)
		st.Logs[name] = logstore.Cursor{Segment: segment + 1}
	})
}

// Run sends lines until ctx ends. It does not return errors of the sink: it waits and
// tries again.
func (d *Delivery) Run(ctx context.Context) error {
	defer d.c.Sink.Close()
	d.Progress.Run(ctx, func(ctx context.Context) (bool, error) {
		more, err := d.Round(ctx)
		d.tellLost()
		return more, err
	})
	return nil
}

// tellLost logs lines that were lost since the last call.
func (d *Delivery) tellLost() {
	all := d.Stats().Lost
	if lost := all - d.told; lost > 0 {
		d.c.Logger.Error("lines were deleted before they were sent", "sink", d.c.Name, "lines", lost)
	}
	d.told = max(d.told, all)
}

// Round sends some batches of each log, and reports whether there may be more.
func (d *Delivery) Round(ctx context.Context) (more bool, err error) {
	names := d.c.Logs.Names()
	d.forget(names)
	for _, name := range names {
		var at logstore.Cursor
		d.Do(func(st *state) { at = st.Logs[name] })
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
	d.Do(func(st *state) {
		if len(st.Logs) <= len(names) {
			return
		}
		there := map[string]bool{}
		for _, n := range names {
			there[n] = true
		}
		maps.DeleteFunc(st.Logs, func(n string, _ logstore.Cursor) bool { return !there[n] })
	})
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
			d.advance(name, logstore.Cursor{Segment: next.Segment + 1}, Stats{})
			return true, d.Save()
		}
		if err != nil {
			return sent, err
		}
		if len(lines) == 0 {
			d.advance(name, next, Stats{})
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
	sent, refused, ok := sink.Outcome(err, int64(len(lines)))
	if !ok {
		return err
	}
	if refused > 0 {
		d.c.Logger.Error("lines are refused and not sent again", "sink", d.c.Name, "lines", refused, "error", err)
	}
	d.advance(name, next, Stats{Sent: sent, Refused: refused})
	return d.Save()
}

// advance moves the position of a log and counts what was done. If the segment of the lines was deleted meanwhile, they
// were counted as lost, which they are not.
func (d *Delivery) advance(name string, to logstore.Cursor, did Stats) {
	d.Do(func(st *state) {
		st.Sent, st.Refused = st.Sent+did.Sent, st.Refused+did.Refused
		if st.Logs[name].Segment > to.Segment {
			st.Lost = max(0, st.Lost-did.Sent-did.Refused)
			return
		}
		st.Logs[name] = to
	})
}
