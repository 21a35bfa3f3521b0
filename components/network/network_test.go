package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/need"
)

// start brings a network up that is taken down, and checked for leaks, when the test ends.
func start(t *testing.T) *Manager {
	t.Helper()
	return startWith(t, Config{})
}

func startWith(t *testing.T, c Config) *Manager {
	t.Helper()
	need.Root(t)
	c.Instance = leakcheck.Installation(t)
	m := New(c)
	t.Cleanup(func() {
		ctx := context.Background()
		ids, err := m.List()
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if err := m.Detach(ctx, id); err != nil {
				t.Error(err)
			}
		}
		if err := m.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// ours lists the objects of m on the machine.
func ours(t *testing.T, m *Manager) []string {
	t.Helper()
	items, err := leakcheck.List(m.cfg.Instance)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, i := range items {
		out = append(out, i.Name)
	}
	return out
}

// inside calls fn in a network namespace.
func inside(t *testing.T, path string, fn func() error) error {
	t.Helper()
	return onThread(func() error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return fn()
	})
}

// dial uses a socket of the current thread's namespace; net.Dial may use another thread.
func dial(to netip.AddrPort, timeout time.Duration) error {
	fd, err := connect(to, timeout)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// connect is dial that keeps the connection open.
func connect(to netip.AddrPort, timeout time.Duration) (fd int, _ error) {
	var address unix.Sockaddr = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	family := unix.AF_INET6
	if to.Addr().Is4() {
		address, family = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}, unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	tv := unix.NsecToTimeval(timeout.Nanoseconds())
	if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err == nil {
		err = unix.Connect(fd, address)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func listen(t *testing.T, at string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// listenInside listens in the namespace of a sandbox.
func listenInside(t *testing.T, at Attachment, port uint16) netip.AddrPort {
	t.Helper()
	err := inside(t, at.NetNS, func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) // for IPv4 too
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Bind(fd, &unix.SockaddrInet6{Port: int(port)}); err != nil {
			return err
		}
		return unix.Listen(fd, 1024) // no process accepts
	})
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(at.Address, port)
}

func attach(t *testing.T, m *Manager, id string, bridged bool) Attachment {
	t.Helper()
	at, err := m.Attach(t.Context(), id, Options{Bridge: bridged, Policy: egress.Open()})
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestSandboxesReachOnlyTheOutside(t *testing.T) {
	m, other := start(t), start(t)
	a, b := attach(t, m, "a", true), attach(t, m, "b", true)
	c, none := attach(t, other, "c", true), attach(t, m, "none", false)
	if m.subnet.Overlaps(other.subnet) {
		t.Fatalf("two installations share addresses: %s and %s", m.subnet, other.subnet)
	}
	host := listen(t, "0.0.0.0:0")
	onBridge := netip.AddrPortFrom(m.gateway(), host.Port())
	inA, inB, inC := listenInside(t, a, 80), listenInside(t, b, 80), listenInside(t, c, 80)
	// Another machine: a namespace beyond an interface of the host.
	outside := elsewhere(t, netip.MustParsePrefix("198.51.100.0/30"))

	for _, tt := range []struct {
		name string
		from string // namespace
		to   netip.AddrPort
		want bool
	}{
		{"machine to sandbox", machine, inA, true},
		{"machine to sandbox of another installation", machine, inC, true},
		{"sandbox to itself", a.NetNS, netip.MustParseAddrPort("127.0.0.1:80"), true},
		{"sandbox to the outside", a.NetNS, outside.listens, true},
		{"sandbox to sandbox", a.NetNS, inB, false},
		{"sandbox to sandbox of another installation", a.NetNS, inC, false},
		{"sandbox to the bridge's address", a.NetNS, onBridge, false},
		{"sandbox to another address of the machine", a.NetNS, netip.AddrPortFrom(outside.gateway, host.Port()), false},
		{"sandbox to link-local", a.NetNS, netip.MustParseAddrPort("169.254.169.254:80"), false},
		{"outside to sandbox", outside.netns, inA, false},
		{"no network to the outside", none.NetNS, outside.listens, false},
		{"no network to the machine", none.NetNS, onBridge, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			timeout := 300 * time.Millisecond
			if tt.want {
				timeout = 30 * time.Second
			}
			err := inside(t, tt.from, func() error { return dial(tt.to, timeout) })
			if (err == nil) != tt.want {
				t.Errorf("connect to %s: %v, want success %v", tt.to, err, tt.want)
			}
		})
	}
}

type place struct {
	netns   string
	link    string     // the machine's interface that leads there
	gateway netip.Addr // the machine's address there
	listens netip.AddrPort
}

// elsewhere makes a namespace that stands for another machine. It has no route
// to sandboxes except through this one, and answers only translated packets.
func elsewhere(t *testing.T, p netip.Prefix) place {
	t.Helper()
	e := quietPlace(t, p)
	e.listens = listenInside(t, Attachment{NetNS: e.netns, Address: e.gateway.Next()}, 80)
	return e
}

// quietPlace is elsewhere without a listener.
func quietPlace(t *testing.T, p netip.Prefix) place {
	t.Helper()
	in := leakcheck.Installation(t)
	path, host := in.Socket("elsewhere"), "rt"+in.ID+"x"
	gateway := p.Addr().Next()
	there := gateway.Next()
	t.Cleanup(func() {
		if err := errors.Join(removeLink(host), removeNetNS(path)); err != nil {
			t.Error(err)
		}
	})
	outer, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer outer.Close()
	err = newNetNS(path, func() error {
		ns, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(ns)
		attrs := netlink.NewLinkAttrs()
		attrs.Name = host
		if err := outer.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)}); err != nil {
			return err
		}
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(there, p.Bits()))}); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()})
	})
	if err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName(host)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(gateway, p.Bits()))}); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	// Answers arrive here; Start sets this for real ones, which have a gateway behind them.
	if err := sysctl(forwardingKey(host), "1"); err != nil {
		t.Fatal(err)
	}
	return place{netns: path, link: host, gateway: gateway}
}

