package daemon_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/node/daemon"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// TestAttachedDiskTakesNewKey rotates the key of a disk while it is written and read. The
// disk then fails and the same daemon opens it again, for which it needs the new key.
func TestAttachedDiskTakesNewKey(t *testing.T) {
	ctx, dir, url := t.Context(), t.TempDir(), t.TempDir()
	file := func(i int) string { return filepath.Join(dir, fmt.Sprint("key-", i)) }
	const rotations = 4
	for i := range rotations + 1 {
		if err := os.WriteFile(file(i), []byte(hex.EncodeToString(bytes.Repeat([]byte{byte(i)}, 32))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	st, _, err := host.OpenStore(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := catalog.Create(ctx, st, "data", diskBlocks*lsvd.BlockSize, bytes.Repeat([]byte{0}, 32)); err != nil {
		t.Fatal(err)
	}
	log := vfssim.New()
	var broken atomic.Bool
	log.FailSync = func(string) error {
		if broken.Load() {
			return errors.New("the disk of the log is broken")
		}
		return nil
	}
	d := runOn(t, dir, func(string) (vfs.FS, error) {
		broken.Store(false)
		return log, nil
	})
	if _, err := d.Attach(ctx, daemon.Request{Spec: daemon.Spec{Store: url, KeyFile: file(0)}, Volume: "data"}); err != nil {
		t.Fatal(err)
	}
	with := func(f func(x *host.Disk) error) error { return d.With("data", "", f) }
	want := make([]byte, lsvd.BlockSize)
	done, quit := make(chan error, 1), make(chan struct{})
	var writes atomic.Int64
	go func() {
		got := make([]byte, lsvd.BlockSize)
		for {
			select {
			case <-quit:
				done <- nil
				return
			default:
			}
			n := writes.Add(1)
			for i := range want {
				want[i] = byte(n)
			}
			err := with(func(x *host.Disk) error {
				if err := x.WriteAt(ctx, want, 0, lsvd.FUA); err != nil {
					return err
				}
				return x.ReadAt(ctx, got, 0)
			})
			if err == nil && !bytes.Equal(got, want) {
				err = errors.New("a read returns something else than was written")
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	for i := range rotations {
		before := writes.Load()
		if err := d.RotateKey(ctx, "data", "", file(i), file(i+1)); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "writes go on", func() bool { return writes.Load() > before })
	}
	if err := d.RotateKey(ctx, "data", "", file(0), file(1)); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("with an earlier key: %v", err)
	}
	close(quit)
	if err := wait.Receive(t, "the end of the writes", done); err != nil {
		t.Fatal(err)
	}
	// Without the files of the keys before, only the new one can open it.
	for i := range rotations {
		if err := os.Remove(file(i)); err != nil {
			t.Fatal(err)
		}
	}
	broken.Store(true)
	if err := with(func(x *host.Disk) error { return x.WriteAt(ctx, want, lsvd.BlockSize, lsvd.FUA) }); err == nil {
		t.Fatal("the sync did not fail")
	}
	wait.For(t, "the disk is open again", func() bool {
		i, err := d.Get("data", "")
		return err == nil && i.State == daemon.Open && !broken.Load()
	})
	got := make([]byte, lsvd.BlockSize)
	if err := with(func(x *host.Disk) error { return x.ReadAt(ctx, got, 0) }); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the written data is not there: %v", err)
	}
}
