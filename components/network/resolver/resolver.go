// Package resolver finds the name servers for the guests of a firewall: the
// machine's. Guests ask a server directly if they can reach its address. They ask
// the first of the others through port 53 of the bridge's address, which the
// firewall forwards to it.
package resolver

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"miren.dev/runtime/components/network/firewall"
	"miren.dev/runtime/components/network/netdump"
)

// Files are the files with the machine's name servers. The second is
// systemd-resolved's, with the real servers behind its loopback address.
var Files = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// public are used when the machine knows none with an IPv4 address.
var public = []netip.Addr{netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr("8.8.8.8")}

// Resolver is the content of a guest's resolv.conf, and the server to forward to.
type Resolver struct {
	Servers []netip.Addr
	Search  []string // domains
	Options []string
	// Forward is the server to which the firewall must forward port 53 of the
	// bridge's address. The zero Addr: none.
	Forward netip.Addr
}

// Conf returns the resolv.conf of a guest.
func (r Resolver) Conf() []byte {
	var b bytes.Buffer
	for _, s := range r.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(r.Search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(r.Search, " "))
	}
	if len(r.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(r.Options, " "))
	}
	return b.Bytes()
}

// Find returns the resolver of the guests of a firewall.
func Find(c firewall.Config) (Resolver, error) {
	own, err := netdump.Addresses(nil, netlink.FAMILY_V4)
	if err != nil {
		return Resolver{}, fmt.Errorf("addresses of the machine: %w", err)
	}
	return forGuests(ofMachine(), c, own), nil
}

// Ask returns where the machine asks for names, the preferred server first.
func Ask() []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range Servers() {
		out = append(out, netip.AddrPortFrom(s, 53))
	}
	return out
}

// Servers returns the name servers of the machine that have an IPv4 address.
func Servers() []netip.Addr { return ofMachine().Servers }

// ofMachine reads the first of Files with a server that is not on a loopback
// address, else the first one with any.
func ofMachine() Resolver {
	var local Resolver
	for _, path := range Files {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		r := parse(b)
		if slices.ContainsFunc(r.Servers, func(a netip.Addr) bool { return !a.IsLoopback() }) {
			r.Servers = slices.DeleteFunc(r.Servers, netip.Addr.IsLoopback)
			return r
		}
		if len(local.Servers) == 0 {
			local = r
		}
	}
	if len(local.Servers) == 0 {
		local.Servers = public
	}
	return local
}

func parse(conf []byte) Resolver {
	var r Resolver
	for line := range strings.Lines(string(conf)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(fields[1]); err == nil && a.Is4() && !a.IsUnspecified() {
				r.Servers = append(r.Servers, a)
			}
		case "search", "domain": // the last one counts
			r.Search = fields[1:]
		case "options":
			r.Options = append(r.Options, fields[1:]...)
		}
	}
	return r
}

// forGuests replaces the servers that guests do not reach.
func forGuests(machine Resolver, c firewall.Config, own []netlink.Addr) Resolver {
	r := machine
	r.Servers = nil
	for _, s := range machine.Servers {
		isOwn := slices.ContainsFunc(own, func(a netlink.Addr) bool { return a.IP.Equal(s.AsSlice()) })
		switch {
		case !isOwn && c.Reachable(s):
			r.Servers = append(r.Servers, s)
		case !r.Forward.IsValid():
			r.Forward = s
			r.Servers = append(r.Servers, c.Gateway)
		}
	}
	return r
}
