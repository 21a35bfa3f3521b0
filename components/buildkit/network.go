package buildkit

import (
	"errors"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/network/firewall"
	"miren.dev/runtime/components/network/netdump"
	"miren.dev/runtime/components/network/resolver"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// bridge is the name of the bridge that build steps are on: 12 bytes of at most 15.
func (d *Daemon) bridge() string { return "rt" + d.cfg.Instance.ID + "bb" }

// hostLock is taken by whoever chooses a subnet on this machine: also
// components/network, which enables forwarding on the interfaces that lead out.
const hostLock = "/run/lock/miren-runtime/network.lock"

// network makes the bridge and the firewall of build steps, or adopts what is
// there, and returns their subnet and resolver.
func (d *Daemon) network() (netip.Prefix, resolver.Resolver, error) {
	d.netMu.Lock()
	defer d.netMu.Unlock()
	subnet, err := d.makeNetwork()
	if err != nil {
		return subnet, resolver.Resolver{}, err
	}
	d.guests = subnet
	r, err := d.ensureFirewall(subnet)
	if err == nil {
		err = d.removeOldTable()
	}
	return subnet, r, err
}

// checkFirewall makes the firewall again if something changed it.
func (d *Daemon) checkFirewall() error {
	d.netMu.Lock()
	defer d.netMu.Unlock()
	if !d.guests.IsValid() {
		return nil
	}
	_, err := d.ensureFirewall(d.guests)
	return err
}

func (d *Daemon) makeNetwork() (netip.Prefix, error) {
	none := netip.Prefix{}
	if err := os.MkdirAll(filepath.Dir(hostLock), 0o755); err != nil {
		return none, errs.New(errs.FailedPrecondition, "lock subnets: %w", err)
	}
	lock, err := os.OpenFile(hostLock, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return none, errs.New(errs.FailedPrecondition, "lock subnets: %w", err)
	}
	defer lock.Close()
	// Held for milliseconds only.
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return none, errs.New(errs.Unavailable, "lock subnets: %w", err)
	}
	subnet, err := d.subnet()
	if err != nil {
		return none, err
	}
	// Before the bridge, so that no packet passes it without a firewall.
	if _, err := d.ensureFirewall(subnet); err != nil {
		return none, err
	}
	if err := d.makeBridge(subnet); err != nil {
		return none, errs.New(errs.FailedPrecondition, "network of builds: bridge %s: %w", d.bridge(), err)
	}
	forwarding := filepath.Join("/proc/sys/net/ipv4/conf", d.bridge(), "forwarding")
	if err := os.WriteFile(forwarding, []byte("1\n"), 0o644); err != nil {
		return none, errs.New(errs.FailedPrecondition, "network of builds: %w", err)
	}
	return subnet, nil
}

// subnet returns the configured subnet, that of last time, or a free one.
func (d *Daemon) subnet() (netip.Prefix, error) {
	none := netip.Prefix{}
	if d.cfg.Subnet.IsValid() {
		return d.cfg.Subnet.Masked(), nil
	}
	used, err := d.usedSubnets()
	if err != nil {
		return none, errs.New(errs.Unavailable, "list routes and addresses: %w", err)
	}
	free := func(p netip.Prefix) bool {
		for _, u := range used {
			if u.Overlaps(p) {
				return false
			}
		}
		return true
	}
	file := filepath.Join(d.root(), "subnet")
	if b, err := os.ReadFile(file); err == nil {
		if p, err := netip.ParsePrefix(strings.TrimSpace(string(b))); err == nil && free(p) {
			return p, nil
		}
	}
	h := fnv.New32a()
	h.Write([]byte(d.cfg.Instance.ID))
	const candidates = 64 * 256 // 10.192.0.0/24 to 10.255.255.0/24
	for i := range uint32(candidates) {
		n := (h.Sum32() + i) % candidates
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(192 + n>>8), byte(n), 0}), 24)
		if !free(p) {
			continue
		}
		if err := atomicfile.Write(file, []byte(p.String()+"\n"), 0o644); err != nil {
			return none, errs.New(errs.FailedPrecondition, "keep the subnet of builds: %w", err)
		}
		return p, nil
	}
	return none, errs.New(errs.ResourceExhausted, "no free subnet for builds in 10.192.0.0/10").
		WithHint("set one in the configuration")
}

