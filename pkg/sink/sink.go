// Package sink has what deliveries to the systems of others share, whatever they send
// (packages logsink and metricsink):
//
//	Progress   how far a delivery came, in a file, and why it waits
//	Run        rounds of sending, later and later after errors
//	Outcome    how much of a request the other system took, and refused
//
// Package target reads the URLs that name these systems, and httpsink sends requests to
// them.
package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

const (
	// lastRetry is the longest wait after an error that says nothing of a time.
	lastRetry = time.Minute
	// MaxRetryAfter is the longest wait that another system can ask for.
	MaxRetryAfter = time.Hour
)

// Refused is the error of a request of which the other system refused a part for good.
type Refused struct {
	N       int64  // how many
	What    string // lines, samples
	Message string // of the other system
}

func (r *Refused) Error() string {
	return fmt.Sprintf("the server refused %d %s: %s", r.N, r.What, r.Message)
}

// Later is the error of a request that the other system wants after a time again, and not sooner.
type Later struct {
	Err   error
	After time.Duration
}

func (l *Later) Error() string { return l.Err.Error() }

// Unwrap returns the error without the time.
func (l *Later) Unwrap() error { return l.Err }

// Outcome returns how many of n that were sent with an error, or nil, the other system
// took, and how many it refused for good. ok is false if they must be sent again.
func Outcome(err error, n int64) (sent, refused int64, ok bool) {
	var some *Refused
	switch {
	case err == nil:
		return n, 0, true
	case errors.As(err, &some):
		return max(0, n-some.N), min(some.N, n), true
	case errs.Is(err, errs.InvalidArgument):
		return 0, n, true
	}
	return 0, 0, false
}

// Options describe the delivery to a sink.
type Options struct {
	Kind   string // for messages: "log sink"
	Name   string // of the sink
	File   string // that records how far the delivery came
	Begins string // for messages: where a delivery without the file begins
	Stays  string // for the log: where lines or samples stay while a sink fails
	Logger *slog.Logger
	// Poll is the time between two rounds, and Retry the wait after the first error.
	Poll, Retry time.Duration
}

// Progress is how far a delivery came. S is the content of its file, as JSON. It is safe
// for concurrent use.
type Progress[S any] struct {
	o Options

	mu    sync.Mutex
	state S
	err   string // why it waits; "": it does not
}

// Open reads how far an earlier delivery came. Without a record it begins with fresh, and
// records that. Errors: Corrupt for a file that cannot be read as S, Unavailable.
func Open[S any](o Options, fresh func() S) (*Progress[S], error) {
	p := &Progress[S]{o: o}
	b, err := os.ReadFile(o.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.state = fresh()
		return p, p.Save()
	case err != nil:
		return nil, errs.New(errs.Unavailable, "read how far the %s %s came: %w", o.Kind, o.Name, err)
	}
	if err := json.Unmarshal(b, &p.state); err != nil {
		return nil, errs.New(errs.Corrupt, "how far the %s %s came: %w", o.Kind, o.Name, err).WithHint("delete %s: then it begins %s", o.File, o.Begins)
	}
	return p, nil
}

// Do calls f with the state, which nothing else uses meanwhile.
func (p *Progress[S]) Do(f func(*S)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.state)
}

// Save records the state. A process that is killed before sends again the lines or samples
// since the last record.
func (p *Progress[S]) Save() error {
	p.mu.Lock()
	b, err := json.Marshal(p.state)
	p.mu.Unlock()
	if err != nil {
		return errs.New(errs.Internal, "encode how far the %s %s came: %w", p.o.Kind, p.o.Name, err)
	}
	if err := atomicfile.Write(p.o.File, b, 0o600); err != nil {
		return errs.New(errs.Unavailable, "record how far the %s %s came: %w", p.o.Kind, p.o.Name, err)
	}
	return nil
}

// Waits returns why the delivery waits; "": it does not.
func (p *Progress[S]) Waits() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Run calls round until ctx ends: at once while there is more, after Poll when there is
// not, and after an error later and later, from Retry to a minute, or as late as a *Later says.
func (p *Progress[S]) Run(ctx context.Context, round func(context.Context) (more bool, err error)) {
	retry := p.o.Retry
	for {
		more, err := round(ctx)
		if ctx.Err() != nil {
			return
		}
		p.tell(err)
		wait := p.o.Poll
		switch {
		case err != nil:
			wait = retry + rand.N(retry/2+1)
			retry = min(2*retry, lastRetry)
			if later := (*Later)(nil); errors.As(err, &later) {
				wait = max(wait, min(later.After, MaxRetryAfter))
			}
		case more:
			retry = p.o.Retry
			continue
		default:
			retry = p.o.Retry
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// tell records why the delivery waits, and logs a change.
func (p *Progress[S]) tell(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil && p.err != "":
		p.err = ""
		p.o.Logger.Info("the "+p.o.Kind+" works again", "sink", p.o.Name)
	case err != nil:
		if p.err == "" {
			p.o.Logger.Error(p.o.Stays, "sink", p.o.Name, "error", err)
		}
		p.err = err.Error()
	}
}
