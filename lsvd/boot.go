package lsvd

import (
	"cmp"
	"context"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"miren.dev/runtime/lsvd/internal/boot"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/readcache"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// What a machine reads first from its disk is the same each time it boots. So
// a disk in a remote store notes which blocks are read in the first minute, up to
// 64 MiB, in order; the list is an object that the manifest names, and through
// manifests it comes to snapshots and clones. When such a disk is opened, what
// the list has is prefetched into the cache, in that order, while it is in use.
//
// It is a hint: without it, and with any other in its place, reads give the
// same. What cannot be read of it is said in the log and nowhere else.
const (
	bootTime   = time.Minute // how long a disk is watched
	bootFrames = 16          // most frames that one request fetches
	bootLimit  = 16          // requests at once
	bootYield  = 4           // of these, while a read waits for another one
)

// recorder notes what is read first.
type recorder struct {
	on atomic.Bool // reads are noted

	mu     sync.Mutex
	until  time.Time
	before uint64 // only segments with lower numbers count: they were there
	list   []boot.Piece
	at     map[uint64]int // by address, in list
	whole  bool           // nothing will be added

	saved   int          // pieces of it that were stored; -1: all that ever will be
	old     []boot.Piece // the list that the manifest had
	damaged bool         // which was of no use

	// Under pub.
	ref  *name.Ref // stored, not yet in the manifest
	next uint64    // number of the next one
}

// begin begins to note.
func (r *recorder) begin(now time.Time, before uint64) {
	r.until, r.before, r.at = now.Add(bootTime), before, map[uint64]int{}
	r.on.Store(true)
}

// note adds what a read found in segments.
func (r *recorder) note(now time.Time, pieces []piece) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !now.Before(r.until) {
		r.end()
	}
	for i := range pieces {
		x := &pieces[i]
		if x.seg == nil || x.seg.Num >= r.before {
			continue
		}
		for lba, end := x.lba, x.lba+x.n; lba < end && !r.whole; {
			at := lba / boot.PieceBlocks
			n := min(end, (at+1)*boot.PieceBlocks) - lba
			i, ok := r.at[at]
			if !ok {
				if i = len(r.list); i == boot.MaxPieces {
					r.end()
					return
				}
				r.at[at] = i
				r.list = append(r.list, boot.Piece{Address: at})
			}
			r.list[i].Blocks |= uint16((1<<n - 1) << (lba % boot.PieceBlocks))
			lba += n
		}
	}
}

// end ends the noting. The caller holds mu.
func (r *recorder) end() {
	r.whole, r.at = true, nil
	r.on.Store(false)
}

// due returns the list if it is worth to be stored: when it is whole and differs
// from the one there is; or, if asked to be quick, what it has when there is
// none, or only an earlier part of it.
func (r *recorder) due(now time.Time, has, quick bool) []boot.Piece {
	r.mu.Lock()
	defer r.mu.Unlock()
	has = has && !r.damaged
	if r.saved < 0 || r.at == nil && !r.whole {
		return nil
	}
	if !r.whole && !now.Before(r.until) {
		r.end()
	}
	if !r.whole && (!quick || has && r.saved == 0) || len(r.list) == r.saved {
		return nil
	}
	if r.whole && (len(r.list) == 0 || has && alike(r.list, r.old)) {
		r.saved, r.list, r.old = -1, nil, nil
		return nil
	}
	return slices.Clone(r.list)
}

// alike tells that each list has nearly all pieces of the other.
func alike(a, b []boot.Piece) bool {
	in := map[uint64]uint16{}
	for _, p := range a {
		in[p.Address] = p.Blocks
	}
	both := 0
	for _, p := range b {
		if in[p.Address] == p.Blocks {
			both++
		}
	}
	return both*8 >= max(len(a), len(b))*7
}

// saveBoot stores the list if it is due; the next manifest names it. It reports
// whether one waits for that. The caller holds pub.
func (d *Device) saveBoot(ctx context.Context, quick bool) bool {
	r := &d.boot
	list := r.due(d.opts.Now(), d.man.Boot != nil, quick)
	if list == nil {
		return r.ref != nil
	}
	ref := name.Ref{Volume: d.vol, Kind: name.Boot, Epoch: d.epoch, Num: r.next}
	r.next++
	if err := d.create(ctx, ref, boot.Encode(ref, list)); err != nil {
		d.discard(ref)
		d.logger.Warn("what the disk reads first could not be stored, the next checkpoint tries again", "volume", d.vol.String(), "error", err)
		return r.ref != nil
	}
	if r.ref != nil {
		d.discard(*r.ref)
	}
	r.ref = &ref
	r.mu.Lock()
	defer r.mu.Unlock()
	r.saved, r.damaged = len(list), false
	if r.whole && len(list) == len(r.list) {
		r.saved, r.list, r.old = -1, nil, nil
	}
	return true
}

// bootList is a list that is on its way.
type bootList struct {
	done    chan struct{}
	list    []boot.Piece
	damaged bool
}

