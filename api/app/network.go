package app

import (
	"net/netip"

	"miren.dev/runtime/pkg/errs"
)

// ParseNetwork parses a network or an address of RouteSettings.Allow.
func ParseNetwork(s string) (netip.Prefix, error) {
	if ip, err := netip.ParseAddr(s); err == nil && ip.Zone() == "" {
		ip = ip.Unmap()
		return netip.PrefixFrom(ip, ip.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return p, errs.New(errs.InvalidArgument, "%q is not a network", s).WithHint("such as 10.1.0.0/16, fd00::/64 or 192.0.2.7")
	}
	return p.Masked(), nil
}
