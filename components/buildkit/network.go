package buildkit

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/nftables"
	nftbin "github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/network/netdump"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// bridge is the name of the bridge that build steps are on: 12 bytes of at most 15.
func (d *Daemon) bridge() string { return "rt" + d.cfg.Instance.ID + "bb" }

// hostLock is taken by whoever chooses a subnet on this machine: also
// components/network, which enables forwarding on the interfaces that lead out.
const hostLock = "/run/lock/miren-runtime/network.lock"

// network makes the bridge and the firewall of build steps, and returns their subnet.
func (d *Daemon) network() (netip.Prefix, error) {
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
	if err := d.makeBridge(subnet); err != nil {
		return none, errs.New(errs.FailedPrecondition, "network of builds: bridge %s: %w", d.bridge(), err)
	}
	forwarding := filepath.Join("/proc/sys/net/ipv4/conf", d.bridge(), "forwarding")
	if err := os.WriteFile(forwarding, []byte("1\n"), 0o644); err != nil {
		return none, errs.New(errs.FailedPrecondition, "network of builds: %w", err)
	}
	if err := d.makeFirewall(subnet); err != nil {
		return none, errs.New(errs.FailedPrecondition, "network of builds: nftables: %w", err)
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
	conf, err := os.ReadFile("/etc/resolv.conf")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(conf)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "nameserver" {
			if a, err := netip.ParseAddr(f[1]); err == nil && a.Is4() {
				used = append(used, netip.PrefixFrom(a, 32))
			}
		}
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
	want := netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits())
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

// makeFirewall replaces our table. Steps may go out, translated; they reach
// neither the host (but its name server), nor networks of this or other
// instances, nor link-local addresses, where clouds have their metadata.
func (d *Daemon) makeFirewall(subnet netip.Prefix) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: d.cfg.Instance.Name("build")}
	// Added first, so that deleting works whether or not it exists; all in one transaction.
	c.AddTable(t)
	c.DelTable(t)
	c.AddTable(t)

	var (
		bridge = name(d.bridge())
		in     = []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: bridge}}
		drop   = &expr.Verdict{Kind: expr.VerdictDrop}
		accept = &expr.Verdict{Kind: expr.VerdictAccept}
	)
	rule := func(chain *nftables.Chain, parts ...[]expr.Any) {
		var all []expr.Any
		for _, p := range parts {
			all = append(all, p...)
		}
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: all})
	}
	port53 := func(proto byte) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, 53)},
		}
	}
	address := func(offset uint32, p netip.Prefix) []expr.Any {
		a, mask := p.Addr().As4(), net.CIDRMask(p.Bits(), 32)
		return []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a[:]},
		}
	}
	const source, destination = 12, 16 // offsets in the IPv4 header
	established := []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Xor: make([]byte, 4),
			Mask: nftbin.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}

	post := c.AddChain(&nftables.Chain{Table: t, Name: "postrouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	rule(post, address(source, subnet),
		[]expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: bridge}, &expr.Masq{}})

	forward := c.AddChain(&nftables.Chain{Table: t, Name: "forward", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	// Bridges of instances start with "rt".
	rule(forward, in, []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte("rt")}, drop})
	rule(forward, in, address(destination, netip.MustParsePrefix("169.254.0.0/16")), []expr.Any{drop})
	// Nobody begins a connection to a step.
	rule(forward, []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: bridge}}, established, []expr.Any{accept})
	rule(forward, []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: bridge}, drop})

	input := c.AddChain(&nftables.Chain{Table: t, Name: "input", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter})
	rule(input, in, established, []expr.Any{accept})
	rule(input, in, port53(unix.IPPROTO_UDP), []expr.Any{accept})
	rule(input, in, port53(unix.IPPROTO_TCP), []expr.Any{accept})
	rule(input, in, []expr.Any{drop})
	return c.Flush()
}

// name is an interface name as nftables compares it.
func name(s string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, s)
	return b
}

// removeNetwork removes the firewall and the bridge.
func (d *Daemon) removeNetwork() error {
	c, err := nftables.New()
	if err != nil {
		return errs.New(errs.Unavailable, "nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: d.cfg.Instance.Name("build")}
	c.AddTable(t)
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return errs.New(errs.Unavailable, "remove firewall of builds: %w", err)
	}
	l, err := netlink.LinkByName(d.bridge())
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err != nil {
		return errs.New(errs.Unavailable, "remove bridge of builds: %w", err)
	}
	return nil
}
