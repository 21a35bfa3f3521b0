package lsvd_test

import (
	"bytes"
	"context"
	"testing"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/testsupport/wait"
)

// spacedDisk opens a disk that shares log space, and whose store takes nothing
// until it is opened.
func spacedDisk(t *testing.T, space *lsvd.LogSpace) (*fixture, *lsvd.Device, *gated) {
	t.Helper()
	r := newFixture(t, spacedSize)
	r.opts.LogSpace, r.opts.MaxUnsent = space, 1<<30
	st := &gated{Store: r.st, open: make(chan struct{})}
	d, _, err := lsvd.Open(t.Context(), st, r.fs, r.id, r.opts)
	if err != nil {
		t.Fatal(err)
	}
	return r, d, st
}

const spacedSize = 40 << 20

// fillDisk writes all of a disk with a byte each block.
func fillDisk(d *lsvd.Device, b byte) error {
	p := bytes.Repeat([]byte{b}, 256<<10)
	for off := int64(0); off < spacedSize; off += int64(len(p)) {
		if err := d.WriteAt(context.Background(), p, off, 0); err != nil {
			return err
		}
	}
	return nil
}

// TestLogSpaceIsFair has a disk use up the log space of the machine while its
// store takes nothing: its writes wait. Another goes on all the same, with its
// minimum. When the store takes what the first disk wrote, its writes go on, and
// then a third has the space.
func TestLogSpaceIsFair(t *testing.T) {
	const file = 4 << 20 // as in newRig
	space := lsvd.NewLogSpace(14 * file)
	var rigs [3]*fixture
	var disks [3]*lsvd.Device
	var stores [3]*gated
	var written [3]chan error
	for i := range disks {
		rigs[i], disks[i], stores[i] = spacedDisk(t, space)
		written[i] = make(chan error, 1)
	}
	start := func(i int) { go func() { written[i] <- fillDisk(disks[i], byte(i+1)) }() }
	finish := func(i int) {
		t.Helper()
		close(stores[i].open)
		if err := wait.Receive(t, "the end of the writes", written[i]); err != nil {
			t.Fatal(err)
		}
		if err := disks[i].Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	full := func(i int) { // all but the minima of the others, of which a file is kept free
		t.Helper()
		wait.For(t, "the log has no room", func() bool {
			s := disks[i].Stats()
			return s.LogFull && s.LogBytes == 7*file
		})
	}
	start(0)
	full(0)

	start(1)
	finish(1)
	if n := disks[1].Stats().LogBytes; n > 3*file {
		t.Errorf("the second disk has %d bytes of log", n)
	}
	if s := space.Stats(); s.Limit != 14*file || s.Used > s.Limit {
		t.Errorf("%d of %d bytes are used", s.Used, s.Limit)
	}
	select {
	case err := <-written[0]:
		t.Fatalf("the writes of the first disk ended: %v", err)
	default:
	}

	finish(0)
	if disks[0].Stats().LogFull {
		t.Error("the disk says that its log has no room")
	}
	start(2)
	full(2)
	finish(2)
	for _, d := range disks {
		if err := d.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s := space.Stats(); s.Used != 0 {
		t.Errorf("closed disks use %d bytes", s.Used)
	}
	for i, r := range rigs {
		d := r.open()
		got, want := make([]byte, 64<<10), bytes.Repeat([]byte{byte(i + 1)}, 64<<10)
		for off := int64(0); off < spacedSize; off += 1 << 20 { // some of each cut
			if err := d.ReadAt(t.Context(), got, off); err != nil || !bytes.Equal(got, want) {
				t.Errorf("disk %d has another content at %d: %v", i, off, err)
			}
		}
	}
}
