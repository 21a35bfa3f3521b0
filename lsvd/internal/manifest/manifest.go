// Package manifest is the format of the objects that say what a disk
// consists of: the manifest of a volume or snapshot, and the checkpoints of
// its map (see checkpoint.go).
//
// A manifest, little-endian, uvarints where marked v:
//
//	  0  "LSVDMNFT"
//	  8  version u32
//	 12  flags u32: 1 clean, 2 snapshot, 4 encrypted, 8 uncounted
//	 16  volume [16]
//	 32  revision u64        counts the writes of this manifest
//	 40  epoch u64           of the last process that opened the volume
//	 48  chain epoch u64     whose data segments and log continue the volume
//	 56  chain next u64      number of the first data segment not in here
//	 64  durable u64         last sequence number in the segments
//	 72  size u64            bytes
//	 80  next segment u64    the next free number of the segment table
//	 88  created u64         nanoseconds since 1970
//	 96  owner [16]          random, of the process that claimed the epoch
//	112  v number of volumes, then each [16]: the volumes that objects are of
//	     v length, origin: what it was cloned from, for people
//	     u8 1 if there is a checkpoint, then its reference, v size, u64 seq
//	     v number of checkpoints that hold pages of the map, then references
//	     v number of segments, then each: v number - number before,
//	         reference, v size, v blocks, u64 first, u64 last,
//	         v live blocks: those that the checkpoint maps
//	     u8 1 if there is a boot list, then its reference
//	     MAC [16] of all before, if encrypted: see package keyring
//	     CRC-32C of all before u32
//
// Uncounted tells that live blocks are not known: they were found to be wrong,
// and the next process that opens the volume counts them.
//
// A reference is v index of the volume, u8 kind, u64 epoch, u64 number.
package manifest

import (
	"slices"

	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/pkg/errs"
)

// Version is the version of the manifest format, the only one that is read.
const Version = 4

const (
	magic         = "LSVDMNFT"
	flagClean     = 1
	flagSnapshot  = 2
	flagEncrypted = 4
	flagUncounted = 8
)

// Segment is one entry of the segment table. Num is how the map names it.
type Segment struct {
	Num         uint64
	Ref         name.Ref
	Size        int64
	Blocks      uint64
	First, Last uint64
	Live        uint64 // blocks that the checkpoint maps; of a later segment 0
}

// Root names the newest checkpoint of the map and the sequence number up to
// which it has everything.
type Root struct {
	Ref  name.Ref
	Size int64
	Seq  uint64
}

// Manifest says what a volume consists of.
type Manifest struct {
	Volume      name.Volume
	Revision    uint64
	Epoch       uint64
	ChainEpoch  uint64
	ChainNext   uint64
	Durable     uint64
	Size        uint64
	NextSegment uint64
	Owner       [16]byte
	Created     uint64
	Clean       bool // closed with everything in the store
	Snapshot    bool
	Encrypted   bool
	Uncounted   bool // Live of the segments is not known
	Origin      string
	Root        *Root
	Maps        []name.Ref // checkpoints with pages of the map, Root's among them
	Segments    []Segment  // by Num
	Boot        *name.Ref  // the boot list, if there is one: only a hint

	// Keys are those of an encrypted volume. Open sets them, and Encode needs
	// them; they are not stored here.
	Keys *keyring.Ring
}

// Clone returns a deep copy.
func (m *Manifest) Clone() *Manifest {
	c := *m
	c.Segments = slices.Clone(m.Segments)
	c.Maps = slices.Clone(m.Maps)
	if m.Root != nil {
		r := *m.Root
		c.Root = &r
	}
	if m.Boot != nil {
		r := *m.Boot
		c.Boot = &r
	}
	return &c
}

// Volumes returns the other volumes whose objects m names.
func (m *Manifest) Volumes() (others []name.Volume) {
	add := func(r name.Ref) {
		if r.Volume != m.Volume && !slices.Contains(others, r.Volume) {
			others = append(others, r.Volume)
		}
	}
	for i := range m.Segments {
		add(m.Segments[i].Ref)
	}
	for _, r := range m.Maps {
		add(r)
	}
	return others
}

type volumes struct{ list []name.Volume }

