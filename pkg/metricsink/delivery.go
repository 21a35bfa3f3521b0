package metricsink

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/metricstore"
	"miren.dev/runtime/pkg/sink"
)

const (
	// prefix stands before the names of metrics elsewhere.
	prefix = "runtime_"
	// batchSamples bounds the samples of a request.
	batchSamples = 2000
	// window is the time whose samples are read at once.
	window     = time.Minute
	pollEvery  = 5 * time.Second
	firstRetry = time.Second
)

// Owner returns the names of the project and the app of an app's id. NotFound: there is
// no such app any more.
type Owner func(ctx context.Context, app string) (project, name string, err error)

// Config describes a delivery.
type Config struct {
	Name         string // of the sink, in messages
	Sink         Sink
	Store        *metricstore.Store
	File         string // that records how far it came
	Installation string // the label of all samples
	Owner        Owner
	Logger       *slog.Logger
	// Poll is the time between two looks at the history (0: 5 s), and Retry the wait
	// after the first error (0: 1 s).
	Poll, Retry time.Duration
}

// Stats counts the samples of a delivery since it was first configured, up to its last record.
type Stats struct {
	Sent    int64         `json:"sent"`    // samples
	Refused int64         `json:"refused"` // samples that the other system refused for good
	Lost    time.Duration `json:"lost"`    // time whose samples were deleted before they were sent
	Error   string        `json:"-"`       // why it waits; "": it does not
}

// Delivery sends the history to one sink.
type Delivery struct {
	c Config
	*sink.Progress[state]
}

// state is the content of the file.
type state struct {
	Stats
	At       time.Time                `json:"at"`   // samples up to this time were sent
	Read     time.Time                `json:"read"` // the time of the samples that Counters knows
	Counters map[string]*counterState `json:"counters,omitempty"`
}

// NewDelivery reads how far an earlier one came. A sink without a record begins with the
// samples that are taken from now on.
func NewDelivery(c Config) (*Delivery, error) {
	if c.Poll <= 0 {
		c.Poll = pollEvery
	}
	if c.Retry <= 0 {
		c.Retry = firstRetry
	}
	p, err := sink.Open(sink.Options{
		Kind: "metrics sink", Name: c.Name, File: c.File, Begins: "with new samples", Logger: c.Logger, Poll: c.Poll, Retry: c.Retry,
		Stays: "samples cannot be sent; they stay in the history, and are sent later",
	}, func() state {
		st := state{At: time.Now()}
		if _, newest, ok := c.Store.Bounds(); ok {
			st.At = newest
		}
		return st
	})
	if err != nil {
		return nil, err
	}
	return &Delivery{c, p}, nil
}

// Stats returns what was done.
func (d *Delivery) Stats() (s Stats) {
	d.Do(func(st *state) { s = st.Stats })
	s.Error = d.Waits()
	return s
}

// Run sends samples until ctx ends. It does not return errors of the sink: it waits and
// tries again.
func (d *Delivery) Run(ctx context.Context) error {
	defer d.c.Sink.Close()
	d.Progress.Run(ctx, d.Round)
	return nil
}

// Round sends the samples of some time, and reports whether there are more. Those of the
// newest time wait for the next: the recorder may still add to them.
func (d *Delivery) Round(ctx context.Context) (more bool, err error) {
	oldest, newest, ok := d.c.Store.Bounds()
	var at time.Time
	d.Do(func(st *state) { at = st.At })
	if !ok || !at.Before(newest.Add(-time.Millisecond)) {
		return false, nil
	}
	// Before a sink got anything, the history may have been empty.
	if gap := oldest.Sub(at); gap > window && d.sentAny() {
		d.c.Logger.Error("samples were deleted before they were sent", "sink", d.c.Name, "from", at, "to", oldest)
		at = oldest.Add(-time.Millisecond)
		if err := d.advance(at, Stats{Lost: gap}); err != nil {
			return false, err
		}
	}
	to := newest.Add(-time.Millisecond)
	if to.Sub(at) > window {
		to = at.Add(window)
	}
	moments, err := d.c.Store.Samples(ctx, at, to)
	if err != nil {
		return false, err
	}
	names := map[string][2]string{} // project and name of an app
	for _, m := range moments {
		did, err := d.send(ctx, m, names)
		if err != nil {
			return false, err
		}
		if err := d.advance(m.At, did); err != nil {
			return false, err
		}
	}
	if len(moments) == 0 { // such as of the time in which no server ran
		d.Do(func(st *state) { st.At = to })
	}
	return true, nil
}

func (d *Delivery) sentAny() bool {
	s := d.Stats()
	return s.Sent > 0 || s.Refused > 0
}

// send sends the samples of one time.
func (d *Delivery) send(ctx context.Context, m metricstore.Moment, names map[string][2]string) (did Stats, err error) {
	samples := make([]Sample, len(m.Samples))
	var starts []time.Time
	d.Do(func(st *state) { starts = st.starts(m) })
	for i, x := range m.Samples {
		labels, err := d.labels(ctx, x.Labels, names)
		if err != nil {
			return did, err
		}
		samples[i] = Sample{Name: prefix + x.Name, Labels: labels, Start: starts[i], At: m.At, Value: x.Value}
	}
	for len(samples) > 0 {
		n := min(batchSamples, len(samples))
		err := d.c.Sink.Send(ctx, samples[:n])
		sent, refused, ok := sink.Outcome(err, int64(n))
		if !ok {
			return did, err
		}
		if refused > 0 {
			d.c.Logger.Error("samples are refused and not sent again", "sink", d.c.Name, "samples", refused, "error", err)
		}
		did.Sent, did.Refused = did.Sent+sent, did.Refused+refused
		samples = samples[n:]
	}
	return did, nil
}

// labels are those of a sample elsewhere: with names in place of the id of an app.
func (d *Delivery) labels(ctx context.Context, of map[string]string, names map[string][2]string) (map[string]string, error) {
	labels := maps.Clone(of)
	labels["installation"] = d.c.Installation
	app := of["app"]
	if app == "" {
		return labels, nil
	}
	known, ok := names[app]
	if !ok {
		project, name, err := d.c.Owner(ctx, app)
		if err != nil && !errs.Is(err, errs.NotFound) {
			return nil, err
		}
		known = [2]string{project, name}
		names[app] = known
	}
	if known[1] != "" { // else it was deleted, and keeps its id
		labels["project"], labels["app"] = known[0], known[1]
	}
	return labels, nil
}

// advance records how far the delivery came and what it did. Until it returns a killed
// process sends the samples of that time again.
func (d *Delivery) advance(at time.Time, did Stats) error {
	d.Do(func(st *state) {
		st.At, st.Sent, st.Refused, st.Lost = at, st.Sent+did.Sent, st.Refused+did.Refused, st.Lost+did.Lost
	})
	return d.Save()
}
