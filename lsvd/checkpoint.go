package lsvd

import (
	"cmp"
	"context"
	"slices"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/pkg/errs"
)

// maxMaps is how many checkpoints may hold pages of the map. With more, the
// pages of those that have least go to the next one.
const maxMaps = 12

// checkpoint writes the map and the manifest, and dooms the objects that it drops: they
// are deleted soon, unless other manifests name them. The caller holds pub.
func (d *Device) checkpoint(ctx context.Context, clean bool) error {
	if err := d.merge(ctx); err != nil {
		return err
	}
	d.mu.Lock()
	snap := d.base.Snapshot()
	m := d.man.Clone()
	var dead []name.Ref
	m.Segments = m.Segments[:0]
	for _, s := range d.man.Segments {
		t := d.table[s.Num]
		if t.live == 0 && !d.uncounted && !t.moving {
			dead = append(dead, s.Ref)
			continue
		}
		s.Live = t.live
		m.Segments = append(m.Segments, s)
	}
	m.Uncounted = d.uncounted
	d.mu.Unlock()

	var placed []leafPage
	var own mapObject
	if m.Root != nil && !d.dirty {
		m.Root.Seq = m.Durable
	} else {
		ref := name.Ref{Volume: d.vol, Kind: name.Map, Epoch: d.epoch, Num: d.nextMap}
		d.nextMap++
		cp := &manifest.Checkpoint{Ref: ref, Keys: d.keys}
		var err error
		if placed, err = d.writeMap(ctx, cp, snap); err != nil {
			return err
		}
		object := cp.Encode()
		if err := d.create(ctx, ref, object); err != nil {
			d.discard(ref)
			return err
		}
		d.stats.storedMap.Add(int64(len(object)))
		own = mapObject{ref, int64(len(object))}
		m.Root = &manifest.Root{Ref: ref, Size: own.size, Seq: m.Durable}
		m.Maps = cp.Objects()
	}
	m.Clean = clean
	old, oldBoot := d.man.Maps, d.man.Boot
	if d.boot.ref != nil {
		m.Boot = d.boot.ref
	}
	// Once the manifest is written, Sweep may delete what it does not name:
	// no reader may still be at a segment that was live when it looked.
	d.waitForReaders()
	if err := d.replace(ctx, m); err != nil {
		if own.size > 0 {
			d.discard(own.ref)
		}
		return err
	}
	d.since, d.dirty, d.boot.ref = 0, false, nil
	if oldBoot != nil && *oldBoot != *m.Boot {
		d.discard(*oldBoot)
	}
	d.settle(own, placed)
	d.discard(dead...)
	for _, r := range old {
		if !slices.Contains(m.Maps, r) {
			d.discard(r)
		}
	}
	d.waitForReaders() // no reader uses the old places of the pages
	d.doom()
	if clean {
		d.tryDelete(ctx) // Close is waiting for it; there is nothing to publish any more
	} else {
		d.deleteLater(ctx)
	}
	return nil
}

// writeMap adds the leaves of snap to cp: those that changed, and those of
// old checkpoints that have become many. It returns what it wrote; its object
// will be d.nextObject.
func (d *Device) writeMap(ctx context.Context, cp *manifest.Checkpoint, snap *extent.Map) ([]leafPage, error) {
	objects := map[uint32]mapObject{}
	d.mu.RLock()
	for i, o := range d.objects {
		objects[i] = o
	}
	d.mu.RUnlock()
	moved, err := d.oldPages(ctx, objects, snap)
	if err != nil {
		return nil, err
	}
	var placed []leafPage
	put := func(leaf uint64, off, n uint32) {
		placed = append(placed, leafPage{leaf, extent.Page{Object: d.nextObject, Off: off, Len: n}})
	}
	snap.Leaves(func(leaf uint64, p extent.Page, runs []extent.Run) {
		b, move := moved[p.Object]
		switch {
		case err != nil:
		case p.Len == 0:
			off, n := cp.Leaf(leaf, runs)
			put(leaf, off, n)
		case !move:
			o := objects[p.Object]
			cp.Keep(leaf, o.ref, o.size, p.Off, p.Len)
		case uint64(p.Off)+uint64(p.Len) > uint64(len(b)):
			err = errs.New(errs.Corrupt, "checkpoint %s is cut off", objects[p.Object].ref)
		default:
			var old []extent.Run
			if old, err = manifest.DecodePage(objects[p.Object].ref, leaf, d.keys, b[p.Off:p.Off+p.Len]); err != nil && d.opts.AcceptLoss {
				old, err = lostLeaf(), nil
			}
			if err == nil {
				off, n := cp.Leaf(leaf, old)
				put(leaf, off, n)
			}
		}
	})
	return placed, err
}

// oldPages picks checkpoints whose pages are to be written again, when there
// are many, and reads them.
func (d *Device) oldPages(ctx context.Context, objects map[uint32]mapObject, snap *extent.Map) (map[uint32][]byte, error) {
	if len(objects) < maxMaps {
		return nil, nil
	}
	live := map[uint32]int64{}
	for i := range objects {
		live[i] = 0
	}
	snap.Leaves(func(_ uint64, p extent.Page, _ []extent.Run) {
		if p.Len > 0 {
			live[p.Object] += int64(p.Len)
		}
	})
	order := make([]uint32, 0, len(live))
	for i := range live {
		order = append(order, i)
	}
	slices.SortFunc(order, func(a, b uint32) int { return cmp.Or(cmp.Compare(live[a], live[b]), cmp.Compare(a, b)) })
	moved := map[uint32][]byte{}
	for i, o := range order {
		if live[o] > 0 && i >= maxMaps*2/3 && live[o]*3 > objects[o].size {
			continue
		}
		var b []byte
		if live[o] > 0 {
			var err error
			if b, _, err = d.st.Get(ctx, objects[o].ref.Key()); errs.Is(err, errs.NotFound) {
				return nil, errs.New(errs.Corrupt, "checkpoint %s is missing", objects[o].ref)
			} else if err != nil {
				return nil, err
			}
		}
		moved[o] = b
	}
	return moved, nil
}

// settle makes the device's maps and table those of the manifest just
// written. The caller holds pub.
func (d *Device) settle(own mapObject, placed []leafPage) {
	keep := make(map[uint64]bool, len(d.man.Segments))
	for _, s := range d.man.Segments {
		keep[s.Num] = true
	}
	var gone []uint64
	for num := range d.table { // it changes under pub only
		if !keep[num] {
			gone = append(gone, num)
		}
	}
	d.mu.Lock()
	if own.size > 0 {
		d.objects[d.nextObject] = own
		d.nextObject++
	}
	for _, num := range gone {
		delete(d.table, num)
	}
	d.mu.Unlock()
	d.cache.Drop(gone)
	for len(placed) > 0 {
		n := min(len(placed), 512)
		d.mu.Lock()
		for _, w := range placed[:n] {
			d.base.SetPage(w.leaf, w.page)
		}
		d.mu.Unlock()
		placed = placed[n:]
	}
	d.mu.Lock()
	for i, o := range d.objects {
		if !slices.Contains(d.man.Maps, o.ref) {
			delete(d.objects, i)
		}
	}
	d.loaded = d.base.Evict(false, d.mapLimit)
	d.mu.Unlock()
}
