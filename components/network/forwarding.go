package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/vishvananda/netlink"

	"miren.dev/runtime/components/network/netdump"
	"miren.dev/runtime/pkg/errs"
)

// anyBridge matches the bridges of all installations.
var anyBridge = regexp.MustCompile(`^rt[a-z0-9]{8}br$`)

func forwardingFile() string { return filepath.Join(hostDir, "forwarding.json") }

func forwardingKey(link string) string { return "net/ipv4/conf/" + link + "/forwarding" }

// uplinks are the interfaces that have a gateway.
func uplinks() []netlink.Link {
	routes, err := netdump.Routes(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil
	}
	var out []netlink.Link
	seen := map[int]bool{}
	add := func(index int) {
		if seen[index] {
			return
		}
		seen[index] = true
		if l, err := netlink.LinkByIndex(index); err == nil {
			out = append(out, l)
		}
	}
	for _, r := range routes {
		if r.Gw != nil {
			add(r.LinkIndex)
		}
		for _, hop := range r.MultiPath {
			add(hop.LinkIndex)
		}
	}
	return out
}

// enableForwarding lets packets from the bridge, and answers to them, through. The kernel checks the setting of the
// interface where a packet arrives. Callers hold the host lock.
func (m *Manager) enableForwarding() error {
	before := map[string]string{}
	// A damaged file does not say what was set before: keep the present
	// settings.
	if err := readJSON(forwardingFile(), &before); err != nil && !errors.Is(err, os.ErrNotExist) && !errs.Is(err, errs.Corrupt) {
		return err
	}
	for _, l := range uplinks() {
		name := l.Attrs().Name
		v, err := readSysctl(forwardingKey(name))
		if err != nil {
			return err
		}
		if v == "1" {
			continue
		}
		before[name] = v
		// First record what to restore, then change it.
		if err := writeJSON(forwardingFile(), before); err != nil {
			return err
		}
		if err := sysctl(forwardingKey(name), "1"); err != nil {
			return err
		}
	}
	return sysctl(forwardingKey(m.cfg.Instance.Bridge()), "1")
}

// restoreForwarding undoes enableForwarding unless another installation needs
// it. Callers hold the host lock.
func restoreForwarding() error {
	links, err := netdump.Links()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		if anyBridge.MatchString(l.Attrs().Name) {
			return nil
		}
	}
	before := map[string]string{}
	if err := readJSON(forwardingFile(), &before); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if errs.Is(err, errs.Corrupt) {
			return os.Remove(forwardingFile())
		}
		return err
	}
	for name, v := range before {
		if err := sysctl(forwardingKey(name), v); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("restore forwarding of %s: %w", name, err)
		}
	}
	return os.Remove(forwardingFile())
}
