package lsvd

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/sched"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/internal/wal"
	"miren.dev/runtime/pkg/errs"
)

// idleMap is how long a stored leaf of the map stays in memory unused.
const idleMap = 30 * time.Second

// run is the background work of a disk: it freezes old cuts, sends frozen
// ones, makes checkpoints and collects garbage.
func (d *Device) run(ctx context.Context) {
	defer close(d.done)
	tick := time.NewTicker(max(d.opts.CutAge/4, 10*time.Millisecond))
	defer tick.Stop()
	var evicted time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.kick:
		case <-tick.C:
		}
		now := time.Now()
		d.opts.Memory.look(now)
		if now.Sub(evicted) > idleMap {
			evicted = now
			d.evict(true)
		}
		d.mu.Lock()
		if a := d.active; a.last != 0 && len(d.frozen) == 0 && d.opts.Now().Sub(a.born) >= d.opts.CutAge {
			d.freeze()
		}
		d.mu.Unlock()
		err := d.runMaintenance(ctx)
		if err == nil {
			err = d.idleMaintenance(ctx)
		}
		if err != nil && ctx.Err() == nil {
			if d.usableNow() != nil {
				return // failed for good
			}
			d.logger.Error("background work failed", "volume", d.vol.String(), "error", err)
		}
	}
}

// runMaintenance does what is due.
func (d *Device) runMaintenance(ctx context.Context) error {
	for {
		more, due := false, false
		err := d.publishing(ctx, func() error {
			err := d.retry(ctx, func() (err error) { more, err = d.publish(ctx); return err })
			if more {
				d.lastMaintenance = d.opts.Now()
			}
			if due = d.since >= d.opts.Checkpoint; err == nil && d.since >= 2*d.opts.Checkpoint && !d.opts.manual {
				err = d.retry(ctx, func() error { return d.tidy(ctx) }) // collecting takes long
			}
			return err
		})
		if err == nil && due {
			err = d.collectLater(ctx)
		}
		if err != nil || !more {
			return err
		}
		if !d.opts.manual {
			// One thing at a time, so that others get their turn at pub.
			d.wake()
			return nil
		}
	}
}

// collectLater has reclaim collect garbage, beside publishing, and then make a checkpoint.
func (d *Device) collectLater(ctx context.Context) error {
	if d.opts.manual {
		return d.collectAndCheckpoint(ctx)
	}
	err := d.publishing(ctx, func() error { d.collectDue = true; return nil })
	d.deleteLater(ctx)
	return err
}

// collectAndCheckpoint collects garbage and makes a checkpoint.
func (d *Device) collectAndCheckpoint(ctx context.Context) error {
	moved, err := d.collect(ctx)
	if err != nil && ctx.Err() == nil {
		d.logger.Warn("garbage collection failed, the next checkpoint tries again", "volume", d.vol.String(), "error", err)
	}
	return d.publishing(ctx, func() error {
		d.collectDue, d.collected = false, moved
		return d.retry(ctx, func() error { return d.tidy(ctx) })
	})
}

// idleMaintenance is for a disk to which nothing was written for a while: it frees
// the blocks that were overwritten or trimmed last, and GC goes on slowly.
func (d *Device) idleMaintenance(ctx context.Context) error {
	due := false
	err := d.publishing(ctx, func() error {
		d.mu.RLock()
		busy := len(d.frozen) > 0 || d.active.last != 0
		d.mu.RUnlock()
		idle := max(2*d.opts.CutAge, time.Second)
		if d.collected {
			idle /= 2 // there may be more
		}
		if due = !busy && d.opts.Now().Sub(d.lastMaintenance) >= idle; due {
			d.lastMaintenance = d.opts.Now()
			d.refillBudget(4 * max(d.opts.CutBytes/BlockSize, 1))
		}
		return nil
	})
	if err != nil || !due {
		return err
	}
	return d.collectLater(ctx)
}

