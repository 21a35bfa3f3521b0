package network

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"miren.dev/runtime/components/network/firewall"
	"miren.dev/runtime/pkg/appnet"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
)

// echoes serves the port of a sandbox: it sends back what it gets.
func echoes(t *testing.T, at Attachment, port uint16) netip.AddrPort {
	t.Helper()
	to := netip.AddrPortFrom(at.Address, port)
	l := listenAt(t, at.NetNS, to)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return to
}

// appsOf is the table of the tests: shop has two services, db permits shop only, blog is
// closed to the outside and filter has rules; project q has an app shop, too.
func appsOf() []appnet.App {
	member := func(id, service string) appnet.Member {
		return appnet.Member{Sandbox: id, Service: service, Ready: true}
	}
	web := []string{"web"}
	return []appnet.App{
		{Project: "p", Name: "shop", Services: []string{"web", "worker"}, Members: []appnet.Member{
			member("shop", "web"), member("worker", "worker"), {Sandbox: "worker2", Service: "worker"},
		}},
		{Project: "p", Name: "db", Services: web, Restricted: true, From: []string{"shop"}, Members: []appnet.Member{member("db", "web")}},
		{Project: "p", Name: "blog", Services: web, Members: []appnet.Member{member("blog", "web")}},
		{Project: "p", Name: "filter", Services: web, Members: []appnet.Member{member("filter", "web")}},
		{Project: "p", Name: "idle", Services: web},
		{Project: "q", Name: "shop", Services: web, Members: []appnet.Member{member("foreign", "web")}},
	}
}

func attachApps(t *testing.T, m *Manager) map[string]Attachment {
	t.Helper()
	out := map[string]Attachment{}
	for id, p := range map[string]egress.Policy{
		"shop": egress.Open(), "worker": egress.Open(), "worker2": egress.Open(), "db": egress.Open(), "blog": egress.Closed(),
		"filter": policy(t, "list", "good.example", ""), "foreign": egress.Open(), "agent": egress.Open(),
	} {
		out[id] = attachWith(t, m, id, p)
	}
	return out
}

func setApps(t *testing.T, m *Manager, apps []appnet.App) {
	t.Helper()
	if err := m.SetApps(t.Context(), apps); err != nil {
		t.Fatal(err)
	}
}

// TestAppsReachEachOtherBesideLeftovers: the tables of an installation that was killed, and
// had the same subnet, do not change the addresses between apps.
func TestAppsReachEachOtherBesideLeftovers(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := start(t)
	c := m.firewallConfig()
	c.Table, c.Bridge = "rt-gone", "gone"
	if err := firewall.New(slog.New(slog.DiscardHandler)).Ensure(c); err != nil {
		t.Fatal(err)
	}
	setApps(t, m, appsOf())
	guests := attachApps(t, m)
	to := echoes(t, guests["db"], 5432)
	if err := echo(t, guests["shop"].NetNS, to, later); err != nil {
		t.Error(err)
	}
}

