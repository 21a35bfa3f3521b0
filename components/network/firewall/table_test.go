package firewall_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/nftables"

	"miren.dev/runtime/components/network/firewall"
	"miren.dev/runtime/testsupport/private"
)

// TestOthersChangeTheirTables: the kernel lists the chains of all tables, in
// several messages. Chains that other programs add and delete between two of
// these do not count as changes of this table.
func TestOthersChangeTheirTables(t *testing.T) {
	if !private.Run(t) {
		return
	}
	// Many chains of other installations, before this table and after it.
	others := func(conn *nftables.Conn, name string) error {
		table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: name})
		for i := range 50 {
			conn.AddChain(&nftables.Chain{Name: fmt.Sprintf("chain-of-another-installation-%d", i), Table: table})
		}
		return conn.Flush()
	}
	var log bytes.Buffer
	f := firewall.New(slog.New(slog.NewTextHandler(&log, nil)))
	c := config()
	var changing sync.WaitGroup
	stop := make(chan struct{})
	for i := range 2 {
		changing.Go(func() {
			conn, err := nftables.New(nftables.AsLasting())
			for n := 0; err == nil; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("rt-other-%d-%d", i, n%3)
				if err = others(conn, name); err == nil && n >= 2 {
					conn.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: fmt.Sprintf("rt-other-%d-%d", i, (n+1)%3)})
					err = conn.Flush()
				}
			}
			t.Error(err)
		})
	}
	for n := range 300 {
		if n%10 == 0 {
			c.Connections = n + 1 // another table
		}
		if err := f.Ensure(c); err != nil {
			t.Errorf("check %d: %v", n, err)
			break
		}
	}
	close(stop)
	changing.Wait()
	if log.Len() > 0 {
		t.Errorf("the log says:\n%.2000s", log.String())
	}
}

// config is the configuration of a firewall with policies, and without resolver and proxy.
func config() firewall.Config {
	return firewall.Config{
		Table: "rt-own", Bridge: "rt-own-br", Subnet: netip.MustParsePrefix("10.99.0.0/24"), Gateway: netip.MustParseAddr("10.99.0.1"), Policies: true,
	}
}