// wake makes run look for work.
func (d *Device) wake() {
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// retry repeats f until it succeeds, the disk fails for good or is closed, or
// ctx ends. The caller holds pub.
func (d *Device) retry(ctx context.Context, f func() error) error {
	return d.retryWhile(ctx, d.usableNow, d.progress, f)
}

// progress changes when something was published. The caller holds pub.
func (d *Device) progress() uint64 { return d.man.ChainNext + d.man.Revision }

func (d *Device) retryWhile(ctx context.Context, usable func() error, progress func() uint64, f func() error) error {
	const least, most = 50 * time.Millisecond, 5 * time.Second
	for wait, was := least, progress(); ; {
		err := f()
		if now := progress(); now != was {
			wait, was = least, now // not all of it fails
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		if err := usable(); err != nil {
			return err
		}
		switch errs.ClassOf(err) {
		case errs.Corrupt, errs.Internal, errs.FailedPrecondition, errs.InvalidArgument, errs.AlreadyExists:
			return err // the same again would give the same
		}
		d.stats.failures.Add(1)
		d.logger.Warn("store operation failed, trying again", "volume", d.vol.String(), "error", err, "retry_in", wait)
		if d.opts.manual {
			return err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
		wait = min(2*wait, most)
	}
}

// Drain returns when everything acknowledged before it is in the store.
func (d *Device) Drain(ctx context.Context) error {
	if err := d.usableNow(); err != nil {
		return err
	}
	if err := d.pub.lock(ctx); err != nil {
		return err
	}
	defer d.pub.unlock()
	return d.retry(ctx, func() error { return d.drain(ctx, false) })
}

// drain freezes and publishes all that is there now, whatever is written
// meanwhile; for the last time it also writes a clean manifest. The caller
// holds pub.
func (d *Device) drain(ctx context.Context, clean bool) error {
	d.mu.Lock()
	d.freeze()
	n := len(d.frozen)
	d.mu.Unlock()
	for ; n > 0; n-- {
		if _, err := d.publish(ctx); err != nil {
			return err
		}
	}
	if clean {
		d.saveBoot(ctx, true)
		return d.checkpoint(ctx, true)
	}
	return nil
}

// uploads is how many segments of one disk are on their way at once.
const uploads = 4

// seals bounds how many segments are being built at once in this process, so
// that the disks' users get the processors too.
var seals = make(chan struct{}, max(1, runtime.NumCPU()/2))

// publish creates the segments of the oldest frozen cuts and lets the base map
// take over; it reports whether there was one. The caller holds pub.
//
// Segments are created several at a time and adopted in order. So a crash may
// leave some in the store before an earlier one is there. Open sees from the
// log that nothing is missing: it has them all, durably, until they are adopted.
func (d *Device) publish(ctx context.Context) (bool, error) {
	d.mu.RLock()
	cuts := slices.Clone(d.frozen[:min(len(d.frozen), uploads)])
	d.mu.RUnlock()
	if len(cuts) == 0 {
		return false, nil
	}
	if d.opts.manual {
		cuts = cuts[:1]
	}
	if len(cuts) > 1 {
		if err := d.wal.SyncTo(cuts[len(cuts)-1].last); err != nil {
			return false, d.fail(err)
		}
	}
	failed := make([]error, len(cuts))
	var wg sync.WaitGroup
	for i, c := range cuts[1:] {
		wg.Go(func() { failed[i+1] = d.uploadCut(ctx, c, d.chainRef(i+1)) })
	}
	failed[0] = d.uploadCut(ctx, cuts[0], d.chainRef(0))
	wg.Wait()
	if d.sinceConfirmed() > 2*d.opts.OwnerCheck {
		if err := d.askOwner(ctx); err != nil { // its fence may have been deleted
			return false, err
		}
	}
	for i, c := range cuts {
		if failed[i] != nil {
			return i > 0, failed[i]
		}
		d.adoptCut(c)
	}
	return true, nil
}

// chainRef is the segment that the frozen cut number k, from the oldest on, becomes.
// The caller holds pub.
func (d *Device) chainRef(k int) name.Ref {
	return name.Ref{Volume: d.vol, Kind: name.Data, Epoch: d.epoch, Num: d.man.ChainNext + uint64(k)}
}

// uploadCut creates the segment ref of a cut. It changes nothing but the cut. The
// caller holds pub.
func (d *Device) uploadCut(ctx context.Context, c *cut, ref name.Ref) error {
	if c.created {
		return nil
	}
	if err := d.seal(c, ref); err != nil {
		return d.fail(errs.Wrap(err, "seal cut %d-%d", c.first, c.last)) // the log cannot be read
	}
	err := d.create(ctx, ref, c.object)
	c.created = err == nil
	return err
}

// loadShare: if a segment has at least this part (one in so many) of a cut, all
// of the cut is read from the log, in its order.
const loadShare = 4

// seal builds the segment of a cut, once: an attempt of unknown outcome to
// create it is told apart by content.
func (d *Device) seal(c *cut, ref name.Ref) error {
	if c.object != nil {
		return nil
	}
	seals <- struct{}{}
	defer func() { <-seals }()
	c.defined = c.entries()
	blocks := uint64(0)
	for _, e := range c.defined {
		if !e.Zero {
			blocks += e.Blocks
		}
	}
	read := (*wal.Chunk).Read
	if blocks*loadShare >= uint64(c.bytes)/BlockSize {
		l := wal.Load(c.chunks)
		defer l.Free()
		read = l.Read
	}
	b, err := segment.Build(segment.Head{Ref: ref, First: c.first, Last: c.last, Plain: d.plain}, d.keys, d.opts.Random, c.defined, func(i int, first uint64, p []byte) error {
		return c.read(c.defined[i].LBA+first, p, read)
	})
	if err == nil {
		c.object = b
	}
	return err
}

// adoptCut adopts the segment of the oldest frozen cut, which the store has. The
// caller holds pub.
func (d *Device) adoptCut(c *cut) {
	s := manifest.Segment{Num: d.man.NextSegment, Ref: d.chainRef(0), Size: int64(len(c.object)), First: c.first, Last: c.last}
	d.cache.Add(&s, c.object)
	d.adopt(&s, c.defined)
	d.stats.published.Add(int64(s.Blocks) * BlockSize)
	d.refillBudget(gcRate * int64(s.Blocks))
	d.man.ChainNext++
	d.since++
	d.mu.Lock()
	d.frozen[0], d.frozen = nil, d.frozen[1:] // or the array would keep the cut, its segments included
	d.unsent -= c.bytes
	d.confirmed = d.opts.Now()
	d.updateWritable()
	close(d.space)
	d.space = make(chan struct{})
	d.mu.Unlock()
	d.waitForReaders()
	d.wal.Release(c.last)
	d.mu.Lock()
	if d.logFull { // now there may be room
		close(d.space)
		d.space = make(chan struct{})
	}
	d.mu.Unlock()
}

// adopt adds a data segment to the table and, over the base map, what it
// defines. The caller holds pub.
func (d *Device) adopt(s *manifest.Segment, entries []segment.Entry) {
	s.Blocks = 0
	for _, e := range entries {
		if !e.Zero {
			s.Blocks += e.Blocks
		}
	}
	d.man.Segments = append(d.man.Segments, *s)
	d.man.NextSegment = s.Num + 1
	d.man.Durable = s.Last
	d.mu.Lock()
	d.table[s.Num] = &seg{Segment: *s, live: s.Blocks}
	d.mu.Unlock()
	// Reads see the cut meanwhile; while Open adopts a chain there are none.
	block := uint32(0)
	for len(entries) > 0 {
		n := min(len(entries), 256)
		d.mu.Lock()
		block = segment.Define(d.recent, s.Num, block, entries[:n])
		d.mu.Unlock()
		sched.Yield()
		entries = entries[n:]
	}
}

// entries are what the cut defines, sorted by address.
func (c *cut) entries() []segment.Entry {
	var out []segment.Entry
	c.over.Walk(0, extent.MaxBlocks, func(lba, n uint64, v extent.Value) bool {
		out = append(out, segment.Entry{LBA: lba, Blocks: n, Seq: v.Src, Zero: v.IsZero()})
		return true
	})
	return out
}

// read fills p with the cut's data from lba, which is mapped, by what reads a
// chunk.
func (c *cut) read(lba uint64, p []byte, read func(*wal.Chunk, []byte, uint64) error) error {
	var err error
	c.over.Walk(lba, uint64(len(p)/BlockSize), func(_, _ uint64, v extent.Value) bool {
		err = read(c.chunk(v.Src), p, uint64(v.Off))
		return false
	})
	return err
}

// errChanged is why a manifest could not be written now.
var errChanged = errors.New("changes while it is written")

// replace writes the manifest. It becomes the device's only when it is known
// to be durable; an attempt of unknown outcome is repeated with a higher
// revision. The caller holds pub.
func (d *Device) replace(ctx context.Context, m *manifest.Manifest) error {
	m.Revision++
	for range 2 {
		began := d.opts.Now()
		v, err := d.st.Replace(ctx, name.Manifest(d.vol), m.Encode(name.Manifest(d.vol)), d.version)
		if err == nil {
			d.man, d.version = m, v
			d.mu.Lock()
			d.confirmed = began
			d.mu.Unlock()
			return nil
		}
		switch errs.ClassOf(err) {
		case errs.NotFound:
			return d.fail(errs.New(errs.NotFound, "volume %s was deleted", d.vol))
		case errs.Conflict:
		default:
			return err
		}
		have, v, err := manifest.LoadWith(ctx, d.st, name.Manifest(d.vol), d.keys)
		if err != nil {
			return err
		}
		switch {
		case d.succeeded(have.Epoch, have.Owner):
			return d.fenced(have.Owner)
		case have.Epoch < d.epoch:
			// A stale read, or a claim that was based on one. What m was made
			// from is not what is there: never write over it.
			return errs.New(errs.Unavailable, "manifest of %s was read stale, or %w", d.vol, errChanged)
		}
		// An earlier attempt of ours went through.
		d.version = v
		m.Revision = max(m.Revision, have.Revision+1)
	}
	return errs.New(errs.Unavailable, "manifest of %s: it %w", d.vol, errChanged)
}
