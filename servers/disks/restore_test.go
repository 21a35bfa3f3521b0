package disks_test

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/servers/disks"
)

// TestRestoreIsRepeated interrupts a restore after longer and longer times; the
// one that completes gives the volume of the same name with the content of the copy.
func TestRestoreIsRepeated(t *testing.T) {
	const size = 32 << 20
	ctx := t.Context()
	v := &disks.Volumes{Instance: &instance.Instance{StateDir: t.TempDir()}, Logger: slog.New(slog.DiscardHandler)}
	from, to := t.TempDir(), t.TempDir()
	src, err := dir.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	logs, err := vfs.OpenDir(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	id := lsvd.NewID()
	if err := lsvd.Create(ctx, src, id, size, nil); err != nil {
		t.Fatal(err)
	}
	d, _, err := lsvd.Open(ctx, src, logs, id, lsvd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	model, rng := make([]byte, size), rand.New(rand.NewPCG(1, 2))
	for range 40 {
		at := rng.IntN(size/lsvd.BlockSize-64) * lsvd.BlockSize
		p := model[at : at+64*lsvd.BlockSize]
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		if err := d.WriteAt(ctx, p, int64(at), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Snapshot(ctx, "copy"); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, _, err := v.Restore(ctx, from, id.String(), "none", to, "restored"); !errs.Is(err, errs.NotFound) {
		t.Errorf("restore of a copy that does not exist: %v", err)
	}
	var volume string
	for limit := time.Millisecond; ; limit += 2 * time.Millisecond {
		short, cancel := context.WithTimeout(ctx, limit)
		got, n, err := v.Restore(short, from, id.String(), "copy", to, "restored")
		cancel()
		if err == nil {
			if n != size || volume != "" && got != volume {
				t.Errorf("volume %s of %d bytes after %s", got, n, volume)
			}
			volume = got
			break
		}
		if limit > time.Minute {
			t.Fatal(err)
		}
	}
	state, err := host.Open(v.Instance.State("lsvd"))
	if err != nil {
		t.Fatal(err)
	}
	dst, url, err := host.OpenStore(ctx, to)
	if err != nil {
		t.Fatal(err)
	}
	r, err := state.Open(ctx, dst, host.Spec{Store: url, Volume: volume})
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, size)
	if err := r.ReadAt(ctx, got, 0); err != nil || !bytes.Equal(got, model) {
		t.Errorf("what was restored differs: %v", err)
	}
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
	all, err := inspect.List(ctx, dst)
	if err != nil || len(all) != 1 {
		t.Errorf("%d volumes in the store: %v", len(all), err)
	}
}
