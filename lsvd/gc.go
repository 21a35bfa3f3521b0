package lsvd

import (
	"cmp"
	"context"
	"slices"
	"time"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/reclaim"
	"miren.dev/runtime/lsvd/internal/sched"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/pkg/errs"
)

// move is a live piece of a segment that GC is about to empty.
type move struct {
	lba, n uint64
	from   extent.Value
	seq    uint64
	seg    *seg
}

// gcRate bounds what GC moves, as a multiple of what is written.
const gcRate = 2

// heldPause is how long an idle disk whose garbage is all in segments that
// others hold does not look again whether they still do.
const heldPause = time.Minute

// GC moves live data out of the segments that are most worth it until the
// stored blocks are at most ratio times the live ones, and deletes what that
// frees. Segments of snapshots stay as they are, and so do those that other
// volumes use too: to copy them for each would store the same many times. So what
// clones share takes no more space than when they were made. It reports how many
// segments it emptied.
func (d *Device) GC(ctx context.Context, ratio float64) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // Close waits for it
		select {
		case <-d.ending:
			cancel()
		case <-ctx.Done():
		}
	}()
	total, err := d.collectAll(ctx, ratio)
	if failed := d.usableNow(); failed != nil {
		return total, failed
	}
	d.tryDelete(ctx)
	return total, err
}

// collectAll is GC without the deletion of the emptied segments.
func (d *Device) collectAll(ctx context.Context, ratio float64) (total int, err error) {
	if err := d.collecting.lock(ctx); err != nil {
		return 0, err
	}
	defer d.collecting.unlock()
	for round := 1; ; round++ {
		n := 0
		collect := func() (err error) { n, _, err = d.collectRound(ctx, ratio, 1<<40, round == 1); return err }
		if err := d.retryWhile(ctx, d.usableNow, func() uint64 { return 0 }, collect); err != nil {
			return total, err
		}
		total += n
		if n == 0 || round%8 == 0 {
			if err := d.publishing(ctx, func() error { return d.retry(ctx, func() error { return d.tidy(ctx) }) }); err != nil {
				return total, err
			}
		}
		if n == 0 {
			return total, nil
		}
	}
}

// publishing calls f, on a disk that can be used, with pub held.
func (d *Device) publishing(ctx context.Context, f func() error) error {
	if err := d.pub.lock(ctx); err != nil {
		return err
	}
	defer d.pub.unlock()
	if err := d.usableNow(); err != nil {
		return err
	}
	return f()
}

// tidy makes a checkpoint if that would change or free something. The caller
// holds pub.
func (d *Device) tidy(ctx context.Context) error {
	boot := d.saveBoot(ctx, false)
	d.mu.RLock()
	left := len(d.doomed) > 0
	need := boot || d.since > 0 || d.dirty || !d.recent.Empty() || len(d.garbage) > 0
	for _, s := range d.table {
		need = need || s.live == 0 && !s.moving
	}
	d.mu.RUnlock()
	if need {
		return d.checkpoint(ctx, false)
	}
	if left {
		d.deleteLater(ctx)
	}
	return nil
}

// collect moves what the budget allows if the configured ratio is exceeded, and reports
// whether it moved anything. The next checkpoint frees the emptied segments.
func (d *Device) collect(ctx context.Context) (moved bool, err error) {
	if err := d.collecting.lock(ctx); err != nil {
		return false, err
	}
	defer d.collecting.unlock()
	for {
		var budget int64
		busy := false
		err := d.publishing(ctx, func() error {
			if budget = d.budget; d.man.Revision == d.heldAt && d.opts.Now().Sub(d.heldSince) < heldPause {
				budget = 0
			}
			d.mu.RLock()
			defer d.mu.RUnlock()
			busy = len(d.frozen) > 0 && !d.opts.manual
			return nil
		})
		// Publishing of new writes comes first.
		if err != nil || budget <= 0 || moved && busy {
			return moved, err
		}
		n, blocks, err := d.collectRound(ctx, d.opts.GCRatio, budget, false)
		moved = moved || blocks > 0
		if err != nil || n == 0 {
			return moved, err
		}
	}
}

// refillBudget adds blocks to the number that GC may move. The budget is bounded
// by the writes of four checkpoints.
func (d *Device) refillBudget(blocks int64) {
	d.budget = min(d.budget+blocks, 4*int64(d.opts.Checkpoint)*max(d.opts.CutBytes/BlockSize, 1))
}

// collectRound empties segments, until one of GC's own is full or blocks were
// moved; it reports how many segments, and how many blocks it moved. What others
// name stays: moving it would free nothing, and store the same twice. They are asked anew
// if asked is set. The caller holds collecting, and not pub: data is read and stored
// beside publishing.
func (d *Device) collectRound(ctx context.Context, ratio float64, blocks int64, ask bool) (segments int, moved uint64, err error) {
	victims, ref, err := d.pickVictims(ctx, ratio, blocks, ask)
	if err != nil || len(victims) == 0 {
		return 0, 0, err
	}
	defer d.release(victims)
	var moves []move
	for _, v := range victims {
		if d.liveOf(v) == 0 {
			continue // and it may be deleted, if the last checkpoint went through unnoticed
		}
		x, err := d.cache.Index(ctx, &v.Segment)
		if errs.Is(err, errs.Corrupt) {
			d.quarantine(v, err)
			continue
		}
		if err != nil {
			return 0, 0, err
		}
		first := len(moves)
		if moves, err = d.appendLive(ctx, v, x.Entries, moves); err != nil {
			return 0, 0, err
		}
		d.correctLive(v, moves[first:])
	}
	if len(moves) > 0 {
		if moved, err = d.relocate(ctx, ref, moves); err != nil {
			return 0, 0, err
		}
	}
	return len(victims), moved, nil
}

