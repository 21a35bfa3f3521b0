package lsvd

import (
	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/sched"
	"miren.dev/runtime/lsvd/internal/segment"
)

// Blocks that are overwritten again and again, as the journal of a file system
// is, are soon dead. In segments of their own they die together, and cost
// nothing; among others, GC moves those others to get at the space. So a cut
// becomes two segments where both kinds are in it: what overwrites something
// young goes to the second one. Young is what was written within a quarter of
// the time that segments last until GC empties them: before GC has begun, and
// where the map is not in memory, nothing is.

// output is one segment that a cut becomes.
type output struct {
	ref     name.Ref
	entries []segment.Entry
	short   bool // of blocks that are expected to be overwritten soon
	more    bool // another segment of the cut follows
	object  []byte
}

// blocks is how many blocks of data it has.
func (o *output) blocks() (n uint64) {
	for _, e := range o.entries {
		if !e.Zero {
			n += e.Blocks
		}
	}
	return n
}

// splitByLifetime decides which segments the oldest frozen cuts become, once for each.
// The caller holds pub.
func (d *Device) splitByLifetime(cuts []*cut) {
	next := name.Ref{Volume: d.vol, Kind: name.Data, Epoch: d.epoch, Num: d.man.ChainNext}
	for k, c := range cuts {
		if c.outputs == nil {
			c.outputs = d.outputs(c, cuts[:k])
			for i := range c.outputs {
				c.outputs[i].ref = next
				c.outputs[i].ref.Num += uint64(i)
			}
		}
		next.Num += uint64(len(c.outputs))
	}
}

// outputs splits the entries of a cut, if that is worth an object more.
func (d *Device) outputs(c *cut, before []*cut) []output {
	all := c.entries()
	if d.lifetime == 0 {
		return []output{{entries: all}}
	}
	long, short := output{more: true}, output{short: true}
	var blocks, young uint64
	add := func(o *output, e segment.Entry) {
		if n := len(o.entries); n > 0 && !e.Zero {
			if was := &o.entries[n-1]; !was.Zero && was.Seq == e.Seq && was.LBA+was.Blocks == e.LBA {
				was.Blocks += e.Blocks
				return
			}
		}
		o.entries = append(o.entries, e)
	}
	d.mu.RLock()
	for i, e := range all {
		if i%256 == 255 { // let others in
			d.mu.RUnlock()
			sched.Yield()
			d.mu.RLock()
		}
		if e.Zero {
			add(&long, e)
			continue
		}
		blocks += e.Blocks
		for end := e.LBA + e.Blocks; e.LBA < end; e.LBA += e.Blocks {
			soon := false
			e.Blocks, soon = d.youngAt(e.LBA, end-e.LBA, c, before)
			if soon {
				young += e.Blocks
				add(&short, e)
			} else {
				add(&long, e)
			}
		}
	}
	d.mu.RUnlock()
	if blocks < uint64(d.opts.CutBytes/BlockSize)/4 || young < blocks/16+1 || blocks-young < blocks/16+1 {
		return []output{{entries: all}}
	}
	return []output{long, short}
}

// youngAt reports for how many of n blocks from lba on the same holds, and
// whether what cut c overwrites there was written a short time before. The
// caller holds mu and pub.
func (d *Device) youngAt(lba, n uint64, c *cut, before []*cut) (uint64, bool) {
	for i := len(before) - 1; i >= 0; i-- {
		_, k, is := before[i].over.Get(lba)
		n = min(n, k)
		if is != extent.Unmapped {
			return n, true
		}
	}
	v, k, is := d.recent.Get(lba)
	n = min(n, k)
	if is == extent.Unmapped {
		v, k, is = d.base.Get(lba)
		n = min(n, k)
	}
	if is == extent.Absent || is == extent.Unmapped || v.IsZero() {
		return n, false
	}
	s := d.table[v.Src]
	return n, s != nil && s.Ref.Kind == name.Data && s.Ref.Volume == d.vol && float64(c.last-s.Last) < d.lifetime/4
}

// observeLifetime updates the mean lifetime by that of a segment that GC empties, in
// sequence numbers. The caller holds pub.
func (d *Device) observeLifetime(s *seg) {
	if s.Ref.Kind != name.Data || s.Ref.Volume != d.vol || s.short {
		return
	}
	t := float64(d.man.Durable - s.Last)
	if d.lifetime == 0 {
		d.lifetime = t
		return
	}
	d.lifetime += (t - d.lifetime) / 16
}