// usedSubnets are those of all routes and addresses of the host but our bridge's.
func (d *Daemon) usedSubnets() ([]netip.Prefix, error) {
	own := -1
	if l, err := netlink.LinkByName(d.bridge()); err == nil {
		own = l.Attrs().Index
	}
	var used []netip.Prefix
	add := func(n *net.IPNet) {
		if n == nil {
			return
		}
		a, ok := netip.AddrFromSlice(n.IP.To4())
		ones, _ := n.Mask.Size()
		if ok && ones > 0 {
			used = append(used, netip.PrefixFrom(a, ones).Masked())
		}
	}
	routes, err := netdump.RoutesLike(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		if r.LinkIndex != own {
			add(r.Dst)
		}
	}
	addrs, err := netdump.Addresses(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if a.LinkIndex != own {
			add(a.IPNet)
		}
	}
	// A name server that is reached through the default route would be hidden.
	for _, server := range resolver.Servers() {
		used = append(used, netip.PrefixFrom(server, server.BitLen()))
	}
	return used, nil
}

// makeBridge makes the bridge with the first address of the subnet. It exists
// before the first step so that other instances see that the subnet is taken.
func (d *Daemon) makeBridge(subnet netip.Prefix) error {
	l, err := netlink.LinkByName(d.bridge())
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = d.bridge()
		l = &netlink.Bridge{LinkAttrs: attrs}
		err = netlink.LinkAdd(l)
	}
	if err != nil {
		return err
	}
	want := netip.PrefixFrom(gatewayOf(subnet), subnet.Bits())
	addrs, err := netdump.Addresses(l, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	found := false
	for _, a := range addrs {
		if a.IPNet.String() == want.String() {
			found = true
		} else if err := netlink.AddrDel(l, &a); err != nil {
			return err
		}
	}
	if !found {
		a, err := netlink.ParseAddr(want.String())
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

// mtu is that of the interface that leads out.
func mtu() int {
	const usual = 1500
	routes, err := netdump.Routes(nil, netlink.FAMILY_V4)
	if err != nil {
		return usual
	}
	for _, r := range routes {
		if r.Gw == nil {
			continue
		}
		if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil && l.Attrs().MTU > 0 {
			return min(usual, l.Attrs().MTU)
		}
	}
	return usual
}

// ensureFirewall makes or repairs the firewall of build steps, and returns their resolver.
func (d *Daemon) ensureFirewall(subnet netip.Prefix) (resolver.Resolver, error) {
	c := firewall.Config{
		Table: d.cfg.Instance.Name("build"), Bridge: d.bridge(), Subnet: subnet, Gateway: gatewayOf(subnet),
		Allow: d.cfg.Allow, Connections: d.cfg.Connections,
	}
	r, err := resolver.Find(c)
	if err != nil {
		return r, errs.New(errs.Unavailable, "name server of builds: %w", err)
	}
	c.Resolver = r.Forward
	return r, d.firewall.Ensure(c)
}

// gatewayOf returns the bridge's address.
func gatewayOf(subnet netip.Prefix) netip.Addr { return subnet.Addr().Next() }

// removeNetwork removes the bridge and the firewall.
func (d *Daemon) removeNetwork() error {
	d.netMu.Lock()
	defer d.netMu.Unlock()
	d.guests = netip.Prefix{}
	l, err := netlink.LinkByName(d.bridge())
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		return errs.New(errs.Unavailable, "remove bridge of builds: %w", err)
	}
	if err := d.removeOldTable(); err != nil {
		return err
	}
	return d.firewall.Remove(d.cfg.Instance.Name("build"), d.bridge())
}

// removeOldTable removes the table of an earlier version, which was of another family.
func (d *Daemon) removeOldTable() error {
	c, err := nftables.New()
	if err != nil {
		return errs.New(errs.Unavailable, "nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: d.cfg.Instance.Name("build")}
	c.AddTable(t) // so that deleting it succeeds when it is not there
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return errs.New(errs.Unavailable, "remove the old firewall of builds: %w", err)
	}
	return nil
}