// pickVictims picks segments to empty, and what they are emptied into. They stay in the
// store until they are released. The caller holds collecting.
func (d *Device) pickVictims(ctx context.Context, ratio float64, blocks int64, ask bool) (victims []*seg, ref name.Ref, err error) {
	var volumes []ID
	snapshots := 0
	pick := func() error {
		if err := d.merge(ctx); err != nil {
			return err
		}
		others := d.others
		if ask || others == nil || d.opts.Now().Sub(d.othersAt) >= heldPause {
			others, snapshots = reclaim.NewUsage(), d.snapshots
			if volumes = d.shared(); len(d.victims(ratio, blocks, others)) > 0 && len(volumes) > 0 {
				return nil
			}
			volumes = nil
		}
		if victims = d.victims(ratio, blocks, others); len(victims) == 0 {
			d.heldAt, d.heldSince = d.man.Revision, d.opts.Now()
			return nil
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, v := range victims {
			v.moving = true
		}
		ref = name.Ref{Volume: d.vol, Kind: name.GC, Epoch: d.epoch, Num: d.nextGC}
		d.nextGC++ // never used twice: another attempt may have another content
		return nil
	}
	for {
		if err := d.publishing(ctx, pick); err != nil || volumes == nil {
			return victims, ref, err
		}
		u, err := d.readOthers(ctx, volumes)
		if err != nil {
			return nil, ref, err
		}
		err = d.publishing(ctx, func() error {
			if snapshots == d.snapshots { // else they are asked again
				d.others, d.othersAt, ask = u, d.opts.Now(), false
			}
			return nil
		})
		if err != nil {
			return nil, ref, err
		}
		volumes = nil
	}
}

// release lets checkpoints drop segments that GC is done with.
func (d *Device) release(segments []*seg) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range segments {
		s.moving = false
	}
}

// appendLive appends what the map has of a segment with the entries. Writes that are
// published meanwhile may take blocks of it from the map, and never add any.
func (d *Device) appendLive(ctx context.Context, v *seg, entries []segment.Entry, moves []move) ([]move, error) {
	for len(entries) > 0 {
		now := entries[:min(len(entries), mergeStep)]
		entries = entries[len(now):]
		spans := make([]span, len(now))
		for i, e := range now {
			if spans[i].lba = e.LBA; !e.Zero {
				spans[i].n = e.Blocks
			}
		}
		err := d.withLoaded(ctx, spans, false, func() error {
			for _, e := range now {
				if e.Zero {
					continue
				}
				d.base.Walk(e.LBA, e.Blocks, func(lba, n uint64, at extent.Value) bool {
					if at.Src == v.Num {
						moves = append(moves, move{lba: lba, n: n, from: at, seq: e.Seq, seg: v})
					}
					return true
				})
			}
			return nil
		})
		if err != nil {
			return moves, err
		}
	}
	return moves, nil
}

// correctLive takes blocks off the live ones of a segment that the map does not have:
// its page was lost. Else GC would pick the segment for ever. moves are at least what the
// map has of it.
func (d *Device) correctLive(v *seg, moves []move) {
	found := uint64(0)
	for _, m := range moves {
		found += m.n
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	v.live = min(v.live, found)
}

// quarantine makes GC leave a damaged segment alone.
func (d *Device) quarantine(s *seg, err error) {
	d.mu.Lock()
	s.quarantined = true
	d.mu.Unlock()
	d.logger.Error("a segment is damaged, garbage collection leaves it alone", "segment", s.Ref.String(), "error", err)
}

func (d *Device) liveOf(s *seg) uint64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return s.live
}

// victims picks segments by (1-u)*age/(1+u), where u is their live share and
// age how much was written since. Until the ratio holds, and for one output.
// What is dead is not picked: the next checkpoint deletes it for nothing. What
// others hold neither counts nor is picked.
func (d *Device) victims(ratio float64, blocks int64, others *reclaim.Usage) []*seg {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var live, stored uint64
	var all []*seg
	for _, s := range d.table {
		if s.live == 0 || others.MayName(s.Ref) && !d.unshared(s.Ref) {
			continue
		}
		live += s.live
		stored += s.Blocks
		if s.live < s.Blocks && !s.lost && !s.quarantined {
			all = append(all, s)
		}
	}
	if float64(stored) <= ratio*float64(live) {
		return nil
	}
	score := func(s *seg) float64 {
		u := float64(s.live) / float64(s.Blocks)
		return (1 - u) * float64(d.man.Durable-s.Last+1) / (1 + u)
	}
	slices.SortFunc(all, func(a, b *seg) int {
		return cmp.Or(cmp.Compare(score(b), score(a)), cmp.Compare(a.Num, b.Num))
	})
	var out []*seg
	moved := uint64(0)
	limit := min(max(uint64(d.opts.CutBytes)/BlockSize, 1), uint64(max(blocks, 1)))
	for _, s := range all {
		if float64(stored) <= ratio*float64(live) || len(out) > 0 && moved+s.live > limit {
			break
		}
		out = append(out, s)
		moved += s.live
		stored -= s.Blocks - s.live
	}
	return out
}

