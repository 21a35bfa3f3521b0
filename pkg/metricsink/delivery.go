package metricsink

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logsink"
	"miren.dev/runtime/pkg/logsink/httpsink"
	"miren.dev/runtime/pkg/metricstore"
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

// Stats is what a delivery did since it was first configured, as far as it was recorded.
type Stats struct {
	Sent    int64         `json:"sent"`    // samples
	Refused int64         `json:"refused"` // samples that the other system refused for good
	Lost    time.Duration `json:"lost"`    // time whose samples were deleted before they were sent
	Error   string        `json:"-"`       // why it waits; "": it does not
}

// Delivery sends the history to one sink.
type Delivery struct {
	c Config

	mu    sync.Mutex
	state state
	err   string
}

// state is the content of the file.
type state struct {
	Stats
	At time.Time `json:"at"` // samples up to this time were sent
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
	d := &Delivery{c: c}
	b, err := os.ReadFile(c.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.state.At = time.Now()
		if _, newest, ok := c.Store.Bounds(); ok {
			d.state.At = newest
		}
		return d, d.save()
	case err != nil:
		return nil, errs.New(errs.Unavailable, "read how far the metrics sink %s came: %w", c.Name, err)
	}
	if err := json.Unmarshal(b, &d.state); err != nil {
		return nil, errs.New(errs.Corrupt, "how far the metrics sink %s came: %w", c.Name, err).WithHint("delete %s: then it begins with new samples", c.File)
	}
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

// Run sends samples until ctx ends. It does not return errors of the sink: it waits and
// tries again.
func (d *Delivery) Run(ctx context.Context) error {
	defer d.c.Sink.Close()
	logsink.Rounds(ctx, d.c.Poll, d.c.Retry, d.Round, d.tell)
	return nil
}

// tell records why the sink waits, and logs a change.
func (d *Delivery) tell(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil && d.err != "":
		d.err = ""
		d.c.Logger.Info("the metrics sink works again", "sink", d.c.Name)
	case err != nil:
		if d.err == "" {
			d.c.Logger.Error("samples cannot be sent; they stay in the history, and are sent later", "sink", d.c.Name, "error", err)
		}
		d.err = err.Error()
	}
}

// Round sends the samples of some time, and reports whether there are more. Those of the
// newest time wait for the next: the recorder may still add to them.
func (d *Delivery) Round(ctx context.Context) (more bool, err error) {
	oldest, newest, ok := d.c.Store.Bounds()
	d.mu.Lock()
	at := d.state.At
	d.mu.Unlock()
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
		d.mu.Lock()
		d.state.At = to
		d.mu.Unlock()
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
	for i, x := range m.Samples {
		labels, err := d.labels(ctx, x.Labels, names)
		if err != nil {
			return did, err
		}
		samples[i] = Sample{Name: prefix + x.Name, Labels: labels, At: m.At, Value: x.Value}
	}
	for len(samples) > 0 {
		n := min(batchSamples, len(samples))
		err := d.c.Sink.Send(ctx, samples[:n])
		var some *httpsink.Refused
		switch {
		case err == nil:
			did.Sent += int64(n)
		case errors.As(err, &some):
			did.Sent, did.Refused = did.Sent+max(0, int64(n)-some.N), did.Refused+some.N
		case errs.Is(err, errs.InvalidArgument):
			did.Refused += int64(n)
		default:
			return did, err
		}
		if err != nil {
			d.c.Logger.Error("samples are refused and not sent again", "sink", d.c.Name, "error", err)
		}
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
	d.mu.Lock()
	s := &d.state
	s.At, s.Sent, s.Refused, s.Lost = at, s.Sent+did.Sent, s.Refused+did.Refused, s.Lost+did.Lost
	d.mu.Unlock()
	return d.save()
}

func (d *Delivery) save() error {
	d.mu.Lock()
	b, err := json.Marshal(d.state)
	d.mu.Unlock()
	if err != nil {
		return errs.New(errs.Internal, "encode how far a metrics sink came: %w", err)
	}
	if err := atomicfile.Write(d.c.File, b, 0o600); err != nil {
		return errs.New(errs.Unavailable, "record how far the metrics sink %s came: %w", d.c.Name, err)
	}
	return nil
}
