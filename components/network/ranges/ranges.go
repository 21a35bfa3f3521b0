// Package ranges classes IP addresses by who they belong to: the Internet, private
// networks, the machine itself, the metadata services of clouds.
package ranges

import "net/netip"

// Reserved addresses are out of reach even when a network around them is allowed. They mean the machine itself, many
// machines or none, or belong to a cloud's metadata service, which gives out the machine's credentials. The IPv6
// addresses of such services (fd00:ec2::254 of AWS, fd20:ce::254 of Google, fd00:42::42 of Scaleway, fe80::a9fe:a9fe of
// OpenStack) are out of reach because guests have no IPv6.
var Reserved = parse(
	"0.0.0.0/8",          // this network
	"127.0.0.0/8",        // loopback
	"169.254.0.0/16",     // link-local; metadata: .169.254 of nearly all, .170.2 of ECS, .42.42 of Scaleway, .0.23 of Tencent
	"100.100.100.200/32", // metadata of Alibaba
	"192.0.0.192/32",     // metadata of Oracle
	"168.63.129.16/32",   // metadata of Azure, which is a public address
	"224.0.0.0/4",        // multicast
	"240.0.0.0/4",        // reserved, and broadcast
)

// Private networks are out of reach unless the operator allows them.
var Private = parse(
	"10.0.0.0/8",
	"100.64.0.0/10", // shared with the provider
	"172.16.0.0/12",
	"192.0.0.0/24",
	"192.168.0.0/16",
	"198.18.0.0/15", // benchmarks of networks
)

func parse(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// metadata are services of clouds that give out the machine's credentials.
var metadata = parse(
	"169.254.0.0/16", "100.100.100.200/32", "192.0.0.192/32", "168.63.129.16/32",
	"fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128", "fd00:42::42/128",
)

// unicast6 is what is routed in the Internet of IPv6; special6 are the parts of it
// that lead elsewhere: to protocols, into IPv4, or nowhere.
var (
	unicast6 = netip.MustParsePrefix("2000::/3")
	special6 = parse("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)

// Public reports whether an address is one of the Internet: not the machine's,
// private, shared, link-local, multicast, or that of a metadata service.
func Public(a netip.Addr) bool {
	if a = a.Unmap(); a.Is4() {
		return !Contains(Reserved, a) && !Contains(Private, a)
	}
	return a.Zone() == "" && unicast6.Contains(a) && !Contains(special6, a)
}

// Metadata reports whether an address may be that of a cloud's metadata service.
func Metadata(a netip.Addr) bool { return Contains(metadata, a.Unmap().WithZone("")) }

// Contains reports whether one of the networks has an address.
func Contains(list []netip.Prefix, a netip.Addr) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
