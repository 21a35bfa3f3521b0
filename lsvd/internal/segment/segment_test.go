package segment

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/pkg/errs"
)

var ref = name.Ref{Volume: name.Volume{7}, Kind: name.Data, Epoch: 2, Num: 3}

// ring makes keys of ref's volume.
func ring(t testing.TB) *keyring.Ring {
	r, err := keyring.New(ref.Volume, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// build makes a segment with compressible and incompressible data.
func build(t testing.TB, key *keyring.Ring) (object []byte, entries []Entry, data []byte) {
	entries = []Entry{
		{LBA: 3, Blocks: 20, Seq: 11}, {LBA: 23, Blocks: 1 << 33, Seq: 15, Zero: true}, {LBA: 1 << 34, Blocks: 1, Seq: 20}, {LBA: 1<<34 + 5, Blocks: 30, Seq: 10},
	}
	data = make([]byte, 51*Block)
	rand.NewChaCha8([32]byte{4}).Read(data[10*Block : 30*Block])
	rest := data
	object, err := Build(Head{Ref: ref, First: 10, Last: 20}, key, bytes.NewReader(make([]byte, 16)), entries, func(_ int, _ uint64, p []byte) error {
		rest = rest[copy(p, rest):]
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return object, entries, data
}

func contents(x *Index, object []byte) ([]byte, error) {
	var all []byte
	for i := range x.Frames() {
		off, n := x.Range(i, i+1)
		b := make([]byte, x.PlainSize(i))
		if err := x.DecodeInto(i, bytes.Clone(object[off:off+n]), b); err != nil {
			return nil, err
		}
		all = append(all, b...)
	}
	return all, nil
}

func TestRoundTrip(t *testing.T) {
	for _, key := range []*keyring.Ring{nil, ring(t)} {
		object, entries, data := build(t, key)
		x, err := Verify(ref, key, object)
		if err != nil {
			t.Fatal(err)
		}
		if len(x.Entries) != len(entries) || x.First != 10 || x.Last != 20 || x.Blocks != 51 {
			t.Fatalf("%+v", x)
		}
		for i := range entries {
			if x.Entries[i] != entries[i] {
				t.Errorf("entry %d: %+v", i, x.Entries[i])
			}
		}
		if got, err := contents(x, object); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("data differs: %v", err)
		}
		if len(object) > 30*Block {
			t.Errorf("%d bytes for 20 blocks that cannot be compressed", len(object))
		}
		if key != nil {
			for _, other := range []*keyring.Ring{nil, ring(t)} {
				if _, err := Verify(ref, other, object); err == nil {
					t.Error("decrypted with another key")
				}
			}
		}
		// The index is found with one more read when the tail was too short.
		if x, need, err := Open(ref, key, int64(len(object)), object[len(object)-TrailerSize:]); x != nil || err != nil || need <= TrailerSize {
			t.Errorf("%v %d %v", x, need, err)
		}
		other := ref
		other.Num++
		if _, err := Verify(other, key, object); !errs.Is(err, errs.Corrupt) {
			t.Errorf("passed for another segment: %v", err)
		}
	}
}

func TestEveryFlippedBitIsNoticed(t *testing.T) {
	for _, key := range []*keyring.Ring{nil, ring(t)} {
		object, _, _ := build(t, key)
		rng := rand.New(rand.NewPCG(1, 1))
		for i := range 1500 {
			bit := rng.IntN(len(object) * 8)
			if i < 1000 { // the trailer and the index
				bit = len(object)*8 - 1 - rng.IntN(8*300)
			}
			object[bit/8] ^= 1 << (bit % 8)
			if _, err := Verify(ref, key, object); err == nil {
				t.Fatalf("bit %d flipped unnoticed by Verify", bit)
			}
			// Without the whole object: index and frames notice it, but for
			// the checksum of the whole, which they do not use.
			if x, _, err := Open(ref, key, int64(len(object)), object); err == nil {
				if _, err := contents(x, object); err == nil {
					t.Fatalf("bit %d flipped unnoticed by frames", bit)
				}
			}
			object[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestFenceVerifies(t *testing.T) {
	for _, keys := range []*keyring.Ring{nil, ring(t)} {
		if x, err := Verify(ref, keys, Fence(ref)); err != nil || !x.Fence {
			t.Fatalf("%+v %v", x, err)
		}
	}
}

// TestPlainSegmentIsRefused puts a plain segment where an encrypted one is expected, and one of another volume, for
// which there is no key.
func TestPlainSegmentIsRefused(t *testing.T) {
	object, _, _ := build(t, nil)
	if _, err := Verify(ref, ring(t), object); !errs.Is(err, errs.Corrupt) || !strings.Contains(err.Error(), "is not encrypted") {
		t.Errorf("plain: %v", err)
	}
	other, err := keyring.New(name.Volume{8}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(ref, other, object); !errs.Is(err, errs.Corrupt) {
		t.Errorf("without a key of its volume: %v", err)
	}
}

// FuzzOpen begins with a small segment: the fuzzer makes what it finds
// interesting as short as it can before it goes on, which for a seed of 100 KB
// takes all its time.
func FuzzOpen(f *testing.F) {
	object, err := Build(Head{Ref: ref, First: 10, Last: 20}, nil, nil, []Entry{{LBA: 3, Blocks: 17, Seq: 11}, {LBA: 40, Blocks: 2, Seq: 15, Zero: true}},
		func(int, uint64, []byte) error { return nil })
	if err != nil || len(object) > 400 {
		f.Fatalf("seed of %d bytes: %v", len(object), err)
	}
	f.Add(object)
	f.Add(Fence(ref))
	f.Fuzz(func(t *testing.T, b []byte) {
		if x, err := Verify(ref, nil, b); err == nil && !x.Fence {
			contents(x, b)
		}
	})
}

// FuzzIndex goes past the checksums.
func FuzzIndex(f *testing.F) {
	object, _, _ := build(f, nil)
	x, _ := Verify(ref, nil, object)
	last := x.frames[len(x.frames)-1]
	frames := last.off + int64(last.size)
	f.Add(object[frames:len(object)-TrailerSize], frames, uint32(51))
	f.Fuzz(func(t *testing.T, b []byte, frames int64, blocks uint32) {
		x := &Index{Head: Head{Ref: ref, First: 10, Last: 20}, Blocks: uint64(blocks)}
		if x.decode(b, frames) != nil {
			return
		}
		for i := range x.Frames() {
			if off, n := x.Range(i, i+1); off < 0 || n < 0 || off+n > frames {
				t.Errorf("frame %d lies at %d+%d of %d", i, off, n, frames)
			}
			x.DecodeInto(i, nil, make([]byte, x.PlainSize(i)))
		}
	})
}

func TestPlainFramesAreNotCompressed(t *testing.T) {
	data := bytes.Repeat([]byte("compressible "), 3*FrameSize/13+1)[:3*FrameSize]
	clear(data[FrameSize : 2*FrameSize])
	object, err := Build(Head{Ref: ref, First: 1, Last: 1, Plain: true}, nil, nil, []Entry{{LBA: 9, Blocks: 3 * FrameBlocks, Seq: 1}},
		func(_ int, first uint64, p []byte) error { copy(p, data[first*Block:]); return nil })
	if err != nil {
		t.Fatal(err)
	}
	x, err := Verify(ref, nil, object)
	if err != nil {
		t.Fatal(err)
	}
	if !x.IsPlain(0) || x.IsPlain(1) || !x.IsPlain(2) || len(object) > 2*FrameSize+500 {
		t.Errorf("%v, %v, %v in %d bytes", x.IsPlain(0), x.IsPlain(1), x.IsPlain(2), len(object))
	}
	if got, err := contents(x, object); err != nil || !bytes.Equal(got, data) {
		t.Errorf("content differs: %v", err)
	}
}

// TestOtherFormatsAreRefused gives a segment and a fence the version before and the one
// after, and flags that a later program may define.
func TestOtherFormatsAreRefused(t *testing.T) {
	change := map[string]func(trailer []byte){
		"version 2": func(b []byte) { binary.LittleEndian.PutUint32(b[8:], Version-1) },
		"version 4": func(b []byte) { binary.LittleEndian.PutUint32(b[8:], Version+1) },
		"know 0x8":  func(b []byte) { b[13] |= 8 },
		"know 0x80": func(b []byte) { b[13] |= 128 },
	}
	keys := ring(t)
	for want, change := range change {
		plain, _, _ := build(t, nil)
		sealed, _, _ := build(t, keys)
		for what, object := range map[string][]byte{"plain": plain, "encrypted": sealed, "fence": Fence(ref)} {
			trailer := object[len(object)-TrailerSize:]
			change(trailer)
			binary.LittleEndian.PutUint32(trailer[136:], wire.CRC(trailer[:136]))
			_, err := Verify(ref, keys, object)
			for _, err := range []error{err, Intact(ref, object)} {
				if !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), want) {
					t.Errorf("%s segment, %s: %v", what, want, err)
				}
			}
		}
	}
}
