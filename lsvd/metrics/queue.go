package metrics

import (
	"context"
	"sync"
	"time"

	"miren.dev/runtime/lsvd"
)

// queued is a write that was queued, or a flush that was joined.
type queued struct {
	d     *Disk
	op    Op
	w     lsvd.Completion
	n     int64
	began time.Time
}

var queuedPool = sync.Pool{New: func() any { return new(queued) }}

// Queue is that of [lsvd.Device], if the disk is one.
func (d *Disk) Queue(p []byte, off int64, w lsvd.Completion) bool {
	b, ok := d.Disk.(lsvd.Queuer)
	if !ok {
		return false
	}
	return d.begin(Write, int64(len(p)), w, func(q *queued) bool { return b.Queue(p, off, q) })
}

// begin counts an operation that ends by its Waiter, if f takes it.
func (d *Disk) begin(op Op, n int64, w lsvd.Completion, f func(*queued) bool) bool {
	q := queuedPool.Get().(*queued)
	*q = queued{d: d, op: op, w: w, n: n, began: time.Now()}
	d.busy.Add(1)
	if !f(q) {
		d.busy.Add(-1)
		queuedPool.Put(q)
		return false
	}
	return true
}

// Commit is that of [lsvd.Device].
func (d *Disk) Commit() {
	if b, ok := d.Disk.(lsvd.Queuer); ok {
		b.Commit()
	}
}

// FlushLikely is that of [lsvd.Device].
func (d *Disk) FlushLikely() bool {
	b, ok := d.Disk.(lsvd.Flusher)
	return ok && b.FlushLikely()
}

// FlushEarly is that of [lsvd.Device]. It is not counted: no caller asked for it.
func (d *Disk) FlushEarly() {
	if b, ok := d.Disk.(lsvd.Flusher); ok {
		b.FlushEarly()
	}
}

// Join is that of [lsvd.Device], if the disk is one.
func (d *Disk) Join(w lsvd.Completion) bool {
	b, ok := d.Disk.(lsvd.Flusher)
	return ok && d.begin(Flush, 0, w, func(q *queued) bool { return b.Join(q) })
}

// Done implements [lsvd.Completion].
func (q *queued) Done(err error, more bool) {
	q.d.count(q.op, q.n, time.Since(q.began), err)
	q.w.Done(err, more)
}

// BatchDone implements [lsvd.Completion].
func (q *queued) BatchDone() {
	w := q.w
	*q = queued{}
	queuedPool.Put(q)
	w.BatchDone()
}

// ReadBatch is that of [lsvd.Device], if the disk is one.
func (d *Disk) ReadBatch(ctx context.Context, reads []lsvd.Read) {
	counted := make([]lsvd.Read, len(reads))
	for i, r := range reads {
		d.begin(Read, int64(len(r.P)), r.Completion, func(q *queued) bool {
			counted[i] = lsvd.Read{P: r.P, Off: r.Off, Completion: q}
			return true
		})
	}
	if b, ok := d.Disk.(lsvd.Reader); ok {
		b.ReadBatch(ctx, counted)
		return
	}
	for _, r := range counted {
		r.Completion.Done(d.Disk.ReadAt(ctx, r.P, r.Off), false)
		r.Completion.BatchDone()
	}
}
