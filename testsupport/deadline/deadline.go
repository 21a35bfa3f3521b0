// Package deadline has tests let a deadline pass at the moment they mean, however
// fast or slow the machine is.
package deadline

import "context"

// Context is a context whose deadline passes when the test says so.
type Context struct {
	context.Context // values only
	lapsed          chan struct{}
}

// New returns a context whose deadline has not passed. It does not end with
// parent.
func New(parent context.Context) Context { return Context{parent, make(chan struct{})} }

// Lapse lets the deadline pass. It is called once.
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
