package firewall_test

import (
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

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
	nft := func(stdin string, args ...string) string {
		t.Helper()
		cmd := exec.Command("nft", args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("nft %v: %v: %.1000s", args, err, out)
		}
		return string(out)
	}
	f := firewall.New(slog.New(slog.DiscardHandler))
	c := firewall.Config{
		Table: "rt-own", Bridge: "rt-own-br", Subnet: netip.MustParsePrefix("10.99.0.0/24"), Gateway: netip.MustParseAddr("10.99.0.1"), Policies: true,
		Connections: 100, Resolver: netip.MustParseAddr("127.0.0.53"), Proxy: firewall.Proxy{Web: 8080, DNS: 8053},
	}
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
	listed := nft("", "list", "ruleset")
	for _, part := range []string{"table inet rt-own", "@groups", "@reach", "10.99.0.2"} {
		if !strings.Contains(listed, part) {
			t.Errorf("the list lacks %q:\n%s", part, listed)
		}
	}
	nft("flush ruleset\n"+listed, "-c", "-f", "-")
}
