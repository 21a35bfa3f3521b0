package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// networkFile holds, in the bundle, what runsc is about to remove from the container's network namespace. It is a file
// because the shim may be killed: the clean-up that containerd then runs restores it too.
const networkFile = "network.json"

// savedNetwork is the configuration of a network namespace as far as runsc takes it over: it removes the addresses,
// and with them go the routes.
type savedNetwork struct {
	Path      string
	Addresses []savedAddress
	Routes    []savedRoute
}

type savedAddress struct {
	Link    string
	Address string // with prefix length
	// Broadcast is empty when there is none.
	Broadcast string
}

type savedRoute struct {
	Link        string
	Destination string // with prefix length; empty for the default route
	Gateway     string
	Source      string
	Scope       int
	Table       int
	Priority    int
	Flags       int
}

// saveNetwork writes the configuration of the namespace into the bundle.
func saveNetwork(bundle, namespace string) error {
	saved, err := readNetwork(namespace)
	if err != nil {
		return fmt.Errorf("save network of %s: %w", namespace, err)
	}
	data, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, networkFile), data, 0o600)
}

// restoreNetwork restores the configuration that the bundle has, if any, in the namespace, if it still exists. Its
// sandbox must be gone: only one can have the addresses.
func restoreNetwork(bundle string) error {
	file := filepath.Join(bundle, networkFile)
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var saved savedNetwork
	if err := json.Unmarshal(data, &saved); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	err = saved.write()
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the namespace was deleted
	}
	if err != nil {
		return fmt.Errorf("restore network of %s: %w", saved.Path, err)
	}
	return os.Remove(file)
}

// inNamespace calls f with a netlink handle on the network namespace.
func inNamespace(path string, f func(*netlink.Handle) error) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer handle.Close()
	return f(handle)
}

// whole requests a list again when its objects changed while the kernel sent it, as when IPv6 takes an address into use
// soon after the interface came up.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range 50 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

func readNetwork(path string) (savedNetwork, error) {
	saved := savedNetwork{Path: path}
	err := inNamespace(path, func(h *netlink.Handle) error {
		links, err := whole(h.LinkList)
		if err != nil {
			return err
		}
		for _, link := range links {
			name := link.Attrs().Name
			if link.Attrs().Flags&net.FlagLoopback != 0 {
				continue // runsc has its own
			}
			addresses, err := whole(func() ([]netlink.Addr, error) { return h.AddrList(link, netlink.FAMILY_ALL) })
			if err != nil {
				return err
			}
			for _, a := range addresses {
				if a.IP.IsLinkLocalUnicast() && a.IP.To4() == nil {
					continue // the kernel's
				}
				saved.Addresses = append(saved.Addresses, savedAddress{name, a.IPNet.String(), ip(a.Broadcast)})
			}
			routes, err := whole(func() ([]netlink.Route, error) { return h.RouteList(link, netlink.FAMILY_ALL) })
			if err != nil {
				return err
			}
			for _, r := range routes {
				if r.Protocol == unix.RTPROT_KERNEL {
					continue // comes with the address
				}
				saved.Routes = append(saved.Routes, savedRoute{
					Link: name, Destination: ipNet(r.Dst), Gateway: ip(r.Gw), Source: ip(r.Src),
					Scope: int(r.Scope), Table: r.Table, Priority: r.Priority, Flags: r.Flags & unix.RTNH_F_ONLINK,
				})
			}
		}
		return nil
	})
	return saved, err
}

// write restores the saved configuration in the namespace; existing addresses and routes stay.
func (s savedNetwork) write() error {
	return inNamespace(s.Path, func(h *netlink.Handle) error {
		for _, a := range s.Addresses {
			link, err := h.LinkByName(a.Link)
			if err != nil {
				return err
			}
			address, err := netlink.ParseAddr(a.Address)
			if err != nil {
				return err
			}
			if address.IP.To4() == nil {
				address.Flags = unix.IFA_F_NODAD // it was ours a moment ago
			} else if address.Broadcast = net.ParseIP(a.Broadcast); address.Broadcast == nil {
				address.Broadcast = net.IPv4zero // none; without this the library would set one
			}
			if err := h.AddrReplace(link, address); err != nil {
				return fmt.Errorf("address %s of %s: %w", a.Address, a.Link, err)
			}
		}
		for _, r := range s.Routes {
			link, err := h.LinkByName(r.Link)
			if err != nil {
				return err
			}
			route := netlink.Route{
				LinkIndex: link.Attrs().Index, Gw: net.ParseIP(r.Gateway), Src: net.ParseIP(r.Source),
				Scope: netlink.Scope(r.Scope), Table: r.Table, Priority: r.Priority, Flags: r.Flags,
			}
			if r.Destination != "" {
				if _, route.Dst, err = net.ParseCIDR(r.Destination); err != nil {
					return err
				}
			}
			if err := h.RouteReplace(&route); err != nil {
				return fmt.Errorf("route %+v: %w", r, err)
			}
		}
		return nil
	})
}

func ip(a net.IP) string {
	if a == nil {
		return ""
	}
	return a.String()
}

func ipNet(n *net.IPNet) string {
	if n == nil {
		return ""
	}
	return n.String()
}