func TestAttachIsRepeatable(t *testing.T) {
	m := start(t)
	first := attach(t, m, "sb-1", true)
	second := attach(t, m, "sb-1", true)
	if _, err := os.Stat(second.NetNS); err != nil {
		t.Error(err)
	}
	if got, err := m.Get("sb-1"); err != nil || got != second {
		t.Errorf("Get = %v, %v, want %v", got, err, second)
	}
	if first.Address == second.Address {
		t.Error("the address was reused at once, while the machine may remember its last owner")
	}
	// A new manager finds the objects of the old one.
	again := New(m.cfg)
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again.subnet != m.subnet {
		t.Errorf("subnet changed from %s to %s", m.subnet, again.subnet)
	}
	if ids, err := again.List(); err != nil || !slices.Equal(ids, []string{"sb-1"}) {
		t.Errorf("List = %v, %v", ids, err)
	}
	for range 2 {
		if err := again.Detach(t.Context(), "sb-1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := again.Get("sb-1"); !errs.Is(err, errs.NotFound) {
		t.Errorf("Get after Detach: %v", err)
	}
	if got := ours(t, m); slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "sb-1") || strings.HasPrefix(s, m.linkPrefix()) }) {
		t.Errorf("left: %v", got)
	}
}

// TestUnfinishedLeases starts after a crash that left one sandbox's lease
// empty, and another sandbox's lease without its name.
func TestUnfinishedLeases(t *testing.T) {
	m := start(t)
	kept := attach(t, m, "kept", true)
	f, err := atomicfile.Create(filepath.Join(m.leaseDir(), "unnamed"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := os.WriteFile(filepath.Join(m.leaseDir(), "empty"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	again := New(m.cfg)
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := again.Get("kept"); err != nil || got.Address != kept.Address {
		t.Errorf("kept: %+v, %v", got, err)
	}
	if left, err := os.ReadDir(m.leaseDir()); err != nil || len(left) != 1 {
		t.Errorf("leases: %v, %v", left, err)
	}
}

func TestSweepLinks(t *testing.T) {
	m := start(t)
	keep, lost := attach(t, m, "keep", true), attach(t, m, "lost", true)
	if err := os.Remove(filepath.Join(m.leaseDir(), "lost")); err != nil {
		t.Fatal(err)
	}
	again := New(m.cfg)
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := again.SweepLinks(); err != nil {
		t.Fatal(err)
	}
	got := ours(t, again)
	if !slices.Contains(got, m.linkName(keep.Address)) || slices.Contains(got, m.linkName(lost.Address)) {
		t.Errorf("after the sweep: %v", got)
	}
	if ids, err := again.List(); err != nil || !slices.Equal(ids, []string{"keep", "lost"}) {
		t.Errorf("List = %v, %v: the namespace is still there", ids, err)
	}
}

func TestFreeSubnet(t *testing.T) {
	pool := []netip.Prefix{netip.MustParsePrefix("10.88.0.0/20"), netip.MustParsePrefix("172.28.0.0/21")}
	for _, tt := range []struct {
		name  string
		taken []string
		want  string
	}{
		{"nothing taken", nil, "10.88.0.0/22"},
		{"first taken", []string{"10.88.1.7/32"}, "10.88.4.0/22"},
		{"wider than the pool", []string{"10.0.0.0/8"}, "172.28.0.0/22"},
		{"everything", []string{"10.0.0.0/8", "172.16.0.0/12"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var taken []netip.Prefix
			for _, s := range tt.taken {
				taken = append(taken, netip.MustParsePrefix(s))
			}
			got, ok := freeSubnet(pool, 22, taken)
			if ok != (tt.want != "") || ok && got.String() != tt.want {
				t.Errorf("got %v %v, want %q", got, ok, tt.want)
			}
		})
	}
}

func TestFilesNameHostAndResolver(t *testing.T) {
	m := New(Config{Instance: &instance.Instance{StateDir: t.TempDir()}})
	m.resolver.Servers = []netip.Addr{netip.MustParseAddr("10.88.0.1")}
	f := m.Files("web-1", netip.MustParseAddr("10.88.0.7"))
	if !strings.Contains(string(f.Hosts), "10.88.0.7\tweb-1\n") || string(f.Hostname) != "web-1\n" || string(f.ResolvConf) != "nameserver 10.88.0.1\n" {
		t.Errorf("%s%s%s", f.Hosts, f.Hostname, f.ResolvConf)
	}
	if f := m.Files("x", netip.Addr{}); len(f.ResolvConf) > 0 || !strings.Contains(string(f.Hosts), "127.0.0.1\tx\n") {
		t.Errorf("without a network: %s%s", f.Hosts, f.ResolvConf)
	}
}

func TestLeasesRunOut(t *testing.T) {
	dir := t.TempDir()
	in, err := instance.Open(filepath.Join(dir, "state"), filepath.Join(dir, "run"))
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{Instance: in})
	m.subnet = netip.MustParsePrefix("10.0.0.0/29")
	take := func(id string) (netip.Addr, error) {
		m.leases[id] = lease{Policy: egress.Open()}
		return m.takeAddress(id)
	}
	got := map[netip.Addr]bool{}
	for i := range 5 {
		a, err := take(fmt.Sprint("s", i))
		if err != nil {
			t.Fatal(err)
		}
		got[a] = true
	}
	if len(got) != 5 || got[m.gateway()] || got[netip.MustParseAddr("10.0.0.7")] {
		t.Errorf("addresses %v", got)
	}
	if _, err := take("s5"); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("sixth address: %v", err)
	}
	if err := m.release("s2"); err != nil {
		t.Fatal(err)
	}
	if _, err := take("s5"); err != nil {
		t.Error(err)
	}
}

// TestDamagedRecords: a damaged record costs one sandbox its address, or the
// installation its subnet, and does not keep the node from starting.
func TestDamagedRecords(t *testing.T) {
	for _, content := range []string{"", "\x00\x00", "{", "not an address"} {
		t.Run(fmt.Sprintf("%q", content), func(t *testing.T) {
			m := start(t)
			keep, lost := attach(t, m, "keep", true), attach(t, m, "lost", true)
			for _, file := range []string{filepath.Join(m.leaseDir(), "lost"), m.cfg.Instance.State("network.json")} {
				if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			again := New(m.cfg)
			if err := again.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if again.subnet != m.subnet {
				t.Errorf("subnet changed from %s to %s under a sandbox", m.subnet, again.subnet)
			}
			if at, err := again.Get("keep"); err != nil || at != keep {
				t.Errorf("Get = %v, %v, want %v", at, err, keep)
			}
			if at, err := again.Get("lost"); err != nil || at.Address.IsValid() {
				t.Errorf("Get of the damaged one = %v, %v", at, err)
			}
			if err := again.SweepLinks(); err != nil {
				t.Fatal(err)
			}
			if got := ours(t, m); slices.Contains(got, m.linkName(lost.Address)) {
				t.Errorf("its interface is there: %q", got)
			}
			attach(t, again, "next", true)
			// The next start reads the records of this one.
			if err := New(m.cfg).Start(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLeaseIsOverwritten: short, long and short content replace each other whole.
func TestLeaseIsOverwritten(t *testing.T) {
	in, err := instance.Open(filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{Instance: in})
	many := egress.Policy{Mode: egress.List}
	for i := range egress.MaxRules {
		r, err := egress.ParseRule(fmt.Sprintf("a-domain-with-a-name-%d.example.com", i))
		if err != nil {
			t.Fatal(err)
		}
		many.Allow = append(many.Allow, r)
	}
	few := egress.Policy{Mode: egress.List, Allow: many.Allow[:3]}
	for _, p := range []egress.Policy{egress.Open(), few, egress.Closed(), many, egress.Open(), few} {
		want := lease{Address: netip.MustParseAddr("10.88.0.7"), Policy: p}
		if err := m.saveLease("a", want); err != nil {
			t.Fatal(err)
		}
		again := New(Config{Instance: in})
		if err := again.loadLeases(); err != nil {
			t.Fatal(err)
		}
		if got := again.leases["a"]; !reflect.DeepEqual(got, want) {
			t.Errorf("%v became %v", want, got)
		}
	}
}
