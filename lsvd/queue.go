package lsvd

import (
	"miren.dev/runtime/lsvd/internal/wal"
)

// Queue queues a write for the next Commit, or for a committer that is already
// writing. It reports false if the write cannot be queued: if it is not of whole
// blocks, too large, out of range, or has to wait for others, or the disk fails.
// WriteAt then carries it out, or says why not.
//
// The caller must call Commit afterwards, before anything that waits.
func (d *Device) Queue(p []byte, off int64, w Completion) bool {
	n := int64(len(p))
	if n == 0 || n > min(maxExtent, d.opts.LogFile/4) || off%BlockSize != 0 || n%BlockSize != 0 || d.opts.manual ||
		!d.writable.Load() || d.check(off, n) != nil || !d.align.TryRLock() {
		return false
	}
	o := ops.Get().(*op)
	o.extents = append(o.extents, wal.Extent{Kind: wal.Data, LBA: uint64(off / BlockSize), Blocks: uint64(n / BlockSize), Data: p, CRCs: wal.Sums(p)})
	o.size, o.err, o.completion = n, nil, w
	d.qmu.Lock()
	d.queue = append(d.queue, o)
	d.qmu.Unlock()
	return true
}

// Commit writes what is queued, unless another committer is writing: then that
// one does.
func (d *Device) Commit() {
	d.qmu.Lock()
	if d.leading || len(d.queue) == 0 {
		d.qmu.Unlock()
		return
	}
	d.leading = true
	d.qmu.Unlock()
	d.commit(nil)
}

// completeBatch completes the operations of a record, but own. finishBatch must
// follow. The caller may hold mu.
func (d *Device) completeBatch(batch []*op, own *op, err error) {
	waiting := 0
	for _, o := range batch {
		if o.completion != nil {
			waiting++
		}
	}
	for i, o := range batch {
		if o.completion != nil {
			if err == nil {
				d.stats.written.Add(o.size)
			}
			d.align.RUnlock()
			waiting--
			o.completion.Done(err, waiting > 0)
			continue
		}
		o.err = err
		if o != own {
			o.done <- false // o belongs to its waiter from here on
		}
		batch[i] = nil
	}
}

// finishBatch calls BatchDone for the queued writes of a record.
func (d *Device) finishBatch(batch []*op) {
	for _, o := range batch {
		if o != nil {
			o.completion.BatchDone()
			o.completion = nil
			o.reuse()
		}
	}
}

// FlushLikely reports whether the user will probably request a long flush after the last
// writes. The caller may then begin it by FlushEarly, and a request that comes meanwhile
// may Join that flush.
func (d *Device) FlushLikely() bool { return !d.opts.RemoteFlush && d.wal.SyncLikely() }

// FlushEarly flushes before a flush is asked for.
func (d *Device) FlushEarly() {
	if err := d.wal.SyncEarly(); err != nil {
		d.fail(err)
	}
}

// Join is Flush without waiting: the goroutine that flushes already calls w. It
// reports false if no flush is under way; then the caller must call Flush.
func (d *Device) Join(w Completion) bool {
	return !d.opts.RemoteFlush && d.usableNow() == nil && d.wal.Join(func(err error) {
		if err != nil {
			err = d.fail(err)
		}
		w.Done(err, false)
		w.BatchDone()
	})
}

// reuse gives an operation back.
func (o *op) reuse() {
	clear(o.extents)
	o.extents = o.extents[:0]
	ops.Put(o)
}

// updateWritable sets whether writes may be queued. The caller holds mu.
func (d *Device) updateWritable() { d.writable.Store(d.usable() == nil && d.unsent < d.opts.MaxUnsent) }
