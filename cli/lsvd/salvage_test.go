package lsvd_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// killDaemon kills the disk daemon of a machine.
func (h *host) killDaemon(t *testing.T) {
	t.Helper()
	pid := decode[struct {
		PID int `json:"pid"`
	}](t, h.ok(t, "daemon", "--status", "--json")).PID
	if pid <= 1 {
		t.Fatalf("the pid of the daemon is %d", pid)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the daemon has ended", func() bool { return unix.Kill(pid, 0) != nil })
}

// TestSalvage runs the commands of docs/lsvd.md: a machine is killed when its store does
// not take writes, and another one takes its volume over. The first one comes back, and
// makes a volume of its writes.
func TestSalvage(t *testing.T) {
	need.Tools(t, "nbdcopy")
	dir := t.TempDir()
	store := filepath.Join(dir, "store")
	a, b := newHost(t, "salvage-a", store), newHost(t, "salvage-b", store)
	a.ok(t, "create", "data", "--size", "4M")
	first := random(t, filepath.Join(dir, "first"), 4<<20)
	a.ok(t, "import", filepath.Join(dir, "first"), "base")
	// Writes are flushed to the log only: b fences a's volume before.
	a.ok(t, "serve", "data")
	served := decode[attached](t, a.ok(t, "info", "data", "--json"))
	b.ok(t, "fence", "data", "--yes")
	nbdcopy(t, "--flush", filepath.Join(dir, "first"), served.Attached.Frontends[0].Address)
	a.killDaemon(t)
	if r := b.run("salvage", "data", "--as", "rescued"); r.code != exit.Failed || !strings.Contains(r.err, "no stranded log") {
		t.Errorf("salvage on a machine that had nothing: %+v", r)
	}
	if r := a.run("salvage", "data", "--as", "rescued"); r.code != exit.Failed || !strings.Contains(r.err, "no stranded log") {
		t.Errorf("salvage before a takeover: %+v", r)
	}
	second := random(t, filepath.Join(dir, "second"), 4<<20)
	b.ok(t, "serve", "data", "--take-over")
	taken := decode[attached](t, b.ok(t, "info", "data", "--json"))
	nbdcopy(t, "--flush", filepath.Join(dir, "second"), taken.Attached.Frontends[0].Address)

	// a comes back: it says that it has writes.
	if r := a.run("serve", "data"); r.code == 0 || !strings.Contains(r.err, "salvage data") {
		t.Errorf("a opens the volume again: %+v", r)
	}
	for _, bad := range []struct {
		want string
		args []string
	}{
		{"--as NEW", []string{"data"}}, {"exists", []string{"data", "--as", "base"}}, {"not encrypted", []string{"data", "--as", "x", "--key-file", keyFile(t, dir)}},
		{"no stranded log", []string{"base", "--as", "x"}}, {"no stranded log", []string{"data@takeover-9-9", "--as", "x"}}, {"not the snapshot", []string{"data@x", "--as", "x"}},
		{"--yes", []string{"data", "--discard"}},
	} {
		if r := a.run(append([]string{"salvage"}, bad.args...)...); r.code == 0 || !strings.Contains(r.err, bad.want) {
			t.Errorf("salvage %q: %+v, want %q", bad.args, r, bad.want)
		}
	}
	if out := a.ok(t, "snapshot", "list", "data"); !strings.Contains(out, "data@takeover-") {
		t.Errorf("snapshots: %s", out)
	}
	if out := a.ok(t, "salvage", "data", "--as", "rescued"); !strings.Contains(out, "made rescued") || !strings.Contains(out, "4 MiB") {
		t.Errorf("salvage: %s", out)
	}
	s := decode[struct {
		Snapshot  string `json:"snapshot"`
		Bytes     int64  `json:"bytes"`
		Damaged   bool   `json:"damaged"`
		Discarded bool   `json:"discarded"`
	}](t, a.ok(t, "salvage", "data", "--as", "again", "--discard", "--json"))
	if s.Bytes != int64(len(first)) || s.Damaged || !s.Discarded {
		t.Errorf("salvage with --discard: %+v", s)
	}
	b.ok(t, "detach", "data")
	a.run("detach", "data")
	for name, want := range map[string][]byte{"rescued": first, "again": first, "data": second} {
		out := filepath.Join(dir, name+".out")
		a.ok(t, "export", name, out)
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s has another content (%v)", name, err)
		}
	}
	if r := a.run("salvage", "data", "--discard", "--yes"); r.code == 0 || !strings.Contains(r.err, "no stranded log") {
		t.Errorf("the log is still there: %+v", r)
	}
	a.ok(t, "snapshot", "delete", "data@"+s.Snapshot, "--yes")
	a.ok(t, "check", "rescued")
}

func keyFile(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "key")
	write(t, file, bytes.Repeat([]byte{7}, 32))
	return file
}