func (v *volumes) index(x name.Volume) uint64 {
	i := slices.Index(v.list, x)
	if i < 0 {
		i = len(v.list)
		v.list = append(v.list, x)
	}
	return uint64(i)
}

func (v *volumes) put(w *wire.Writer, r name.Ref) {
	w.Uvarint(v.index(r.Volume))
	w.U8(uint8(r.Kind))
	w.U64(r.Epoch)
	w.U64(r.Num)
}

func (v *volumes) encode(w *wire.Writer) {
	w.Uvarint(uint64(len(v.list)))
	for _, x := range v.list {
		w.Bytes(x[:])
	}
}

func (v *volumes) decode(r *wire.Reader) {
	v.list = make([]name.Volume, r.Count(16))
	for i := range v.list {
		copy(v.list[i][:], r.Bytes(16))
	}
}

func (v *volumes) take(r *wire.Reader) (ref name.Ref, ok bool) {
	i := r.Uvarint()
	ref.Kind = name.Kind(r.U8())
	ref.Epoch = r.U64()
	ref.Num = r.U64()
	if i >= uint64(len(v.list)) || ref.Kind < name.Data || ref.Kind > name.Boot {
		return ref, false
	}
	ref.Volume = v.list[i]
	return ref, true
}

// Encode returns the object of m that the store has under key. That of an
// encrypted volume is authentic under this key only.
func (m *Manifest) Encode(key string) []byte {
	var w wire.Writer
	w.Bytes([]byte(magic))
	w.U32(Version)
	var flags uint32
	for bit, on := range map[uint32]bool{flagClean: m.Clean, flagSnapshot: m.Snapshot, flagEncrypted: m.Encrypted, flagUncounted: m.Uncounted} {
		if on {
			flags |= bit
		}
	}
	w.U32(flags)
	w.Bytes(m.Volume[:])
	for _, v := range []uint64{m.Revision, m.Epoch, m.ChainEpoch, m.ChainNext, m.Durable, m.Size, m.NextSegment} {
		w.U64(v)
	}
	w.U64(m.Created)
	w.Bytes(m.Owner[:])
	var vols volumes
	var rest wire.Writer
	rest.String(m.Origin)
	if m.Root == nil {
		rest.U8(0)
	} else {
		rest.U8(1)
		vols.put(&rest, m.Root.Ref)
		rest.Uvarint(uint64(m.Root.Size))
		rest.U64(m.Root.Seq)
	}
	rest.Uvarint(uint64(len(m.Maps)))
	for _, r := range m.Maps {
		vols.put(&rest, r)
	}
	rest.Uvarint(uint64(len(m.Segments)))
	last := uint64(0)
	for _, s := range m.Segments {
		rest.Uvarint(s.Num - last)
		last = s.Num
		vols.put(&rest, s.Ref)
		rest.Uvarint(uint64(s.Size))
		rest.Uvarint(s.Blocks)
		rest.U64(s.First)
		rest.U64(s.Last)
		rest.Uvarint(s.Live)
	}
	if m.Boot == nil {
		rest.U8(0)
	} else {
		rest.U8(1)
		vols.put(&rest, *m.Boot)
	}
	vols.encode(&w)
	w.Bytes(rest.B)
	switch {
	case m.Keys != nil:
		w.Bytes(m.Keys.Manifest(key, w.B))
	case m.Encrypted:
		w.Bytes(make([]byte, keyring.MACSize)) // of a manifest that was read without keys: authentic nowhere
	}
	w.U32(wire.CRC(w.B))
	return w.B
}

// authenticate verifies that something with the keys wrote b, which m was
// decoded from, under this key of the store.
func (m *Manifest) authenticate(key string, b []byte, keys *keyring.Ring) error {
	if !m.Encrypted {
		return wire.Corrupt("the manifest is not encrypted, and the volume is: something without its key wrote it")
	}
	body, sum := b[:len(b)-4-keyring.MACSize], b[len(b)-4-keyring.MACSize:len(b)-4]
	if !keyring.Equal(sum, keys.Manifest(key, body)) {
		return wire.Corrupt("the manifest is not authentic: something without its key changed or moved it")
	}
	m.Keys = keys
	return nil
}

// HeadSize is how many bytes of a manifest Claim needs.
const HeadSize = 112

