package wal

import (
	"bytes"
	"encoding/binary"
	"testing"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/lsvd/vfs"
)

var header = Header{Volume: name.Volume{1, 2}, Epoch: 3, Generation: 4, First: 5, PrevEpoch: 2, PrevSeq: 4}

func block(b byte) []byte { return bytes.Repeat([]byte{b}, Block) }

func sample() []byte {
	data := append(block(1), block(2)...)
	b := appendHead(nil, &header, 9, 7, []Extent{
		{Kind: Data, LBA: 7, Blocks: 2, Data: data, CRCs: Sums(data)}, {Kind: Zero, LBA: 100, Blocks: 1 << 30}, {Kind: Trim, LBA: 3, Blocks: 1},
	})
	return append(b, data...)
}

func TestHeader(t *testing.T) {
	b := EncodeHeader(header)
	got, err := DecodeHeader(b)
	if err != nil || got != header || len(b) != 4096 {
		t.Fatalf("%+v %v", got, err)
	}
	for bit := range 76 * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := DecodeHeader(b); err == nil {
			t.Errorf("bit %d flipped unnoticed", bit)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
}

// TestLogReplay appends over several files, releases and recycles, and finds
// exactly the rest again; nothing of an earlier use of a file comes back.
func TestLogReplay(t *testing.T) {
	fs := vfs.NewSim()
	found, err := Find(fs, header.Volume)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{FS: fs, Volume: header.Volume, Epoch: 1, FileSize: 64 << 10}
	l, err := Start(cfg, found)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		chunks, err := l.Append([]Extent{{Kind: Data, LBA: uint64(i), Blocks: 1, Data: block(byte(i + 1)), CRCs: Sums(block(byte(i + 1)))}}, nil)
		if err != nil || chunks[0].Seq != uint64(i+1) {
			t.Fatal(err)
		}
		if i%10 == 9 {
			l.Release(uint64(i - 5))
		}
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	names, _ := fs.List()
	if len(names) > 5 {
		t.Errorf("files are not recycled: %v", names)
	}
	for epoch := uint64(1); epoch < 4; epoch++ {
		fs.Kill()
		found, err := Find(fs, header.Volume)
		if err != nil {
			t.Fatal(err)
		}
		if !found.Has(epoch) || found.Has(epoch+1) {
			t.Fatal("files of the wrong epoch")
		}
		n := uint64(94)
		got := make([]byte, Block)
		last, promised, err := found.Replay(epoch, n, func(c *Chunk) error {
			n++
			if err := c.Read(got, 0); err != nil || c.Seq != n || c.LBA != n-1 || got[0] != byte(n) {
				t.Fatalf("sequence %d: %+v %v", n, c, err)
			}
			return nil
		})
		if err != nil || last != n || n < 100 || promised > last {
			t.Fatalf("last %d of %d, promised %d: %v", last, n, promised, err)
		}
		cfg.PrevEpoch, cfg.PrevSeq, cfg.Epoch = epoch, last, epoch+1
		l, err := Start(cfg, found)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			n++
			if _, err := l.Append([]Extent{{Kind: Data, LBA: n - 1, Blocks: 1, Data: block(byte(n)), CRCs: Sums(block(byte(n)))}}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if found, _ := Find(fs, name.Volume{9}); len(found.files) != 0 {
		t.Error("files of another volume were taken")
	}
}

func FuzzHeader(f *testing.F) {
	f.Add(EncodeHeader(header)[:76])
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := DecodeHeader(b); err == nil && !bytes.Equal(EncodeHeader(h)[:76], b[:76]) {
			t.Error("another header has the same meaning")
		}
	})
}

// FuzzRecord repairs the CRC of its input, so that decoding gets past it.
func FuzzRecord(f *testing.F) {
	f.Add(sample())
	f.Fuzz(func(t *testing.T, b []byte) {
		info, err := decodeFixed(b, header)
		if err != nil || len(b) < info.head {
			return
		}
		binary.LittleEndian.PutUint32(b[56:], wire.CRC(b[:56], b[60:info.head]))
		extents, crcs, err := decodeHead(b, info)
		if err != nil {
			return
		}
		blocks := uint64(0)
		for _, e := range extents {
			if e.Kind == Data {
				blocks += e.Blocks
			}
		}
		if blocks*Block != uint64(info.data) || blocks != uint64(len(crcs)) {
			t.Errorf("%d blocks, %d bytes, %d CRCs", blocks, info.data, len(crcs))
		}
	})
}
