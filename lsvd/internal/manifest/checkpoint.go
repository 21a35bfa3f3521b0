package manifest

import (
	"slices"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
)

// A checkpoint holds the leaves of the map that changed since the one before,
// and a directory of all leaves, most of which lie in earlier checkpoints.
//
//	pages, each: v number of runs, then per run: v start - end of the run
//	             before, v blocks, v segment number, v block in the segment;
//	             CRC-32C u32 of the page
//	directory:   v number of volumes, then each [16]
//	             v number of objects, then each: a reference, v size
//	             v number of leaves, then each: v leaf - leaf before, v object,
//	             v offset, v length
//	trailer:     "LSVDMAPC", version u32, directory length u32,
//	             volume [16], epoch u64, number u64,
//	             CRC-32C of the directory u32, CRC-32C of the trailer before u32
//
// The last object of the directory is the checkpoint itself; its size is 0.

const (
	mapMagic   = "LSVDMAPC"
	mapTrailer = 8 + 4 + 4 + 16 + 8 + 8 + 4 + 4
)

// Page says where a leaf is stored.
type Page struct {
	Object name.Ref
	Off    uint32
	Len    uint32
}

// Directory has the page of every leaf of a map, and the sizes of the objects.
type Directory struct {
	Pages map[uint64]Page
	Sizes map[name.Ref]int64
}

// NewDirectory returns the directory of an empty map.
func NewDirectory() *Directory {
	return &Directory{Pages: map[uint64]Page{}, Sizes: map[name.Ref]int64{}}
}

// Objects returns the checkpoints that have pages of the directory.
func (d *Directory) Objects() []name.Ref {
	seen := map[name.Ref]bool{}
	for _, p := range d.Pages {
		seen[p.Object] = true
	}
	refs := make([]name.Ref, 0, len(seen))
	for r := range seen {
		refs = append(refs, r)
	}
	slices.SortFunc(refs, func(a, b name.Ref) int {
		if a.Key() < b.Key() {
			return -1
		}
		return 1
	})
	return refs
}

// Clone returns a copy.
func (d *Directory) Clone() *Directory {
	c := NewDirectory()
	for k, v := range d.Pages {
		c.Pages[k] = v
	}
	for k, v := range d.Sizes {
		c.Sizes[k] = v
	}
	return c
}

// Checkpoint encodes one checkpoint.
type Checkpoint struct {
	Ref name.Ref
	Dir *Directory // of the checkpoint before; changed by Leaf and Encode
	w   wire.Writer
}

// Leaf adds a changed leaf; one without runs is dropped from the map.
func (c *Checkpoint) Leaf(leaf uint64, runs []extent.Run) {
	if len(runs) == 0 {
		delete(c.Dir.Pages, leaf)
		return
	}
	start := len(c.w.B)
	c.w.Uvarint(uint64(len(runs)))
	end := uint16(0)
	for _, r := range runs {
		c.w.Uvarint(uint64(r.Start - end))
		c.w.Uvarint(uint64(r.N))
		c.w.Uvarint(r.Src)
		c.w.Uvarint(uint64(r.Off))
		end = r.Start + r.N
	}
	c.w.U32(wire.CRC(c.w.B[start:]))
	c.Dir.Pages[leaf] = Page{Object: c.Ref, Off: uint32(start), Len: uint32(len(c.w.B) - start)}
}

// Encode returns the object.
func (c *Checkpoint) Encode() []byte {
	objects := slices.DeleteFunc(c.Dir.Objects(), func(r name.Ref) bool { return r == c.Ref })
	sizes := map[name.Ref]int64{}
	index := map[name.Ref]uint64{}
	var vols volumes
	var refs wire.Writer
	for i, r := range append(objects, c.Ref) {
		index[r] = uint64(i)
		vols.put(&refs, r)
		sizes[r] = c.Dir.Sizes[r]
		refs.Uvarint(uint64(sizes[r]))
	}
	start := len(c.w.B)
	vols.encode(&c.w)
	c.w.Uvarint(uint64(len(objects) + 1))
	c.w.Bytes(refs.B)
	leaves := make([]uint64, 0, len(c.Dir.Pages))
	for l := range c.Dir.Pages {
		leaves = append(leaves, l)
	}
	slices.Sort(leaves)
	c.w.Uvarint(uint64(len(leaves)))
	last := uint64(0)
	for _, l := range leaves {
		p := c.Dir.Pages[l]
		c.w.Uvarint(l - last)
		last = l
		c.w.Uvarint(index[p.Object])
		c.w.Uvarint(uint64(p.Off))
		c.w.Uvarint(uint64(p.Len))
	}
	dir := c.w.B[start:]
	var t wire.Writer
	t.Bytes([]byte(mapMagic))
	t.U32(Version)
	t.U32(uint32(len(dir)))
	t.Bytes(c.Ref.Volume[:])
	t.U64(c.Ref.Epoch)
	t.U64(c.Ref.Num)
	t.U32(wire.CRC(dir))
	t.U32(wire.CRC(t.B))
	out := append(c.w.B, t.B...)
	sizes[c.Ref] = int64(len(out))
	c.Dir.Sizes = sizes
	return out
}

