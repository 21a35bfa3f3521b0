package network

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"miren.dev/runtime/components/network/proxy"
	"miren.dev/runtime/pkg/appnet"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
)

// TestPools: no subnet has addresses that stand in for sandboxes.
func TestPools(t *testing.T) {
	for s, want := range map[string]bool{"10.200.0.0/16": true, "198.18.0.0/16": true, "198.18.0.0/15": false, "198.19.4.0/24": false, "fd00::/8": false, "10.200.0.0": false} {
		if _, err := ParsePool(s); (err == nil) != want {
			t.Errorf("%s: %v, want success %v", s, err, want)
		}
	}
}

// TestStandInsCarryTCP: packets of other protocols to a stand-in do not leave the machine, even where the operator allows
// its network. A sandbox that has no use for the stand-in reaches what has that address outside.
func TestStandInsCarryTCP(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := startWith(t, Config{Allow: []netip.Prefix{appnet.StandIns}})
	w := newInternet(t)
	apps := appsOf()
	apps[1].Members[0].Node = "other"
	setApps(t, m, apps)
	guests := attachApps(t, m)
	a := m.apps.Load().StandIn("db")
	w.has(t, a)
	var l net.PacketConn
	if err := inside(t, w.netns, func() (err error) {
		l, err = net.ListenPacket("udp4", netip.AddrPortFrom(a, 5353).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := l.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = l.WriteTo(zoneAnswer(b[:n]), from)
		}
	}()
	for from, want := range map[string]bool{"agent": true, "shop": false} {
		timeout := soon
		if want {
			timeout = later
		}
		got, err := resolve(t, guests[from].NetNS, "good.example", netip.AddrPortFrom(a, 5353), dnsmessage.TypeA, timeout)
		if (err == nil) != want {
			t.Errorf("%s: %q, %v, want success %v", from, got, err, want)
		}
	}
}

// appsOfTwo is appsOf with db on another node.
func appsOfTwo() []appnet.App {
	apps := appsOf()
	apps[1].Members[0].Node = "other"
	return apps
}

// twoNodes is a node with the guests of attachApps but db, which is on another node, and that other
// node. With a table of appsOfTwo it connects the first to the second, until stop.
// open counts the connections between them.
func twoNodes(t *testing.T) (m, other *Manager, guests map[string]Attachment, open *atomic.Int32, stop func()) {
	t.Helper()
	open = &atomic.Int32{}
	other = start(t)
	m = startWith(t, Config{Peer: func(ctx context.Context, _, to string, port uint16) (proxy.PeerConn, error) {
		c, err := other.Connect(ctx, to, port)
		if err != nil {
			return nil, err
		}
		open.Add(1)
		return &counted{TCPConn: c, end: sync.OnceFunc(func() { open.Add(-1) })}, nil
	}})
	stop = sync.OnceFunc(m.runsUntil(t))
	t.Cleanup(stop)
	setApps(t, other, appsOf())
	setApps(t, m, appsOfTwo())
	guests = attachApps(t, m)
	guests["db"] = attachWith(t, other, "db", egress.Open())
	return m, other, guests, open, stop
}

type counted struct {
	*net.TCPConn
	end func()
}

func (c *counted) Close() error {
	c.end()
	return c.TCPConn.Close()
}

// standIn asks for the one address of a name.
func standIn(t *testing.T, m *Manager, at Attachment, name string) netip.Addr {
	t.Helper()
	got, err := resolve(t, at.NetNS, name, netip.AddrPortFrom(m.gateway(), 53), dnsmessage.TypeA, later)
	if err != nil || len(got) != 1 {
		t.Fatalf("%s: %q, %v", name, got, err)
	}
	a := netip.MustParseAddr(got[0])
	if !appnet.StandIns.Contains(a) {
		t.Fatalf("%s has the address %s", name, a)
	}
	return a
}

// TestPeersOnAnotherNode: a name leads to a sandbox on another node, at each port, for those that may connect to it.
func TestPeersOnAnotherNode(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m, other, guests, open, stop := twoNodes(t)
	for _, port := range []uint16{80, 5432} {
		echoes(t, guests["db"], port)
	}
	a := standIn(t, m, guests["shop"], "db.internal")
	for from, want := range map[string]bool{"shop": true, "worker": true, "blog": false, "filter": false, "foreign": false, "agent": false} {
		for _, port := range []uint16{80, 5432} {
			timeout := soon
			if want {
				timeout = later
			}
			if err := echo(t, guests[from].NetNS, netip.AddrPortFrom(a, port), timeout); (err == nil) != want {
				t.Errorf("%s to port %d: %v, want success %v", from, port, err, want)
			}
		}
	}
	if err := echo(t, guests["shop"].NetNS, netip.AddrPortFrom(a, 9), later); err == nil {
		t.Error("a port on which no process listens answers")
	}
	if _, err := m.Connect(t.Context(), "agent", 80); err == nil {
		t.Error("a sandbox of no app is reached")
	}
	if _, err := other.Connect(t.Context(), "shop", 80); err == nil {
		t.Error("a sandbox of another node is reached")
	}

	// One direction may end before the other, and a slow reader loses nothing.
	c, err := dialFrom(t, guests["shop"].NetNS, netip.AddrPortFrom(a, 5432), later)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	done := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		if err == nil {
			err = c.(*net.TCPConn).CloseWrite()
		}
		done <- err
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d came back: %v", len(got), len(sent), err)
	}
	if err := wait.Receive(t, "the sender", done); err != nil {
		t.Error(err)
	}

	// The other side may end the connection, which then counts no more, whatever the sandbox does.
	l := listenAt(t, guests["db"].NetNS, netip.AddrPortFrom(guests["db"].Address, 9000))
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, "bye")
			c.Close()
		}
	}()
	left, err := dialFrom(t, guests["shop"].NetNS, netip.AddrPortFrom(a, 9000), later)
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close()
	if got, err := io.ReadAll(left); err != nil || string(got) != "bye" {
		t.Errorf("%q, %v", got, err)
	}
	c.Close()
	wait.For(t, "no connection is left", func() bool { return open.Load() == 0 })

	// The next server gives the same address. Two that run would each restore the firewall.
	stop()
	again := New(m.cfg)
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer again.proxy.Close()
	setApps(t, again, appsOfTwo())
	if got := again.apps.Load().StandIn("db"); got != a {
		t.Errorf("after a restart the address is %s, not %s", got, a)
	}
}

