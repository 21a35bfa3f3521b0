package lsvd

import (
	"context"
	"slices"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/sched"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/pkg/errs"
)

// The base map is two maps: base, whose leaves are stored in checkpoints and
// come into memory when they are touched, and over it recent, what segments
// since the last merge define. A checkpoint merges recent into base first.
// base and recent change under pub and mu; only loading and evicting leaves,
// which changes no content, needs nothing but mu.

// mapObject is a checkpoint that has pages of base.
type mapObject struct {
	ref  name.Ref
	size int64
}

// dropped takes blocks of a segment off its live ones. The caller holds mu.
func (d *Device) dropped(num, blocks uint64) {
	if num == manifest.LostSource {
		return
	}
	s := d.table[num]
	if s == nil || s.live < blocks {
		// The counts were wrong. Segments then stay until the next Open has
		// counted anew.
		if !d.uncounted {
			d.logger.Error("live blocks are miscounted, segments are kept until they are counted again", "volume", d.vol.String(), "segment", num)
		}
		d.uncounted = true
		if s != nil {
			s.live = 0
		}
		return
	}
	s.live -= blocks
}

// evictIfOver drops leaves if there are too many. The caller holds mu.
func (d *Device) evictIfOver() {
	if d.pins == 0 && d.loaded > d.mapLimit {
		d.loaded = d.base.Evict(false, d.mapLimit/2)
	}
}

// pin keeps leaves loaded until unpin, for a caller that needs several at once.
func (d *Device) pin() {
	d.mu.Lock()
	d.pins++
	d.mu.Unlock()
}

func (d *Device) unpin() {
	d.mu.Lock()
	d.pins--
	d.evictIfOver()
	d.mu.Unlock()
}

// span is a range of blocks.
type span struct{ lba, n uint64 }

// withLoaded calls f with mu held and the leaves of the spans loaded. holder tells that
// the caller holds pub.
func (d *Device) withLoaded(ctx context.Context, spans []span, holder bool, f func() error) error {
	d.pin()
	defer d.unpin()
	for {
		d.mu.Lock()
		var absent []span
		for _, s := range spans {
			if !d.base.Loaded(s.lba, s.n) {
				absent = append(absent, s)
			}
		}
		if len(absent) == 0 {
			err := f()
			d.mu.Unlock()
			sched.Yield() // many follow each other
			return err
		}
		d.mu.Unlock()
		if err := d.each(len(absent), func(i int) error { return d.fault(ctx, absent[i].lba, absent[i].n, holder) }); err != nil {
			return err
		}
	}
}

// mergeStep is how much of recent is merged at once, while others wait.
const (
	mergeStep   = 64
	mergeLeaves = 64 * extent.LeafBlocks
)

// merge moves what recent has to base. The caller holds pub.
func (d *Device) merge(ctx context.Context) error {
	if d.recent.Empty() {
		return nil
	}
	type piece struct {
		span
		v extent.Value
	}
	var all []piece
	d.recent.Walk(0, extent.MaxBlocks, func(lba, n uint64, v extent.Value) bool { // it changes under pub only
		for n > 0 {
			k := n
			if n > mergeLeaves {
				d.mu.RLock()
				if !d.base.Loaded(lba, n) {
					k = min(n, mergeLeaves-lba%mergeLeaves)
				}
				d.mu.RUnlock()
			}
			all = append(all, piece{span{lba, k}, v})
			lba, n, v = lba+k, n-k, v.Skip(k)
		}
		return true
	})
	d.dirty = d.dirty || len(all) > 0
	for len(all) > 0 {
		k, blocks := 0, uint64(0)
		for k < len(all) && k < mergeStep && blocks < mergeLeaves {
			blocks += all[k].n
			k++
		}
		now := all[:k]
		all = all[k:]
		spans := make([]span, len(now))
		for i, p := range now {
			spans[i] = p.span
		}
		err := d.withLoaded(ctx, spans, true, func() error {
			d.recent.Dropped = nil // they stay mapped
			for _, p := range now {
				if p.v.IsZero() {
					d.base.Delete(p.lba, p.n)
				} else {
					d.base.Set(p.lba, p.n, p.v)
				}
				d.recent.Delete(p.lba, p.n)
			}
			d.recent.Dropped = d.dropped
			return nil
		})
		if err != nil {
			return err
		}
	}
	d.mu.Lock()
	d.recent = d.newRecent()
	d.mu.Unlock()
	return nil
}

func (d *Device) newRecent() *extent.Map {
	m := extent.New(extent.MaxBlocks)
	m.Dropped = d.dropped
	return m
}

// evict frees memory of leaves that are not in use.
func (d *Device) evict(idle bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pins == 0 {
		d.loaded = d.base.Evict(idle, d.mapLimit)
	}
}

