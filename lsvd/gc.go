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
	if err := d.usableNow(); err != nil {
		return 0, err
	}
	if err := d.pub.lock(ctx); err != nil {
		return 0, err
	}
	volumes := d.shared()
	d.pub.unlock()
	var others *reclaim.Usage
	read := func() (err error) { others, err = d.readOthers(ctx, volumes); return err }
	if err := d.retryWhile(ctx, d.usableNow, func() uint64 { return 0 }, read); err != nil {
		return 0, err
	}
	n, err := d.collectAll(ctx, ratio, others)
	d.tryDelete(ctx)
	return n, err
}

// collectAll is GC with what others name.
func (d *Device) collectAll(ctx context.Context, ratio float64, others *reclaim.Usage) (int, error) {
	if err := d.pub.lock(ctx); err != nil {
		return 0, err
	}
	defer d.pub.unlock()
	total := 0
	for round := 1; ; round++ {
		var n int
		err := d.retry(ctx, func() (err error) { n, _, err = d.collectRound(ctx, ratio, 1<<40, others); return err })
		total += n
		if err != nil {
			return total, err
		}
		if n == 0 || round%8 == 0 {
			if err := d.retry(ctx, func() error { return d.tidy(ctx) }); err != nil {
				return total, err
			}
		}
		if n == 0 {
			return total, nil
		}
	}
}

// tidy makes a checkpoint if that would change or free something. The caller
// holds pub.
func (d *Device) tidy(ctx context.Context) error {
	boot := d.saveBoot(ctx, false)
	d.mu.RLock()
	left := len(d.doomed) > 0
	need := boot || d.since > 0 || d.dirty || !d.recent.Empty() || len(d.garbage) > 0
	for _, s := range d.table {
		need = need || s.live == 0
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

// collect moves what the budget allows if the configured ratio is exceeded.
// What that frees is freed by the next checkpoint. The caller holds pub.
func (d *Device) collect(ctx context.Context) error {
	if d.man.Revision == d.heldAt && d.opts.Now().Sub(d.heldSince) < heldPause {
		return nil
	}
	for d.budget > 0 {
		if err := d.merge(ctx); err != nil {
			return err
		}
		if len(d.victims(d.opts.GCRatio, d.budget, reclaim.NewUsage())) == 0 {
			return nil
		}
		others, err := d.freshOthers(ctx)
		if err != nil || others == nil {
			return err
		}
		n, moved, err := d.collectRound(ctx, d.opts.GCRatio, d.budget, others)
		d.budget -= int64(moved)
		if err != nil || n == 0 {
			return err
		}
		// What is written meanwhile comes first.
		d.mu.RLock()
		waiting := len(d.frozen)
		d.mu.RUnlock()
		if waiting > 0 && !d.opts.manual {
			return nil
		}
	}
	return nil
}

// refillBudget adds blocks to the number that GC may move. The budget is bounded
// by the writes of four checkpoints.
func (d *Device) refillBudget(blocks int64) {
	d.budget = min(d.budget+blocks, 4*int64(d.opts.Checkpoint)*max(d.opts.CutBytes/BlockSize, 1))
}

// collectRound empties segments, until one of GC's own is full or blocks were
// moved; it reports how many segments, and how many blocks it moved. What others
// name stays: moving it would free nothing, and store the same twice. The caller
// holds pub.
func (d *Device) collectRound(ctx context.Context, ratio float64, blocks int64, others *reclaim.Usage) (segments int, moved uint64, err error) {
	if err := d.merge(ctx); err != nil {
		return 0, 0, err
	}
	victims := d.victims(ratio, blocks, others)
	if len(victims) == 0 {
		d.heldAt, d.heldSince = d.man.Revision, d.opts.Now()
		return 0, 0, nil
	}
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
	for _, m := range moves {
		moved += m.n
	}
	if len(moves) > 0 {
		if err := d.relocate(ctx, moves); err != nil {
			return 0, 0, err
		}
	}
	return len(victims), moved, nil
}

// appendLive appends what the map has of a segment with the entries. The caller
// holds pub.
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
		err := d.withLoaded(ctx, spans, func() error {
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
// its page was lost. Else GC would pick the segment for ever. moves are all that the
// map has of it. The caller holds pub.
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
// blocks that still are where they were. The caller holds pub.
func (d *Device) relocate(ctx context.Context, moves []move) error {
	slices.SortFunc(moves, func(a, b move) int { return cmp.Compare(a.lba, b.lba) })
	s, err := d.copyOut(ctx, moves)
	if err != nil {
		return err
	}
	d.mu.Lock()
	s.Num = d.man.NextSegment
	d.man.NextSegment++
	d.man.Segments = append(d.man.Segments, s)
	d.table[s.Num] = &seg{Segment: s}
	d.mu.Unlock()
	return d.remap(ctx, moves, s.Num)
}

// copyOut writes the moves, sorted by address, to a segment of GC and returns
// it, without a number. The caller holds pub.
func (d *Device) copyOut(ctx context.Context, moves []move) (s manifest.Segment, err error) {
	ref := name.Ref{Volume: d.vol, Kind: name.GC, Epoch: d.epoch, Num: d.nextGC}
	d.nextGC++ // never used twice: another attempt may have another content
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
		d.garbage = append(d.garbage, ref)
		return s, err
	}
	d.stats.storedGC.Add(int64(len(b)))
	d.stats.moved.Add(int64(blocks) * BlockSize)
	return manifest.Segment{Ref: ref, Size: int64(len(b)), Blocks: blocks, First: h.First, Last: h.Last}, nil
}

// remap changes the map for the moves to the blocks of the segment num, which has
// them in that order. The caller holds pub.
func (d *Device) remap(ctx context.Context, moves []move, num uint64) error {
	d.dirty = true
	block := uint32(0)
	for len(moves) > 0 {
		now := moves[:min(len(moves), mergeStep)]
		moves = moves[len(now):]
		spans := make([]span, len(now))
		for i, m := range now {
			spans[i] = span{m.lba, m.n}
		}
		err := d.withLoaded(ctx, spans, func() error {
			for _, m := range now {
				// The base map changes under pub only, so every block still is
				// there; were it not, a newer write would have to win.
				same := true
				d.base.Walk(m.lba, m.n, func(lba, n uint64, at extent.Value) bool {
					same = same && lba == m.lba && n == m.n && at == m.from
					return same
				})
				if !same {
					return errs.New(errs.Internal, "block %d moved under GC", m.lba)
				}
				d.table[num].live += m.n
				d.base.Set(m.lba, m.n, extent.Value{Src: num, Off: block})
				block += uint32(m.n)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
