package lsvd

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/reclaim"
	"miren.dev/runtime/pkg/errs"
)

// sharer is what one of several disks uses of a segment that they share.
type sharer struct {
	d     *Device
	s     *seg
	moves []move
}

// shared is a segment that several disks use, and no other manifest names.
type shared struct {
	sharers []sharer
	pieces  []move // what any of them uses, by address; as the first names it
	live    uint64 // blocks of pieces
}

// mostShared is how many blocks CompactShared copies at most.
const mostShared = 256 << 20 / BlockSize

// CompactShared empties segments that several of the open disks share, each
// into one segment that all of them use: GC of one disk alone could only copy
// what it uses for itself. It takes the segments that have more than ratio
// times the blocks that any of the disks uses, and that neither another volume
// nor a snapshot names, and reports how many it emptied; GC and [Sweep]
// afterwards do the rest. Disks that share nothing are left alone at no cost.
// For those that do nothing is sent meanwhile, so it moves 256 MiB at most: call
// it until there is nothing left. Disks that are closed or fail meanwhile are
// left out, and segments that were made for them stay.
//
// A disk may name a segment that another disk made only while that one is kept
// from deleting it. So all name the new segment in their manifests before the
// map of any uses it, and then its maker writes its manifest once more: were it
// not the owner of its volume any more, and the segment maybe dropped and
// deleted before the others named it, that would fail. Afterwards a disk that drops
// the segment finds the others' manifests.
func CompactShared(ctx context.Context, ratio float64, disks ...*Device) (int, error) {
	all := slices.Clone(disks)
	total := 0
	for {
		all = slices.DeleteFunc(all, func(d *Device) bool { return d.usableNow() != nil })
		n, err := compactSharedOnce(ctx, ratio, slices.Clone(all))
		total += n
		if err == nil || ctx.Err() != nil || !slices.ContainsFunc(all, func(d *Device) bool { return d.usableNow() != nil }) {
			return total, err
		}
	}
}

func compactSharedOnce(ctx context.Context, ratio float64, all []*Device) (int, error) {
	slices.SortFunc(all, func(a, b *Device) int { return bytes.Compare(a.vol[:], b.vol[:]) })
	all = sharing(slices.Compact(all))
	manifests := make([]string, len(all))
	for i, d := range all {
		if err := d.pub.lock(ctx); err != nil { // in the order of volumes
			return 0, err
		}
		defer d.pub.unlock()
		if err := d.usableNow(); err != nil {
			return 0, err
		}
		manifests[i] = name.Manifest(d.vol)
	}
	for _, d := range all {
		if err := d.retry(ctx, func() error { return d.merge(ctx) }); err != nil {
			return 0, err
		}
	}
	if len(sharedSegments(all, nil, ratio)) == 0 {
		return 0, nil
	}
	for i, d := range all {
		m, _, err := manifest.Load(ctx, all[0].st, manifests[i])
		if err != nil {
			return 0, err
		}
		if m.Owner != d.owner {
			return 0, errs.New(errs.FailedPrecondition, "volume %s is in another store than %s, or another process has it", d.vol, all[0].vol)
		}
	}
	others, err := reclaim.ReadUsage(ctx, all[0].st, manifests...)
	if err != nil {
		return 0, err
	}
	total, room := 0, mostShared
	for _, group := range sharedSegments(all, others.Refs, ratio) {
		n, err := compactGroup(ctx, ratio, group, &room)
		total += n
		if err != nil {
			return total, err
		}
	}
	if total == 0 {
		return 0, nil
	}
	for _, d := range all {
		if err := d.retry(ctx, func() error { return d.tidy(ctx) }); err != nil {
			return total, err
		}
	}
	return total, nil
}

// sharing returns those of the disks that have a segment in common with others
// of them. It costs no I/O: most disks share nothing.
func sharing(all []*Device) []*Device {
	users := map[name.Ref]int{}
	for _, d := range all {
		d.mu.RLock()
		for _, s := range d.table {
			users[s.Ref]++
		}
		d.mu.RUnlock()
	}
	return slices.DeleteFunc(all, func(d *Device) bool {
		d.mu.RLock()
		defer d.mu.RUnlock()
		for _, s := range d.table {
			if users[s.Ref] > 1 {
				return false
			}
		}
		return true
	})
}

