package network

import (
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/network/cni"
	"miren.dev/runtime/pkg/errs"
)

// Cut stops all packets from and to a sandbox until Mend, as if a cable was unplugged. Addresses and routes stay. It does
// nothing for a sandbox without a network. Both may be repeated.
func (m *Manager) Cut(id string) error { return m.setCarrier(id, false) }

// Mend ends Cut.
func (m *Manager) Mend(id string) error { return m.setCarrier(id, true) }

// setCarrier sets the host's end of the sandbox's interface up or down. The other end must stay up: a packet socket,
// by which gVisor sends, is closed by the kernel when its own interface goes down.
func (m *Manager) setCarrier(id string, on bool) error {
	at, err := m.Get(id)
	if err != nil || !at.Address.IsValid() {
		return err
	}
	inside, err := netns.GetFromPath(at.NetNS)
	if err != nil {
		return errs.New(errs.Unavailable, "network namespace of %s: %w", id, err)
	}
	defer inside.Close()
	h, err := netlink.NewHandleAt(inside, unix.NETLINK_ROUTE)
	if err != nil {
		return errs.New(errs.Unavailable, "network namespace of %s: %w", id, err)
	}
	defer h.Close()
	guest, err := h.LinkByName(cni.Interface)
	if err != nil {
		return errs.New(errs.Unavailable, "interface of sandbox %s: %w", id, err)
	}
	host, err := netlink.LinkByIndex(guest.Attrs().ParentIndex)
	if err == nil && on {
		err = netlink.LinkSetUp(host)
	} else if err == nil {
		err = netlink.LinkSetDown(host)
	}
	if err != nil {
		return errs.New(errs.Unavailable, "interface of sandbox %s: %w", id, err)
	}
	return nil
}
