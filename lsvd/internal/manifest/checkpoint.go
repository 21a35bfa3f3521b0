package manifest

import (
	"slices"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/pkg/errs"
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
	mapVersion = 1
	mapMagic   = "LSVDMAPC"
	mapTrailer = 8 + 4 + 4 + 16 + 8 + 8 + 4 + 4
)

// Page says where a leaf is stored: in the object with that number of its
// directory.
type Page struct {
	Leaf   uint64
	Object int
	Off    uint32
	Len    uint32
}

// Directory has the page of every leaf of a map, in order, and the objects
// that they are in with their sizes. The last object is its own.
type Directory struct {
	Objects []name.Ref
	Sizes   []int64
	Pages   []Page
}

// Checkpoint encodes one checkpoint. Leaf, Raw and Keep are called for each
// leaf of the map, in order.
type Checkpoint struct {
	Ref name.Ref

	w     wire.Writer
	dir   Directory // its own object is number -1 until Encode
	index map[name.Ref]int
}

// Leaf adds a leaf with this content and returns where in the object it is.
func (c *Checkpoint) Leaf(leaf uint64, runs []extent.Run) (off, n uint32) {
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
	return c.added(leaf, start)
}

// Raw adds a leaf as it is stored in another object.
func (c *Checkpoint) Raw(leaf uint64, page []byte) (off, n uint32) {
	start := len(c.w.B)
	c.w.Bytes(page)
	return c.added(leaf, start)
}

func (c *Checkpoint) added(leaf uint64, start int) (off, n uint32) {
	off, n = uint32(start), uint32(len(c.w.B)-start)
	c.dir.Pages = append(c.dir.Pages, Page{Leaf: leaf, Object: -1, Off: off, Len: n})
	return off, n
}

// Keep adds a leaf that is stored in an earlier object of this size.
func (c *Checkpoint) Keep(leaf uint64, object name.Ref, size int64, off, n uint32) {
	i, ok := c.index[object]
	if !ok {
		if c.index == nil {
			c.index = map[name.Ref]int{}
		}
		i = len(c.dir.Objects)
		c.index[object] = i
		c.dir.Objects, c.dir.Sizes = append(c.dir.Objects, object), append(c.dir.Sizes, size)
	}
	c.dir.Pages = append(c.dir.Pages, Page{Leaf: leaf, Object: i, Off: off, Len: n})
}

// Objects are the checkpoints that the map needs: those kept, and this one.
func (c *Checkpoint) Objects() []name.Ref { return append(slices.Clone(c.dir.Objects), c.Ref) }

// Encode returns the object.
func (c *Checkpoint) Encode() []byte {
	var vols volumes
	var refs wire.Writer
	own := len(c.dir.Objects)
	for i, r := range c.Objects() {
		vols.put(&refs, r)
		size := int64(0)
		if i < own {
			size = c.dir.Sizes[i]
		}
		refs.Uvarint(uint64(size))
	}
	start := len(c.w.B)
	vols.encode(&c.w)
	c.w.Uvarint(uint64(own + 1))
	c.w.Bytes(refs.B)
	c.w.Uvarint(uint64(len(c.dir.Pages)))
	last := uint64(0)
	for _, p := range c.dir.Pages {
		c.w.Uvarint(p.Leaf - last)
		last = p.Leaf
		if p.Object < 0 {
			p.Object = own
		}
		c.w.Uvarint(uint64(p.Object))
		c.w.Uvarint(uint64(p.Off))
		c.w.Uvarint(uint64(p.Len))
	}
	dir := c.w.B[start:]
	var t wire.Writer
	t.Bytes([]byte(mapMagic))
	t.U32(mapVersion)
	t.U32(uint32(len(dir)))
	t.Bytes(c.Ref.Volume[:])
	t.U64(c.Ref.Epoch)
	t.U64(c.Ref.Num)
	t.U32(wire.CRC(dir))
	t.U32(wire.CRC(t.B))
	return append(c.w.B, t.B...)
}