// sharedSegments returns the segments that several of the disks use and others do
// not name, and that may be worth it, in groups with the same first disk.
func sharedSegments(all []*Device, others map[name.Ref]bool, ratio float64) [][]*shared {
	found, bad := map[name.Ref]*shared{}, map[name.Ref]bool{}
	for _, d := range all {
		d.mu.RLock()
		for _, s := range d.table {
			// All together use no less than one of them.
			if s.lost || s.quarantined || d.uncounted || others[s.Ref] || float64(s.Blocks) <= ratio*float64(s.live) {
				bad[s.Ref] = true
			}
			if s.live == 0 {
				continue
			}
			x := found[s.Ref]
			if x == nil {
				x = &shared{}
				found[s.Ref] = x
			}
			x.sharers = append(x.sharers, sharer{d: d, s: s})
		}
		d.mu.RUnlock()
	}
	var groups [][]*shared
	for _, d := range all {
		var group []*shared
		for r, x := range found {
			if !bad[r] && len(x.sharers) > 1 && x.sharers[0].d == d {
				group = append(group, x)
			}
		}
		if group != nil {
			slices.SortFunc(group, func(a, b *shared) int { return cmp.Compare(a.sharers[0].s.Num, b.sharers[0].s.Num) })
			groups = append(groups, group)
		}
	}
	return groups
}

// batch is segments that become one: what it has, by address.
type batch struct {
	emptied int
	pieces  []move
	moves   map[*Device][]move // of each disk
	taken   map[uint64]bool    // addresses: a segment has each once

	made manifest.Segment   // once it is in the store
	nums map[*Device]uint64 // what each disk calls it
}

// compactGroup empties those segments of a group that are worth it, and takes
// their blocks off room. The caller holds pub of all disks.
func compactGroup(ctx context.Context, ratio float64, group []*shared, room *int) (int, error) {
	d := group[0].sharers[0].d
	limit := max(int(d.opts.CutBytes/BlockSize), 1)
	var all []*batch
	for i, x := range group {
		if *room <= 0 {
			break
		}
		group[i] = nil // its uses are large
		if err := x.findUses(ctx); err != nil {
			return 0, err
		}
		if x.live == 0 || float64(x.sharers[0].s.Blocks) <= ratio*float64(x.live) {
			continue
		}
		if len(all) == 0 || !all[len(all)-1].add(x, limit) {
			b := &batch{moves: map[*Device][]move{}, taken: map[uint64]bool{}, nums: map[*Device]uint64{}}
			b.add(x, limit)
			all = append(all, b)
		}
		*room -= int(x.live)
	}
	if len(all) == 0 {
		return 0, nil
	}
	return d.emptyShared(ctx, all)
}

// add adds a segment, unless it is too much or has addresses that others have.
func (b *batch) add(x *shared, limit int) bool {
	fits := b.emptied == 0 || len(b.taken)+int(x.live) <= limit
	for _, p := range x.pieces {
		for lba := p.lba; fits && lba < p.lba+p.n; lba++ {
			fits = !b.taken[lba]
		}
	}
	if !fits {
		return false
	}
	b.emptied++
	b.pieces = append(b.pieces, x.pieces...)
	for _, p := range x.pieces {
		for lba := p.lba; lba < p.lba+p.n; lba++ {
			b.taken[lba] = true
		}
	}
	for _, p := range x.sharers {
		b.moves[p.d] = append(b.moves[p.d], p.moves...)
	}
	return true
}

