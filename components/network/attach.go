package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/network/cni"
	"miren.dev/runtime/components/network/netdump"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

// Attachment describes a sandbox's connection.
type Attachment struct {
	NetNS   string     // path of its network namespace
	Address netip.Addr // the zero Addr without a network
}

// netNS returns the path of a network namespace, whether or not it exists.
func (m *Manager) netNS(name string) string { return filepath.Join(m.netnsDir(), name) }

// linkPrefix starts the names of the host's interfaces of our sandboxes.
func (m *Manager) linkPrefix() string { return "rt" + m.cfg.Instance.ID + "x" }

// linkName returns a name of at most 15 bytes. It is unique since the address
// is, and the subnet is smaller than the part of the address in it.
func (m *Manager) linkName(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("%s%02x%02x", m.linkPrefix(), b[2], b[3])
}

// hardwareAddr is the same for every sandbox that ever has addr: otherwise the
// machine would send to its predecessor until the ARP entry has expired.
func hardwareAddr(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x02, 0x72, b[0], b[1], b[2], b[3]}
}

// Options of a connection.
type Options struct {
	Bridge bool          // otherwise the sandbox has loopback only
	Policy egress.Policy // what it may reach by the bridge
	// Bandwidth is how many bytes per second it may send, and how many it may get; 0: no
	// limit. Of an interface that a site's CNI plugins made, and that is no veth, only what
	// is sent is limited.
	Bandwidth int64
}

// Attach makes the network namespace of a sandbox, connected to the bridge or
// with loopback only. Repeated, it makes a new namespace, since a used one
// cannot be used again. On an error it removes everything.
func (m *Manager) Attach(ctx context.Context, id string, o Options) (Attachment, error) {
	if o.Bridge {
		if err := o.Policy.Validate(); err != nil {
			return Attachment{}, err
		}
	}
	if err := m.Detach(ctx, id); err != nil {
		return Attachment{}, err
	}
	if o.Bridge {
		at, ok, err := m.take(id, o.Policy)
		if ok && err == nil {
			err = limit(at.NetNS, o.Bandwidth)
		}
		if ok && err == nil {
			err = m.syncPeers()
		}
		if err != nil {
			return at, errors.Join(err, m.Detach(context.WithoutCancel(ctx), id))
		}
		if ok {
			return at, nil
		}
	}
	at, err := m.connect(ctx, id, o)
	if err == nil && o.Bridge {
		if err = m.syncPeers(); err != nil {
			err = errors.Join(err, m.Detach(context.WithoutCancel(ctx), id))
		}
	}
	return at, err
}

// connect makes a namespace and connects it. On an error it removes everything.
func (m *Manager) connect(ctx context.Context, id string, o Options) (_ Attachment, err error) {
	at := Attachment{NetNS: m.netNS(id)}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Detach(context.WithoutCancel(ctx), id))
		}
	}()
	if err := newNetNS(at.NetNS, raiseLoopback); err != nil {
		return at, errs.New(errs.Unavailable, "network namespace of sandbox %s: %w", id, err)
	}
	if !o.Bridge {
		return at, nil
	}
	fault.Point("setup", "netns", fault.After)
	if err := m.begin(id, o.Policy); err != nil {
		return at, err
	}
	if at.Address, err = m.cni.Add(ctx, cni.Args{ID: id, NetNS: at.NetNS}); err != nil {
		return at, errs.Wrap(err, "connect sandbox %s", id)
	}
	if err := m.addressed(id, at.Address); err != nil {
		return at, err
	}
	if err := limit(at.NetNS, o.Bandwidth); err != nil {
		return at, err
	}
	return at, m.permit(id, at.Address, o.Policy)
}

// begin notes that a sandbox is being connected, so that Detach disconnects it
// however far that gets.
func (m *Manager) begin(id string, p egress.Policy) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.started {
		return errs.New(errs.Unavailable, "the network of this node is not up")
	}
	if m.cni.Internal() { // the plugin writes it as soon as it has chosen an address
		m.leases[id] = lease{Policy: p}
		return nil
	}
	return m.keep(id, lease{Policy: p})
}

// addressed notes the address that a sandbox got.
func (m *Manager) addressed(id string, a netip.Addr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.leases[id]
	if l.Address == a {
		return nil
	}
	l.Address = a
	return m.keep(id, l)
}

func raiseLoopback() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return nil
}

// permit has proxy and firewall apply a policy.
func (m *Manager) permit(id string, a netip.Addr, p egress.Policy) error {
	p = m.policyOf(id, p)
	m.proxy.Set(a, id, p)
	return m.firewall.SetGuest(a, p)
}

