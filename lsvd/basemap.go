package lsvd

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/pkg/errs"
)

// The base map is two maps: base, whose leaves are stored in checkpoints and
// come into memory when they are touched, and over it recent, what segments
// since the last merge define. A checkpoint merges recent into base first.
// base and recent change under pub and mu; only loading and evicting leaves,
// which changes no content, needs nothing but mu.

const (
	// lostSource is the segment number of what is lost for good: a page of
	// the map that was damaged when the loss was accepted.
	lostSource = 0

	faultGap    = 16 << 10  // bytes of pages not needed that are read to save a request
	faultFetch  = 512 << 10 // most bytes of pages read at once
	faultAhead  = 64        // leaves that are looked at for reading ahead
	faultFlight = 4         // requests at once
)

// mapObject is a checkpoint that has pages of base.
type mapObject struct {
	ref  name.Ref
	size int64
}

// wanted is a leaf to load.
type wanted struct {
	leaf uint64
	page extent.Page
}

// errAbsent says that leaves must be loaded first. It does not leave the
// package.
var errAbsent = errs.New(errs.Internal, "a leaf of the map is not loaded")

// dropped takes blocks of a segment off its live ones. The caller holds mu.
func (d *Device) dropped(num, blocks uint64) {
	if num == lostSource {
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

// fault loads the leaves of [lba, lba+n) that are not. holder tells that the
// caller holds pub.
func (d *Device) fault(ctx context.Context, lba, n uint64, holder bool) error {
	for try := 0; ; try++ {
		err := d.faultOnce(ctx, lba, n)
		if !errs.Is(err, errs.NotFound) {
			return err
		}
		if holder || try == 2 {
			return errs.Wrap(errs.New(errs.Corrupt, "a checkpoint of the map is missing"), "disk %s", d.vol)
		}
		// Perhaps a checkpoint is about to say where the page is now.
		if err := d.pub.lock(ctx); err != nil {
			return err
		}
		d.pub.unlock()
	}
}

func (d *Device) faultOnce(ctx context.Context, lba, n uint64) error {
	type fetch struct {
		object   mapObject
		lo, hi   uint32
		contents []wanted
	}
	var all []*fetch
	d.mu.RLock()
	g := d.gate
	g.enter() // pages are not deleted meanwhile
	defer g.leave()
	open := map[uint32]*fetch{}
	seen := 0
	d.base.Absent(lba, max(n, faultAhead*extent.LeafBlocks), func(leaf uint64, p extent.Page) bool {
		needed := leaf*extent.LeafBlocks < lba+n
		f := open[p.Object]
		if f == nil || p.Off < f.hi || p.Off-f.hi > faultGap || p.Off+p.Len-f.lo > faultFetch {
			if !needed {
				return seen < faultAhead
			}
			f = &fetch{object: d.objects[p.Object], lo: p.Off}
			open[p.Object] = f
			all = append(all, f)
		}
		f.hi = p.Off + p.Len
		f.contents = append(f.contents, wanted{leaf, p})
		if !needed {
			seen++
		}
		return seen < faultAhead
	})
	d.mu.RUnlock()
	return d.each(len(all), func(i int) error {
		f := all[i]
		_, err, _ := d.faults.Do(fmt.Sprintf("%d/%d", f.contents[0].page.Object, f.lo), func() (any, error) {
			return nil, d.loadPages(context.WithoutCancel(ctx), f.object, f.lo, f.hi, f.contents)
		})
		return err
	})
}

// each calls f for 0 to n-1, several at a time.
func (d *Device) each(n int, f func(i int) error) error {
	if d.opts.manual || n == 1 {
		for i := range n {
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	}
	var g errgroup.Group
	g.SetLimit(faultFlight)
	for i := range n {
		g.Go(func() error { return f(i) })
	}
	return g.Wait()
}

// loadPages reads leaves that lie in one range of an object.
func (d *Device) loadPages(ctx context.Context, o mapObject, lo, hi uint32, want []wanted) error {
	runs := make([][]extent.Run, len(want))
	err := again(func() error {
		b, err := d.st.GetRange(ctx, o.ref.Key(), int64(lo), int64(hi-lo))
		if errs.Is(err, errs.InvalidArgument) || err == nil && len(b) < int(hi-lo) {
			return errs.New(errs.Corrupt, "checkpoint %s is cut off", o.ref)
		}
		if err != nil {
			return err
		}
		for i, w := range want {
			if runs[i], err = d.decodePage(o.ref, b[w.page.Off-lo:w.page.Off-lo+w.page.Len]); err != nil {
				if !d.opts.AcceptLoss || !errs.Is(err, errs.Corrupt) {
					return err
				}
				d.logger.Error("a part of the map is damaged: what it was for is lost", "volume", d.vol.String(), "at", w.leaf*extent.LeafBlocks*BlockSize, "err", err)
				runs[i] = lostLeaf()
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, w := range want {
		d.base.Load(w.leaf, w.page, runs[i])
		d.loaded += int64(len(runs[i])*16 + 80)
	}
	d.relieve()
	return nil
}

// relieve drops leaves if there are too many. The caller holds mu.
func (d *Device) relieve() {
	if d.pins == 0 && d.loaded > d.opts.MapBytes {
		d.loaded = d.base.Evict(false, d.opts.MapBytes/2)
	}
}

// pin keeps leaves loaded until unpin, for one who needs several at once.
func (d *Device) pin() {
	d.mu.Lock()
	d.pins++
	d.mu.Unlock()
}

func (d *Device) unpin() {
	d.mu.Lock()
	d.pins--
	d.relieve()
	d.mu.Unlock()
}

func (d *Device) decodePage(ref name.Ref, b []byte) ([]extent.Run, error) {
	runs, err := manifest.DecodePage(ref, b)
	if err != nil {
		return nil, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, r := range runs {
		if s := d.table[r.Src]; r.Src != lostSource && (s == nil || uint64(r.Off)+uint64(r.N) > s.Blocks) {
			return nil, errs.New(errs.Corrupt, "checkpoint %s names blocks that no segment has", ref)
		}
	}
	return runs, nil
}

// resolved calls f, which uses resolve, with mu held for reading; it loads the
// leaves of the range and calls it again when some were not.
func (d *Device) resolved(ctx context.Context, lba, n uint64, f func() error) error {
	for pinned := false; ; {
		d.mu.RLock()
		err := d.readable()
		if err == nil {
			err = f()
		}
		d.mu.RUnlock()
		if err != errAbsent {
			return err
		}
		if !pinned {
			pinned = true
			d.pin()
			defer d.unpin()
		}
		if err := d.fault(ctx, lba, n, false); err != nil {
			return err
		}
	}
}

// span is a range of blocks.
type span struct{ lba, n uint64 }

// withLoaded calls f with mu held and the leaves of the spans loaded. The
// caller holds pub.
func (d *Device) withLoaded(ctx context.Context, spans []span, f func() error) error {
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
			return err
		}
		d.mu.Unlock()
		if err := d.each(len(absent), func(i int) error { return d.fault(ctx, absent[i].lba, absent[i].n, true) }); err != nil {
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
	d.recent.Walk(0, maxBlocks, func(lba, n uint64, v extent.Value) bool { // it changes under pub only
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
		err := d.withLoaded(ctx, spans, func() error {
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
	m := extent.New(maxBlocks)
	m.Dropped = d.dropped
	return m
}

// evict frees memory of leaves that are not in use.
func (d *Device) evict(idle bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pins == 0 {
		d.loaded = d.base.Evict(idle, d.opts.MapBytes)
	}
}

// loadDirectory says where the leaves of base are stored.
func (d *Device) loadDirectory(ctx context.Context, root *manifest.Root) error {
	dir, tail, err := readDirectory(ctx, d.st, root)
	if err != nil {
		return err
	}
	first := d.nextObject
	for i, r := range dir.Objects {
		d.objects[d.nextObject] = mapObject{r, dir.Sizes[i]}
		d.nextObject++
	}
	for _, p := range dir.Pages {
		if p.Leaf >= maxBlocks/extent.LeafBlocks {
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
			if runs, err := d.decodePage(root.Ref, tail[at:at+int64(p.Len)]); err == nil && d.loaded < d.opts.MapBytes/4 {
				d.base.Load(p.Leaf, page, runs)
				d.loaded += int64(len(runs)*16 + 80)
			}
		}
	}
	return nil
}

// lostLeaf is the content of a leaf whose page is lost.
func lostLeaf() []extent.Run { return []extent.Run{{N: extent.LeafBlocks, Src: lostSource}} }

// count counts live blocks from the whole map, where the manifest does not.
func (d *Device) count(ctx context.Context) error {
	live := map[uint64]uint64{}
	err := eachLeaf(ctx, d.st, d.man, func(_ uint64, runs []run) error {
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
func (d *Device) loadMap(ctx context.Context, rec *Recovery) error {
	for _, s := range d.man.Segments {
		d.table[s.Num] = &seg{Segment: s, live: s.Live}
	}
	if err := d.findMissing(ctx, rec); err != nil {
		return err
	}
	seq := uint64(0)
	if root := d.man.Root; root != nil {
		seq = root.Seq
		if err := d.loadDirectory(ctx, root); err != nil {
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
	indexes := make([]*segment.Index, len(after))
	err := d.each(len(after), func(i int) (err error) {
		indexes[i], err = d.cache.index(ctx, after[i])
		return err
	})
	if err != nil {
		return err
	}
	for i, s := range after {
		d.table[s.Num].live = s.Blocks
		mapInto(d.recent, s.Num, indexes[i].Entries)
	}
	return nil
}

// findMissing looks whether the store has every object that the manifest
// names. If not, Open refuses; or with the loss accepted, what they have is
// lost, or the disk goes back to before one whose content is not known.
func (d *Device) findMissing(ctx context.Context, rec *Recovery) error {
	need := map[string]*manifest.Segment{}
	var prefixes []string
	for i := range d.man.Segments {
		s := &d.man.Segments[i]
		need[s.Ref.Key()] = s
		if p := name.Prefix(s.Ref.Volume) + s.Ref.Kind.String() + "/"; !slices.Contains(prefixes, p) {
			prefixes = append(prefixes, p)
		}
	}
	maps := map[string]name.Ref{}
	for _, r := range d.man.Maps {
		maps[r.Key()] = r
		if p := name.Prefix(r.Volume) + r.Kind.String() + "/"; !slices.Contains(prefixes, p) {
			prefixes = append(prefixes, p)
		}
	}
	for _, p := range prefixes {
		for i, err := range d.st.List(ctx, p) {
			if err != nil {
				return err
			}
			delete(maps, i.Key)
			if s := need[i.Key]; s != nil && s.Size == i.Size {
				delete(need, i.Key)
			}
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
