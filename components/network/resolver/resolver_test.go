package resolver

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"miren.dev/runtime/components/network/firewall"
)

func TestResolver(t *testing.T) {
	c := firewall.Config{
		Subnet: netip.MustParsePrefix("10.88.0.0/22"), Gateway: netip.MustParseAddr("10.88.0.1"),
		Allow: []netip.Prefix{netip.MustParsePrefix("192.168.7.0/24")},
	}
	own := []netlink.Addr{{IPNet: &net.IPNet{IP: net.IPv4(203, 0, 113, 9), Mask: net.CIDRMask(24, 32)}}}
	for _, tt := range []struct {
		name, in, conf, forward string
	}{
		{"private", "nameserver 10.255.255.53\n", "nameserver 10.88.0.1\n", "10.255.255.53"},
		{"public", "nameserver 9.9.9.9 # quad\nnameserver 8.8.4.4\n", "nameserver 9.9.9.9\nnameserver 8.8.4.4\n", ""},
		{"allowed", "nameserver 192.168.7.1\n", "nameserver 192.168.7.1\n", ""},
		{"the machine's own", "nameserver 203.0.113.9\n", "nameserver 10.88.0.1\n", "203.0.113.9"},
		{"loopback", "# local\nnameserver 127.0.0.53\noptions edns0\nsearch  a.example b.example\n",
			"nameserver 10.88.0.1\nsearch a.example b.example\noptions edns0\n", "127.0.0.53"},
		{"link-local of a cloud", "nameserver 169.254.169.253\n", "nameserver 10.88.0.1\n", "169.254.169.253"},
		{"several", "nameserver 10.0.0.2\nnameserver 10.0.0.3\nnameserver 8.8.8.8\n", "nameserver 10.88.0.1\nnameserver 8.8.8.8\n", "10.0.0.2"},
		{"IPv6 too", "nameserver ::1\nnameserver fd00::1\nnameserver 9.9.9.9\n", "nameserver 9.9.9.9\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := forGuests(parse([]byte(tt.in)), c, own)
			forward := ""
			if r.Forward.IsValid() {
				forward = r.Forward.String()
			}
			if string(r.Conf()) != tt.conf || forward != tt.forward {
				t.Errorf("resolver of %q: %q, forwarded to %q; want %q, %q", tt.in, r.Conf(), forward, tt.conf, tt.forward)
			}
		})
	}
}
