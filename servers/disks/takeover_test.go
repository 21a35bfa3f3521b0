package disks_test

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/servers/disks"
)

// TestDeleteAfterTakeover: the snapshot that a takeover has kept does not keep a disk from
// being deleted. While the volume is open the snapshot stays with it.
func TestDeleteAfterTakeover(t *testing.T) {
	ctx, dir, url := t.Context(), t.TempDir(), "file://"+t.TempDir()
	v := &disks.Volumes{Instance: &instance.Instance{StateDir: dir}, Logger: slog.New(slog.DiscardHandler)}
	id, _, err := v.Create(ctx, url, "d", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	st, url, err := host.OpenStore(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	kept := func(want int) {
		t.Helper()
		if x, err := catalog.Find(ctx, st, id); err != nil || len(x.Snapshots) != want {
			t.Errorf("volume %+v, %v, want %d snapshots", x, err, want)
		}
	}
	for i, closing := range []context.Context{ended, ended, ctx} {
		s, err := host.Open(filepath.Join(dir, "machine", string('a'+rune(i))))
		if err != nil {
			t.Fatal(err)
		}
		d, err := s.Open(ctx, st, host.Spec{Store: url, Volume: id, TakeOver: true, Options: lsvd.Options{LogFile: 64 << 10}})
		if err == nil {
			err = d.WriteAt(ctx, bytes.Repeat([]byte{1}, lsvd.BlockSize), 0, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		kept(i)
		if err := v.Delete(ctx, url, id, false); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("delete of an open volume: %v", err)
		}
		kept(i)
		if err := d.Close(closing); err != nil && closing == ctx {
			t.Fatal(err)
		}
	}
	if err := v.Delete(ctx, url, id, false); err != nil {
		t.Error(err)
	}
	for i, err := range st.List(ctx, "") {
		t.Errorf("the store still has %s (%v)", i.Key, err)
	}
}
