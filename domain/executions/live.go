package executions

import (
	"context"
	"io"
	"sync"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
)

// Live is the output of an attempt under way in this process, bounded.
type Live struct {
	attempt int64

	mu      sync.Mutex
	out     Output
	done    bool
	changed chan struct{} // closed at the next change
}

// Begin makes the output of an attempt visible for Logs until end is called. The
// caller begins before it records that the attempt runs: who reads of it finds its
// output.
func (s *Service) Begin(eid id.Execution, attempt int64) (l *Live, end func()) {
	l = &Live{attempt: attempt, changed: make(chan struct{})}
	s.live.Store(eid, l)
	return l, func() {
		s.live.CompareAndDelete(eid, l)
		l.change(func() { l.done = true })
	}
}

func (l *Live) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

// Output returns the output so far.
func (l *Live) Output() Output {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out
}

// SetResult sets what the program left as its result, up to the bound.
func (l *Live) SetResult(b []byte) {
	l.change(func() {
		l.out.Result, l.out.ResultTruncated = b[:min(len(b), execution.MaxOutput)], len(b) > execution.MaxOutput
	})
}

// next returns the output so far as soon as it differs from what was seen, in
// bytes, and whether it is complete.
func (l *Live) next(ctx context.Context, stdout, stderr int) (Output, bool, error) {
	for {
		l.mu.Lock()
		out, done, changed := l.out, l.done, l.changed
		l.mu.Unlock()
		if done || len(out.Stdout) > stdout || len(out.Stderr) > stderr {
			return out, done, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return out, false, ctx.Err()
		}
	}
}

// Stdout and Stderr keep output up to the bound. They discard the rest without an
// error, so that the program can go on.
func (l *Live) Stdout() io.Writer { return capture{l, &l.out.Stdout, &l.out.StdoutTruncated} }
func (l *Live) Stderr() io.Writer { return capture{l, &l.out.Stderr, &l.out.StderrTruncated} }

type capture struct {
	l         *Live
	buf       *[]byte
	truncated *bool
}

func (c capture) Write(b []byte) (int, error) {
	c.l.change(func() {
		room := execution.MaxOutput - len(*c.buf)
		*c.truncated = *c.truncated || len(b) > room
		*c.buf = append(*c.buf, b[:min(len(b), room)]...)
	})
	return len(b), nil
}

// Logs calls emit with the output of an execution: of an attempt under way on this
// server, or else of the last one; with follow until it has ended, attempt after
// attempt.
func (s *Service) Logs(ctx context.Context, project string, eid id.Execution, follow bool, emit func(*execution.Output) error) error {
	p := &printer{emit: emit}
	for {
		e, err := s.Get(ctx, project, eid)
		if err != nil {
			return err
		}
		if e.Status.Phase == execution.PhaseEnded {
			return s.lastLogs(ctx, e, p)
		}
		if v, ok := s.live.Load(eid); ok {
			if err := p.follow(ctx, v.(*Live), follow); err != nil || !follow {
				return err
			}
		} else if !follow {
			return s.lastLogs(ctx, e, p)
		}
		_, err = informer.Of[execution.Execution](s.Informers).After(ctx, e.ID, e.Revision)
		if err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
	}
}

// lastLogs emits the rest of the output of the last attempt that has ended.
func (s *Service) lastLogs(ctx context.Context, e *execution.Execution, p *printer) error {
	a := attemptOf(e, 0)
	if a == nil || a.Result == "" {
		return nil
	}
	out, err := s.output(ctx, a)
	if err != nil {
		return err
	}
	return p.print(a.Number, out, true)
}

// printer emits the output of attempts, each byte once.
type printer struct {
	emit           func(*execution.Output) error
	attempt        int64
	stdout, stderr int // bytes of the attempt that were emitted
	ended          bool
}

func (p *printer) follow(ctx context.Context, l *Live, wait bool) error {
	for {
		stdout, stderr := p.stdout, p.stderr
		if l.attempt != p.attempt {
			stdout, stderr = 0, 0
		}
		out, done, err := Output{}, true, error(nil)
		if wait {
			out, done, err = l.next(ctx, stdout, stderr)
		} else {
			out = l.Output()
		}
		if err != nil {
			return err
		}
		if err := p.print(l.attempt, &out, done && wait); err != nil || done {
			return err
		}
	}
}

// print emits what was not emitted yet of the output of an attempt; ended says
// that there will be no more.
func (p *printer) print(attempt int64, out *Output, ended bool) error {
	if attempt != p.attempt {
		if p.stdout+p.stderr > 0 {
			if err := p.emit(&execution.Output{Note: "another attempt follows"}); err != nil {
				return err
			}
		}
		p.attempt, p.stdout, p.stderr, p.ended = attempt, 0, 0, false
	}
	if b := out.Stdout[min(p.stdout, len(out.Stdout)):]; len(b) > 0 {
		p.stdout += len(b)
		if err := p.emit(&execution.Output{Attempt: &attempt, Stdout: b}); err != nil {
			return err
		}
	}
	if b := out.Stderr[min(p.stderr, len(out.Stderr)):]; len(b) > 0 {
		p.stderr += len(b)
		if err := p.emit(&execution.Output{Attempt: &attempt, Stderr: b}); err != nil {
			return err
		}
	}
	if ended && !p.ended && (out.StdoutTruncated || out.StderrTruncated) {
		p.ended = true
		return p.emit(&execution.Output{Note: "there was more output than is kept"})
	}
	return nil
}
