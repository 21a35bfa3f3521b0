// Package network connects sandboxes: one bridge and one subnet per
// installation, one network namespace and one address per sandbox.
//
// Sandboxes are connected through CNI (package cni), by a plugin of our own
// (plugin.go) unless the site has a configuration list. Ours talks to the kernel by
// netlink, in this process: the stock bridge plugin gives its host interfaces
// random names, which could not be found again by owner, and costs several
// processes per sandbox.
//
// Each of its objects can be found again by listing:
//
//	bridge             instance.Bridge()
//	host interface     rt<instance id>x<low 16 bits of the address in hex>
//	network namespace  <run dir>/netns/<sandbox id>, or <...>/parked.<random>; in a mount of the directory of its own
//	address            <run dir>/network/<sandbox id>: one address per file, with the sandbox's policy
//	firewall           nftables tables (inet, arp) named instance.Name(""), one routing rule with the bridge's name
//	subnet             <state dir>/network.json
//	private networks   <run dir>/network-apps.json, of apps (apps.go)
//	stand-ins          addresses of appnet.StandIns, of sandboxes on other nodes; in the same file
//	records of CNI     <state dir>/cni/
//	authority          <state dir>/egress-ca.pem, certificate and key, from the first secret that is injected on
//	forwarding         /run/lock/miren-runtime/forwarding.json, of all installations
//
// The subnet is chosen so that nothing on the machine uses it, under a lock
// that all installations share. Forwarding is enabled on our bridge and on the
// interfaces that have a gateway, not on the whole machine. The last installation
// that stops restores the earlier settings.
//
// Package firewall decides what a sandbox can reach; the machine can reach every
// sandbox. Each sandbox has a policy within that, which can change while it runs;
// package proxy decides about names. Package resolver finds their name servers. A network
// namespace serves one sandbox only: runsc takes the address off its interface.
//
// Some namespaces are connected ahead (parked.go), and wait closed.
//
// Lock order: Manager.parking, Manager.peering, Manager.mu, then the host lock, the firewall's or the proxy's.
package network

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/network/cni"
	"miren.dev/runtime/components/network/firewall"
	"miren.dev/runtime/components/network/proxy"
	"miren.dev/runtime/components/network/resolver"
	"miren.dev/runtime/pkg/appnet"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
)

// hostDir is shared by all installations of the machine.
const hostDir = "/run/lock/miren-runtime"

// subnetBits is the size of an installation's subnet: 1021 sandboxes.
const subnetBits = 22

// DefaultPools are the networks from which subnets are taken.
var DefaultPools = []netip.Prefix{
	netip.MustParsePrefix("10.88.0.0/14"),
	netip.MustParsePrefix("172.28.0.0/14"),
}

// Config of a Manager.
type Config struct {
	Instance *instance.Instance
	Pools    []netip.Prefix // networks to choose a subnet from; empty: DefaultPools
	// Allow are private networks that sandboxes may reach (firewall.ParseAllowed).
	Allow []netip.Prefix
	// Connections that one sandbox may have open; 0: there is no bound.
	Connections int
	// ConfList is the file of a CNI configuration list; empty: sandboxes are connected
	// to the bridge of the installation.
	ConfList string
	// PluginDirs has the CNI plugins that ConfList names.
	PluginDirs []string
	// Parked is how many connected namespaces wait for sandboxes, made in the
	// background by Run; 0: each is made with its sandbox.
	Parked int
	// Record, if set, is called with the requests of sandboxes with rules, one call at a time.
	// Its context ends with Run.
	Record func(context.Context, egress.Record)
	// Secret returns the value of the secret that an egress.Injection names, for a request
	// to a host; PermissionDenied if it may not be sent there, NotFound
	// if it was deleted.
	Secret func(ctx context.Context, reference, host string) (string, error)
	// Peer connects a sandbox of an app to one on another node; nil: there is no other node.
	// The table of SetApps permits it.
	Peer func(ctx context.Context, from, to string, port uint16) (proxy.PeerConn, error)
	// Roots is a file of certificates by which servers may be verified that get a
	// secret, besides those of the machine; empty: none.
	Roots  string
	Logger *slog.Logger
}

