package ranges

import (
	"net"
	"net/netip"
)

// Outward reports whether a connection that somebody else's URL asks for may go to an
// address with its port: one of the Internet, or in allow, and neither of this machine
// nor of a metadata service. A dialer checks the address that it connects to, so that
// a name that means another address the next time does not help.
func Outward(address string, allow []netip.Prefix) (bool, error) {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return false, err
	}
	a := ap.Addr().Unmap()
	if Metadata(a) {
		return false, nil
	}
	for _, p := range allow {
		if p.Contains(a) {
			return true, nil
		}
	}
	if !Public(a) {
		return false, nil
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false, err
	}
	for _, o := range own {
		if n, ok := o.(*net.IPNet); ok {
			if b, ok := netip.AddrFromSlice(n.IP); ok && b.Unmap() == a {
				return false, nil
			}
		}
	}
	return true, nil
}
