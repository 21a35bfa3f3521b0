package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"miren.dev/runtime/components/network/firewall"
	"miren.dev/runtime/components/network/proxy"
	"miren.dev/runtime/pkg/appnet"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// renewNames is how often the firewall is told that the proxy answers for names.
const renewNames = firewall.NamedFor / 3

// connectTime bounds the wait until a sandbox accepts a connection of one on another node.
const connectTime = 5 * time.Second

func (m *Manager) appsFile() string { return m.cfg.Instance.Socket("network-apps.json") }

// SetApps sets the private networks of apps: what sandboxes may connect to others, and
// the names of those. It holds from the return on, for open connections too, and for
// the next server until that calls SetApps. Sandboxes of which nothing is on this
// machine yet may be named.
func (m *Manager) SetApps(_ context.Context, apps []appnet.App) error {
	m.peering.Lock()
	defer m.peering.Unlock()
	apps = m.apps.Load().WithStandIns(apps)
	b, err := json.Marshal(apps)
	if err != nil {
		return errs.New(errs.Internal, "private networks: %w", err)
	}
	if bytes.Equal(b, m.saved) {
		return nil
	}
	if err := atomicfile.Write(m.appsFile(), b, 0o644, atomicfile.Volatile); err != nil {
		return errs.New(errs.FailedPrecondition, "save private networks: %w", err)
	}
	before, now := m.apps.Load(), appnet.New(apps)
	m.apps.Store(now)
	closed := map[string]lease{}
	m.mu.Lock()
	for id, l := range m.leases {
		_, was := before.Group(id)
		if _, is := now.Group(id); was != is && l.Address.IsValid() && l.Policy.Mode == egress.None {
			closed[id] = l
		}
	}
	m.mu.Unlock()
	for id, l := range closed { // whose names the proxy answers from now on, or no longer
		if err := m.permit(id, l.Address, l.Policy); err != nil {
			return err
		}
	}
	if err := m.setPeers(); err != nil {
		return err
	}
	m.proxy.KeepPeers(func(id string, to netip.Addr) bool {
		_, ok := peerAt(now, id, to)
		return ok
	})
	m.saved = b
	return nil
}

// loadApps reads what the server before was told.
func (m *Manager) loadApps() {
	var apps []appnet.App
	b, err := os.ReadFile(m.appsFile())
	if err == nil {
		err = json.Unmarshal(b, &apps)
	}
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			m.cfg.Logger.Warn("the record of the private networks is damaged; sandboxes of apps do not reach each other until it is made again", "error", err)
		}
		return
	}
	m.apps.Store(appnet.New(apps))
}

// policyOf returns the policy that the firewall and the proxy apply. A sandbox of an
// app that reaches nothing outside asks the proxy for names of its network.
func (m *Manager) policyOf(id string, p egress.Policy) egress.Policy {
	if _, ok := m.apps.Load().Group(id); ok && p.Mode == egress.None {
		return egress.Policy{Mode: egress.List}
	}
	return p
}

// syncPeers tells the firewall which sandboxes reach others. Every sandbox is
// connected before it, and starts after it: so no peer that had its address before is
// left in the firewall.
func (m *Manager) syncPeers() error {
	m.peering.Lock()
	defer m.peering.Unlock()
	return m.setPeers()
}

// setPeers is called with m.peering held.
func (m *Manager) setPeers() error {
	m.mu.Lock()
	p, named := m.peers()
	m.mu.Unlock()
	if err := m.firewall.SetPeers(p); err != nil {
		return err
	}
	if !m.answering.Load() {
		return nil
	}
	return m.firewall.SetNamed(named, m.namedFor())
}

// namedFor is how long the proxy's sockets have a reader for sure: with a standby also when this
// server is dead.
func (m *Manager) namedFor() time.Duration {
	if m.held.Load() {
		return firewall.NamedLong
	}
	return firewall.NamedFor
}