// relocate writes the moves to one segment and changes the map for those
// blocks that still are where they were. It returns how many blocks it wrote.
func (d *Device) relocate(ctx context.Context, ref name.Ref, moves []move) (blocks uint64, err error) {
	slices.SortFunc(moves, func(a, b move) int { return cmp.Compare(a.lba, b.lba) })
	s, err := d.copyOut(ctx, ref, moves)
	if err != nil {
		return 0, err
	}
	to := &seg{moving: true}
	defer d.release([]*seg{to})
	err = d.publishing(ctx, func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		s.Num = d.man.NextSegment
		d.man.NextSegment++
		d.man.Segments = append(d.man.Segments, s)
		to.Segment = s
		d.table[s.Num] = to
		d.budget -= int64(s.Blocks)
		return nil
	})
	if err != nil {
		d.discard(ref)
		return 0, err
	}
	return s.Blocks, d.remap(ctx, moves, to)
}

// copyOut writes the moves, sorted by address, to the segment ref and returns
// it, without a number.
func (d *Device) copyOut(ctx context.Context, ref name.Ref, moves []move) (s manifest.Segment, err error) {
	h := segment.Head{Ref: ref, Plain: d.plain, First: moves[0].seq, Last: moves[0].seq}
	entries := make([]segment.Entry, len(moves))
	blocks := uint64(0)
	for i, m := range moves {
		entries[i] = segment.Entry{LBA: m.lba, Blocks: m.n, Seq: m.seq}
		h.First, h.Last = min(h.First, m.seq), max(h.Last, m.seq)
		blocks += m.n
	}
	got := d.readRelocations(ctx, moves)
	b, err := segment.Build(h, d.keys, d.opts.Random, entries, func(i int, first uint64, p []byte) error {
		if got.read(i, first, p) {
			return nil
		}
		err := d.cache.Read(ctx, &moves[i].seg.Segment, uint64(moves[i].from.Off)+first, p)
		if errs.Is(err, errs.Corrupt) {
			d.quarantine(moves[i].seg, err)
		}
		return err
	})
	if errs.Is(err, errs.Corrupt) {
		return s, errs.New(errs.Unavailable, "garbage collection picks other segments: %w", err)
	}
	if err != nil {
		return s, err
	}
	if err := d.create(ctx, ref, b); err != nil {
		d.discard(ref)
		return s, err
	}
	d.stats.storedGC.Add(int64(len(b)))
	d.stats.moved.Add(int64(blocks) * BlockSize)
	return manifest.Segment{Ref: ref, Size: int64(len(b)), Blocks: blocks, First: h.First, Last: h.Last}, nil
}

// remap changes the map for the moves to the blocks of the segment to, which has
// them in that order. It holds pub for what it can change at once, and not while it loads
// leaves of the map: checkpoints in between find each block in its old place or its new.
func (d *Device) remap(ctx context.Context, moves []move, to *seg) error {
	block := uint32(0)
	step := func() bool {
		now := moves[:min(len(moves), mergeStep)]
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, m := range now {
			if !d.base.Loaded(m.lba, m.n) {
				return false
			}
		}
		for _, m := range now {
			d.remapOne(m, to, block)
			block += uint32(m.n)
		}
		moves = moves[len(now):]
		return true
	}
	for len(moves) > 0 {
		d.pin()
		err := d.withLoaded(ctx, spansOf(moves[:min(len(moves), mergeStep)]), false, func() error { return nil })
		if err == nil {
			err = d.publishing(ctx, func() error {
				d.dirty = true
				for len(moves) > 0 && step() {
					sched.Yield()
				}
				return nil
			})
		}
		d.unpin()
		if err != nil {
			return err
		}
	}
	return nil
}

func spansOf(moves []move) []span {
	spans := make([]span, len(moves))
	for i, m := range moves {
		spans[i] = span{m.lba, m.n}
	}
	return spans
}

// remapOne changes the map for what of a move is where it was: a newer write wins. The
// caller holds pub and mu.
func (d *Device) remapOne(m move, to *seg, block uint32) {
	var same []span
	d.base.Walk(m.lba, m.n, func(lba, n uint64, at extent.Value) bool {
		if at == m.from.Skip(lba-m.lba) {
			same = append(same, span{lba, n})
		}
		return true
	})
	for _, x := range same {
		to.live += x.n
		d.base.Set(x.lba, x.n, extent.Value{Src: to.Num, Off: block + uint32(x.lba-m.lba)})
	}
}
