package network

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/testsupport/private"
)

// TestBandwidth: a sandbox neither sends nor gets more than its bandwidth, whether it was connected for it, ahead, or by
// the plugins of a site.
func TestBandwidth(t *testing.T) {
	if !private.Run(t) {
		return
	}
	for name, config := range map[string]Config{"new": {}, "parked": {Parked: 1}, "site": newSite(t).config} {
		t.Run(name, func(t *testing.T) {
			m := startWith(t, config)
			m.runs(t)
			m.full(t)
			at, err := m.Attach(t.Context(), "a", Options{Bridge: true, Policy: egress.Open(), Bandwidth: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			l := listenAt(t, at.NetNS, netip.AddrPortFrom(at.Address, 9000))
			outside, err := dialFrom(t, machine, netip.AddrPortFrom(at.Address, 9000), later)
			if err != nil {
				t.Fatal(err)
			}
			defer outside.Close()
			guest, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer guest.Close()
			for what, way := range map[string][2]net.Conn{"sent": {guest, outside}, "received": {outside, guest}} {
				// The bucket lets an eighth pass at once.
				if took := transfer(t, way[0], way[1], 1<<20); took < 800*time.Millisecond || took > later {
					t.Errorf("a MiB was %s in %s, with a limit of one per second", what, took)
				}
			}
		})
	}
}

// transfer returns how long n bytes take from one end of a connection to the other.
func transfer(t *testing.T, from, to net.Conn, n int64) time.Duration {
	t.Helper()
	began := time.Now()
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(make([]byte, n))
		sent <- err
	}()
	_, err := io.CopyN(io.Discard, to, n)
	if err := errors.Join(err, <-sent); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

// TestBuckets: any rate that a sandbox may have fits into the kernel's fields.
func TestBuckets(t *testing.T) {
	for _, rate := range []int64{10_000, 125_000_000, 12_500_000_000} {
		q := bucket(1, rate)
		if q.Rate != uint64(rate) || q.Buffer == 0 || q.Limit < 2*minBurst {
			t.Errorf("%d bytes per second: %+v", rate, q)
		}
	}
}
