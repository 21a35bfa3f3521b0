package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// A namespace that has lost its addresses gets them back, with its routes.
func TestRestoreNetwork(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	name := "shimtest-" + strconv.Itoa(os.Getpid())
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Skipf("cannot make a network namespace: %v\n%s", err, out)
	}
	t.Cleanup(func() { run("netns", "del", name) })
	in := func(args ...string) string { return run(append([]string{"-n", name}, args...)...) }
	in("link", "add", "eth0", "type", "veth", "peer", "name", "peer0")
	in("link", "set", "peer0", "up")
	in("link", "set", "eth0", "up")
	in("addr", "add", "10.9.8.7/24", "dev", "eth0")
	in("addr", "add", "fd00:9::7/64", "dev", "eth0", "nodad")
	in("route", "add", "default", "via", "10.9.8.1")
	in("route", "add", "10.77.0.0/16", "via", "10.9.8.2", "metric", "5")
	// What stays the same: the kernel's link-local address may still be tentative.
	state := func() string {
		return in("-o", "-4", "addr", "show", "eth0") + in("route", "show") + in("-o", "-6", "addr", "show", "eth0", "scope", "global")
	}
	before := state()

	bundle := t.TempDir()
	if err := saveNetwork(bundle, filepath.Join("/run/netns", name)); err != nil {
		t.Fatal(err)
	}
	in("addr", "flush", "dev", "eth0")
	if state() == before {
		t.Fatal("the flush changed nothing: the test proves nothing")
	}
	if err := restoreNetwork(bundle); err != nil {
		t.Fatal(err)
	}
	if after := state(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if err := restoreNetwork(bundle); err != nil {
		t.Errorf("second time: %v", err)
	}
}

// A list that changed while it was sent is asked for again.
func TestChangedListIsReadAgain(t *testing.T) {
	calls := 0
	got, err := whole(func() ([]int, error) {
		if calls++; calls < 4 {
			return []int{1}, netlink.ErrDumpInterrupted
		}
		return []int{1, 2}, nil
	})
	if len(got) != 2 || err != nil || calls != 4 {
		t.Errorf("%v, %v after %d calls", got, err, calls)
	}
	other := errors.New("other")
	if _, err := whole(func() ([]int, error) { return nil, other }); err != other {
		t.Error(err)
	}
}

// A namespace that is gone needs nothing back.
func TestRestoreNetworkOfDeletedNamespace(t *testing.T) {
	bundle := t.TempDir()
	data := `{"Path":"` + filepath.Join(bundle, "gone") + `","Addresses":[{"Link":"eth0","Address":"10.0.0.1/24"}]}`
	if err := os.WriteFile(filepath.Join(bundle, networkFile), []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := restoreNetwork(bundle); err != nil {
		t.Fatal(err)
	}
	if err := restoreNetwork(t.TempDir()); err != nil {
		t.Errorf("nothing saved: %v", err)
	}
}