// askBoot begins to read the list that the manifest names.
func (d *Device) askBoot() *bootList {
	x := &bootList{done: make(chan struct{})}
	m := d.man
	get := func() {
		defer close(x.done)
		if !d.cache.Local() {
			x.list, x.damaged = d.loadBoot(d.cache.Context(), m)
		}
	}
	if d.opts.manual {
		get()
	} else {
		d.cache.Go(get)
	}
	return x
}

// beginBoot begins to read ahead what is in the list, and to note what is read.
func (d *Device) beginBoot(x *bootList) {
	if d.cache.Local() {
		return
	}
	r := &d.boot
	r.begin(d.opts.Now(), d.man.NextSegment)
	use := func() {
		<-x.done
		r.mu.Lock()
		r.old, r.damaged = x.list, x.damaged
		r.mu.Unlock()
		d.prefetch(x.list)
	}
	if d.opts.manual {
		use()
	} else {
		d.cache.Go(use)
	}
}

// loadBoot reads the list that m names. It returns none if there is none to be
// had.
func (d *Device) loadBoot(ctx context.Context, m *manifest.Manifest) (list []boot.Piece, damaged bool) {
	if m.Boot == nil {
		return nil, false
	}
	err := store.RetryCorrupt(func() error {
		b, err := d.st.GetRange(ctx, m.Boot.Key(), 0, boot.MaxSize+1)
		if err == nil {
			list, err = boot.Decode(*m.Boot, b)
		}
		return err
	})
	if err == nil || ctx.Err() != nil {
		return list, false
	}
	d.logger.Warn("what the disk reads first is not read ahead: the list of it cannot be used", "volume", d.vol.String(), "list", m.Boot.String(), "error", err)
	return nil, errs.Is(err, errs.Corrupt) || errs.Is(err, errs.NotFound)
}

// prefetch fetches the blocks of the list into the cache, up to half of it.
func (d *Device) prefetch(list []boot.Piece) {
	c := d.cache
	most := int(min(bootFrames, c.Budget()/4/bootLimit/segment.FrameSize)) // see planPrefetch
	if most == 0 {
		return
	}
	var lanes limiter
	lanes.freed.L = &lanes.mu
	defer lanes.enter(func() int { return 1 }) // all have left then
	var brought atomic.Int64
	for len(list) > 0 {
		now := list[:min(len(list), bootFrames)]
		list = list[len(now):]
		for _, x := range d.framesOf(now, most) {
			if c.Context().Err() != nil || brought.Load() >= c.Budget()/2 {
				return
			}
			bring := func() {
				c.PrefetchNow(readcache.Range{Segment: x.s, Block: uint64(x.first) * segment.FrameBlocks, Blocks: x.blocks()}, func(n int64) { brought.Add(n) })
			}
			if d.opts.manual {
				bring()
				continue
			}
			lanes.enter(func() int {
				if c.Busy() {
					return bootYield
				}
				return bootLimit
			})
			c.Go(func() {
				defer lanes.leave()
				bring()
			})
		}
	}
}

// frameRange is frames of a segment, in a row.
type frameRange struct {
	s           *manifest.Segment
	first, last int
}

// blocks is how many blocks they have.
func (x frameRange) blocks() uint64 {
	return min(uint64(x.last+1)*segment.FrameBlocks, x.s.Blocks) - uint64(x.first)*segment.FrameBlocks
}

// framesOf returns the frames that have the pieces of a list, by segment and in
// order, each once, at most so many in a row.
func (d *Device) framesOf(list []boot.Piece, most int) []frameRange {
	var all []frameRange
	size := uint64(d.size.Load() / BlockSize)
	for _, p := range list {
		for mask := p.Blocks; mask != 0; {
			from := bits.TrailingZeros16(mask)
			n := bits.TrailingZeros16(^(mask >> from))
			mask &^= uint16((1<<n - 1) << from)
			lba := p.Address*boot.PieceBlocks + uint64(from)
			if lba+uint64(n) > size {
				continue // the list may be of a larger disk, or of any
			}
			pieces, g, err := d.locate(d.cache.Context(), lba, uint64(n), nil)
			if err != nil {
				continue // a read of these blocks reports the error
			}
			g.exit()
			for _, x := range pieces {
				if x.seg != nil && !x.seg.lost {
					all = append(all, frameRange{&x.seg.Segment, int(x.block / segment.FrameBlocks), int((x.block + x.n - 1) / segment.FrameBlocks)})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b frameRange) int { return cmp.Or(cmp.Compare(a.s.Num, b.s.Num), cmp.Compare(a.first, b.first)) })
	out := all[:0]
	for _, x := range all {
		if k := len(out) - 1; k >= 0 && out[k].s == x.s && x.first <= out[k].last+1 && max(x.last, out[k].last)-out[k].first < most {
			out[k].last = max(x.last, out[k].last)
		} else {
			out = append(out, x)
		}
	}
	return out
}

// limiter bounds what is under way at once.
type limiter struct {
	mu    sync.Mutex
	freed sync.Cond
	busy  int
}

// enter waits until fewer than most are busy.
func (l *limiter) enter(most func() int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.busy >= most() {
		l.freed.Wait()
	}
	l.busy++
}

func (l *limiter) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy--
	l.freed.Signal()
}
