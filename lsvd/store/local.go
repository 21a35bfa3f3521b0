package store

import "context"

// Local is offered by stores whose objects are as cheap to read as a local file:
// small pieces one by one cost no more than all of them together.
type Local interface {
	// ReadObject fills p from off of an object that is never replaced. After
	// the object was deleted it may go on to succeed for a while. Where the
	// object ends before p is full, it fails with InvalidArgument.
	ReadObject(ctx context.Context, key string, p []byte, off int64) error
	// ReadObjects makes reads as ReadObject makes them, all at once, and sets the
	// error of each.
	ReadObjects(ctx context.Context, reads []*ObjectRead)
}

// ObjectRead is a read of an object that is made with others.
type ObjectRead struct {
	Key string
	P   []byte
	Off int64
	Err error // how it ended
}
