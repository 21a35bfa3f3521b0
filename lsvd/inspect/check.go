package inspect

import (
	"cmp"
	"context"
	"slices"

	"miren.dev/runtime/lsvd/internal/boot"
	"miren.dev/runtime/lsvd/internal/chain"
	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Report is what [Check] found.
type Report struct {
	Manifests int   // of the volume and its snapshots
	Maps      int   // checkpoints of the map
	Segments  int   // in the manifests and in the chain after
	Bytes     int64 // of the objects looked at
	Checked   int64 // of these, bytes read and compared with their checksums
	Damage    []Damage
}

// OK tells that nothing is damaged.
func (r Report) OK() bool { return len(r.Damage) == 0 }

// Damage is one damaged or missing object, and what of the disk depends on it.
type Damage struct {
	Key      string // of the object
	Missing  bool
	Err      error
	Volume   bool     // the volume itself needs it, not only snapshots
	Snapshot []string // the snapshots that need it
	// Ranges of the disk whose content is lost, as the volume, or else the
	// first snapshot, has it. None if that cannot be told, or if only
	// overwritten data is damaged.
	Ranges []Range
}

// Range is a part of a disk, in bytes.
type Range struct{ Off, Len int64 }

// Check verifies everything that the manifests of a volume and of its
// snapshots name: the map, and of every segment the trailer, index and
// checksum; deep also decodes every frame. It claims nothing, so the volume
// may be open; what becomes garbage meanwhile is not reported. Progress, if
// not nil, is told how many bytes of the total are done.
//
// What is damaged is in the report; an error means that Check could not find
// out. The local log is for [CheckLog].
func Check(ctx context.Context, st store.Store, id name.Volume, key []byte, deep bool, progress func(done, total int64)) (Report, error) {
	c := &checker{st: st, deep: deep, progress: progress, damaged: map[name.Ref]*Damage{}, frames: map[name.Ref]map[int]bool{}}
	if err := c.manifests(ctx, id, key); err != nil {
		return c.report, err
	}
	if err := c.objects(ctx); err != nil {
		return c.report, err
	}
	for _, v := range c.views {
		if err := c.counts(ctx, v); err != nil {
			return c.report, err
		}
	}
	if len(c.damaged) > 0 {
		if err := c.blame(ctx, id); err != nil {
			return c.report, err
		}
	}
	return c.report, nil
}

// view is one manifest that is checked.
type view struct {
	snapshot string
	m        *manifest.Manifest
	chain    []manifest.Segment
	end      name.Ref // where it ends
}

type checker struct {
	st       store.Store
	keys     *keyring.Ring
	deep     bool
	progress func(done, total int64)

	views    []view
	segments []manifest.Segment // each object once
	maps     []name.Ref
	boots    []name.Ref
	report   Report
	damaged  map[name.Ref]*Damage
	frames   map[name.Ref]map[int]bool // damaged frames; nil: all
}

func (c *checker) manifests(ctx context.Context, id name.Volume, key []byte) (err error) {
	if key != nil {
		c.keys, _, err = keyring.Load(ctx, c.st, id, key)
		if errs.Is(err, errs.Corrupt) { // nothing can be read without them
			c.report.Damage = append(c.report.Damage, Damage{Key: name.Keys(id), Err: err, Volume: true})
			return nil
		}
		if err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
	}
	m, _, err := manifest.Open(ctx, c.st, id, "", key)
	if errs.Is(err, errs.Corrupt) {
		c.report.Damage = append(c.report.Damage, Damage{Key: name.Manifest(id), Err: err, Volume: true})
	} else if err != nil {
		return err
	} else {
		c.views = append(c.views, view{m: m})
	}
	snapshots, err := manifest.Snapshots(ctx, c.st, id)
	if err != nil {
		return err
	}
	for _, s := range snapshots {
		m, _, err := manifest.Open(ctx, c.st, id, s, key)
		switch {
		case errs.Is(err, errs.NotFound):
		case errs.Is(err, errs.Corrupt):
			c.report.Damage = append(c.report.Damage, Damage{Key: name.Snapshots(id) + s, Err: err, Snapshot: []string{s}})
		case err != nil:
			return err
		default:
			c.views = append(c.views, view{snapshot: s, m: m})
		}
	}
	c.report.Manifests = len(c.views)
	seen := map[name.Ref]bool{}
	for i := range c.views {
		v := &c.views[i]
		for _, r := range v.m.Maps {
			if !seen[r] {
				seen[r] = true
				c.maps = append(c.maps, r)
			}
		}
		if r := v.m.Boot; r != nil && !seen[*r] {
			seen[*r] = true
			c.boots = append(c.boots, *r)
		}
		if v.chain, v.end, _, err = chain.Read(ctx, c.st, v.m); errs.Is(err, errs.Corrupt) {
			c.damaged[v.end] = &Damage{Key: v.end.Key(), Err: err}
		} else if err != nil {
			return err
		}
		for _, s := range slices.Concat(v.m.Segments, v.chain) {
			if !seen[s.Ref] {
				seen[s.Ref] = true
				c.segments = append(c.segments, s)
				c.report.Bytes += s.Size
			}
		}
	}
	c.report.Maps, c.report.Segments = len(c.maps), len(c.segments)
	return nil
}

func (c *checker) objects(ctx context.Context) error {
	done := int64(0)
	step := func() {
		if c.progress != nil {
			c.progress(done, c.report.Bytes)
		}
	}
	step()
	for _, r := range c.maps {
		if err := c.read(ctx, r, func(b []byte) error { return manifest.VerifyCheckpoint(r, c.keys, b) }); err != nil {
			return err
		}
	}
	for _, r := range c.boots {
		if err := c.read(ctx, r, func(b []byte) error { return checkBoot(r, b) }); err != nil {
			return err
		}
	}
	for _, s := range c.segments {
		if err := c.read(ctx, s.Ref, func(b []byte) error { return c.checkSegment(&s, b) }); err != nil {
			return err
		}
		done += s.Size
		step()
	}
	return nil
}

// counts compares the live blocks that a manifest has with its map.
func (c *checker) counts(ctx context.Context, v view) error {
	key := name.Manifest(v.m.Volume)
	damage := Damage{Key: key, Volume: true}
	if v.snapshot != "" {
		damage = Damage{Key: name.Snapshots(v.m.Volume) + v.snapshot, Snapshot: []string{v.snapshot}}
	}
	live := map[uint64]uint64{}
	err := manifest.EachLeaf(ctx, c.st, v.m, func(leaf uint64, runs []extent.Run) error {
		for _, r := range runs {
			live[r.Src] += uint64(r.N)
			if r.Src == manifest.LostSource {
				off := int64(leaf*extent.LeafBlocks+uint64(r.Start)) * segment.Block
				damage.Ranges = append(damage.Ranges, Range{off, int64(r.N) * segment.Block})
				damage.Err = errs.New(errs.Corrupt, "the map was damaged here and the loss accepted")
			}
		}
		return nil
	})
	if errs.Is(err, errs.Corrupt) {
		return nil // it is in the report by itself
	}
	if err != nil {
		return err
	}
	for _, s := range v.m.Segments {
		if !v.m.Uncounted && v.m.Root != nil && s.Live != live[s.Num] && (s.Ref.Kind == name.GC || s.First <= v.m.Root.Seq) {
			damage.Err = errs.New(errs.Corrupt, "it counts %d live blocks of segment %s, the map has %d", s.Live, s.Ref, live[s.Num])
		}
	}
	if damage.Err != nil {
		c.report.Damage = append(c.report.Damage, damage)
	}
	return nil
}

// read reads and checks a whole object. It records damage and returns every other
// error.
func (c *checker) read(ctx context.Context, r name.Ref, check func(b []byte) error) error {
	n := 0
	err := store.RetryCorrupt(func() error {
		b, _, err := c.st.Get(ctx, r.Key())
		if err != nil {
			return err
		}
		n = len(b)
		return check(b)
	})
	c.report.Checked += int64(n)
	missing := errs.Is(err, errs.NotFound)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if missing || errs.Is(err, errs.Corrupt) {
		c.damaged[r] = &Damage{Key: r.Key(), Missing: missing, Err: err}
		return nil
	}
	return err
}

func checkBoot(r name.Ref, b []byte) error {
	_, err := boot.Decode(r, b)
	switch {
	case errs.Is(err, errs.FailedPrecondition):
		return nil // of a newer version: for newer programs
	case errs.Is(err, errs.Corrupt):
		err = errs.New(errs.Corrupt, "%w; it is only a hint, no data depends on it, and the next use of the disk makes it anew", err)
	}
	return err
}

// checkSegment checks the whole object b; where frames can be told apart it
// records which are damaged.
func (c *checker) checkSegment(s *manifest.Segment, b []byte) error {
	n := int64(len(b))
	if n != s.Size {
		return errs.New(errs.Corrupt, "segment %s has %d bytes, not %d", s.Ref, n, s.Size)
	}
	x, err := segment.Verify(s.Ref, c.keys, b)
	if err == nil && (x.Fence || x.Blocks != s.Blocks) {
		return errs.New(errs.Corrupt, "segment %s is not what the manifest says", s.Ref)
	}
	if err == nil && !c.deep {
		return nil
	}
	whole := err
	if x, _, err = segment.Open(s.Ref, c.keys, n, b); err != nil {
		return err
	}
	bad := map[int]bool{}
	for i := range x.Frames() {
		off, size := x.Range(i, i+1)
		if err := x.DecodeInto(i, b[off:off+size], make([]byte, x.PlainSize(i))); err != nil {
			bad[i] = true
			whole = cmp.Or(whole, err)
		}
	}
	if len(bad) > 0 {
		c.frames[s.Ref] = bad
	}
	return whole
}

// blame finds out whom the damage concerns. What the manifests of now do not
// name was collected while Check ran, and is forgotten.
func (c *checker) blame(ctx context.Context, id name.Volume) error {
	for i := range c.views {
		v := &c.views[i]
		m, err := manifest.LoadNamed(ctx, c.st, id, v.snapshot)
		if errs.Is(err, errs.NotFound) {
			v.m = nil // deleted meanwhile
			continue
		}
		if err != nil {
			return err
		}
		if m.Revision != v.m.Revision {
			v.m, m.Keys = m, c.keys
			if v.chain, v.end, _, err = chain.Read(ctx, c.st, m); err != nil && !errs.Is(err, errs.Corrupt) {
				return err
			}
		}
		if err := c.blameView(ctx, v); err != nil {
			return err
		}
	}
	for _, d := range c.damaged {
		if d.Volume || len(d.Snapshot) > 0 {
			c.report.Damage = append(c.report.Damage, *d)
		}
	}
	slices.SortFunc(c.report.Damage, func(a, b Damage) int { return cmp.Compare(a.Key, b.Key) })
	return nil
}

func (c *checker) blameView(ctx context.Context, v *view) error {
	var mine []*Damage
	mark := func(r name.Ref) {
		d := c.damaged[r]
		if d == nil {
			return
		}
		if v.snapshot == "" {
			d.Volume = true
		} else {
			d.Snapshot = append(d.Snapshot, v.snapshot)
		}
		mine = append(mine, d)
	}
	table := map[uint64]manifest.Segment{}
	segments := slices.Concat(v.m.Segments, v.chain)
	for _, s := range segments {
		table[s.Num] = s
		mark(s.Ref)
	}
	if v.snapshot == "" {
		mark(v.end)
	}
	for _, r := range v.m.Maps {
		mark(r)
	}
	data := len(mine)
	if v.m.Boot != nil {
		mark(*v.m.Boot)
	}
	if data == 0 {
		return nil
	}
	// The map as it is with the segments after the checkpoint, to find ranges.
	full := extent.New(extent.MaxBlocks)
	err := manifest.EachLeaf(ctx, c.st, v.m, func(leaf uint64, runs []extent.Run) error {
		full.SetLeaf(leaf, runs)
		return nil
	})
	if errs.Is(err, errs.Corrupt) {
		return nil // which parts are concerned cannot be told
	}
	if err != nil {
		return err
	}
	for _, s := range segments {
		if s.Ref.Kind != name.Data || v.m.Root != nil && s.First <= v.m.Root.Seq {
			continue
		}
		x, err := segment.ReadIndex(s.Ref, c.keys, s.Size, s.Blocks, func(off, n int64) ([]byte, error) { return c.st.GetRange(ctx, s.Ref.Key(), off, n) })
		if errs.Is(err, errs.Corrupt) {
			break // the disk goes back to before it
		}
		if err != nil {
			return err
		}
		segment.Define(full, s.Num, 0, x.Entries)
	}
	full.Walk(0, v.m.Size/segment.Block, func(lba, n uint64, at extent.Value) bool {
		s := table[at.Src]
		d := c.damaged[s.Ref]
		if at.IsZero() || at.Src == manifest.LostSource {
			return true
		}
		if d == nil || len(d.Ranges) > 0 && v.snapshot != "" && (d.Volume || d.Snapshot[0] != v.snapshot) {
			return true
		}
		bad, some := c.frames[s.Ref]
		for i := range n {
			if some && !bad[int((uint64(at.Off)+i)/segment.FrameBlocks)] {
				continue
			}
			off := int64(lba+i) * segment.Block
			if k := len(d.Ranges) - 1; k >= 0 && d.Ranges[k].Off+d.Ranges[k].Len == off {
				d.Ranges[k].Len += segment.Block
			} else {
				d.Ranges = append(d.Ranges, Range{off, segment.Block})
			}
		}
		return true
	})
	return nil
}