// findUses finds what the disks use of the segment; nothing, if it is damaged.
func (x *shared) findUses(ctx context.Context) error {
	first := x.sharers[0]
	index, err := first.d.cache.Index(ctx, &first.s.Segment)
	if errs.Is(err, errs.Corrupt) {
		first.d.quarantine(first.s, err)
		return nil
	}
	if err != nil {
		return err
	}
	var all []move
	for i := range x.sharers {
		p := &x.sharers[i]
		if p.moves, err = p.d.appendLive(ctx, p.s, index.Entries, nil); err != nil {
			return err
		}
		all = append(all, p.moves...)
	}
	slices.SortFunc(all, func(a, b move) int { return cmp.Compare(a.lba, b.lba) })
	for _, m := range all {
		// In a segment every address is once: what overlaps is the same.
		if k := len(x.pieces) - 1; k >= 0 {
			p := &x.pieces[k]
			end := p.lba + p.n
			if m.lba < end || m.lba == end && m.seq == p.seq && uint64(m.from.Off) == uint64(p.from.Off)+p.n {
				p.n = max(end, m.lba+m.n) - p.lba
				continue
			}
		}
		m.seg = first.s
		x.pieces = append(x.pieces, m)
	}
	for _, p := range x.pieces {
		x.live += p.n
	}
	return nil
}

// emptyShared moves each batch to a segment of d, which has all that is in
// them, and reports how many segments were emptied. The caller holds pub of all
// disks.
func (d *Device) emptyShared(ctx context.Context, all []*batch) (int, error) {
	order := []*Device{d} // the disks, d first
	for _, b := range all {
		slices.SortFunc(b.pieces, func(a, b move) int { return cmp.Compare(a.lba, b.lba) })
		for o := range b.moves {
			if !slices.Contains(order, o) {
				order = append(order, o)
			}
		}
	}
	slices.SortFunc(order[1:], func(a, b *Device) int { return bytes.Compare(a.vol[:], b.vol[:]) })
	usable := func() error {
		for _, o := range order {
			if err := o.usableNow(); err != nil {
				return err
			}
		}
		return nil
	}
	err := d.retryWhile(ctx, usable, func() (err error) {
		for _, b := range all {
			if b.made.Blocks == 0 {
				if b.made, err = d.copyOut(ctx, b.pieces); err != nil {
					return err
				}
			}
		}
		for _, o := range order {
			if err := o.nameShared(ctx, all); err != nil {
				return err
			}
		}
		return d.replace(ctx, d.man.Clone()) // see CompactShared
	})
	if err != nil {
		for _, b := range all {
			if b.made.Blocks > 0 {
				d.garbage = append(d.garbage, b.made.Ref) // unless d has named it
			}
		}
		return 0, err
	}
	total := 0
	for _, b := range all {
		for _, o := range order {
			if err := o.remap(ctx, b.moves[o], b.nums[o], b.place()); err != nil {
				return total, err
			}
		}
		total += b.emptied
	}
	return total, nil
}

// place says where in the segment of the batch a move begins.
func (b *batch) place() func(move) uint32 {
	starts := make([]uint32, len(b.pieces))
	block := uint32(0)
	for i, p := range b.pieces {
		starts[i] = block
		block += uint32(p.n)
	}
	return func(m move) uint32 {
		i, exact := slices.BinarySearchFunc(b.pieces, m.lba, func(p move, lba uint64) int { return cmp.Compare(p.lba, lba) })
		if !exact {
			i--
		}
		return starts[i] + uint32(m.lba-b.pieces[i].lba)
	}
}

// nameShared has the manifest name the segments of the batches that d uses,
// which no map uses yet. The caller holds pub.
func (d *Device) nameShared(ctx context.Context, all []*batch) error {
	m := d.man.Clone()
	var mine []*batch
	for _, b := range all {
		if b.moves[d] == nil || b.nums[d] != 0 {
			continue
		}
		s := b.made
		s.Num = m.NextSegment
		m.NextSegment++
		m.Segments = append(m.Segments, s)
		mine = append(mine, b)
	}
	if len(mine) == 0 {
		return nil
	}
	if err := d.replace(ctx, m); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, s := range m.Segments[len(m.Segments)-len(mine):] {
		d.table[s.Num] = &seg{Segment: s}
		mine[i].nums[d] = s.Num
	}
	return nil
}
