package firewall

import (
	"net/netip"

	"miren.dev/runtime/components/network/ranges"
	"miren.dev/runtime/pkg/errs"
)

// reserved addresses are out of reach even when a network around them is allowed,
// private networks unless the operator allows them.
var reserved, private = ranges.Reserved, ranges.Private

// ParseAllowed parses a network to allow. InvalidArgument unless it is an IPv4
// network with addresses that can be allowed.
func ParseAllowed(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil || !p.Addr().Is4() || p.Masked() != p {
		return p, errs.New(errs.InvalidArgument, "%q is not an IPv4 network", s).
			WithHint("write it like 10.1.0.0/16, with only zeros behind the prefix, or 10.1.2.3/32 for one address")
	}
	for _, r := range reserved {
		if r.Bits() <= p.Bits() && r.Contains(p.Addr()) {
			return p, errs.New(errs.InvalidArgument, "%s cannot be allowed: it is in %s", p, r).
				WithHint("metadata services and addresses local to the machine stay out of reach")
		}
	}
	return p, nil
}

// Reachable reports whether guests reach an address that is not the machine's
// own.
func (c Config) Reachable(a netip.Addr) bool {
	return a.Is4() && !ranges.Contains(reserved, a) && !c.Subnet.Contains(a) && (ranges.Contains(c.Allow, a) || !ranges.Contains(private, a))
}
