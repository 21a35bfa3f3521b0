package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
)

// TestEgressPolicies tries each destination under each policy. Under Open each
// public one answers, so what is out of reach otherwise is so for the policy.
func TestEgressPolicies(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := start(t)
	newInternet(t)
	m.runs(t)
	policies := map[string]egress.Policy{
		"open":   egress.Open(),
		"closed": egress.Closed(),
		"names":  policy(t, "list", "good.example *.good.example two.example", "evil.good.example"),
		"nets":   policy(t, "list", "192.0.2.0/24 203.0.113.82", "192.0.2.66"),
		"deny":   policy(t, "all", "", "other.example 192.0.2.0/24"),
		// A policy does not open an address that the firewall closes.
		"inward": policy(t, "list", "private.example metadata.example machine.example neighbour.example 10.0.0.0/8 169.254.0.0/16 198.51.100.1", ""),
	}
	guests := map[string]Attachment{}
	for name, p := range policies {
		guests[name] = attachWith(t, m, name, p)
	}
	const web, secure, other = 80, 443, 8080
	for _, c := range []struct {
		host, address string // without a host: TCP
		port          uint16
		reach         string // the policies under which it is reached
	}{
		{"good.example", "203.0.113.80", web, "open names deny"},
		{"good.example", "203.0.113.80", secure, "open names deny"},
		{"www.good.example", "203.0.113.81", secure, "open names deny"},
		{"evil.good.example", "203.0.113.84", web, "open deny"},
		{"evil.good.example", "203.0.113.84", secure, "open deny"},
		{"two.example", "203.0.113.83", secure, "open names deny"},
		{"other.example", "203.0.113.82", web, "open nets"},
		{"other.example", "203.0.113.82", secure, "open nets"},
		{"unknown.example", "203.0.113.81", secure, "open deny"},
		// A permitted name at the address of another.
		{"good.example", "203.0.113.82", web, "open nets deny"},
		{"good.example", "203.0.113.82", secure, "open nets deny"},
		{"good.example", "203.0.113.83", secure, "open deny"},
		// A domain stands for the two ports only, a network for all.
		{"", "203.0.113.80", other, "open deny"},
		{"", "203.0.113.82", other, "open nets deny"},
		{"", "192.0.2.10", other, "open nets"},
		{"listed-net.example", "192.0.2.10", web, "open nets"},
		{"listed-net.example", "192.0.2.10", secure, "open nets"},
		{"", "192.0.2.66", other, "open"},
		{"listed-net.example", "192.0.2.66", web, "open"},
		{"private.example", "10.98.0.9", web, ""},
		{"private.example", "10.98.0.9", secure, ""},
		{"", "10.98.0.9", other, ""},
		{"metadata.example", "169.254.169.254", web, ""},
		{"machine.example", "198.51.100.1", web, ""},
		{"machine.example", "198.51.100.1", secure, ""},
	} {
		to := netip.AddrPortFrom(netip.MustParseAddr(c.address), c.port)
		try := func(netns string, timeout time.Duration) error {
			if c.host == "" {
				return echo(t, netns, to, timeout)
			}
			return fetch(t, netns, c.host, to, timeout)
		}
		if err := try(machine, later); err != nil {
			t.Fatalf("%s of %s does not answer the machine: %v", c.host, to, err)
		}
		for name, at := range guests {
			want := slices.Contains(strings.Fields(c.reach), name)
			timeout := soon
			if want {
				timeout = later
			}
			if err := try(at.NetNS, timeout); (err == nil) != want {
				t.Errorf("policy %s, %q at %s: %v, want success %v", name, c.host, to, err, want)
			}
		}
	}
}