// DecodeDirectory reads the directory of the checkpoint ref.
func DecodeDirectory(ref name.Ref, b []byte) (*Directory, error) {
	if len(b) < mapTrailer {
		return nil, wire.Corrupt("checkpoint %s is cut off", ref)
	}
	t := b[len(b)-mapTrailer:]
	r := wire.Reader{B: t}
	m, version, size := string(r.Bytes(8)), r.U32(), r.U32()
	got := name.Ref{Kind: name.Map}
	copy(got.Volume[:], r.Bytes(16))
	got.Epoch, got.Num = r.U64(), r.U64()
	dirCRC, crc := r.U32(), r.U32()
	body := b[:len(b)-mapTrailer]
	if m != mapMagic || version != Version || got != ref || crc != wire.CRC(t[:mapTrailer-4]) || int64(size) > int64(len(body)) {
		return nil, wire.Corrupt("checkpoint %s is damaged", ref)
	}
	dir := body[len(body)-int(size):]
	if wire.CRC(dir) != dirCRC {
		return nil, wire.Corrupt("checkpoint %s: directory is damaged", ref)
	}
	d := NewDirectory()
	var vols volumes
	r = wire.Reader{B: dir}
	vols.decode(&r)
	objects := make([]name.Ref, r.Count(19))
	for i := range objects {
		o, ok := vols.take(&r)
		n := int64(r.Uvarint())
		if r.Err() == nil && (!ok || o.Kind != name.Map || n < 0) {
			return nil, wire.Corrupt("checkpoint %s: impossible object", ref)
		}
		objects[i] = o
		d.Sizes[o] = n
	}
	last := uint64(0)
	for range r.Count(4) {
		last += r.Uvarint()
		o, off, n := r.Uvarint(), r.Uvarint(), r.Uvarint()
		if o >= uint64(len(objects)) || off > 1<<32-1 || n > 1<<32-1 {
			return nil, wire.Corrupt("checkpoint %s: impossible page", ref)
		}
		d.Pages[last] = Page{Object: objects[o], Off: uint32(off), Len: uint32(n)}
	}
	d.Sizes[ref] = int64(len(b))
	return d, r.End()
}

// DecodePage reads the runs of a leaf from its checkpoint.
func DecodePage(p Page, object []byte) ([]extent.Run, error) {
	if uint64(p.Off)+uint64(p.Len) > uint64(len(object)) || p.Len < 5 {
		return nil, wire.Corrupt("checkpoint %s: page lies outside", p.Object)
	}
	b := object[p.Off : uint64(p.Off)+uint64(p.Len)]
	sum := wire.Reader{B: b[len(b)-4:]}
	if sum.U32() != wire.CRC(b[:len(b)-4]) {
		return nil, wire.Corrupt("checkpoint %s: page is damaged", p.Object)
	}
	r := wire.Reader{B: b[:len(b)-4]}
	runs := make([]extent.Run, r.Count(4))
	end := uint64(0)
	for i := range runs {
		start := end + r.Uvarint()
		n, src, off := r.Uvarint(), r.Uvarint(), r.Uvarint()
		if n == 0 || start >= extent.LeafBlocks || n > extent.LeafBlocks-start || off+n > 1<<31 || off > 1<<31 {
			return nil, wire.Corrupt("checkpoint %s: impossible run", p.Object)
		}
		end = start + n
		runs[i] = extent.Run{Start: uint16(start), N: uint16(n), Off: uint32(off), Src: src}
	}
	return runs, r.End()
}