// TestAppsReachEachOther tries each pair of sandboxes. Port 80 is one that the proxy has of
// sandboxes with rules.
func TestAppsReachEachOther(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := startWith(t, Config{Parked: 2})
	newInternet(t)
	m.runs(t)
	setApps(t, m, appsOf()) // before some are connected
	guests := attachApps(t, m)
	ports := []uint16{80, 5432}
	for _, at := range guests {
		for _, port := range ports {
			echoes(t, at, port)
		}
	}
	reach := map[string][]string{ // of other apps
		"shop": {"db", "blog", "filter", "worker", "worker2"}, "worker": {"db", "blog", "filter", "shop", "worker2"},
		"worker2": {"db", "blog", "filter", "shop", "worker"}, "db": {"shop", "worker", "worker2", "blog", "filter"},
		"blog": {"shop", "worker", "worker2", "filter"}, "filter": {"shop", "worker", "worker2", "blog"},
	}
	try := func(t *testing.T, from, to string, port uint16, want bool) {
		t.Helper()
		timeout := soon
		if want {
			timeout = later
		}
		err := echo(t, guests[from].NetNS, netip.AddrPortFrom(guests[to].Address, port), timeout)
		if (err == nil) != want {
			t.Errorf("%s to %s, port %d: %v, want success %v", from, to, port, err, want)
		}
	}
	var tries sync.WaitGroup // a refusal takes its time
	for from := range guests {
		for to := range guests {
			if from == to {
				continue
			}
			want := slices.Contains(reach[from], to)
			for _, port := range ports {
				tries.Go(func() { try(t, from, to, port, want) })
			}
		}
	}
	tries.Wait()
	t.Run("beside", func(t *testing.T) { // what the policies permit outside has not changed
		public := netip.MustParseAddrPort("203.0.113.82:8080")
		for from, want := range map[string]bool{"shop": true, "blog": false, "filter": false, "agent": true} {
			timeout := soon
			if want {
				timeout = later
			}
			if err := echo(t, guests[from].NetNS, public, timeout); (err == nil) != want {
				t.Errorf("%s to the outside: %v, want success %v", from, err, want)
			}
		}
		if err := fetch(t, guests["filter"].NetNS, "good.example", netip.MustParseAddrPort("203.0.113.80:80"), later); err != nil {
			t.Errorf("a listed name: %v", err)
		}
		if err := fetch(t, guests["blog"].NetNS, "good.example", netip.MustParseAddrPort("203.0.113.80:80"), soon); err == nil {
			t.Error("an app with the policy none reaches a web server")
		}
	})
	t.Run("changed", func(t *testing.T) { // an open connection ends with the permission
		c, err := dialFrom(t, guests["blog"].NetNS, netip.AddrPortFrom(guests["shop"].Address, 5432), later)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		apps := appsOf()
		apps[0].Restricted = true
		setApps(t, m, apps)
		if err := ping(c, soon); err == nil {
			t.Error("an open connection goes on that is not permitted any more")
		}
		try(t, "blog", "shop", 5432, false)
		try(t, "worker", "shop", 5432, true)
	})
	t.Run("next", func(t *testing.T) { // the next sandbox with an address does not inherit it
		address := guests["worker"].Address
		if err := m.Detach(t.Context(), "worker"); err != nil {
			t.Fatal(err)
		}
		if p, _ := func() (p []netip.Addr, _ error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			peers, named := m.peers()
			for a := range peers.Groups {
				p = append(p, a)
			}
			return append(p, named...), nil
		}(); slices.Contains(p, address) {
			t.Errorf("the address of a sandbox that is gone is a peer: %v", p)
		}
		m.mu.Lock()
		m.last = address.Prev()
		parked := m.parked
		m.parked = nil // they have other addresses
		m.mu.Unlock()
		next := attachWith(t, m, "next", egress.Open())
		m.mu.Lock()
		m.parked = append(parked, m.parked...)
		m.mu.Unlock()
		if next.Address != address {
			t.Fatalf("the next sandbox has %s, want %s", next.Address, address)
		}
		guests["next"] = next
		try(t, "next", "worker2", 5432, false)
	})
}

