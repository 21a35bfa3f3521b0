// Package netdump lists the kernel's network objects. The kernel sends a list in
// parts, and reports when its objects changed in between, as on a machine where
// interfaces come and go. The package then requests the list again.
package netdump

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// attempts is how often a list is requested; the error of the last attempt is
// returned.
const attempts = 50

// List calls list, a function of package netlink, until the result is
// consistent.
func List[T any](list func() ([]T, error)) (all []T, err error) {
	for range attempts {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, err
}

// Links returns the interfaces of this network namespace.
func Links() ([]netlink.Link, error) { return List(netlink.LinkList) }

// Addresses returns the addresses of an interface, or of all (nil). family is
// one of netlink's, such as FAMILY_V4.
func Addresses(link netlink.Link, family int) ([]netlink.Addr, error) {
	return List(func() ([]netlink.Addr, error) { return netlink.AddrList(link, family) })
}

// Routes returns the routes by an interface, or all (nil), of the main table.
func Routes(link netlink.Link, family int) ([]netlink.Route, error) {
	return List(func() ([]netlink.Route, error) { return netlink.RouteList(link, family) })
}

// RoutesLike returns the routes that equal filter in the fields of mask.
func RoutesLike(family int, filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	return List(func() ([]netlink.Route, error) { return netlink.RouteListFiltered(family, filter, mask) })
}
