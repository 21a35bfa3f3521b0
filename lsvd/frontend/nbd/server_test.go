package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
)

const diskSize = 8 << 20

// serveDisk serves a new disk as "disk" and, read-only, as "ro".
func serveDisk(t *testing.T) (path string, d *lsvd.Device) {
	t.Helper()
	st, id := &storesim.Mem{}, lsvd.NewID()
	if err := lsvd.Create(t.Context(), st, id, diskSize, nil); err != nil {
		t.Fatal(err)
	}
	fs, err := vfs.OpenDir(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	d, _, err = lsvd.Open(t.Context(), st, fs, id, lsvd.Options{LogFile: 8 << 20, CutBytes: 1 << 20, MaxUnsent: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "nbd")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := New(slog.New(slog.DiscardHandler))
	for _, e := range []Export{{Name: "disk", Disk: d}, {Name: "ro", Disk: d, ReadOnly: true}} {
		if err := s.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return path, d
}

func TestCommandsReadAndWriteDisk(t *testing.T) {
	path, _ := serveDisk(t)
	for _, structured := range []bool{false, true} {
		c := dial(t, path)
		c.start("disk", structured)
		if c.size != diskSize || c.flags&(txFlush|txFUA|txTrim|txWriteZeroes|txMultiConn) != txFlush|txFUA|txTrim|txWriteZeroes|txMultiConn {
			t.Fatalf("size %d flags %#x", c.size, c.flags)
		}
		data := bytes.Repeat([]byte("abcdefgh"), 8192)
		c.ok(cmdWrite, 0, 1<<20, 65536, data)
		c.ok(cmdWrite, cmdFlagFUA, 12345, 10, data[:10])
		c.ok(cmdFlush, 0, 0, 0, nil)
		if got := c.ok(cmdRead, 0, 1<<20, 65536, nil); !bytes.Equal(got.read, data) {
			t.Error("read differs from what was written")
		}
		if got := c.ok(cmdRead, 0, 12340, 20, nil); string(got.read) != "\x00\x00\x00\x00\x00abcdefghab\x00\x00\x00\x00\x00" {
			t.Errorf("unaligned read: %q", got.read)
		}
		if structured {
			got := c.ok(cmdBlockStatus, 0, 1<<20-8192, 128<<10, nil)
			if !slices.Equal(got.status, []uint32{8192, 3, 65536, 0, 65536 - 8192, 3}) {
				t.Errorf("block status %v", got.status)
			}
			got = c.ok(cmdBlockStatus, cmdFlagReqOne, 1<<20, 128<<10, nil)
			if !slices.Equal(got.status, []uint32{65536, 0}) {
				t.Errorf("block status of one: %v", got.status)
			}
		}
		c.ok(cmdTrim, 0, 1<<20, 32768, nil)
		c.ok(cmdWriteZeroes, cmdFlagNoHole, 1<<20+32768, 32768, nil)
		c.ok(cmdWriteZeroes, cmdFlagFUA, 12345, 5, nil)
		if got := c.ok(cmdRead, 0, 1<<20, 65536, nil); !bytes.Equal(got.read, make([]byte, 65536)) {
			t.Error("trimmed and zeroed blocks do not read as zeros")
		}
		if got := c.ok(cmdRead, 0, 12345, 10, nil); string(got.read) != "\x00\x00\x00\x00\x00fghab" {
			t.Errorf("partly zeroed: %q", got.read)
		}
		c.ok(cmdWriteZeroes, 0, 0, diskSize, nil)
		for _, x := range []struct {
			typ, flags uint16
			off        uint64
			n          uint32
			code       uint32
		}{
			{cmdRead, 0, diskSize - 1, 2, nbdEINVAL}, {cmdRead, 0, 1 << 63, 2, nbdEINVAL}, {cmdTrim, 0, diskSize, 1, nbdEINVAL},
			{cmdWriteZeroes, 0, diskSize, 1, nbdENOSPC}, {99, 0, 0, 0, nbdEINVAL}, {cmdRead, 0x100, 0, 1, nbdEINVAL},
		} {
			if got := c.do(x.typ, x.flags, x.off, x.n, nil); got.code != x.code {
				t.Errorf("%+v: error %d", x, got.code)
			}
		}
		if got := c.do(cmdWrite, 0, diskSize-4, 8, data[:8]); got.code != nbdENOSPC {
			t.Errorf("write behind the end: error %d", got.code)
		}
		c.close()
	}
}

func TestReadOnly(t *testing.T) {
	path, _ := serveDisk(t)
	c := dial(t, path)
	defer c.close()
	c.start("ro", true)
	if c.flags&txReadOnly == 0 {
		t.Errorf("flags %#x", c.flags)
	}
	for _, typ := range []uint16{cmdTrim, cmdWriteZeroes} {
		if got := c.do(typ, 0, 0, 4096, nil); got.code != nbdEPERM {
			t.Errorf("command %d: error %d", typ, got.code)
		}
	}
	if got := c.do(cmdWrite, 0, 0, 4, []byte("abcd")); got.code != nbdEPERM {
		t.Errorf("write: error %d", got.code)
	}
	c.ok(cmdRead, 0, 0, 4096, nil)
}

func TestNegotiationFollowsProtocol(t *testing.T) {
	path, _ := serveDisk(t)
	c := dial(t, path)
	defer c.c.Close()
	types, bodies := c.option(optList, nil)
	if !slices.Equal(types, []uint32{repServer, repServer, repAck}) || string(bodies[0]) != string(str("disk")) {
		t.Errorf("list: %x %q", types, bodies)
	}
	for _, x := range []struct {
		opt  uint32
		data []byte
		want uint32
	}{
		{77, nil, repErrUnsup}, {optStartTLS, nil, repErrPolicy}, {optGo, append(str("none"), 0, 0), repErrUnknown},
		{optGo, []byte{1}, repErrInvalid}, {optInfo, append(str("disk"), 0, 9), repErrInvalid}, {optList, []byte{1}, repErrInvalid},
		{optSetContext, append(str("disk"), 0, 0, 0, 0), repErrInvalid}, {optGo, make([]byte, maxOption+1), repErrTooBig},
	} {
		if types, _ := c.option(x.opt, x.data); !slices.Equal(types, []uint32{x.want}) {
			t.Errorf("option %d: %x, want %x", x.opt, types, x.want)
		}
	}
	types, _ = c.option(optInfo, append(str("disk"), 0, 1, 0, infoName))
	if !slices.Equal(types, []uint32{repInfo, repInfo, repInfo, repAck}) {
		t.Errorf("info: %x", types)
	}
	c.option(optStructured, nil)
	types, _ = c.option(optListContext, append(str("disk"), 0, 0, 0, 0))
	if !slices.Equal(types, []uint32{repContext, repAck}) {
		t.Errorf("list context: %x", types)
	}
	c.option(optAbort, nil)
	if _, err := c.c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after abort: %v", err)
	}
	old := dial(t, path) // NBD_OPT_EXPORT_NAME, of old clients
	defer old.c.Close()
	b := append([]byte("IHAVEOPT"), 0, 0, 0, optExportName, 0, 0, 0, 4)
	old.must(old.c.Write(append(b, "disk"...)))
	var h [10]byte
	old.must(io.ReadFull(old.c, h[:]))
	if binary.BigEndian.Uint64(h[:]) != diskSize {
		t.Errorf("size %x", h)
	}
	go old.replies()
	old.ok(cmdRead, 0, 0, 4096, nil)
}

// TestManyConnections writes from several connections with many requests in
// flight, each in its own area, and reads through the others.
func TestManyConnections(t *testing.T) {
	path, d := serveDisk(t)
	const conns, depth, area = 3, 8, diskSize / 3 / 8 / 512 * 512
	want := make([]byte, diskSize)
	clients := make([]*client, conns)
	for i := range clients {
		clients[i] = dial(t, path)
		clients[i].start("disk", i != 0)
		defer clients[i].close()
	}
	var wg sync.WaitGroup
	for i := range conns * depth {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 3))
			base := i * area
			mine := want[base : base+area]
			for range 60 {
				c := clients[rng.IntN(conns)]
				off := rng.IntN(area)
				n := 1 + rng.IntN(min(area-off, 70_000))
				if rng.IntN(2) == 0 {
					off, n = off/512*512, (n+511)/512*512
					n = min(n, area-off)
				}
				switch rng.IntN(6) {
				case 0:
					c.ok(cmdWriteZeroes, 0, uint64(base+off), uint32(n), nil)
					clear(mine[off : off+n])
				case 1, 2:
					if got := c.ok(cmdRead, 0, uint64(base+off), uint32(n), nil); !bytes.Equal(got.read, mine[off:off+n]) {
						t.Errorf("area %d: read %d+%d differs", i, off, n)
						return
					}
				default:
					for k := range n {
						mine[off+k] = byte(rng.Uint32())
					}
					flags := uint16(0)
					if rng.IntN(20) == 0 {
						flags = cmdFlagFUA
					}
					c.ok(cmdWrite, flags, uint64(base+off), uint32(n), mine[off:off+n])
				}
			}
		})
	}
	wg.Wait()
	if err := d.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := clients[0].ok(cmdRead, 0, 0, diskSize, nil)
	if !bytes.Equal(got.read, want) {
		t.Error("disk differs from its model")
	}
}