// Manager is the network of an installation. It is safe for concurrent use;
// calls for one sandbox must not overlap.
type Manager struct {
	cfg      Config
	firewall *firewall.Firewall
	proxy    *proxy.Proxy
	taken    chan struct{} // has a value when there are too few parked connections
	parking  sync.Mutex    // held while parked connections are made or removed; before mu
	peering  sync.Mutex    // held while the firewall is told of private networks; before mu
	saved    []byte        // the private networks as they were last set; guarded by peering
	apps     atomic.Pointer[appnet.Table]
	// answering: Run serves the proxy.
	answering atomic.Bool
	held      atomic.Bool // a standby has the sockets on which names are answered

	mu      sync.Mutex // guards the fields below
	started bool
	subnet  netip.Prefix
	mtu     int
	bridge  int // index of the bridge
	cni     *cni.Network
	leases  map[string]lease
	parked  []string       // names of the connections that wait for a sandbox
	ports   firewall.Proxy // of the proxy
	used    map[netip.Addr]bool
	last    netip.Addr // last address given out; the search continues behind it
	// resolver of the sandboxes, as of the last check of the firewall.
	resolver resolver.Resolver
}

// New returns the network of an installation without touching the machine.
func New(cfg Config) *Manager {
	if len(cfg.Pools) == 0 {
		cfg.Pools = DefaultPools
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Manager{cfg: cfg, firewall: firewall.New(cfg.Logger), leases: map[string]lease{}, used: map[netip.Addr]bool{}, taken: make(chan struct{}, 1)}
	m.proxy = proxy.New(proxy.Config{
		Servers: resolver.Ask, Reachable: m.reachable, Record: cfg.Record, Secret: cfg.Secret, Roots: cfg.Roots, Logger: cfg.Logger,
		Authority: cfg.Instance.State("egress-ca.pem"), Internal: m.name, Peer: m.peer,
	})
	m.apps.Store(appnet.New(nil))
	return m
}

// Start makes subnet, bridge, firewall and forwarding, or adopts existing ones.
// Repeating it repairs them.
func (m *Manager) Start(ctx context.Context) error {
	ids, err := m.start(ctx)
	if err != nil {
		return err
	}
	if err := m.sweepParked(ctx); err != nil {
		return err
	}
	m.wantParked()
	if err := m.cni.Sweep(ctx, ids); err != nil {
		m.cfg.Logger.Warn("cannot remove all that CNI plugins keep of sandboxes that are gone", "error", err)
	}
	// Now, rather than with the first sandbox.
	return m.cni.Status(ctx)
}

// start returns the names of the connections.
func (m *Manager) start(ctx context.Context) (ids []string, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := cni.Load(cni.Config{
		File: m.cfg.ConfList, Name: m.cfg.Instance.Name(""), PluginDirs: m.cfg.PluginDirs,
		Dir: m.cfg.Instance.State("cni"), Plugin: plugin{m},
	})
	if err != nil {
		return nil, err
	}
	m.cni = n
	if err := m.loadLeases(); err != nil {
		return nil, err
	}
	unlock, err := lockHost(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if m.subnet, err = m.chooseSubnet(); err != nil {
		return nil, err
	}
	if err := m.ensureNetNSDir(); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "directory of network namespaces: %w", err)
	}
	m.loadApps()
	for id, l := range m.leases {
		ids = append(ids, l.name(id))
		if !l.Address.IsValid() {
			continue
		}
		if err := m.permit(id, l.Address, l.Policy); err != nil {
			return nil, err
		}
	}
	p, named := m.peers()
	if err := m.firewall.SetPeers(p); err != nil {
		return nil, err
	}
	if m.adoptNames(ctx) { // so that the standby is asked without a gap
		if ports, err := m.proxy.Listen(m.gateway()); err == nil { // the bridge is there
			m.ports = firewall.Proxy(ports)
		}
		if err := m.firewall.SetNamed(named, firewall.NamedLong); err != nil {
			return nil, err
		}
	}
	// Before the bridge, so that no packet passes it without a firewall.
	if err := m.ensureFirewall(); err != nil {
		return nil, err
	}
	if err := m.ensureBridge(); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "bridge %s: %w", m.cfg.Instance.Bridge(), err)
	}
	ports, err := m.proxy.Listen(m.gateway())
	if err != nil {
		return nil, err
	}
	m.ports = firewall.Proxy(ports)
	if err := m.ensureFirewall(); err != nil { // for the bridge's own settings, and the proxy
		return nil, err
	}
	if err := m.enableForwarding(); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "enable forwarding: %w", err)
	}
	m.started = true
	m.cfg.Logger.Info("network is up", "bridge", m.cfg.Instance.Bridge(), "subnet", m.subnet.String(), "mtu", m.mtu)
	return ids, nil
}

