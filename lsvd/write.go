package lsvd

import (
	"context"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/wal"
	"miren.dev/runtime/pkg/errs"
)

// maxExtent bounds the data of one extent: 1 MiB. An operation has at most
// MaxData bytes; larger ones are split.
const maxExtent = 1 << 20

// op is an operation that waits for the committer.
type op struct {
	extents    []wal.Extent
	size       int64
	done       chan bool // true: you are the committer now; false: err is set
	err        error
	completion Completion // of a queued write: it is called instead of done
}

var ops = sync.Pool{New: func() any { return &op{done: make(chan bool, 1)} }}

// rounds is how many records one committer writes before it hands over: it
// goes on with what has come meanwhile, since waking another takes time.
const rounds = 4

// WriteAt writes p at off.
func (d *Device) WriteAt(ctx context.Context, p []byte, off int64, flags Flags) error {
	if err := d.check(off, int64(len(p))); err != nil {
		return err
	}
	if off%BlockSize != 0 || len(p)%BlockSize != 0 {
		if err := d.writeUnaligned(ctx, p, off); err != nil {
			return err
		}
	} else {
		d.align.RLock()
		err := d.writeBlocks(ctx, p, off)
		d.align.RUnlock()
		if err != nil {
			return err
		}
	}
	d.stats.written.Add(int64(len(p)))
	return d.fua(ctx, flags)
}

// Zero makes n bytes from off read as zeros.
func (d *Device) Zero(ctx context.Context, off, n int64, flags Flags) error {
	return d.clear(ctx, off, n, flags, wal.Zero)
}

// Trim tells that n bytes from off are not needed. Whole blocks of them read
// as zeros from then on; what remains at the ends is left as it is.
func (d *Device) Trim(ctx context.Context, off, n int64, flags Flags) error {
	return d.clear(ctx, off, n, flags, wal.Trim)
}

func (d *Device) clear(ctx context.Context, off, n int64, flags Flags, kind wal.Kind) error {
	if err := d.check(off, n); err != nil {
		return err
	}
	first, end := (off+BlockSize-1)/BlockSize, (off+n)/BlockSize
	if kind == wal.Zero {
		// The ends that are not whole blocks are written.
		head := min(first*BlockSize-off, n)
		if err := d.writeUnaligned(ctx, make([]byte, head), off); err != nil {
			return err
		}
		if tail := off + n - end*BlockSize; end >= first && tail > 0 {
			if err := d.writeUnaligned(ctx, make([]byte, tail), end*BlockSize); err != nil {
				return err
			}
		}
	}
	if end > first {
		d.align.RLock()
		o := ops.Get().(*op)
		o.extents = append(o.extents, wal.Extent{Kind: kind, LBA: uint64(first), Blocks: uint64(end - first)})
		err := d.submit(ctx, o)
		d.align.RUnlock()
		if err != nil {
			return err
		}
	}
	return d.fua(ctx, flags)
}

func (d *Device) fua(ctx context.Context, flags Flags) error {
	if flags&FUA == 0 {
		return nil
	}
	return d.Flush(ctx)
}

func (d *Device) check(off, n int64) error {
	if off < 0 || n < 0 || off > d.size.Load() || n > d.size.Load()-off {
		return errs.New(errs.InvalidArgument, "range %d+%d is outside of the disk's %d bytes", off, n, d.size.Load())
	}
	return nil
}

// writeUnaligned fills p up to whole blocks with what is there. No other write
// runs meanwhile.
func (d *Device) writeUnaligned(ctx context.Context, p []byte, off int64) error {
	if len(p) == 0 {
		return nil
	}
	first := off / BlockSize * BlockSize
	last := (off + int64(len(p)) + BlockSize - 1) / BlockSize * BlockSize
	buf := make([]byte, last-first)
	d.align.Lock()
	defer d.align.Unlock()
	if off > first {
		if err := d.readBlocks(ctx, buf[:BlockSize], first); err != nil {
			return err
		}
	}
	if off+int64(len(p)) < last && (off == first || last-first > BlockSize) {
		if err := d.readBlocks(ctx, buf[len(buf)-BlockSize:], last-BlockSize); err != nil {
			return err
		}
	}
	copy(buf[off-first:], p)
	return d.writeBlocks(ctx, buf, first)
}

