package store

import "context"

// Local is offered by stores whose objects are as cheap to read as a local file:
// small pieces one by one cost no more than all of them together.
type Local interface {
	// ReadObject fills p from off of an object that is never replaced. After
	// the object was deleted it may go on to succeed for a while. Where the
	// object ends before p is full, it fails with InvalidArgument.
	ReadObject(ctx context.Context, key string, p []byte, off int64) error
	// BeginReads begins reads as ReadObject makes them, all at once, without
	// waiting for them.
	BeginReads(reads []*ObjectRead)
}

// ObjectRead is a read of an object that is begun with others.
type ObjectRead struct {
	Key        string
	P          []byte // the store's until Done is called
	Off        int64
	Completion Completion
}

// Completion is called when a read of an object that was begun has ended. One
// goroutine calls the completions of all readers: they must not block. They may
// be called before BeginReads returns.
type Completion interface {
	// Done says how it ended. Others that have ended together may follow: then
	// more is set.
	Done(err error, more bool)
	// BatchDone comes after Done was called for all that ended together.
	BatchDone()
}
