package lsvd_test

import (
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/testsupport/need"
)

// TestFence: one machine serves a volume, which another one fences: the first can
// send no more writes. When it opens the volume again, no write is missing.
func TestFence(t *testing.T) {
	need.Tools(t, "nbdcopy")
	dir := t.TempDir()
	store := filepath.Join(dir, "store")
	a, b := newHost(t, "fence-a", store), newHost(t, "fence-b", store)
	a.ok(t, "create", "data", "--size", "4M")
	if out := b.ok(t, "fence", "data", "--yes"); !strings.Contains(out, "is closed") {
		t.Errorf("fence of a closed volume: %s", out)
	}
	want := random(t, filepath.Join(dir, "image"), 4<<20)
	a.ok(t, "serve", "data")
	served := decode[attached](t, a.ok(t, "info", "data", "--json"))
	nbdcopy(t, "--flush", filepath.Join(dir, "image"), served.Attached.Frontends[0].Address)
	for range 2 { // a repeated fence finds the first
		if out := b.ok(t, "fence", "data", "--yes", "--json"); !strings.Contains(out, `"closed": false`) {
			t.Errorf("fence: %s", out)
		}
	}
	if r := b.run("export", "data", filepath.Join(dir, "elsewhere")); r.code != exit.Failed || !strings.Contains(r.err, "open elsewhere") {
		t.Errorf("after a fence, another machine without the log opens the volume: %+v", r)
	}
	if r := a.run("detach", "data"); r.code == 0 || !strings.Contains(r.err, "was fenced") {
		t.Errorf("the machine that was fenced sends its writes: %+v", r)
	}
	a.run("detach", "data", "--force")
	a.ok(t, "export", "data", filepath.Join(dir, "out"))
	same(t, filepath.Join(dir, "out"), want)
}
