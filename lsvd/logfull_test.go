package lsvd_test

import (
	"bytes"
	"context"
	"io/fs"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/testsupport/wait"
)

// smallFS has room for a number of files.
type smallFS struct {
	vfs.FS
	room int

	mu      sync.Mutex
	files   map[string]bool
	refused int
}

func (s *smallFS) Open(name string, create bool) (vfs.File, error) {
	f, err := s.FS.Open(name, create)
	return &smallFile{File: f, fs: s, name: name}, err
}

// grow reports whether a file may have space.
func (s *smallFS) grow(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.files[name] && len(s.files) >= s.room {
		s.refused++
		return &fs.PathError{Op: "fallocate", Path: name, Err: syscall.ENOSPC}
	}
	s.files[name] = true
	return nil
}

func (s *smallFS) tried() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

type smallFile struct {
	vfs.File
	fs   *smallFS
	name string
}

func (f *smallFile) Allocate(size int64) error {
	if err := f.fs.grow(f.name); err != nil {
		return err
	}
	return f.File.Allocate(size)
}

func (f *smallFile) WriteDirect(parts [][]byte, off int64) error {
	if err := f.fs.grow(f.name); err != nil {
		return err
	}
	return f.File.WriteDirect(parts, off)
}

// gated is a store that creates nothing until it is opened.
type gated struct {
	store.Store
	open chan struct{}
}

func (g *gated) Create(ctx context.Context, key string, data []byte) (store.Version, error) {
	select {
	case <-g.open:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	return g.Store.Create(ctx, key, data)
}

// fullLog opens a disk whose log has room for three files of 4 MiB and whose store is
// behind, and writes 24 MiB until the log is full. done counts the bytes that were written.
func fullLog(t *testing.T) (r *fixture, d *lsvd.Device, st *gated, model []byte, done *atomic.Int64, written chan error) {
	t.Helper()
	const size = 24 << 20
	r = newFixture(t, size)
	small := &smallFS{FS: r.fs, room: 3, files: map[string]bool{}}
	st = &gated{Store: r.st, open: make(chan struct{})}
	r.fs, r.opts.MaxUnsent = small, 1<<30
	d, _, err := lsvd.Open(t.Context(), st, r.fs, r.id, r.opts)
	if err != nil {
		t.Fatal(err)
	}
	model = make([]byte, size)
	for i := range model {
		model[i] = byte(i>>12 + i)
	}
	done, written = new(atomic.Int64), make(chan error, 1)
	go func() {
		for off := 0; off < size; off += 256 << 10 {
			if err := d.WriteAt(context.Background(), model[off:off+256<<10], int64(off), 0); err != nil {
				written <- err
				return
			}
			done.Store(int64(off + 256<<10))
		}
		written <- nil
	}()
	// Files are made ahead, so they are refused before the writes have filled the others.
	wait.For(t, "the log is full", func() bool { return small.tried() > 5 && done.Load() >= 6<<20 })
	select {
	case err := <-written:
		t.Fatalf("the writes ended: %v", err)
	default:
	}
	return r, d, st, model, done, written
}

// TestFullLogHoldsWritesBack fills the file system of the log while the store is
// behind: writes wait, and go on when it has caught up.
func TestFullLogHoldsWritesBack(t *testing.T) {
	r, d, st, model, _, written := fullLog(t)
	got := make([]byte, lsvd.BlockSize)
	if err := d.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, model[:len(got)]) {
		t.Errorf("a read meanwhile: %v", err)
	}
	close(st.open)
	select {
	case err := <-written:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(wait.Limit):
		t.Fatal("the writes do not go on")
	}
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	d = r.open()
	got = make([]byte, len(model))
	if err := d.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, model) {
		t.Errorf("the disk differs from its model: %v", err)
	}
}

// TestFullLogCanBeClosed closes the disk while a write waits: the write fails, and
// what was acknowledged is in the log.
func TestFullLogCanBeClosed(t *testing.T) {
	r, d, st, model, done, written := fullLog(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := d.Close(ctx); err == nil {
		t.Error("everything was sent to a store that takes nothing")
	}
	if err := <-written; err == nil {
		t.Error("all writes succeeded")
	}
	close(st.open)
	d = r.open()
	got := make([]byte, done.Load())
	if err := d.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, model[:len(got)]) {
		t.Errorf("what was acknowledged is lost: %v", err)
	}
}