// slowDisk has reads that end only after a write.
type slowDisk struct {
	lsvd.Disk
	written chan struct{}
}

func (d *slowDisk) ReadAt(ctx context.Context, p []byte, off int64) error {
	select {
	case <-d.written:
		return d.Disk.ReadAt(ctx, p, off)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *slowDisk) WriteAt(ctx context.Context, p []byte, off int64, flags lsvd.Flags) error {
	err := d.Disk.WriteAt(ctx, p, off, flags)
	d.written <- struct{}{}
	return err
}

// TestSlowRequest has each read wait for a write that the client sends after
// it, on the same connection: the connection's reader must not wait for it.
func TestSlowRequest(t *testing.T) {
	_, d := serveDisk(t)
	slow := &slowDisk{Disk: d, written: make(chan struct{})}
	path := filepath.Join(t.TempDir(), "nbd")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := New(slog.New(slog.DiscardHandler))
	if err := s.Add(Export{Name: "slow", Disk: slow}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	c := dial(t, path)
	c.start("slow", true)
	for range 20 {
		var wg sync.WaitGroup
		wg.Go(func() { c.ok(cmdRead, 0, 0, 4096, nil) })
		wg.Go(func() { c.ok(cmdWrite, 0, 0, 4096, make([]byte, 4096)) })
		wg.Wait()
	}
	c.close()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// FuzzSession feeds a server whatever a client might send.
func FuzzSession(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x07\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x00\x25\x60\x95\x13\x00\x00\x00\x01AAAAAAAA\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02xx"))
	st, id := &storesim.Mem{}, lsvd.NewID()
	if err := lsvd.Create(f.Context(), st, id, diskSize, nil); err != nil {
		f.Fatal(err)
	}
	d, _, err := lsvd.Open(context.Background(), st, vfssim.New(), id, lsvd.Options{LogFile: 1 << 20})
	if err != nil {
		f.Fatal(err)
	}
	s := New(slog.New(slog.DiscardHandler))
	if err := s.Add(Export{Disk: d}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		a, b := net.Pipe()
		go io.Copy(io.Discard, a)
		go func() {
			a.Write(in)
			a.Close()
		}()
		s.serve(t.Context(), b, nil)
		b.Close()
	})
}
