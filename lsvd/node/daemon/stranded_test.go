package daemon_test

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/node/daemon"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/vfs"
)

// TestAttachKeepsStrandedLog: a machine dies with writes in its log, another one takes the
// volume over, and closes it. When the first one attaches it again, its disk is that of
// the other, and its log is aside: the writes can still be salvaged, while the disk is used.
func TestAttachKeepsStrandedLog(t *testing.T) {
	ctx, dir, url := t.Context(), t.TempDir(), t.TempDir()
	st, url, err := host.OpenStore(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	id, err := catalog.Create(ctx, st, "data", diskBlocks*lsvd.BlockSize, nil)
	if err != nil {
		t.Fatal(err)
	}
	write := func(machine string, value byte, closing context.Context) *host.State {
		t.Helper()
		s, err := host.Open(filepath.Join(dir, machine))
		if err != nil {
			t.Fatal(err)
		}
		d, err := s.Open(ctx, st, host.Spec{Store: url, Volume: "data", TakeOver: true})
		if err == nil {
			err = d.WriteAt(ctx, bytes.Repeat([]byte{value}, lsvd.BlockSize), 0, lsvd.FUA)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Close(closing); err != nil && closing == ctx {
			t.Fatal(err)
		}
		return s
	}
	ended, end := context.WithCancel(ctx)
	end()
	state := write("state", 1, ended)
	write("other", 2, ctx)

	d := runOn(t, dir, func(path string) (vfs.FS, error) { return vfs.OpenDir(path) })
	if _, err := d.Attach(ctx, daemon.Request{Spec: daemon.Spec{Store: url}, Volume: "data"}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, lsvd.BlockSize)
	read := func(x *host.Disk) error { return x.ReadAt(ctx, got, 0) }
	if err := d.With("data", "", read); err != nil || got[0] != 2 {
		t.Errorf("the disk has %d, %v", got[0], err)
	}
	names, err := state.Stranded(id)
	if err != nil || len(names) != 1 {
		t.Fatalf("stranded logs %q, %v", names, err)
	}
	// A volume is salvaged of it while the disk is attached, also after it was written.
	if err := d.With("data", "", func(x *host.Disk) error {
		return x.WriteAt(ctx, bytes.Repeat([]byte{3}, 4<<20), 0, lsvd.FUA)
	}); err != nil {
		t.Fatal(err)
	}
	made, _, _, err := state.Salvage(ctx, st, host.SalvageSpec{Spec: host.Spec{Store: url, Volume: "data"}, As: "rescued"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Attach(ctx, daemon.Request{Spec: daemon.Spec{Store: url}, Volume: "rescued"}); err != nil {
		t.Fatal(err)
	}
	if err := d.With(made.String(), "", read); err != nil || got[0] != 1 {
		t.Errorf("the salvaged disk has %d, %v", got[0], err)
	}
	if err := d.With("data", "", read); err != nil || got[0] != 3 {
		t.Errorf("the disk has %d after the salvage, %v", got[0], err)
	}
}
