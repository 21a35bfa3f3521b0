package network

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/network/netdump"
)

func (m *Manager) ensureBridge() error {
	name := m.cfg.Instance.Bridge()
	m.mtu = uplinkMTU()
	// A fixed address: otherwise it would be the lowest member's, and change as sandboxes come and go.
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	sum := h.Sum(nil)
	mac := net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = name, mac, m.mtu
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if link.Type() != "bridge" {
		return fmt.Errorf("there is an interface of that name, of type %s", link.Type())
	}
	m.bridge = link.Attrs().Index
	if err := sysctl("net/ipv6/conf/"+name+"/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// Sandboxes that reach each other do so through the machine (package firewall): it answers ARP requests of the
	// isolated ports for each other, at once, and does not point out shorter ways.
	for key, value := range map[string]string{"conf/" + name + "/proxy_arp_pvlan": "1", "neigh/" + name + "/proxy_delay": "0", "conf/" + name + "/send_redirects": "0"} {
		if err := sysctl("net/ipv4/"+key, value); err != nil {
			return err
		}
	}
	want := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(m.gateway(), m.subnet.Bits()))}
	have, err := netdump.Addresses(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	found := false
	for _, a := range have {
		if a.IPNet.String() == want.IPNet.String() {
			found = true
		} else if err := netlink.AddrDel(link, &a); err != nil {
			return err
		}
	}
	if !found {
		if err := netlink.AddrAdd(link, want); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

// uplinkMTU returns the smallest MTU of the interfaces that have a gateway, so
// that packets of a sandbox fit into packets of the machine.
func uplinkMTU() int {
	mtu := 0
	for _, l := range uplinks() {
		if n := l.Attrs().MTU; n > 0 && (mtu == 0 || n < mtu) {
			mtu = n
		}
	}
	if mtu == 0 {
		return 1500
	}
	return mtu
}

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete interface %s: %w", name, err)
	}
	return nil
}