// SetPolicy changes what a sandbox may reach, while it runs. The policy holds from
// the return on, for open connections too, and is kept for the next server.
// FailedPrecondition if the sandbox has loopback only.
func (m *Manager) SetPolicy(_ context.Context, id string, p egress.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	l, leased := m.leases[id]
	leased = leased && l.Address.IsValid()
	if leased {
		l.Policy = p
		if err := m.keep(id, l); err != nil {
			m.mu.Unlock()
			return err
		}
	}
	m.mu.Unlock()
	if !leased {
		if _, err := m.Get(id); err != nil {
			return err
		}
		return errs.New(errs.FailedPrecondition, "sandbox %s was made without a network, so it has no network policy", id)
	}
	if err := m.permit(id, l.Address, p); err != nil {
		return err
	}
	return m.syncPeers()
}

// Policy returns what a sandbox may reach; ok is false if it has no network.
func (m *Manager) Policy(id string) (p egress.Policy, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, ok := m.leases[id]
	return l.Policy, ok && l.Address.IsValid()
}

// Authority returns the certificate, as PEM, that a sandbox must trust whose policy
// injects secrets.
func (m *Manager) Authority() ([]byte, error) { return m.proxy.Certificate() }

// Recent returns the last questions and connections of a sandbox whose policy has
// rules, the oldest first.
func (m *Manager) Recent(id string) []egress.Record {
	m.mu.Lock()
	l := m.leases[id]
	m.mu.Unlock()
	return m.proxy.Recent(l.Address)
}

// disconnect removes the devices and rules of a namespace. Its address may be given to another
// sandbox as soon as it is, so the policy goes first; nothing runs in it any more.
func (m *Manager) disconnect(ctx context.Context, name string, a netip.Addr) error {
	m.proxy.Remove(a)
	if err := m.firewall.RemoveGuest(a); err != nil {
		return err
	}
	return m.cni.Del(ctx, cni.Args{ID: name, NetNS: m.netNS(name)})
}

// Detach removes everything of a sandbox. It returns nil when nothing exists.
func (m *Manager) Detach(ctx context.Context, id string) error {
	m.mu.Lock()
	l, leased := m.leases[id]
	m.mu.Unlock()
	if leased {
		if err := m.disconnect(ctx, l.name(id), l.Address); err != nil {
			return errs.Wrap(err, "disconnect sandbox %s", id)
		}
	}
	fault.Point("teardown", "link", fault.After)
	if err := removeNetNS(m.netNS(l.name(id))); err != nil {
		return errs.New(errs.Unavailable, "disconnect sandbox %s: %w", id, err)
	}
	fault.Point("teardown", "netns", fault.After)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.release(id)
}

// Get returns a sandbox's connection; NotFound if no part of it exists.
func (m *Manager) Get(id string) (Attachment, error) {
	m.mu.Lock()
	l, leased := m.leases[id]
	m.mu.Unlock()
	at := Attachment{NetNS: m.netNS(l.name(id)), Address: l.Address}
	if _, err := os.Lstat(at.NetNS); err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			return at, errs.New(errs.Unavailable, "network namespace of %s: %w", id, err)
		}
		if !leased {
			return at, errs.New(errs.NotFound, "sandbox %s has no network", id)
		}
		at.NetNS = ""
	}
	return at, nil
}

// List returns the ids of the sandboxes that have a namespace or an address.
func (m *Manager) List() ([]string, error) {
	var ids []string
	entries, err := os.ReadDir(m.netnsDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errs.New(errs.Unavailable, "list network namespaces: %w", err)
	}
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	m.mu.Lock()
	for id := range m.leases {
		ids = append(ids, id)
	}
	m.mu.Unlock()
	ids = slices.DeleteFunc(ids, isParked) // of no sandbox, or of one that has a lease
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// SweepLinks removes interfaces of this installation whose address no sandbox
// has: they remain when the machine lost the record of an address.
func (m *Manager) SweepLinks() error {
	links, err := netdump.Links()
	if err != nil {
		return errs.New(errs.Unavailable, "list interfaces: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	wanted := map[string]bool{}
	for _, l := range m.leases {
		if m.subnet.Contains(l.Address) {
			wanted[m.linkName(l.Address)] = true
		}
	}
	for _, l := range links {
		name := l.Attrs().Name
		if strings.HasPrefix(name, m.linkPrefix()) && !wanted[name] {
			m.cfg.Logger.Warn("removing an interface that no sandbox uses", "interface", name)
			if err := removeLink(name); err != nil {
				return errs.New(errs.Unavailable, "sweep: %w", err)
			}
		}
	}
	return nil
}