func TestNamesOfApps(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := start(t)
	newInternet(t)
	stop := m.runsUntil(t)
	defer func() { stop() }()
	guests := attachApps(t, m)
	setApps(t, m, appsOf()) // after they were connected
	server := netip.AddrPortFrom(m.gateway(), 53)
	ask := func(from, name string, typ dnsmessage.Type) ([]string, error) {
		got, err := resolve(t, guests[from].NetNS, name, server, typ, later)
		slices.Sort(got)
		return got, err
	}
	expect := func(from, name string, want ...string) {
		t.Helper()
		for i, w := range want {
			if at, ok := guests[w]; ok {
				want[i] = at.Address.String()
			}
		}
		slices.Sort(want)
		if got, err := ask(from, name, dnsmessage.TypeA); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s asks for %s: %q, %v; want %q", from, name, got, err, want)
		}
	}
	missing := func(from, name string) {
		t.Helper()
		if got, err := ask(from, name, dnsmessage.TypeA); !errors.Is(err, errNoName) {
			t.Errorf("%s asks for %s: %q, %v; want no such name", from, name, got, err)
		}
	}
	for _, from := range []string{"shop", "blog", "filter", "db"} { // whatever its policy
		expect(from, "worker.shop.internal", "worker")
		expect(from, "Shop.INTERNAL", "shop")
		expect(from, "web.db.internal", "db")
		expect(from, "idle.internal") // exists, and has no sandbox
		missing(from, "none.shop.internal")
		missing(from, "none.internal")
		if got, err := ask(from, "shop.internal", dnsmessage.TypeAAAA); err != nil || len(got) > 0 {
			t.Errorf("%s asks for an IPv6 address: %q, %v; want an empty answer", from, got, err)
		}
	}
	expect("foreign", "shop.internal", "foreign") // its own project's
	missing("foreign", "db.internal")
	missing("agent", "shop.internal") // the machine's name server does not know it
	// Other names are as ever.
	expect("shop", "other.example", "203.0.113.82")
	expect("filter", "good.example", "203.0.113.80")
	missing("filter", "other.example")
	missing("blog", "good.example")

	apps := appsOf()
	apps[0].Members[2].Ready = true
	// Ready on another node, whose addresses are not of this subnet or are those of other sandboxes here.
	for i, service := range map[int]string{0: "worker", 4: "web"} {
		apps[i].Members = append(apps[i].Members, appnet.Member{Sandbox: "elsewhere", Service: service, Ready: true})
	}
	setApps(t, m, apps)
	expect("shop", "worker.shop.internal", "worker", "worker2")
	expect("shop", "idle.internal")
	first := map[string]bool{}
	wait.For(t, "each address comes first", func() bool {
		got, err := resolve(t, guests["shop"].NetNS, "worker.shop.internal", server, dnsmessage.TypeA, later)
		if err != nil || len(got) != 2 {
			t.Fatalf("%q, %v", got, err)
		}
		first[got[0]] = true
		return len(first) == 2
	})

	// Without a server, names outside are still answered, and peers reached.
	to := echoes(t, guests["db"], 5432)
	stop()
	stop = func() {}
	expect("shop", "other.example", "203.0.113.82")
	if err := echo(t, guests["shop"].NetNS, to, later); err != nil {
		t.Errorf("without a server: %v", err)
	}

	// The next one knows the apps before it is told.
	again := New(m.cfg)
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer again.proxy.Close()
	if err := echo(t, guests["shop"].NetNS, to, later); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if err := echo(t, guests["foreign"].NetNS, to, soon); err == nil {
		t.Error("after a restart another project reaches an app")
	}
	stop = again.runsUntil(t)
	wait.For(t, "names after a restart", func() bool {
		got, err := ask("shop", "db.internal", dnsmessage.TypeA)
		return err == nil && len(got) == 1
	})
}

// TestNamesExpire: a server that is killed leaves questions to the machine's name
// server after a while.
func TestNamesExpire(t *testing.T) {
	if !private.Run(t) {
		return
	}
	newInternet(t) // first: nothing looks for another name server later
	m := start(t)
	setApps(t, m, appsOf())
	at := attachWith(t, m, "shop", egress.Open())
	m.answering.Store(true)
	if err := m.syncPeers(); err != nil {
		t.Fatal(err)
	}
	server := netip.AddrPortFrom(m.gateway(), 53)
	if got, err := resolve(t, at.NetNS, "other.example", server, dnsmessage.TypeA, soon); err == nil {
		t.Fatalf("nobody serves the proxy, and a name is answered: %q", got)
	}
	wait.For(t, "the machine's name server", func() bool {
		_, err := resolve(t, at.NetNS, "other.example", server, dnsmessage.TypeA, time.Second)
		return err == nil
	})
}