// Run checks the firewall, and repairs it, and serves the proxy, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.proxy.Run(ctx) })
	g.Go(func() error { return m.answerNames(ctx) })
	g.Go(func() error { return m.keepStandby(ctx) })
	if m.cfg.Parked > 0 {
		g.Go(func() error { return m.refill(ctx) })
	}
	g.Go(func() error {
		return firewall.Keep(ctx, m.cfg.Logger, func() error {
			m.mu.Lock()
			defer m.mu.Unlock()
			if !m.started {
				return nil
			}
			return m.ensureFirewall()
		})
	})
	return g.Wait()
}

// firewallConfig is called with m.mu held.
func (m *Manager) firewallConfig() firewall.Config {
	return firewall.Config{
		Table: m.cfg.Instance.Name(""), Bridge: m.cfg.Instance.Bridge(), Subnet: m.subnet, Gateway: m.gateway(),
		Allow: m.cfg.Allow, Connections: m.cfg.Connections, Policies: true, Proxy: m.ports,
		StandIns: appnet.StandIns,
	}
}

// reachable reports whether the firewall lets sandboxes reach an address, which
// may be the machine's own.
func (m *Manager) reachable(a netip.Addr) bool {
	m.mu.Lock()
	c := m.firewallConfig()
	m.mu.Unlock()
	if !c.Reachable(a) {
		return false
	}
	routes, err := netlink.RouteGet(a.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_UNICAST
}

// ensureFirewall is called with m.mu held.
func (m *Manager) ensureFirewall() error {
	c := m.firewallConfig()
	r, err := resolver.Find(c)
	if err != nil {
		return errs.New(errs.Unavailable, "name server of the machine: %w", err)
	}
	m.resolver, c.Resolver = r, r.Forward
	return m.firewall.Ensure(c)
}

// Stop removes bridge, firewall and forwarding. The sandboxes must be gone.
func (m *Manager) Stop(ctx context.Context) error {
	m.mu.Lock()
	m.started = false // no more are parked
	m.mu.Unlock()
	if err := m.sweepParked(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.proxy.Close()
	unlock, err := lockHost(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	// The bridge first, so that no packet passes it without a firewall.
	err = removeLink(m.cfg.Instance.Bridge())
	if err == nil {
		err = m.firewall.Remove(m.cfg.Instance.Name(""), m.cfg.Instance.Bridge())
	}
	return errors.Join(err, m.removeNetNSDir(), restoreForwarding())
}

// gateway is the machine's address on the bridge.
func (m *Manager) gateway() netip.Addr { return m.subnet.Addr().Next() }

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// sysctl writes a key of /proc/sys, with slashes.
func sysctl(key, value string) error {
	return os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0o644)
}

func readSysctl(key string) (string, error) {
	b, err := os.ReadFile(filepath.Join("/proc/sys", key))
	return strings.TrimSpace(string(b)), err
}

// lockHost takes the lock that all installations of the machine share.
func lockHost(ctx context.Context) (unlock func(), _ error) {
	if err := os.MkdirAll(hostDir, 0o755); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "network lock: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(hostDir, "network.lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "network lock: %w", err)
	}
	locked := make(chan error, 1)
	go func() {
		for {
			err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
			if !errors.Is(err, unix.EINTR) {
				locked <- err
				return
			}
		}
	}()
	select {
	case err := <-locked:
		if err != nil {
			f.Close()
			return nil, errs.New(errs.Unavailable, "network lock: %w", err)
		}
		return func() { f.Close() }, nil
	case <-ctx.Done():
		// The holder holds it for milliseconds: the goroutine ends soon.
		go func() { <-locked; f.Close() }()
		return nil, errs.New(errs.ClassOf(ctx.Err()), "network lock: %w", ctx.Err())
	}
}

func readJSON(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return errs.New(errs.Corrupt, "%s: %w", path, err)
	}
	return nil
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(b, '\n'), 0o644)
}
