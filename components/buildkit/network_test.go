package buildkit

import (
	"log/slog"
	"os"
	"testing"

	"github.com/google/nftables"

	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/need"
)

// TestNetworkIsRepaired: the tables of build steps are made again after a flush,
// and the table of an earlier version goes. The check for leaks is the end of the test.
func TestNetworkIsRepaired(t *testing.T) {
	need.Root(t)
	d := New(Config{Instance: leakcheck.Installation(t), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	t.Cleanup(func() {
		if err := d.removeNetwork(); err != nil {
			t.Error(err)
		}
	})
	if err := d.checkFirewall(); err != nil { // before there is a network
		t.Fatal(err)
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	name := d.cfg.Instance.Name("build")
	old := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: name})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	// rules counts those of the tables of a family.
	rules := func(family nftables.TableFamily) (n int) {
		t.Helper()
		chains, err := c.ListChainsOfTableFamily(family)
		if err != nil {
			t.Fatal(err)
		}
		for _, chain := range chains {
			if chain.Table.Name != name {
				continue
			}
			list, err := c.GetRules(chain.Table, chain)
			if err != nil {
				t.Fatal(err)
			}
			n += len(list)
		}
		return n
	}
	if err := os.MkdirAll(d.root(), 0o711); err != nil { // which prepare does
		t.Fatal(err)
	}
	subnet, dns, err := d.network()
	if err != nil {
		t.Fatal(err)
	}
	if len(dns.Servers) == 0 {
		t.Error("steps have no name server")
	}
	if _, err := c.ListTableOfFamily(old.Name, old.Family); err == nil {
		t.Error("the table of an earlier version is there")
	}
	inet, arp := rules(nftables.TableFamilyINet), rules(nftables.TableFamilyARP)
	if inet == 0 || arp == 0 {
		t.Fatalf("%d rules for IP, %d for ARP", inet, arp)
	}
	c.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: name})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := d.checkFirewall(); err != nil {
		t.Fatal(err)
	}
	if n := rules(nftables.TableFamilyINet); n != inet {
		t.Errorf("%d rules after the repair, %d before", n, inet)
	}
	if again, _, err := d.network(); err != nil || again != subnet {
		t.Errorf("subnet %s became %s, %v", subnet, again, err)
	}
}