// TestNamesThatAPolicyPermits: a guest with rules gets its answers from the
// proxy, whichever server it asks.
func TestNamesThatAPolicyPermits(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := start(t)
	w := newInternet(t)
	m.runs(t)
	listed := attachWith(t, m, "listed", policy(t, "list", "good.example *.example", "evil.good.example"))
	closed := attachWith(t, m, "closed", egress.Closed())
	servers := []netip.AddrPort{
		netip.AddrPortFrom(m.gateway(), 53),
		netip.MustParseAddrPort("203.0.113.80:53"), // a public server, which does not exist
		netip.MustParseAddrPort("169.254.169.253:53"),
	}
	for _, server := range servers {
		got, err := resolve(t, listed.NetNS, "two.example", server, dnsmessage.TypeA, later)
		if err != nil || !slices.Equal(got, zone["two.example."]) {
			t.Errorf("by %s: %q, %v", server, got, err)
		}
		if got, err := resolve(t, closed.NetNS, "good.example", server, dnsmessage.TypeA, soon); err == nil {
			t.Errorf("with the policy none, by %s: %q", server, got)
		}
	}
	before := w.asked.Load()
	for _, name := range []string{"evil.good.example", "elsewhere.test", "good.example.test"} {
		if got, err := resolve(t, listed.NetNS, name, servers[0], dnsmessage.TypeA, later); !errors.Is(err, errNoName) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if n := w.asked.Load() - before; n != 0 {
		t.Errorf("the machine's name server was asked %d times for names that are not permitted", n)
	}
	if got, err := resolve(t, listed.NetNS, "missing.example", servers[0], dnsmessage.TypeA, later); !errors.Is(err, errNoName) {
		t.Errorf("a name that does not exist: %q, %v", got, err)
	}
	if got, err := resolve(t, listed.NetNS, "good.example", servers[0], dnsmessage.TypeAAAA, later); err != nil || len(got) > 0 {
		t.Errorf("addresses of IPv6: %q, %v", got, err)
	}
	before = w.asked.Load()
	for range 20 {
		if _, err := resolve(t, listed.NetNS, "two.example", servers[0], dnsmessage.TypeA, later); err != nil {
			t.Error(err)
		}
	}
	if n := w.asked.Load() - before; n != 0 {
		t.Errorf("20 questions for a known name were forwarded %d times", n)
	}
}

// TestPolicyChangesWhileASandboxRuns: a change holds for new connections and open ones.
func TestPolicyChangesWhileASandboxRuns(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := start(t)
	newInternet(t)
	m.runs(t)
	a := attachWith(t, m, "a", egress.Closed())
	site, plain := netip.MustParseAddrPort("203.0.113.80:443"), netip.MustParseAddrPort("203.0.113.80:8080")
	unreached := func(when string) {
		t.Helper()
		for _, to := range []netip.AddrPort{site, netip.AddrPortFrom(site.Addr(), 80)} {
			if fetch(t, a.NetNS, "good.example", to, soon) == nil {
				t.Errorf("%s, %s is in reach", when, to)
			}
		}
		if echo(t, a.NetNS, plain, soon) == nil {
			t.Errorf("%s, %s is in reach", when, plain)
		}
	}
	unreached("closed")

	if err := m.firewall.RemoveGuest(a.Address); err != nil {
		t.Fatal(err)
	}
	unreached("unknown to the firewall")

	setPolicy(t, m, "a", egress.Open()) // a claim
	if err := errors.Join(fetch(t, a.NetNS, "good.example", site, later), echo(t, a.NetNS, plain, later)); err != nil {
		t.Fatal(err)
	}
	direct, err := dialFrom(t, a.NetNS, plain, later)
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	// To a port of the proxy's, but from before: it must not go around the proxy now.
	around, err := dialFrom(t, a.NetNS, netip.AddrPortFrom(site.Addr(), 80), later)
	if err != nil {
		t.Fatal(err)
	}
	defer around.Close()
	if err := ping(direct, later); err != nil {
		t.Fatal(err)
	}

	setPolicy(t, m, "a", policy(t, "list", "good.example", ""))
	if ping(direct, soon) == nil {
		t.Error("a connection that the new policy does not permit goes on")
	}
	_ = around.SetDeadline(time.Now().Add(soon))
	_, _ = around.Write([]byte("GET / HTTP/1.1\r\nHost: evil\r\n\r\n"))
	if n, _ := around.Read(make([]byte, 1)); n > 0 {
		t.Error("a connection from before goes around the proxy")
	}
	if err := fetch(t, a.NetNS, "good.example", site, later); err != nil {
		t.Error(err)
	}
	// TLS that stays open through the proxy.
	held, err := dialFrom(t, a.NetNS, site, later)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	s := clientTLS(held, "good.example")
	if err := s.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}

	setPolicy(t, m, "a", policy(t, "list", "two.example", ""))
	_ = held.SetDeadline(time.Now().Add(later))
	if _, err := held.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection through the proxy was not closed: %v", err)
	}
	setPolicy(t, m, "a", egress.Closed())
	unreached("closed again")
	flush(t)
	setPolicy(t, m, "a", egress.Open()) // it makes the table again, if the server has not noticed yet
	if err := fetch(t, a.NetNS, "good.example", site, later); err != nil {
		t.Error(err)
	}
	setPolicy(t, m, "a", policy(t, "list", "203.0.113.80", ""))
	if err := errors.Join(fetch(t, a.NetNS, "good.example", site, later), echo(t, a.NetNS, plain, later)); err != nil {
		t.Error(err)
	}
}

