package manifest

import (
	"slices"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/pkg/errs"
)

// A checkpoint holds the leaves of the map that changed since the one before,
// and a directory of all leaves, most of which lie in earlier checkpoints.
//
//	pages, each: v number of runs, then per run: v start - end of the run
//	             before, v blocks, v segment number, v block in the segment;
//	             MAC [16] if authenticated; CRC-32C u32 of the page
//	directory:   v number of volumes, then each [16]
//	             v number of objects, then each: a reference, v size
//	             v number of leaves, then each: v leaf - leaf before, v object,
//	             v offset, v length
//	trailer:     "LSVDMAPC", version u32, flags u32: 1 authenticated,
//	             directory length u32, volume [16], epoch u64, number u64,
//	             MAC [16] of the directory, else zeros,
//	             CRC-32C of the directory u32, CRC-32C of the trailer before u32
//
// The last object of the directory is the checkpoint itself; its size is 0.
//
// Checkpoints of encrypted volumes are authenticated (see package keyring): a
// page for its leaf, the directory for its object.

const (
	mapVersion       = 2
	mapMagic         = "LSVDMAPC"
	mapTrailer       = 8 + 4 + 4 + 4 + 16 + 8 + 8 + keyring.MACSize + 4 + 4
	mapAuthenticated = 1

	directoryPiece = 1<<64 - 1 // what keyring.Map takes for the directory, where pages have their leaf
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

	authenticated bool // the pages of its own object have MACs
}

// Checkpoint encodes one checkpoint. Leaf, Raw and Keep are called for each
// leaf of the map, in order.
type Checkpoint struct {
	Ref  name.Ref
	Keys *keyring.Ring // of an encrypted volume: they have that of Ref's volume

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
	if c.Keys != nil {
		c.w.Bytes(c.mac(leaf, c.w.B[start:]))
	}
	c.w.U32(wire.CRC(c.w.B[start:]))
	off, n = uint32(start), uint32(len(c.w.B)-start)
	c.dir.Pages = append(c.dir.Pages, Page{Leaf: leaf, Object: -1, Off: off, Len: n})
	return off, n
}

func (c *Checkpoint) mac(piece uint64, b []byte) []byte {
	sum, err := c.Keys.Map(c.Ref, piece, b)
	if err != nil {
		panic(err) // a volume has its own key
	}
	return sum
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
	sum, flags := make([]byte, keyring.MACSize), uint32(0)
	if c.Keys != nil {
		sum, flags = c.mac(directoryPiece, dir), mapAuthenticated
	}
	t.U32(flags)
	t.U32(uint32(len(dir)))
	t.Bytes(c.Ref.Volume[:])
	t.U64(c.Ref.Epoch)
	t.U64(c.Ref.Num)
	t.Bytes(sum)
	t.U32(wire.CRC(dir))
	t.U32(wire.CRC(t.B))
	return append(c.w.B, t.B...)
}

// DecodeDirectory reads the directory of the checkpoint ref of size bytes from
// its last bytes. If tail is too short it returns how many are needed. With keys
// it must be authentic; without them nothing is authenticated.
func DecodeDirectory(ref name.Ref, keys *keyring.Ring, size int64, tail []byte) (*Directory, int64, error) {
	bad := func(what string) (*Directory, int64, error) {
		return nil, 0, wire.Corrupt("checkpoint %s: %s", ref, what)
	}
	if len(tail) < mapTrailer || int64(len(tail)) > size {
		return bad("is cut off")
	}
	t := tail[len(tail)-mapTrailer:]
	r := wire.Reader{B: t}
	m, version, flags, length := string(r.Bytes(8)), r.U32(), r.U32(), r.U32()
	got := name.Ref{Kind: name.Map}
	copy(got.Volume[:], r.Bytes(16))
	got.Epoch, got.Num = r.U64(), r.U64()
	sum := r.Bytes(keyring.MACSize)
	dirCRC, crc := r.U32(), r.U32()
	if m != mapMagic || got != ref || crc != wire.CRC(t[:mapTrailer-4]) || int64(length) > size-mapTrailer {
		return bad("is damaged")
	}
	if version != mapVersion {
		return nil, 0, errs.New(errs.FailedPrecondition, "checkpoint %s has version %d, this program knows %d", ref, version, mapVersion)
	}
	if flags > mapAuthenticated {
		return bad("is damaged")
	}
	if need := int64(length) + mapTrailer; need > int64(len(tail)) {
		return nil, need, nil
	}
	dir := tail[len(tail)-mapTrailer-int(length) : len(tail)-mapTrailer]
	if wire.CRC(dir) != dirCRC {
		return bad("directory is damaged")
	}
	if keys != nil {
		want, err := keys.Map(ref, directoryPiece, dir)
		switch {
		case err != nil:
			return nil, 0, err
		case flags&mapAuthenticated == 0:
			return bad("is plain, and the volume is encrypted: something without its key wrote it")
		case !keyring.Equal(sum, want):
			return bad("directory is not authentic: something without its key changed it")
		}
	}
	d := &Directory{authenticated: flags&mapAuthenticated != 0}
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
const MaxPage = extent.LeafBlocks*(2+2+10+5) + 16 + keyring.MACSize

// DecodePage reads the runs of a leaf from its page, of the object ref. With keys
// the page must be authentic.
func DecodePage(ref name.Ref, leaf uint64, keys *keyring.Ring, b []byte) ([]extent.Run, error) {
	b, err := checkPage(ref, b)
	if err != nil {
		return nil, err
	}
	if keys != nil {
		at := len(b) - keyring.MACSize
		if at < 1 {
			return nil, wire.Corrupt("checkpoint %s: page is cut off", ref)
		}
		want, err := keys.Map(ref, leaf, b[:at])
		if err != nil {
			return nil, err
		}
		if !keyring.Equal(b[at:], want) {
			return nil, wire.Corrupt("checkpoint %s: page is not authentic: something without its key changed it", ref)
		}
		b = b[:at]
	}
	r := wire.Reader{B: b}
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

// checkPage compares a page with its checksum and returns it without.
func checkPage(ref name.Ref, b []byte) ([]byte, error) {
	if len(b) < 5 {
		return nil, wire.Corrupt("checkpoint %s: page is cut off", ref)
	}
	sum := wire.Reader{B: b[len(b)-4:]}
	if sum.U32() != wire.CRC(b[:len(b)-4]) {
		return nil, wire.Corrupt("checkpoint %s: page is damaged", ref)
	}
	return b[:len(b)-4], nil
}