// TestPeersEnd: connections to a sandbox on another node end with the permission.
func TestPeersEnd(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m, _, guests, _, _ := twoNodes(t)
	echoes(t, guests["db"], 5432)
	to := netip.AddrPortFrom(standIn(t, m, guests["shop"], "db.internal"), 5432)
	open := func(from string) net.Conn {
		t.Helper()
		c, err := dialFrom(t, guests[from].NetNS, to, later)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := ping(c, later); err != nil {
			t.Fatal(err)
		}
		return c
	}
	ended := func(what string, c net.Conn) {
		t.Helper()
		if err := ping(c, later); err == nil {
			t.Errorf("%s: the connection goes on", what)
		}
	}
	shop, worker := open("shop"), open("worker")
	if err := m.Detach(t.Context(), "worker"); err != nil {
		t.Fatal(err)
	}
	_ = worker // its namespace is gone
	if err := ping(shop, later); err != nil {
		t.Errorf("another sandbox has ended: %v", err)
	}
	apps := appsOfTwo()
	apps[1].From = []string{"blog"}
	setApps(t, m, apps)
	ended("shop is not permitted any more", shop)
	if err := echo(t, guests["shop"].NetNS, to, soon); err == nil {
		t.Error("a new connection is not denied")
	}
	blog := open("blog")
	apps = slices.Clone(apps)
	apps[1].Members = nil
	setApps(t, m, apps)
	ended("the sandbox is gone", blog)
}
