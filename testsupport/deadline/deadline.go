// Package deadline lets tests make a deadline pass at a chosen moment, however
// fast or slow the machine is.
package deadline

import "context"

// Context is a context whose deadline passes when the test calls Lapse.
type Context struct {
	context.Context // for Value only
	lapsed          chan struct{}
}

// New returns a context whose deadline has not passed. It does not end with
// parent.
func New(parent context.Context) Context { return Context{parent, make(chan struct{})} }

// Lapse makes the deadline pass. It is called once.
func (c Context) Lapse() { close(c.lapsed) }

// Done implements [context.Context].
func (c Context) Done() <-chan struct{} { return c.lapsed }

// Err implements [context.Context].
func (c Context) Err() error {
	select {
	case <-c.lapsed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
