package firewall_test

import (
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/components/network/firewall"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/testsupport/private"
)

// TestOperatorsListTheRules: the program nft lists the rules of the machine with this table among
// them, and accepts what it listed. Operators, firewalld and nftables.service do both.
func TestOperatorsListTheRules(t *testing.T) {
	if !private.Run(t) {
		return
	}
	f := firewall.New(slog.New(slog.DiscardHandler))
	c := config()
	c.Connections, c.Resolver, c.Proxy = 100, netip.MustParseAddr("127.0.0.53"), firewall.Proxy{Web: 8080, DNS: 8053}
	if err := f.Ensure(c); err != nil {
		t.Fatal(err)
	}
	a, b := netip.MustParseAddr("10.99.0.2"), netip.MustParseAddr("10.99.0.3")
	policy, err := egress.Parse("list", []string{"203.0.113.0/24"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SetGuest(a, policy); err != nil {
		t.Fatal(err)
	}
	if err := f.SetPeers(firewall.Peers{Groups: map[netip.Addr]uint32{a: 1, b: 2}, Reach: map[uint32][]netip.Addr{1: {b}}}); err != nil {
		t.Fatal(err)
	}
	listed := nft(t, "", "list", "ruleset")
	for _, part := range []string{"table inet rt-own", "@groups", "@reach", "10.99.0.2"} {
		if !strings.Contains(listed, part) {
			t.Errorf("the list lacks %q:\n%s", part, listed)
		}
	}
	nft(t, "flush ruleset\n"+listed, "-c", "-f", "-")
}

// TestTableIsKept: a server that starts gives the table that is there its own rules and elements. It replaces a table
// with other sets or chains, such as another version's.
func TestTableIsKept(t *testing.T) {
	if !private.Run(t) {
		return
	}
	c := config()
	c.Connections = 100
	ensure := func() *firewall.Firewall {
		t.Helper()
		f := firewall.New(slog.New(slog.DiscardHandler))
		if err := f.Ensure(c); err != nil {
			t.Fatal(err)
		}
		return f
	}
	list := func() (content, handle string) {
		t.Helper()
		out := nft(t, "", "-a", "list", "table", "inet", c.Table)
		first, _, _ := strings.Cut(out, "\n")
		_, handle, _ = strings.Cut(first, "# handle ")
		return nft(t, "", "list", "table", "inet", c.Table), handle
	}
	if err := ensure().SetGuest(netip.MustParseAddr("10.99.0.2"), egress.Open()); err != nil {
		t.Fatal(err)
	}
	with, first := list()
	ensure()
	want, handle := list()
	if handle != first || !strings.Contains(with, "10.99.0.2") || strings.Contains(want, "10.99.0.2") {
		t.Errorf("the next server has the table with handle %s, had %s:\n%s", handle, first, want)
	}
	for what, script := range map[string]string{
		"another rule":        `add rule inet rt-own begin drop`,
		"another element":     `add element inet rt-own filtered { 10.99.0.3 }`,
		"a dormant table":     `add table inet rt-own { flags dormant; }`,
		"another policy":      `add chain inet rt-own forward { policy drop; }`,
		"another chain":       `add chain inet rt-own old { type filter hook forward priority 0; policy drop; }`,
		"another set":         `add set inet rt-own old { type ipv4_addr; }`,
		"a set of other keys": `flush chain inet rt-own toproxy; flush chain inet rt-own forward; delete set inet rt-own filtered; add set inet rt-own filtered { type ether_addr; }`,
		"a chain elsewhere":   `delete chain inet rt-own outward; add chain inet rt-own outward { type filter hook output priority 0; policy drop; }`,
	} {
		nft(t, script, "-f", "-")
		if got, _ := list(); got == want {
			t.Fatalf("%s: the list does not have it", what)
		}
		ensure()
		if got, _ := list(); got != want {
			t.Errorf("after %s: the table is\n%s\nwant\n%s", what, got, want)
		}
	}
}

// TestNamedAreSetWhenNeeded: a server that asks for the same again and again causes no transaction each time.
func TestNamedAreSetWhenNeeded(t *testing.T) {
	if !private.Run(t) {
		return
	}
	f := firewall.New(slog.New(slog.DiscardHandler))
	if err := f.Ensure(config()); err != nil {
		t.Fatal(err)
	}
	a, b := netip.MustParseAddr("10.99.0.2"), netip.MustParseAddr("10.99.0.3")
	for _, step := range []struct {
		guests []netip.Addr
		last   time.Duration
		sets   bool
	}{
		{[]netip.Addr{a, b}, firewall.NamedLong, true},
		{[]netip.Addr{b, a}, firewall.NamedLong, false},
		{[]netip.Addr{a}, firewall.NamedLong, true},
		{[]netip.Addr{a}, firewall.NamedFor, true},
		{[]netip.Addr{a, b}, firewall.NamedLong, true},
		{[]netip.Addr{b, a}, firewall.NamedLong, false},
	} {
		nft(t, "", "flush", "set", "inet", "rt-own", "named")
		if err := f.SetNamed(step.guests, step.last); err != nil {
			t.Fatal(err)
		}
		if has := strings.Contains(nft(t, "", "list", "set", "inet", "rt-own", "named"), "elements"); has != step.sets {
			t.Errorf("%v for %s: the set has elements: %v", step.guests, step.last, has)
		}
	}
}

func nft(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command("nft", args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v: %.1000s", args, err, out)
	}
	return string(out)
}
