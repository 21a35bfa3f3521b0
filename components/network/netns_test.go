package network

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/testsupport/private"
)

// TestCoveredNamespaces: an administrator's first `ip netns add` mounts over
// /run/netns.
func TestCoveredNamespaces(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := start(t)
	a := attach(t, m, "a", true)
	for _, args := range [][]string{{"netns", "add", "theirs"}, {"netns", "delete", "theirs"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	outside := elsewhere(t, netip.MustParsePrefix("198.51.100.0/30"))
	if err := inside(t, a.NetNS, func() error { return dial(outside.listens, time.Minute) }); err != nil {
		t.Error(err)
	}
	attach(t, m, "b", true)
	for _, id := range []string{"a", "b"} {
		if err := m.Detach(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

// TestOldNamespaces: namespaces of an earlier version, which are in the
// directory of `ip netns`, are moved as far as possible.
func TestOldNamespaces(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := start(t)
	old := func(id string) string { return filepath.Join(oldNetNSDir, m.cfg.Instance.Name(id)) }
	if err := os.MkdirAll(oldNetNSDir, 0o755); err != nil {
		t.Fatal(err)
	}
	inode := func(path string) uint64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	if err := newNetNS(old("running"), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	want := inode(old("running"))
	if err := os.WriteFile(old("empty"), nil, 0o644); err != nil { // a namespace that was never mounted
		t.Fatal(err)
	}
	again := New(m.cfg)
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := inode(m.netNS("running")); got != want {
		t.Errorf("namespace %d became %d", want, got)
	}
	if left, err := filepath.Glob(filepath.Join(oldNetNSDir, "*")); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	if err := again.Detach(t.Context(), "running"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(m.netNS("empty")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a namespace that never was: %v", err)
	}

	// A covered one cannot be removed from its old place, and does no harm.
	if err := newNetNS(old("covered"), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ip", "netns", "add", "theirs").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer func() { // for the check of leaks
		if out, err := exec.Command("ip", "netns", "delete", "theirs").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		if err := errors.Join(unix.Unmount(oldNetNSDir, unix.MNT_DETACH), removeNetNS(old("covered"))); err != nil {
			t.Error(err)
		}
	}()
	want = inode(old("covered"))
	again = New(m.cfg)
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := inode(m.netNS("covered")); got != want {
		t.Errorf("namespace %d became %d", want, got)
	}
	if err := again.Detach(t.Context(), "covered"); err != nil {
		t.Error(err)
	}
	if ids, err := again.List(); err != nil || len(ids) > 0 {
		t.Errorf("List = %q, %v", ids, err)
	}
}
