package rpc

import (
	"context"
	"errors"
	"sync"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// callContext is the context of a handler. It allocates nothing until a handler
// waits for its end, which handlers of small calls rarely do.
type callContext struct {
	call     *serverCall
	deadline time.Time

	mu    sync.Mutex
	done  chan struct{} // nil until asked for
	err   error
	cause error
	timer *time.Timer
	after map[*func()]struct{}
}

// Deadline implements context.Context.
func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

var closedChan = func() chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()

// Done implements context.Context.
func (c *callContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doneLocked()
}

func (c *callContext) doneLocked() chan struct{} {
	if c.done == nil {
		if c.err != nil {
			c.done = closedChan
		} else {
			c.done = make(chan struct{})
			c.startTimerLocked()
		}
	}
	return c.done
}

func (c *callContext) startTimerLocked() {
	if c.timer == nil && !c.deadline.IsZero() && c.err == nil {
		c.timer = time.AfterFunc(time.Until(c.deadline), func() { c.call.cancel(context.DeadlineExceeded, nil) })
	}
}

// Err implements context.Context.
func (c *callContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && c.timer == nil && !c.deadline.IsZero() && !time.Now().Before(c.deadline) {
		c.cancelLocked(context.DeadlineExceeded, nil)
	}
	return c.err
}

// Value implements context.Context.
func (c *callContext) Value(key any) any {
	switch key {
	case keyCall:
		return c.call
	case keyRequestID:
		return c.call.requestID
	case keyTrace:
		return c.call.trace
	}
	return nil
}

// AfterFunc lets contexts derived from this one do without a goroutine; see
// package context.
func (c *callContext) AfterFunc(f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go f()
		return func() bool { return false }
	}
	c.startTimerLocked()
	if c.after == nil {
		c.after = map[*func()]struct{}{}
	}
	key := &f
	c.after[key] = struct{}{}
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, ok := c.after[key]
		delete(c.after, key)
		return ok
	}
}

// cancel ends the context. It reports whether it was the first to do so.
func (c *callContext) cancel(err, cause error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cancelLocked(err, cause)
}

func (c *callContext) cancelLocked(err, cause error) bool {
	if c.err != nil {
		return false
	}
	c.err, c.cause = err, cause
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.done != nil {
		close(c.done)
	}
	for f := range c.after {
		go (*f)()
	}
	c.after = nil
	return true
}

// endedBy returns what ended the context before the handler returned, or nil.
func (c *callContext) endedBy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return c.cause
	}
	if c.err != nil {
		return errs.New(errs.ClassOf(c.err), "the call was ended: %w", c.err)
	}
	return nil
}

// Stopping reports whether the stop of the server ended the call of a handler whose
// context is ctx, and not its caller.
func Stopping(ctx context.Context) bool {
	sc, ok := ctx.Value(keyCall).(*serverCall)
	return ok && errors.Is(sc.ctx.endedBy(), errShutdown)
}
