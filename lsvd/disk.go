package lsvd

import "context"

// Disk is what front ends serve and metrics count; [Device] is one. Its methods
// are called concurrently, and keep no slice after they have returned.
//
// A Disk may also be a [Queuer], a [Flusher] and a [Reader]: front ends that have
// several requests at a time use those, and the methods of Disk for the rest.
type Disk interface {
	Size() int64
	ReadAt(ctx context.Context, p []byte, off int64) error
	WriteAt(ctx context.Context, p []byte, off int64, flags Flags) error
	Zero(ctx context.Context, off, n int64, flags Flags) error
	Trim(ctx context.Context, off, n int64, flags Flags) error
	Flush(ctx context.Context) error
	// Status calls f for ranges of off to off+n, in order, until f returns
	// false. A hole reads as zeros and takes no room.
	Status(off, n int64, f func(off, n int64, hole bool) bool) error
}

// Completion is called when a queued write, a read of a batch or a joined flush has
// ended. The goroutine that carries it out calls Done and BatchDone, among operations
// of other callers: they must not block, nor call the disk. The data is the caller's
// again once Done is called.
type Completion interface {
	// Done says how it ended. Others that have ended together may follow: then
	// more is set.
	Done(err error, more bool)
	// BatchDone comes after Done was called for all that ended together.
	BatchDone()
}

// Queuer is a disk that queues writes and does not make the caller wait.
type Queuer interface {
	Queue(p []byte, off int64, w Completion) bool
	Commit()
}

// Flusher is a disk that begins a flush before it is asked to.
type Flusher interface {
	FlushLikely() bool
	FlushEarly()
	Join(w Completion) bool
}

// Reader is a disk that makes several reads with one call.
type Reader interface {
	// ReadBatch calls the completion of each read when it has ended, some of them
	// after it has returned.
	ReadBatch(ctx context.Context, reads []Read)
}

var (
	_ Disk    = (*Device)(nil)
	_ Queuer  = (*Device)(nil)
	_ Flusher = (*Device)(nil)
	_ Reader  = (*Device)(nil)
)