// peers returns the sandboxes that reach others, and those of them that have no rules
// of their own. Only the plugin runtime can keep sandboxes apart, so there are none
// otherwise. Callers hold m.mu.
func (m *Manager) peers() (p firewall.Peers, named []netip.Addr) {
	t := m.apps.Load()
	p.Groups, p.Reach = map[netip.Addr]uint32{}, map[uint32][]netip.Addr{}
	for id, l := range m.leases {
		group, ok := t.Group(id)
		if !ok || !m.subnet.Contains(l.Address) {
			continue
		}
		p.Groups[l.Address] = group
		if l.Policy.Mode == egress.All && !l.Policy.Filtered() {
			named = append(named, l.Address)
		}
	}
	for group, sandboxes := range t.Reaches() {
		for _, id := range sandboxes {
			if a := m.addressOf(t, id); a.IsValid() {
				p.Reach[group] = append(p.Reach[group], a)
			}
		}
	}
	return p, named
}

// answerNames has the firewall lead the questions of apps to the proxy until ctx ends.
func (m *Manager) answerNames(ctx context.Context) error {
	t := time.NewTicker(renewNames)
	defer t.Stop()
	m.answering.Store(true)
	for failing := false; ; {
		err := m.syncPeers()
		if err != nil && !failing {
			m.cfg.Logger.Error("cannot tell the firewall about the private networks of apps", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			m.answering.Store(false)
			if m.held.Load() {
				return nil // the standby answers
			}
			m.peering.Lock()
			defer m.peering.Unlock()
			return m.firewall.SetNamed(nil, 0)
		case <-t.C:
		}
	}
}

// name answers a sandbox's question for a name of its private network.
func (m *Manager) name(id, name string) (proxy.Internal, bool) {
	t := m.apps.Load()
	ready, answer := t.Find(id, name)
	if answer == appnet.Foreign {
		return proxy.Internal{}, false
	}
	out := proxy.Internal{Missing: answer == appnet.Missing}
	m.mu.Lock()
	for _, id := range ready {
		if a := m.addressOf(t, id); a.IsValid() {
			out.Addresses = append(out.Addresses, a)
		}
	}
	m.mu.Unlock()
	rand.Shuffle(len(out.Addresses), func(i, j int) {
		out.Addresses[i], out.Addresses[j] = out.Addresses[j], out.Addresses[i]
	})
	return out, true
}

// addressOf returns the address at which other sandboxes here reach one, the zero Addr if they
// do not. Callers hold m.mu.
func (m *Manager) addressOf(t *appnet.Table, id string) netip.Addr {
	if node, ok := t.Node(id); !ok || node != "" {
		return t.StandIn(id)
	}
	if l := m.leases[id]; m.subnet.Contains(l.Address) {
		return l.Address
	}
	return netip.Addr{}
}

// peerAt returns the sandbox on another node that a sandbox reaches at an address.
func peerAt(t *appnet.Table, from string, a netip.Addr) (to string, ok bool) {
	to, ok = t.At(a)
	return to, ok && t.Permits(from, to)
}

// peer connects a sandbox to one on another node.
func (m *Manager) peer(ctx context.Context, from string, at netip.AddrPort) (proxy.PeerConn, error) {
	to, ok := peerAt(m.apps.Load(), from, at.Addr())
	if !ok {
		return nil, errs.New(errs.PermissionDenied, "no sandbox that %s may connect to has the address %s", from, at.Addr())
	}
	if m.cfg.Peer == nil {
		return nil, errs.New(errs.Unavailable, "this node reaches no sandboxes of other nodes")
	}
	return m.cfg.Peer(ctx, from, to, at.Port())
}

// Connect connects to a port of a sandbox of an app, at the address at which the other ones
// reach it. FailedPrecondition if the sandbox does not take the connection.
func (m *Manager) Connect(ctx context.Context, id string, port uint16) (*net.TCPConn, error) {
	t := m.apps.Load()
	m.mu.Lock()
	a := m.leases[id].Address
	inside := m.subnet.Contains(a)
	m.mu.Unlock()
	if node, ok := t.Node(id); !ok || node != "" || !inside {
		return nil, errs.New(errs.NotFound, "no sandbox %s of an app is on this node", id)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp4", netip.AddrPortFrom(a, port).String())
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "connect to port %d of sandbox %s: %w", port, id, err)
	}
	return c.(*net.TCPConn), nil
}