// DecodeDirectory reads the directory of the checkpoint ref of size bytes from
// its last bytes. If tail is too short it returns how many are needed.
func DecodeDirectory(ref name.Ref, size int64, tail []byte) (*Directory, int64, error) {
	bad := func(what string) (*Directory, int64, error) {
		return nil, 0, wire.Corrupt("checkpoint %s: %s", ref, what)
	}
	if len(tail) < mapTrailer || int64(len(tail)) > size {
		return bad("is cut off")
	}
	t := tail[len(tail)-mapTrailer:]
	r := wire.Reader{B: t}
	m, version, length := string(r.Bytes(8)), r.U32(), r.U32()
	got := name.Ref{Kind: name.Map}
	copy(got.Volume[:], r.Bytes(16))
	got.Epoch, got.Num = r.U64(), r.U64()
	dirCRC, crc := r.U32(), r.U32()
	if m != mapMagic || got != ref || crc != wire.CRC(t[:mapTrailer-4]) || int64(length) > size-mapTrailer {
		return bad("is damaged")
	}
	if version != mapVersion {
		return nil, 0, errs.New(errs.FailedPrecondition, "checkpoint %s has version %d, this program knows %d", ref, version, mapVersion)
	}
	if need := int64(length) + mapTrailer; need > int64(len(tail)) {
		return nil, need, nil
	}
	dir := tail[len(tail)-mapTrailer-int(length) : len(tail)-mapTrailer]
	if wire.CRC(dir) != dirCRC {
		return bad("directory is damaged")
	}
	d := &Directory{}
	var vols volumes
	r = wire.Reader{B: dir}
	vols.decode(&r)
	d.Objects = make([]name.Ref, r.Count(19))
	d.Sizes = make([]int64, len(d.Objects))
	for i := range d.Objects {
		o, ok := vols.take(&r)
		n := int64(r.Uvarint())
		if r.Err() == nil && (!ok || o.Kind != name.Map || n < 0) {
			return bad("impossible object")
		}
		d.Objects[i], d.Sizes[i] = o, n
	}
	if k := len(d.Objects) - 1; k < 0 || d.Objects[k] != ref {
		return bad("directory is of another")
	} else {
		d.Sizes[k] = size
	}
	d.Pages = make([]Page, r.Count(4))
	last := uint64(0)
	for i := range d.Pages {
		gap := r.Uvarint()
		o, off, n := r.Uvarint(), r.Uvarint(), r.Uvarint()
		if o >= uint64(len(d.Objects)) || off > 1<<32-1 || n < 5 || n > MaxPage || last+gap < last || i > 0 && gap == 0 || r.Err() != nil {
			return bad("impossible page")
		}
		last += gap
		d.Pages[i] = Page{Leaf: last, Object: int(o), Off: uint32(off), Len: uint32(n)}
	}
	return d, 0, r.End()
}

// MaxPage is the most bytes that a page may have: as many runs as blocks.
const MaxPage = extent.LeafBlocks*(2+2+10+5) + 16

// DecodePage reads the runs of a leaf from its page, of the object ref.
func DecodePage(ref name.Ref, b []byte) ([]extent.Run, error) {
	if len(b) < 5 {
		return nil, wire.Corrupt("checkpoint %s: page is cut off", ref)
	}
	sum := wire.Reader{B: b[len(b)-4:]}
	if sum.U32() != wire.CRC(b[:len(b)-4]) {
		return nil, wire.Corrupt("checkpoint %s: page is damaged", ref)
	}
	r := wire.Reader{B: b[:len(b)-4]}
	runs := make([]extent.Run, r.Count(4))
	end := uint64(0)
	for i := range runs {
		start := end + r.Uvarint()
		n, src, off := r.Uvarint(), r.Uvarint(), r.Uvarint()
		if n == 0 || start >= extent.LeafBlocks || n > extent.LeafBlocks-start || off+n > 1<<31 || off > 1<<31 {
			return nil, wire.Corrupt("checkpoint %s: impossible run", ref)
		}
		end = start + n
		runs[i] = extent.Run{Start: uint16(start), N: uint16(n), Off: uint32(off), Src: src}
	}
	return runs, r.End()
}
