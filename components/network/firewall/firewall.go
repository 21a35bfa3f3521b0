// Package firewall decides what the guests of a bridge reach: public addresses,
// the private networks that an operator allows, and nothing of the machine but
// its resolver. Guests are sandboxes and build steps.
//
// It consists of two parts in the kernel:
//
//   - a table of nftables, which sets Mark on each packet of a guest that may
//     pass, and drops all others (table.go lists the rules);
//   - the gate, a rule of the machine's policy routing that drops packets from
//     the bridge without the mark (gate.go).
//
// So it fails closed: after "nft flush ruleset", or a restart of another
// firewall, no packet has the mark, and guests reach nothing. Keep notices the
// change and makes the table again within milliseconds while a server runs.
//
// Each guest may have a policy of its own within that (package egress of pkg):
// its networks are in sets of the table, and names are the matter of a proxy, to
// which the table redirects DNS, HTTP and TLS of such guests.
//
// There is no IPv6: packets of it are dropped, whatever their address is.
package firewall

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// Config says which addresses guests reach.
type Config struct {
	Table   string       // name of the table (inet); no other firewall uses it
	Bridge  string       // interface; need not exist yet
	Subnet  netip.Prefix // subnet of the guests
	Gateway netip.Addr   // the bridge's address in it
	// Allow are private networks that guests may reach, except their Reserved
	// addresses.
	Allow []netip.Prefix
	// Resolver is the name server to which port 53 of Gateway leads. The zero
	// Addr: there is none.
	Resolver netip.Addr
	// Connections bounds the connections that one guest has open to others; 0: there is no bound.
	Connections int
	// Policies: a guest reaches what SetGuest says. Otherwise all guests reach all that
	// this Config permits.
	Policies bool
	// StandIns has the addresses of Peers that are on other nodes.
	StandIns netip.Prefix
	// Proxy decides for guests whose policy has rules. Without one, they reach
	// neither name servers nor the ports 80 and 443.
	Proxy Proxy
}

// Proxy has the ports of Gateway to which connections of filtered guests are redirected.
type Proxy struct {
	DNS uint16 // UDP and TCP; instead of port 53 of any address
	Web uint16 // TCP; instead of the ports 80 and 443 of any address
	// Peers is the port of TCP that gets the connections to peers in StandIns.
	Peers uint16
}

// Firewall is safe for concurrent use.
type Firewall struct {
	logger *slog.Logger

	mu       sync.Mutex
	applied  Config
	tables   tables // as applied
	guests   map[netip.Addr]egress.Policy
	peers    Peers
	named    []netip.Addr // see SetNamed; in order
	namedFor time.Duration
	namedAt  time.Time
	// conn is nil until it is used, and after an error. It is kept, because closing a
	// netlink socket waits some 15 ms when something was deleted.
	conn *nftables.Conn
}

// New returns a firewall without touching the machine.
func New(logger *slog.Logger) *Firewall {
	return &Firewall{logger: logger, guests: map[netip.Addr]egress.Policy{}}
}

// use calls fn with the connection to the kernel. Callers hold f.mu.
func (f *Firewall) use(fn func(*nftables.Conn) error) (err error) {
	if f.conn == nil {
		buffer := func(c *netlink.Conn) error { return c.SetWriteBuffer(maxTransaction) }
		if f.conn, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(buffer)); err != nil {
			return err
		}
	}
	if err = fn(f.conn); err != nil {
		_ = f.conn.CloseLasting() // answers may be left in it
		f.conn = nil
	}
	return err
}

// apply replaces the table's content, or the table if that cannot be done. Callers hold f.mu.
func (f *Firewall) apply(c Config) error {
	f.tables = tables{}
	var applied tables
	var err error
	for _, anew := range []bool{false, true} {
		err = f.use(func(conn *nftables.Conn) (err error) {
			applied, err = applyTable(conn, c, f.guests, append(setsOf(c.Table).peers(f.peers), setsOf(c.Table).names(f.named, f.namedFor)), anew)
			return err
		})
		if err == nil {
			break
		}
	}
	if err == nil {
		f.applied, f.tables = c, applied
	}
	return err
}

// Ensure makes gate and table match c, in one transaction for the table.
func (f *Firewall) Ensure(c Config) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	repaired, err := ensureGate(c.Bridge)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "routing rule of bridge %s: %w", c.Bridge, err)
	}
	if repaired && f.tables.content != nil {
		f.logger.Warn("another program removed the routing rule of the guests' network; restored it", "bridge", c.Bridge)
	}
	if err := routeLoopback(c); err != nil {
		return errs.New(errs.FailedPrecondition, "bridge %s: %w", c.Bridge, err)
	}
	if f.tables.content != nil && reflect.DeepEqual(c, f.applied) {
		var now []byte
		err := f.use(func(conn *nftables.Conn) (err error) {
			now, _, err = read(conn, f.tables.chains...)
			return err
		})
		if err == nil && bytes.Equal(now, f.tables.content) {
			return nil
		}
		logger := f.logger.With("table", c.Table)
		if err != nil { // such as a missing chain
			logger = logger.With("error", err)
		}
		logger.Warn("another program changed the nftables table of the guests' network; restoring it")
	}
	if err := f.apply(c); err != nil {
		return errs.New(errs.FailedPrecondition, "nftables table %s: %w", c.Table, err)
	}
	return nil
}

// routeLoopback lets packets of the guests reach a loopback address if the
// resolver has one. The table passes only those to the resolver. Before the
// bridge exists there is nothing to do.
func routeLoopback(c Config) error {
	key, want := "/proc/sys/net/ipv4/conf/"+c.Bridge+"/route_localnet", "0"
	if c.Resolver.IsLoopback() {
		want = "1"
	}
	is, err := os.ReadFile(key)
	if errors.Is(err, os.ErrNotExist) || err == nil && strings.TrimSpace(string(is)) == want {
		return nil
	}
	return os.WriteFile(key, []byte(want), 0o644)
}

// Remove removes gate and table. It returns nil when there are none.
func (f *Firewall) Remove(table, bridge string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tables = tables{}
	err := f.use(func(conn *nftables.Conn) error { return removeTable(conn, table) })
	if f.conn != nil {
		_ = f.conn.CloseLasting()
		f.conn = nil
	}
	if err != nil {
		return errs.New(errs.Unavailable, "remove nftables table %s: %w", table, err)
	}
	if err := removeGate(bridge); err != nil {
		return errs.New(errs.Unavailable, "remove routing rule of bridge %s: %w", bridge, err)
	}
	return nil
}
