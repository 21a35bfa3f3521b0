package wal

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"sync/atomic"
	"testing"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
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

func TestHeaderRoundTripsAndDetectsFlips(t *testing.T) {
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

// begin begins the log of the first epoch in a directory that has none.
func begin(t *testing.T, fs vfs.FS, fileSize int64) *Log {
	t.Helper()
	found, err := Find(fs, header.Volume)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Start(Config{FS: fs, Volume: header.Volume, Epoch: 1, FileSize: fileSize}, found)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLogReplay appends over several files, releases and recycles, and finds
// exactly the rest again; nothing of an earlier use of a file comes back.
func TestLogReplay(t *testing.T) {
	fs := vfssim.New()
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
		last, promised, err := found.Replay(epoch, n, n%2 == 0, func(c *Chunk) error {
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

// counted counts what is read of the files.
type counted struct {
	vfs.FS
	n atomic.Int64
}

func (c *counted) Open(name string, create bool) (vfs.File, error) {
	f, err := c.FS.Open(name, create)
	return &countedFile{f, c}, err
}

type countedFile struct {
	vfs.File
	c *counted
}

func (f *countedFile) ReadAt(p []byte, off int64) (int, error) {
	f.c.n.Add(int64(len(p)))
	return f.File.ReadAt(p, off)
}

// appendBlocks appends records of so many blocks, each with its number.
func appendBlocks(t *testing.T, l *Log, records, blocks int) {
	t.Helper()
	for i := range records {
		data := bytes.Repeat(block(byte(i)), blocks)
		if _, err := l.Append([]Extent{{Kind: Data, LBA: uint64(i * blocks), Blocks: uint64(blocks), Data: data, CRCs: Sums(data)}}, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReplayReadsIndexes: of a long log that is promised, replay reads little,
// and finds the same as when it reads all of it.
func TestReplayReadsIndexes(t *testing.T) {
	for _, flushed := range []bool{true, false} {
		fs := vfssim.New()
		l := begin(t, fs, 1<<20)
		const records = 1000 // of 16 KiB
		appendBlocks(t, l, records-1, 4)
		if flushed {
			if err := l.Sync(); err != nil {
				t.Fatal(err)
			}
		}
		for more := true; more; { // as in the background
			var err error
			if more, err = l.Advance(); err != nil {
				t.Fatal(err)
			}
		}
		appendBlocks(t, l, 1, 4)
		fs.Kill()
		chunks := map[bool][]Chunk{}
		for _, all := range []bool{false, true} {
			c := &counted{FS: fs}
			found, err := Find(c, header.Volume)
			if err != nil {
				t.Fatal(err)
			}
			c.n.Store(0)
			last, promised, err := found.Replay(1, 0, all, func(c *Chunk) error {
				x := *c
				x.file = nil
				chunks[all] = append(chunks[all], x)
				return nil
			})
			if err != nil || last != records || promised > last || promised < records-lagFiles*65 {
				t.Fatalf("last %d, promised %d: %v", last, promised, err)
			}
			if n := c.n.Load(); (n < 16<<20) == all {
				t.Errorf("flushed %v, all %v: read %d bytes of the log", flushed, all, n)
			} else if !all && n > 5<<20 { // 16 indexes, and what is not promised, twice
				t.Errorf("flushed %v: read %d bytes of the log", flushed, n)
			}
		}
		if !reflect.DeepEqual(chunks[true], chunks[false]) {
			t.Error("indexes have something else than the records")
		}
	}
}

// TestBackgroundSyncSurvivesPowerLoss: what the background syncs survives a power loss though nobody
// flushed, and so does everything after it that is promised.
func TestBackgroundSyncSurvivesPowerLoss(t *testing.T) {
	for seed := range uint64(50) {
		fs := vfssim.New()
		l := begin(t, fs, 64<<10)
		synced := uint64(0)
		for range 60 {
			appendBlocks(t, l, 1, 1)
			if _, err := l.Advance(); err != nil {
				t.Fatal(err)
			}
			if len(l.dirty) > lagFiles {
				t.Fatalf("%d files are not durable", len(l.dirty))
			}
			if l.synced < synced {
				t.Fatalf("%d was durable, now %d", synced, l.synced)
			}
			synced = l.synced
		}
		fs.PowerLoss(rand.New(rand.NewPCG(seed, 1)))
		found, err := Find(fs, header.Volume)
		if err != nil {
			t.Fatal(err)
		}
		n := uint64(0)
		last, promised, err := found.Replay(1, 0, false, func(c *Chunk) error {
			n++
			got := make([]byte, Block)
			if err := c.Read(got, 0); err != nil || c.Seq != n {
				t.Fatalf("seed %d, sequence %d of %d: %v", seed, c.Seq, synced, err)
			}
			return nil
		})
		if err != nil || last < synced || promised > last || synced < 60-3*13 {
			t.Fatalf("seed %d: last %d, promised %d, was durable %d: %v", seed, last, promised, synced, err)
		}
	}
}

// FuzzIndex repairs length and CRC of its input, so that decoding gets past it.
func FuzzIndex(f *testing.F) {
	var x indexer
	var w wire.Writer
	appendExtents(&w, []Extent{{Kind: Data, LBA: 7, Blocks: 2, CRCs: []uint32{1, 2}}, {Kind: Zero, LBA: 9, Blocks: 1 << 30}})
	x.add(5, 4, 2, w.B)
	x.add(7, 4, 1, w.B[extentSize:2*extentSize])
	f.Add(bytes.Clone(x.finish(&header, 7, headerSize+512+2*Block+512)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < indexTrailer {
			return
		}
		binary.LittleEndian.PutUint32(b[len(b)-72:], uint32(len(b)-indexTrailer))
		t1, err := decodeTrailer(b[len(b)-indexTrailer:], header)
		if err != nil {
			return
		}
		binary.LittleEndian.PutUint32(b[len(b)-8:], wire.CRC1(b[:len(b)-8]))
		file := &File{header: header}
		p, err := file.decodeIndex(b, t1)
		if err != nil {
			return
		}
		at := int64(headerSize)
		for i, c := range p.chunks {
			if c.Seq != header.First+uint64(i) || c.off < at || c.Kind == Data && uint64(len(c.crcs)) != c.Blocks {
				t.Errorf("chunk %d is %+v", i, c)
			}
			at = c.off
		}
		if p.last() != t1.last && len(p.chunks) > 0 || p.end < at {
			t.Errorf("ends with %d at %d, not %d", p.last(), p.end, t1.last)
		}
	})
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
