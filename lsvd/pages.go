package lsvd

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

const (
	faultGap    = 16 << 10  // bytes of pages not needed that are read to save a request
	faultFetch  = 512 << 10 // most bytes of pages read at once
	faultAhead  = 64        // leaves that are looked at for reading ahead
	faultFlight = 4         // requests at once

	warmPages  = 2 << 20 // most bytes of pages that are read while a disk is opened
	warmFlight = 8       // requests at once
)

// leafPage is a leaf to load.
type leafPage struct {
	leaf uint64
	page extent.Page
}

// errAbsent says that leaves must be loaded first. It does not leave the
// package.
var errAbsent = errs.New(errs.Internal, "a leaf of the map is not loaded")

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

// pages is leaves that lie in one range of an object.
type pages struct {
	object   mapObject
	lo, hi   uint32
	contents []leafPage
}

// pageBatch collects pages, which come in the order of the map, into few ranges.
type pageBatch struct {
	d    *Device
	all  []*pages
	open map[uint32]*pages // the last of each object
}

// add adds a page, if it begins no range or may. The caller holds mu.
func (g *pageBatch) add(leaf uint64, p extent.Page, may bool) bool {
	f := g.open[p.Object]
	if f == nil || p.Off < f.hi || p.Off-f.hi > faultGap || p.Off+p.Len-f.lo > faultFetch {
		if !may {
			return false
		}
		if g.open == nil {
			g.open = map[uint32]*pages{}
		}
		f = &pages{object: g.d.objects[p.Object], lo: p.Off}
		g.open[p.Object] = f
		g.all = append(g.all, f)
	}
	f.hi = p.Off + p.Len
	f.contents = append(f.contents, leafPage{leaf, p})
	return true
}

func (d *Device) faultOnce(ctx context.Context, lba, n uint64) error {
	d.mu.RLock()
	g := d.readers
	g.enter() // pages are not deleted meanwhile
	defer g.exit()
	need := pageBatch{d: d}
	seen := 0
	d.base.Absent(lba, max(n, faultAhead*extent.LeafBlocks), func(leaf uint64, p extent.Page) bool {
		needed := leaf*extent.LeafBlocks < lba+n
		if need.add(leaf, p, needed) && !needed {
			seen++
		}
		return seen < faultAhead
	})
	d.mu.RUnlock()
	return d.each(len(need.all), func(i int) error {
		f := need.all[i]
		_, err, _ := d.faults.Do(fmt.Sprintf("%d/%d", f.contents[0].page.Object, f.lo), func() (any, error) {
			return nil, d.loadPages(context.WithoutCancel(ctx), f)
		})
		return err
	})
}

// warmMap begins to load the map of a disk that was just opened, from its
// beginning on and as far as it is small, so that the first reads from a remote
// store need not wait for pages.
func (d *Device) warmMap() {
	// Accepting a loss, a page that cannot be read is a lost one: then only
	// what is needed is read.
	if d.opts.manual || d.opts.AcceptLoss || d.cache.Local() {
		return
	}
	d.cache.Go(d.readMap)
}

// readMap reads what warmMap is about.
func (d *Device) readMap() {
	all := pageBatch{d: d}
	d.mu.Lock()
	bytes, memory := int64(0), d.loaded
	d.base.Absent(0, extent.MaxBlocks, func(leaf uint64, p extent.Page) bool {
		bytes += int64(p.Len)
		memory += 80 + 4*int64(p.Len) // about: a run takes 16 bytes, and 4 to 9 in a page
		if bytes > warmPages || memory > d.opts.MapBytes/2 {
			return false
		}
		return all.add(leaf, p, true)
	})
	d.mu.Unlock()
	var g errgroup.Group
	g.SetLimit(warmFlight)
	for _, f := range all.all {
		g.Go(func() error { return d.loadPages(d.cache.Context(), f) })
	}
	if err := g.Wait(); err != nil {
		d.logger.Debug("prefetch of the map failed, a read that needs the pages tries again", "volume", d.vol.String(), "error", err)
	}
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
func (d *Device) loadPages(ctx context.Context, f *pages) error {
	runs := make([][]extent.Run, len(f.contents))
	err := store.RetryCorrupt(func() error {
		b, err := d.st.GetRange(ctx, f.object.ref.Key(), int64(f.lo), int64(f.hi-f.lo))
		if errs.Is(err, errs.InvalidArgument) || err == nil && len(b) < int(f.hi-f.lo) {
			return errs.New(errs.Corrupt, "checkpoint %s is cut off", f.object.ref)
		}
		if err != nil {
			return err
		}
		for i, w := range f.contents {
			if runs[i], err = d.decodePage(f.object.ref, w.leaf, b[w.page.Off-f.lo:w.page.Off-f.lo+w.page.Len]); err != nil {
				if !d.opts.AcceptLoss || !errs.Is(err, errs.Corrupt) {
					return err
				}
				d.logger.Error("a part of the map is damaged: what it was for is lost", "volume", d.vol.String(), "offset", w.leaf*extent.LeafBlocks*BlockSize, "error", err)
				runs[i] = lostLeaf()
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	const step = 512 // leaves, while others wait
	for i := 0; i < len(runs); i += step {
		d.mu.Lock()
		for j := i; j < min(i+step, len(runs)); j++ {
			d.base.Load(f.contents[j].leaf, f.contents[j].page, runs[j])
			d.loaded += int64(len(runs[j])*16 + 80)
		}
		d.evictIfOver()
		d.mu.Unlock()
	}
	return nil
}

func (d *Device) decodePage(ref name.Ref, leaf uint64, b []byte) ([]extent.Run, error) {
	runs, err := manifest.DecodePage(ref, leaf, d.keys, b)
	if err != nil {
		return nil, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, r := range runs {
		if s := d.table[r.Src]; r.Src != manifest.LostSource && (s == nil || uint64(r.Off)+uint64(r.N) > s.Blocks) {
			return nil, errs.New(errs.Corrupt, "checkpoint %s names blocks that no segment has", ref)
		}
	}
	return runs, nil
}