func (d *Device) writeBlocks(ctx context.Context, p []byte, off int64) error {
	for len(p) > 0 {
		o := ops.Get().(*op)
		for size := 0; len(p) > 0 && size < wal.MaxData && size < int(d.opts.LogFile/4); {
			n := min(len(p), maxExtent, int(d.opts.LogFile/4)/BlockSize*BlockSize)
			o.extents = append(o.extents, wal.Extent{Kind: wal.Data, LBA: uint64(off / BlockSize), Blocks: uint64(n / BlockSize), Data: p[:n], CRCs: wal.Sums(p[:n])})
			p, off, size = p[n:], off+int64(n), size+n
		}
		if err := d.submit(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// submit logs and applies the extents of o, together with those of others. It
// takes o.
func (d *Device) submit(ctx context.Context, o *op) error {
	err := d.admit(ctx)
	if err == nil {
		o.size, o.err = 0, nil
		for i := range o.extents {
			o.size += int64(len(o.extents[i].Data))
		}
		d.enqueue(o)
		err = o.err
	}
	o.reuse()
	return err
}

func (d *Device) enqueue(o *op) {
	d.qmu.Lock()
	d.queue = append(d.queue, o)
	if d.leading {
		d.qmu.Unlock()
		if lead := <-o.done; !lead { // always answered: the committer never gives up
			return
		}
	} else {
		d.leading = true
		d.qmu.Unlock()
	}
	d.commit(o)
}

// commit logs the operations of the queue, and hands over to a waiting writer if
// more come all the time. The caller is the committer; own, which is not nil
// unless it only commits what others queued, is its own operation. What
// committers use in turn is in the fields of Device.
func (d *Device) commit(own *op) {
	for round := 1; ; round++ {
		if d.commitRecord(own) {
			own = nil
		}
		d.qmu.Lock()
		if len(d.queue) == 0 {
			d.leading = false
			d.qmu.Unlock()
			return
		}
		if own == nil && (round >= rounds || d.opts.manual) {
			if i := slices.IndexFunc(d.queue, func(o *op) bool { return o.completion == nil }); i >= 0 {
				d.queue[i].done <- true
				d.qmu.Unlock()
				return
			}
		}
		d.qmu.Unlock()
	}
}

// commitRecord logs the operations at the front of the queue as one record,
// and reports whether own was one of them.
func (d *Device) commitRecord(own *op) (mine bool) {
	d.qmu.Lock()
	extents, batch := d.extents[:0], d.batch[:0]
	size := int64(0)
	limit := min(wal.MaxData, d.opts.LogFile/2)
	for _, o := range d.queue {
		if len(batch) > 0 && (size+o.size > limit || len(extents)+len(o.extents) > wal.MaxExtents/4) {
			break
		}
		extents = append(extents, o.extents...)
		size += o.size
		batch = append(batch, o)
		mine = mine || o == own
	}
	n := copy(d.queue, d.queue[len(batch):])
	clear(d.queue[n:])
	d.queue = d.queue[:n]
	d.qmu.Unlock()

	chunks, err := d.wal.Append(extents, d.chunks[:0])
	for errs.Is(err, errs.ResourceExhausted) && d.awaitLogSpace(err) {
		chunks, err = d.wal.Append(extents, d.chunks[:0])
	}
	if errs.Is(err, errs.ResourceExhausted) { // the disk was closed or failed meanwhile
		if uerr := d.usableNow(); uerr != nil {
			err = uerr
		}
		d.completeBatch(batch, own, err)
	} else if err != nil {
		err = d.fail(err)
		d.completeBatch(batch, own, err)
	} else {
		now := d.opts.Now()
		d.mu.Lock()
		d.logFull = false
		// A write alone is answered first: a reader waits for mu, so it has
		// what is written, and the answer takes as long as this does.
		alone := len(batch) == 1 && batch[0].completion != nil
		if alone {
			d.completeBatch(batch, own, nil)
		}
		for i := range chunks {
			d.apply(&chunks[i], now)
		}
		d.mu.Unlock()
		if !alone {
			d.completeBatch(batch, own, nil)
		}
	}
	d.finishBatch(batch)
	clear(extents)
	clear(chunks)
	d.extents, d.chunks = extents[:0], chunks[:0]
	d.wal.Begin()
	clear(batch)
	d.batch = batch[:0]
	return mine
}

// logSpaceCheck is how often a write is tried again whose log has no room: others may
// have freed space of the file system or of Options.LogSpace.
const logSpaceCheck = 50 * time.Millisecond

// awaitLogSpace is called by the committer when the log has no room: the file system
// is full or Options.LogSpace used up.
// It has everything sent to the store that is not there, which frees files of the log,
// and returns when a write may be tried again. It returns false if the disk is closed
// or has failed. Writes wait meanwhile, however long: a full log is like a store that
// is behind.
func (d *Device) awaitLogSpace(why error) bool {
	d.mu.Lock()
	err, space := d.usable(), d.space
	first := err == nil && !d.logFull
	d.logFull = err == nil
	if err == nil {
		d.freeze()
	}
	d.mu.Unlock()
	if err != nil {
		return false
	}
	if first {
		d.logger.Warn("the log has no room: writes wait", "volume", d.vol.String(), "error", why)
	}
	if d.opts.manual {
		return d.Drain(context.Background()) == nil
	}
	d.wake()
	select {
	case <-space:
	case <-time.After(logSpaceCheck):
	}
	return true
}

// waitQueue returns when no operation is in the queue. No new ones may come.
func (d *Device) waitQueue() {
	d.align.Lock() // operations hold it for reading until they are done
	defer d.align.Unlock()
}

// extentBytes is what an extent counts of the bytes of a cut, beside its data.
const extentBytes = 64

// apply puts a logged extent into the active cut, which takes a copy of c. The
// caller holds mu.
func (d *Device) apply(c *wal.Chunk, now time.Time) {
	a := d.active
	if a.last == 0 {
		a.first, a.born = c.Seq, now
	}
	a.last, d.last = c.Seq, c.Seq
	bytes := int64(extentBytes)
	v := extent.Value{Src: c.Seq}
	if c.Kind == wal.Data {
		bytes += int64(c.Blocks) * BlockSize
	} else {
		v.Off = extent.Zero
	}
	a.chunks = append(a.chunks, *c)
	a.over.Set(c.LBA, c.Blocks, v)
	a.bytes += bytes
	d.unsent += bytes
	if d.unsent >= d.opts.MaxUnsent {
		d.updateWritable()
	}
	if a.bytes >= d.opts.CutBytes {
		d.freeze()
	}
}

// freeze ends the active cut. The caller holds mu.
func (d *Device) freeze() {
	if d.active.last == 0 {
		return
	}
	d.frozen = append(d.frozen, d.active)
	d.active = newCut()
	d.wake()
}

// admit waits while too much is unsent.
func (d *Device) admit(ctx context.Context) error {
	for {
		d.mu.RLock()
		err, full, space := d.usable(), d.unsent >= d.opts.MaxUnsent, d.space
		d.mu.RUnlock()
		if err != nil || !full {
			return err
		}
		if d.opts.manual {
			if err := d.Drain(ctx); err != nil {
				return err
			}
			continue
		}
		select {
		case <-space:
		case <-ctx.Done():
			return errs.Wrap(ctx.Err(), "write to %s, whose store is behind", d.vol)
		}
	}
}
