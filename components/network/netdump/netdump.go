// Package netdump lists what the kernel knows of the network. The kernel sends
// a list in parts, and says so when what it lists changed in between, which on
// a machine where interfaces come and go happens every now and then: then the
// list is asked for again.
package netdump

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// attempts is how often a list is asked for; the last error is returned.
const attempts = 50

// List returns what list does, which is a function of package netlink.
func List[T any](list func() ([]T, error)) (all []T, err error) {
	for range attempts {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, err
}

// Links are the interfaces of this network namespace.
func Links() ([]netlink.Link, error) { return List(netlink.LinkList) }

// Addresses are the addresses of an interface, or of all (nil). family is
// one of netlink's, such as FAMILY_V4.
func Addresses(link netlink.Link, family int) ([]netlink.Addr, error) {
	return List(func() ([]netlink.Addr, error) { return netlink.AddrList(link, family) })
}

// Routes are the routes by an interface, or all (nil), of the main table.
func Routes(link netlink.Link, family int) ([]netlink.Route, error) {
	return List(func() ([]netlink.Route, error) { return netlink.RouteList(link, family) })
}

// RoutesLike are the routes that are like filter in what mask names.
func RoutesLike(family int, filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	return List(func() ([]netlink.Route, error) { return netlink.RouteListFiltered(family, filter, mask) })
}