// loadDirectory says where the leaves of base are stored.
func (d *Device) loadDirectory(root *manifest.Root, dir *manifest.Directory, tail []byte) error {
	first := d.nextObject
	for i, r := range dir.Objects {
		d.objects[d.nextObject] = mapObject{r, dir.Sizes[i]}
		d.nextObject++
	}
	for _, p := range dir.Pages {
		if p.Leaf >= extent.MaxBlocks/extent.LeafBlocks {
			return errs.New(errs.Corrupt, "checkpoint %s has a leaf behind the end", root.Ref)
		}
		if d.lostMaps[dir.Objects[p.Object]] {
			d.base.SetLeaf(p.Leaf, lostLeaf())
			d.dirty = true
			continue
		}
		page := extent.Page{Object: first + uint32(p.Object), Off: p.Off, Len: p.Len}
		d.base.SetPage(p.Leaf, page)
		if at := int64(p.Off) - (root.Size - int64(len(tail))); dir.Objects[p.Object] == root.Ref && at >= 0 && at+int64(p.Len) <= int64(len(tail)) {
			// It came with the directory. That spares the first read a request.
			if runs, err := d.decodePage(root.Ref, p.Leaf, tail[at:at+int64(p.Len)]); err == nil && d.loaded < d.opts.MapBytes/4 {
				d.base.Load(p.Leaf, page, runs)
				d.loaded += int64(len(runs)*16 + 80)
			}
		}
	}
	return nil
}

// lostLeaf is the content of a leaf whose page is lost.
func lostLeaf() []extent.Run { return []extent.Run{{N: extent.LeafBlocks, Src: manifest.LostSource}} }

// count counts live blocks from the whole map, where the manifest does not.
func (d *Device) count(ctx context.Context) error {
	live := map[uint64]uint64{}
	err := manifest.EachLeaf(ctx, d.st, d.man, func(_ uint64, runs []extent.Run) error {
		for _, r := range runs {
			live[r.Src] += uint64(r.N)
		}
		return nil
	})
	for num, s := range d.table {
		s.live = live[num]
	}
	return err
}

// loadMap prepares the base map from the checkpoint, and adds the segments
// that the manifest has after it.
func (d *Device) loadMap(ctx context.Context, seen *storeListing, rec *Recovery) error {
	for _, s := range d.man.Segments {
		d.table[s.Num] = &seg{Segment: s, live: s.Live}
	}
	if err := d.findMissing(seen, rec); err != nil {
		return err
	}
	seq := uint64(0)
	if root := d.man.Root; root != nil {
		seq = root.Seq
		if seen.dirErr != nil {
			return seen.dirErr
		}
		if err := d.loadDirectory(root, seen.dir, seen.tail); err != nil {
			return err
		}
		if d.man.Uncounted {
			if err := d.count(ctx); err != nil {
				return err
			}
		}
	}
	var after []*manifest.Segment
	for i := range d.man.Segments {
		if s := &d.man.Segments[i]; s.Ref.Kind == name.Data && s.First > seq {
			after = append(after, s)
		}
	}
	d.since = len(after) // a volume whose process is killed again and again gets a checkpoint too
	indexes := make([]*segment.Index, len(after))
	err := d.each(len(after), func(i int) (err error) {
		indexes[i], err = d.cache.Index(ctx, after[i])
		return err
	})
	if err != nil {
		return err
	}
	for i, s := range after {
		d.table[s.Num].live = s.Blocks
		segment.Define(d.recent, s.Num, 0, indexes[i].Entries)
	}
	return nil
}

// findMissing looks whether the store has every object that the manifest
// names. If not, Open refuses; or with the loss accepted, what they have is
// lost, or the disk goes back to before one whose content is not known.
func (d *Device) findMissing(seen *storeListing, rec *Recovery) error {
	need := map[string]*manifest.Segment{}
	for i := range d.man.Segments {
		s := &d.man.Segments[i]
		if n, ok := seen.sizes[s.Ref.Key()]; !ok || n != s.Size {
			need[s.Ref.Key()] = s
		}
	}
	maps := map[string]name.Ref{}
	for _, r := range d.man.Maps {
		if _, ok := seen.sizes[r.Key()]; !ok {
			maps[r.Key()] = r
		}
	}
	if len(need)+len(maps) == 0 {
		return nil
	}
	for k, r := range maps {
		rec.Missing = append(rec.Missing, k)
		d.lostMaps[r] = true
	}
	seq := uint64(0)
	if d.man.Root != nil {
		seq = d.man.Root.Seq
	}
	cut := ^uint64(0) // nothing from this sequence number on is known
	for k, s := range need {
		rec.Missing = append(rec.Missing, k)
		if s.Ref.Kind == name.Data && s.First > seq {
			cut = min(cut, s.First)
		}
		d.table[s.Num].lost = true
	}
	slices.Sort(rec.Missing)
	if !d.opts.AcceptLoss {
		return errs.New(errs.Corrupt, "%d objects are missing or cut off in the store, %s first", len(rec.Missing), rec.Missing[0]).
			WithHint("restore the objects; a check of the volume tells which parts of the disk they have; or accept the loss: those parts then give errors, the rest works")
	}
	d.logger.Error("objects are missing: what they had is lost", "volume", d.vol.String(), "objects", len(rec.Missing), "first", rec.Missing[0])
	if cut == ^uint64(0) {
		return nil
	}
	rec.LostAfter = true
	d.man.Durable = cut - 1
	d.man.Segments = slices.DeleteFunc(d.man.Segments, func(s manifest.Segment) bool {
		gone := s.Ref.Kind == name.Data && s.First >= cut
		if gone {
			delete(d.table, s.Num)
		}
		return gone
	})
	return nil
}
