package network

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"miren.dev/runtime/components/network/cni"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
)

// stock returns the names of the connections that wait.
func (m *Manager) stock() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.parked)
}

func (m *Manager) full(t *testing.T) []string {
	t.Helper()
	wait.For(t, "the stock is full", func() bool { return len(m.stock()) == m.cfg.Parked }, wait.State(func() any { return m.stock() }))
	return m.stock()
}

func TestParkedConnections(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := startWith(t, Config{Parked: 2})
	m.runs(t)
	outside := elsewhere(t, netip.MustParsePrefix("198.51.100.0/30"))
	first := m.full(t)
	for _, name := range first {
		outOfReach(t, m.netNS(name), outside.listens)
	}
	if ids, err := m.List(); err != nil || len(ids) > 0 {
		t.Errorf("a stock counts as sandboxes: %q, %v", ids, err)
	}

	a := attach(t, m, "a", true)
	if filepath.Base(a.NetNS) != first[0] {
		t.Errorf("namespace %s is not from the stock %q", a.NetNS, first)
	}
	if err := errors.Join(reach(t, a.NetNS, outside.listens), reach(t, machine, listenInside(t, a, 80))); err != nil {
		t.Error(err)
	}
	if err := m.cni.Check(t.Context(), cni.Args{ID: first[0], NetNS: a.NetNS}); err != nil {
		t.Error(err)
	}
	closed := attachWith(t, m, "closed", egress.Closed())
	outOfReach(t, closed.NetNS, outside.listens)
	// Beyond the stock, without waiting for more.
	b := attach(t, m, "b", true)
	if err := reach(t, b.NetNS, outside.listens); err != nil {
		t.Error(err)
	}
	if ids, err := m.List(); err != nil || !slices.Equal(ids, []string{"a", "b", "closed"}) {
		t.Errorf("List = %q, %v", ids, err)
	}
	if got, err := m.Get("a"); err != nil || got != a {
		t.Errorf("Get = %v, %v, want %v", got, err, a)
	}
	next := m.full(t)
	if err := m.Detach(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(a.NetNS); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the namespace of a sandbox that is gone: %v", err)
	}
	if slices.ContainsFunc(m.stock(), func(name string) bool { return name == filepath.Base(a.NetNS) }) || !slices.Equal(m.stock(), next) {
		t.Errorf("stock %q, which was %q", m.stock(), next)
	}
	for _, item := range ours(t, m) {
		if item == m.linkName(a.Address) {
			t.Errorf("interface left: %s", item)
		}
	}
}

// TestParkedAfterARestart: the next server removes what no sandbox uses, however
// far the one before got.
func TestParkedAfterARestart(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := startWith(t, Config{Parked: 3})
	stop := m.runsUntil(t)
	outside := elsewhere(t, netip.MustParsePrefix("198.51.100.0/30"))
	m.full(t)
	used := attach(t, m, "used", true)
	stop()
	left := m.stock()
	// The server ended while a sandbox took the first of them: both leases are there.
	taken := lease{Address: m.leases[left[0]].Address, Policy: egress.Open(), Name: left[0]}
	if err := m.saveLease("taken", taken); err != nil {
		t.Fatal(err)
	}
	// The server ended after it had removed the lease of another, and before its namespace.
	if err := os.Remove(filepath.Join(m.leaseDir(), left[1])); err != nil {
		t.Fatal(err)
	}

	again := New(m.cfg)
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := again.SweepLinks(); err != nil {
		t.Fatal(err)
	}
	if got, err := again.Get("used"); err != nil || got != used {
		t.Errorf("Get = %v, %v, want %v", got, err, used)
	}
	entries, err := os.ReadDir(again.netnsDir())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{filepath.Base(used.NetNS), left[0]}
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("namespaces %q, want %q", names, want)
	}
	if err := reach(t, used.NetNS, outside.listens); err != nil {
		t.Error(err)
	}
	again.runs(t)
	again.full(t)
	for _, id := range []string{"taken", "used"} {
		if err := again.Detach(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if err := again.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	m.leases, m.parked = nil, nil // for the clean-up
}
