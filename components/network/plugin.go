package network

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/network/cni"
	"miren.dev/runtime/components/network/netdump"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

// plugin is the CNI plugin that connects a namespace to our bridge.
type plugin struct{ m *Manager }

var _ cni.Plugin = plugin{}

// Add gives the sandbox an address and an interface.
func (p plugin) Add(_ context.Context, a cni.Args) (*current.Result, error) {
	m := p.m
	addr, err := m.takeAddress(a.ID)
	if err != nil {
		return nil, err
	}
	fault.Point("setup", "address", fault.After)
	m.mu.Lock()
	bridge, mtu, gateway, bits := m.bridge, m.mtu, m.gateway(), m.subnet.Bits()
	m.mu.Unlock()
	if err := m.plug(a.NetNS, bridge, mtu, netip.PrefixFrom(addr, bits), gateway); err != nil {
		return nil, errs.New(errs.Unavailable, "%w", err)
	}
	guest := 1
	everywhere := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	return &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: m.linkName(addr), Mtu: mtu},
			{Name: cni.Interface, Mac: hardwareAddr(addr).String(), Mtu: mtu, Sandbox: a.NetNS},
		},
		IPs:    []*current.IPConfig{{Interface: &guest, Address: *ipNet(netip.PrefixFrom(addr, bits)), Gateway: gateway.AsSlice()}},
		Routes: []*types.Route{{Dst: *everywhere, GW: gateway.AsSlice()}},
	}, nil
}

// takeAddress gives a sandbox an address, and writes that down before anything is
// named after it.
func (m *Manager) takeAddress(id string) (netip.Addr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, ok := m.leases[id]
	if !ok {
		return netip.Addr{}, errs.New(errs.Internal, "sandbox %s is not being connected", id)
	}
	if l.Address.IsValid() {
		return l.Address, nil
	}
	var err error
	if l.Address, err = m.freeAddress(); err != nil {
		return netip.Addr{}, err
	}
	return l.Address, m.keep(id, l)
}

// plug connects a namespace to the bridge.
func (m *Manager) plug(netNS string, bridge, mtu int, addr netip.Prefix, gateway netip.Addr) error {
	outside, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer outside.Close()
	ns, err := unix.Open(netNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", netNS, err)
	}
	defer unix.Close(ns)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex = m.linkName(addr.Addr()), mtu, bridge
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: cni.Interface, PeerNamespace: netlink.NsFd(ns), PeerMTU: uint32(mtu),
		PeerHardwareAddr: hardwareAddr(addr.Addr()),
	}
	if err := outside.LinkAdd(veth); err != nil {
		return fmt.Errorf("interface %s: %w", attrs.Name, err)
	}
	fault.Point("setup", "link", fault.After)
	host, err := outside.LinkByName(attrs.Name)
	if err != nil {
		return err
	}
	if err := outside.LinkSetIsolated(host, true); err != nil {
		return fmt.Errorf("isolate %s: %w", attrs.Name, err)
	}
	if err := outside.LinkSetUp(host); err != nil {
		return err
	}
	return inNetNS(ns, func() error {
		inside, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer inside.Close()
		guest, err := inside.LinkByName(cni.Interface)
		if err != nil {
			return err
		}
		if err := inside.AddrAdd(guest, &netlink.Addr{IPNet: ipNet(addr)}); err != nil {
			return fmt.Errorf("address %s: %w", addr, err)
		}
		if err := inside.LinkSetUp(guest); err != nil {
			return err
		}
		return inside.RouteAdd(&netlink.Route{LinkIndex: guest.Attrs().Index, Gw: gateway.AsSlice()})
	})
}

// Del removes the interface; the address is free when the sandbox's lease is released.
func (p plugin) Del(_ context.Context, a cni.Args) error {
	p.m.mu.Lock()
	addr := p.m.connection(a.ID).Address
	p.m.mu.Unlock()
	if !addr.IsValid() {
		return nil // SweepLinks removes one without a lease
	}
	if err := removeLink(p.m.linkName(addr)); err != nil {
		return errs.New(errs.Unavailable, "%w", err)
	}
	return nil
}

// Check returns an error if the interface or its address is not there.
func (p plugin) Check(_ context.Context, a cni.Args, prev *current.Result) error {
	p.m.mu.Lock()
	addr := p.m.connection(a.ID).Address
	bridge := p.m.bridge
	p.m.mu.Unlock()
	if !slices.ContainsFunc(prev.IPs, func(ip *current.IPConfig) bool { return ip.Address.IP.Equal(addr.AsSlice()) }) {
		return errs.New(errs.FailedPrecondition, "the address of %s is %s, not that of the result", a.ID, addr)
	}
	host, err := netlink.LinkByName(p.m.linkName(addr))
	if err != nil {
		return errs.New(errs.FailedPrecondition, "interface %s: %w", p.m.linkName(addr), err)
	}
	if host.Attrs().MasterIndex != bridge {
		return errs.New(errs.FailedPrecondition, "interface %s is not on the bridge", p.m.linkName(addr))
	}
	ns, err := unix.Open(a.NetNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "network namespace %s: %w", a.NetNS, err)
	}
	defer unix.Close(ns)
	return inNetNS(ns, func() error {
		guest, err := netlink.LinkByName(cni.Interface)
		if err != nil {
			return errs.New(errs.FailedPrecondition, "interface %s: %w", cni.Interface, err)
		}
		has, err := netdump.Addresses(guest, netlink.FAMILY_V4)
		if err != nil {
			return errs.New(errs.Unavailable, "addresses of %s: %w", cni.Interface, err)
		}
		if !slices.ContainsFunc(has, func(h netlink.Addr) bool { return h.IP.Equal(addr.AsSlice()) }) {
			return errs.New(errs.FailedPrecondition, "interface %s has not the address %s", cni.Interface, addr)
		}
		return nil
	})
}