// Claim reads the epoch and the owner from the first bytes of a manifest. They
// have no checksum of their own: what they say is to be confirmed by Decode.
func Claim(b []byte) (epoch uint64, owner [16]byte, ok bool) {
	if len(b) < HeadSize || string(b[:8]) != magic {
		return 0, owner, false
	}
	r := wire.Reader{B: b[40:48]}
	return r.U64(), [16]byte(b[96:112]), true
}

// Decode reads a manifest. It does not authenticate that of an encrypted volume.
func Decode(b []byte) (*Manifest, error) {
	if len(b) < 16 || string(b[:8]) != magic {
		return nil, wire.Corrupt("not a manifest")
	}
	sum := wire.Reader{B: b[len(b)-4:]}
	if sum.U32() != wire.CRC(b[:len(b)-4]) {
		return nil, wire.Corrupt("manifest is damaged")
	}
	r := wire.Reader{B: b[8 : len(b)-4]}
	if v := r.U32(); v != Version {
		return nil, errs.New(errs.FailedPrecondition, "manifest has version %d, this program knows %d", v, Version).
			WithHint("use the program that wrote it")
	}
	m := &Manifest{}
	flags := r.U32()
	if unknown := flags &^ (flagClean | flagSnapshot | flagEncrypted | flagUncounted); unknown != 0 {
		return nil, errs.New(errs.FailedPrecondition, "manifest has flags %#x, of which this program does not know %#x", flags, unknown).
			WithHint("use the program that wrote it")
	}
	m.Clean, m.Snapshot, m.Encrypted = flags&flagClean != 0, flags&flagSnapshot != 0, flags&flagEncrypted != 0
	m.Uncounted = flags&flagUncounted != 0
	copy(m.Volume[:], r.Bytes(16))
	for _, p := range []*uint64{&m.Revision, &m.Epoch, &m.ChainEpoch, &m.ChainNext, &m.Durable, &m.Size, &m.NextSegment} {
		*p = r.U64()
	}
	m.Created = r.U64()
	copy(m.Owner[:], r.Bytes(16))
	var vols volumes
	vols.decode(&r)
	m.Origin = r.String()
	if r.U8() == 1 {
		ref, ok := vols.take(&r)
		m.Root = &Root{Ref: ref, Size: int64(r.Uvarint()), Seq: r.U64()}
		if !ok || ref.Kind != name.Map || m.Root.Size < 0 || m.Root.Seq > m.Durable {
			return nil, wire.Corrupt("manifest has an impossible checkpoint")
		}
	}
	m.Maps = make([]name.Ref, r.Count(18))
	for i := range m.Maps {
		ref, ok := vols.take(&r)
		if r.Err() == nil && (!ok || ref.Kind != name.Map) {
			return nil, wire.Corrupt("manifest has an impossible checkpoint")
		}
		m.Maps[i] = ref
	}
	m.Segments = make([]Segment, r.Count(38))
	last := uint64(0)
	for i := range m.Segments {
		gap := r.Uvarint()
		ref, ok := vols.take(&r)
		s := Segment{Num: last + gap, Ref: ref, Size: int64(r.Uvarint()), Blocks: r.Uvarint(), First: r.U64(), Last: r.U64(), Live: r.Uvarint()}
		if r.Err() == nil && (!ok || ref.Kind > name.GC || s.Num < last || i > 0 && gap == 0 || s.Num >= m.NextSegment || s.Size < 0 || s.First > s.Last || s.Last > m.Durable || s.Live > s.Blocks) {
			return nil, wire.Corrupt("manifest has an impossible segment")
		}
		last = s.Num
		m.Segments[i] = s
	}
	if r.U8() == 1 {
		ref, ok := vols.take(&r)
		if r.Err() == nil && (!ok || ref.Kind != name.Boot) {
			return nil, wire.Corrupt("manifest has an impossible boot list")
		}
		m.Boot = &ref
	}
	if m.Encrypted {
		r.Bytes(keyring.MACSize)
	}
	if err := r.End(); err != nil {
		return nil, err
	}
	if m.Size == 0 || m.Size%4096 != 0 || m.ChainEpoch > m.Epoch {
		return nil, wire.Corrupt("manifest has impossible fields")
	}
	return m, nil
}
