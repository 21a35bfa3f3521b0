package mock

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// history is output of a detached process: all of it is kept.
type history struct {
	mu   sync.Mutex
	cond sync.Cond
	b    []byte
	end  bool
}

func newHistory() *history {
	h := new(history)
	h.cond.L = &h.mu
	return h
}

func (h *history) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b = append(h.b, b...)
	h.cond.Broadcast()
	return len(b), nil
}

func (h *history) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end = true
	h.cond.Broadcast()
}

// cursor reads a history.
type cursor struct {
	h    *history
	at   int64 // guarded by h.mu
	gone error // guarded by h.mu
}

func (c *cursor) Read(b []byte) (int, error) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	for c.at >= int64(len(c.h.b)) && !c.h.end && c.gone == nil {
		c.h.cond.Wait()
	}
	if c.gone != nil {
		return 0, c.gone
	}
	if c.at >= int64(len(c.h.b)) {
		return 0, io.EOF
	}
	n := copy(b, c.h.b[c.at:])
	c.at += int64(n)
	return n, nil
}

func (c *cursor) offset() int64 {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	return c.at
}

func (c *cursor) stop(err error) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	if c.gone == nil {
		c.gone = err
	}
	c.h.cond.Broadcast()
}

// attached is a caller's view of a detached process.
type attached struct {
	*process
	out, err *cursor
	left     chan struct{} // closed when the caller has it no more
	once     sync.Once
}

func (p *process) attach(stdout, stderr int64) *attached {
	a := &attached{process: p, out: &cursor{h: p.outHistory, at: stdout}, err: &cursor{h: p.errHistory, at: stderr}, left: make(chan struct{})}
	p.mu.Lock()
	old := p.holder
	p.holder = a
	p.mu.Unlock()
	if old != nil {
		old.leave()
	}
	return a
}

func (a *attached) leave() {
	err := errs.New(errs.Canceled, "another caller continues the process")
	a.out.stop(err)
	a.err.stop(err)
	a.once.Do(func() { close(a.left) })
}

func (a *attached) Stdout() io.Reader       { return a.out }
func (a *attached) Stderr() io.Reader       { return a.err }
func (a *attached) Offsets() (int64, int64) { return a.out.offset(), a.err.offset() }
func (a *attached) Detach()                 { a.leave() }

func (a *attached) Wait(ctx context.Context) (int, error) {
	select {
	case <-a.left:
		return 0, errs.New(errs.Canceled, "another caller continues the process")
	default:
	}
	select {
	case <-a.left:
		return 0, errs.New(errs.Canceled, "another caller continues the process")
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-a.exited:
		return a.process.Wait(ctx)
	}
}

func (a *attached) Close() error {
	a.leave()
	b := a.box
	b.mu.Lock()
	delete(b.listed, a.process)
	b.mu.Unlock()
	a.signal(9)
	return nil
}

func (p *process) info() execution.ProcessInfo {
	i := execution.ProcessInfo{ID: p.id, PID: p.number, Command: p.args, Tag: p.tag, StartedAt: p.started, TTY: p.tty, Detached: p.outHistory != nil}
	select {
	case <-p.exited:
		p.mu.Lock()
		i.Exit = &execution.Exit{Cause: execution.CauseExit, Code: p.code, At: time.Now()}
		p.mu.Unlock()
	default:
	}
	return i
}

// Processes implements execution.Driver.
func (d *Driver) Processes(_ context.Context, id string) (list []execution.ProcessInfo, err error) {
	err = d.call("Processes", id, func() error {
		b := d.m.box(id)
		if b == nil {
			return gone(id)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		for p := range b.listed {
			list = append(list, p.info())
		}
		slices.SortFunc(list, func(a, b execution.ProcessInfo) int { return b.StartedAt.Compare(a.StartedAt) })
		return nil
	})
	return list, err
}

// Attach implements execution.Driver.
func (d *Driver) Attach(_ context.Context, id, process string, stdout, stderr int64) (p execution.Process, err error) {
	err = d.call("Attach", id, func() error {
		b := d.m.box(id)
		if b == nil {
			return gone(id)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		for x := range b.listed {
			if x.id == process && x.outHistory != nil {
				p = x.attach(stdout, stderr)
				return nil
			}
		}
		return errs.New(errs.NotFound, "sandbox %s has no process %q", id, process)
	})
	return p, err
}
