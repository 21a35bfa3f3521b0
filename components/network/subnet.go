package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/network/netdump"
	"miren.dev/runtime/components/network/resolver"
	"miren.dev/runtime/pkg/appnet"
	"miren.dev/runtime/pkg/errs"
)

// saved is the content of <state dir>/network.json.
type saved struct {
	Subnet netip.Prefix `json:"subnet"`
}

// ParsePool parses a network from which subnets are taken. InvalidArgument unless it is one of
// IPv4 without addresses that stand in for sandboxes.
func ParsePool(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil || !p.Addr().Is4() {
		return p, errs.New(errs.InvalidArgument, "%q is not an IPv4 network like 10.200.0.0/16", s)
	}
	if p.Overlaps(appnet.StandIns) {
		return p, errs.New(errs.InvalidArgument, "%s has addresses of %s, which stand in for sandboxes on other machines", p, appnet.StandIns).
			WithHint("choose another network, such as 10.200.0.0/16")
	}
	return p, nil
}

// chooseSubnet returns the previous subnet if it is still free or this
// installation's sandboxes use it, else a free one.
func (m *Manager) chooseSubnet() (netip.Prefix, error) {
	file := m.cfg.Instance.State("network.json")
	var s saved
	err := readJSON(file, &s)
	if errs.Is(err, errs.Corrupt) {
		s.Subnet = bridgeSubnet(m.cfg.Instance.Bridge())
		m.cfg.Logger.Warn("the record of the subnet is damaged", "error", err, "of_bridge", s.Subnet.String())
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return netip.Prefix{}, errs.Wrap(err, "subnet of this installation")
	}
	taken, listed := takenPrefixes(m.cfg.Instance.Bridge())
	if listed != nil {
		return netip.Prefix{}, errs.New(errs.Unavailable, "list routes of the machine: %w", listed)
	}
	if s.Subnet.IsValid() {
		if len(m.leases) > 0 || free(s.Subnet, taken) {
			if err == nil {
				return s.Subnet, nil
			}
			return s.Subnet, saveSubnet(file, s.Subnet)
		}
		m.cfg.Logger.Warn("another program on this machine uses the subnet now; choosing another", "subnet", s.Subnet.String())
	}
	p, ok := freeSubnet(m.cfg.Pools, subnetBits, taken)
	if !ok {
		return netip.Prefix{}, errs.New(errs.ResourceExhausted, "no free subnet of /%d in %v: this machine has routes to all of them", subnetBits, m.cfg.Pools).
			WithHint("configure another pool of addresses for sandboxes")
	}
	return p, saveSubnet(file, p)
}

func saveSubnet(file string, p netip.Prefix) error {
	if err := writeJSON(file, saved{Subnet: p}); err != nil {
		return errs.New(errs.FailedPrecondition, "save subnet: %w", err)
	}
	return nil
}

// bridgeSubnet returns the subnet that a bridge has an address in; the zero
// Prefix if it has none.
func bridgeSubnet(bridge string) netip.Prefix {
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return netip.Prefix{}
	}
	addrs, err := netdump.Addresses(link, netlink.FAMILY_V4)
	if err != nil || len(addrs) == 0 {
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(addrs[0].IPNet.String())
	if err != nil {
		return netip.Prefix{}
	}
	return p.Masked()
}

// freeSubnet returns the first prefix of the given size in pools that overlaps nothing taken.
func freeSubnet(pools []netip.Prefix, bits int, taken []netip.Prefix) (netip.Prefix, bool) {
	for _, pool := range pools {
		pool = pool.Masked()
		if !pool.Addr().Is4() || pool.Bits() > bits {
			continue
		}
		base := binary.BigEndian.Uint32(pool.Addr().AsSlice())
		for i := range uint32(1) << (bits - pool.Bits()) {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], base+i<<(32-bits))
			p := netip.PrefixFrom(netip.AddrFrom4(b), bits)
			if free(p, taken) {
				return p, true
			}
		}
	}
	return netip.Prefix{}, false
}

func free(p netip.Prefix, taken []netip.Prefix) bool {
	for _, t := range taken {
		if p.Overlaps(t) {
			return false
		}
	}
	return true
}

// takenPrefixes returns the addresses, the destinations of routes and the name servers of the machine, except those of
// our own bridge and default routes.
func takenPrefixes(bridge string) ([]netip.Prefix, error) {
	own := -1
	if link, err := netlink.LinkByName(bridge); err == nil {
		own = link.Attrs().Index
	}
	var out []netip.Prefix
	add := func(n *net.IPNet) {
		if n == nil {
			return
		}
		addr, ok := netip.AddrFromSlice(n.IP)
		ones, _ := n.Mask.Size()
		if addr = addr.Unmap(); ok && addr.Is4() && ones > 0 {
			out = append(out, netip.PrefixFrom(addr, ones))
		}
	}
	addrs, err := netdump.Addresses(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("addresses: %w", err)
	}
	for _, a := range addrs {
		if a.LinkIndex != own {
			add(a.IPNet)
		}
	}
	// Routes of all tables: policy routing counts too.
	routes, err := netdump.RoutesLike(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("routes: %w", err)
	}
	for _, r := range routes {
		if r.LinkIndex != own || own < 0 {
			add(r.Dst)
		}
	}
	for _, server := range resolver.Servers() {
		out = append(out, netip.PrefixFrom(server, server.BitLen()))
	}
	return out, nil
}