// TestPolicyOutlivesTheServer: the table is enforced without a server, and the next one knows all policies.
// Without the proxy, guests with rules reach no name and no web server, and the others all they did.
func TestPolicyOutlivesTheServer(t *testing.T) {
	if !private.Run(t) {
		return
	}
	m := start(t)
	newInternet(t)
	stop := m.runsUntil(t)
	site, plain := netip.MustParseAddrPort("203.0.113.80:443"), netip.MustParseAddrPort("192.0.2.10:8080")
	open := attachWith(t, m, "open", egress.Open())
	closed := attachWith(t, m, "closed", egress.Closed())
	listed := attachWith(t, m, "listed", egress.Closed())
	setPolicy(t, m, "listed", policy(t, "list", "good.example 192.0.2.0/24", ""))
	if err := fetch(t, listed.NetNS, "good.example", site, later); err != nil {
		t.Fatal(err)
	}
	stop()
	check := func(when string, proxied bool) {
		t.Helper()
		if err := errors.Join(fetch(t, open.NetNS, "good.example", site, later), echo(t, open.NetNS, plain, later)); err != nil {
			t.Errorf("%s, all: %v", when, err)
		}
		if err := echo(t, listed.NetNS, plain, later); err != nil {
			t.Errorf("%s, a network of the list: %v", when, err)
		}
		timeout := soon
		if proxied {
			timeout = later
		}
		if err := fetch(t, listed.NetNS, "good.example", site, timeout); (err == nil) != proxied {
			t.Errorf("%s, a domain of the list: %v", when, err)
		}
		if _, err := resolve(t, listed.NetNS, "good.example", netip.AddrPortFrom(m.gateway(), 53), dnsmessage.TypeA, timeout); (err == nil) != proxied {
			t.Errorf("%s, the name: %v", when, err)
		}
		outOfReach(t, listed.NetNS, netip.MustParseAddrPort("203.0.113.82:8080"))
		if fetch(t, listed.NetNS, "other.example", netip.MustParseAddrPort("203.0.113.82:443"), soon) == nil {
			t.Errorf("%s, a domain that is not listed answers", when)
		}
		outOfReach(t, closed.NetNS, plain)
	}
	check("without a server", false)

	again := New(m.cfg)
	if err := again.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	again.runs(t)
	check("after a restart", true)
	flush(t)
	wait.NoError(t, "the firewall is back", func() error { return fetch(t, listed.NetNS, "good.example", site, soon) })
	check("after a flush", true)
	if err := again.Detach(t.Context(), "listed"); err != nil {
		t.Fatal(err)
	}
	if err := again.SetPolicy(t.Context(), "listed", egress.Open()); !errs.Is(err, errs.NotFound) {
		t.Errorf("the policy of a sandbox that is gone: %v", err)
	}
	attach(t, again, "alone", false)
	if err := again.SetPolicy(t.Context(), "alone", egress.Open()); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("the policy of a sandbox without a network: %v", err)
	}
	if err := again.SetPolicy(t.Context(), "open", egress.Policy{}); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("no policy: %v", err)
	}
}

// TestEgressLog: requests of a guest with rules are recorded, with the verdict.
func TestEgressLog(t *testing.T) {
	if !private.Run(t) {
		return
	}
	delivered := make(chan egress.Record, 100)
	m := startWith(t, Config{Record: func(_ context.Context, r egress.Record) { delivered <- r }})
	newInternet(t)
	m.runs(t)
	a := attachWith(t, m, "a", policy(t, "list", "good.example 192.0.2.10", ""))
	_, _ = resolve(t, a.NetNS, "good.example", netip.AddrPortFrom(m.gateway(), 53), dnsmessage.TypeA, later)
	_, _ = resolve(t, a.NetNS, "other.example", netip.AddrPortFrom(m.gateway(), 53), dnsmessage.TypeA, later)
	_ = fetch(t, a.NetNS, "good.example", netip.MustParseAddrPort("203.0.113.80:443"), later)
	_ = fetch(t, a.NetNS, "good.example", netip.MustParseAddrPort("203.0.113.82:443"), later)
	_ = fetch(t, a.NetNS, "other.example", netip.MustParseAddrPort("203.0.113.82:80"), later)
	_ = fetch(t, a.NetNS, "x.example", netip.MustParseAddrPort("192.0.2.10:80"), later)
	var got []string
	for range 6 {
		r := wait.Receive(t, "a record", delivered)
		if r.Sandbox != "a" || time.Since(r.Time) > time.Minute {
			t.Errorf("%+v", r)
		}
		got = append(got, fmt.Sprintf("%s %s %s %d %v", r.Protocol, r.Name, r.Address, r.Port, r.Allowed))
	}
	want := []string{
		"dns good.example invalid IP 0 true",
		"dns other.example invalid IP 0 false",
		"tls good.example 203.0.113.80 443 true",
		"tls good.example 203.0.113.82 443 false",
		"http other.example 203.0.113.82 80 false",
		"tcp  192.0.2.10 80 true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("records:\n%q\nwant\n%q", got, want)
	}
	if n := len(m.Recent("a")); n != len(want) {
		t.Errorf("%d recent records", n)
	}
	if m.Recent("unknown") != nil {
		t.Error("records of an unknown sandbox")
	}
}
