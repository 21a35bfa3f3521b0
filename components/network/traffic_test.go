package network

import (
	"net/netip"
	"testing"
	"time"
)

// TestTraffic: what a sandbox sends is counted as sent; one without a network has none.
func TestTraffic(t *testing.T) {
	m := start(t)
	box := attach(t, m, "box", true)
	attach(t, m, "alone", false)
	if _, _, ok := m.Traffic("alone"); ok {
		t.Error("a sandbox without a network has traffic")
	}
	if _, _, ok := m.Traffic("none"); ok {
		t.Error("a sandbox that is not there has traffic")
	}
	_, before, ok := m.Traffic("box")
	if !ok {
		t.Fatal("the traffic is not measured")
	}
	// A connection that nothing answers: its packets are sent.
	_ = inside(t, box.NetNS, func() error { return dial(netip.MustParseAddrPort("198.51.100.1:9"), 100*time.Millisecond) })
	if _, after, ok := m.Traffic("box"); !ok || after <= before {
		t.Errorf("%d bytes sent, after %d", after, before)
	}
}
