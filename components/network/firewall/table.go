package firewall

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/egress"
)

// The table, in the words of nft. Replies pass in both directions.
//
//	table inet TABLE
//	map policies { type ipv4_addr : verdict }                  # of guests: goto open, goto filtered, drop
//	set filtered { type ipv4_addr }                            # guests with rules of their own
//	set allowed, denied { type ipv4_addr . ipv4_addr; flags interval }  # guest and network
//	set elsewhere { type ipv4_addr }                           # guests that are not on the bridge
//	map groups { type ipv4_addr : classid }                    # guests that reach others (peers.go)
//	set reach { type classid . ipv4_addr }                     # group, and guest that it reaches: "to a peer" below
//	set named { type ipv4_addr; flags timeout }                # guests whose names the proxy answers while it runs
//
//	chain guests { type filter hook prerouting priority mangle; policy accept;
//	  iifname BRIDGE goto own
//	  ip saddr @elsewhere goto egress
//	}
//	chain own {
//	  meta nfproto != ipv4 drop
//	  ip saddr != SUBNET drop                                  # forged
//	  goto egress
//	}
//	chain egress {
//	  ct state related meta mark set mark|MARK accept
//	  ct state established ct direction reply meta mark set mark|MARK accept
//	  ct state invalid drop
//	  meta priority set ip saddr map @groups meta priority . ip daddr @reach goto asked  # to a peer
//	  ip saddr vmap @policies                                  # without policies: goto open
//	  drop
//	}
//	chain filtered {
//	  udp dport 53 goto asked                                  # and tcp
//	  ip saddr . ip daddr @denied drop
//	  tcp dport 80 goto open                                   # and 443
//	  ip saddr . ip daddr @allowed goto open
//	  drop
//	}
//	chain asked {                                              # the proxy's name server
//	  ct state established meta mark set mark|MARK accept
//	  goto begin
//	}
//	chain open {
//	  ct state established meta mark set mark|MARK accept
//	  ip daddr GATEWAY udp dport 53 goto begin                 # and tcp; with a resolver
//	  fib daddr type != unicast drop                           # all addresses of the machine
//	  ip daddr { RESERVED, SUBNET } drop
//	  ip daddr ALLOW goto begin
//	  ip daddr PRIVATE drop
//	  goto begin
//	}
//	chain begin {                                              # of a connection
//	  add @connections { ip saddr ct count over CONNECTIONS } drop
//	  meta mark set mark|MARK accept
//	}
//	chain forward { type filter hook forward priority filter; policy accept;
//	  iifname BRIDGE oifname BRIDGE (to a peer) accept
//	  iifname BRIDGE oifname BRIDGE ct state established ct direction reply accept
//	  ip daddr STANDINS (to a peer) drop                       # UDP and others
//	  ip saddr @filtered udp dport 53 drop                     # and tcp 53, 80, 443: the proxy's alone
//	  iifname BRIDGE oifname BRIDGE drop                       # guest to guest
//	  oifname BRIDGE ct state established,related accept
//	  oifname BRIDGE drop                                      # other installations, the network
//	}
//	chain toproxy { type nat hook prerouting priority dstnat; policy accept;
//	  ip daddr STANDINS meta l4proto tcp (to a peer) dnat ip to GATEWAY:PEERS  # on another node
//	  (to a peer) accept
//	  ip saddr @filtered udp dport 53 dnat ip to GATEWAY:DNS   # and tcp
//	  ip saddr @filtered tcp dport 80 dnat ip to GATEWAY:WEB   # and 443
//	  ip saddr @named udp dport 53 dnat ip to GATEWAY:DNS      # and tcp
//	  iifname BRIDGE ip daddr GATEWAY udp dport 53 dnat ip to RESOLVER
//	}
//	chain outward { type nat hook postrouting priority srcnat; policy accept;
//	  oifname != BRIDGE ip saddr SUBNET ip daddr != SUBNET masquerade
//	}
//
// An installation that was killed leaves its tables, and another may have its subnet then.
// So what guests of one subnet send each other keeps its addresses.
//
// A policy is applied to each packet, not only to the first of a connection, so
// that a change of it holds for open connections too. Those that the proxy must
// see and that began before it are dropped in chain forward: a redirected packet
// is not forwarded.
//
// Packets between two ports of the bridge do not pass these chains: isolated
// ports keep guests apart there. What peers send to each other is routed, and passes
// them: the machine answers a guest's ARP requests for others with its own address
// (proxy_arp_pvlan of the bridge).
//
// The kernel looks up a route for each ARP request for the bridge's address, too.
// A second table of the name marks them:
//
//	table arp TABLE
//	chain guests { type filter hook input priority filter; policy accept;
//	  iifname BRIDGE meta mark set mark|MARK
//	}

// maxTransaction is the size of a transaction in bytes, enough for 1021 guests
// with 256 networks each.
const maxTransaction = 32 << 20

// tables are the two applied tables.
type tables struct {
	chains  [][]*nftables.Chain // of each
	content []byte              // see read; nil: nothing is applied
}

// applyTable gives the tables their content in one transaction. With anew it replaces them. Without, it
// replaces the rules, and the elements of sets, of tables that are there: a packet that passes a chain
// meanwhile finds the next elements in its sets. A replaced set has none for it, so it is dropped.
//
// An error may mean that the tables have other chains or sets, such as those of another version.
func applyTable(conn *nftables.Conn, c Config, guests map[netip.Addr]egress.Policy, more []content, anew bool) (tables, error) {
	for _, t := range tablesOf(c.Table) {
		conn.AddTable(t) // also so that deleting it succeeds if it did not exist
		if anew {
			conn.DelTable(t)
			conn.AddTable(t)
		}
	}
	b := builder{conn: conn, table: tablesOf(c.Table)[0], anew: anew}
	if err := b.guests(c, guests); err != nil {
		return tables{}, err
	}
	for _, m := range more {
		if err := m.add(conn); err != nil {
			return tables{}, err
		}
	}
	b.forward(c)
	b.redirect(c)
	outward := b.chain("outward", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	outward(link(expr.MetaKeyOIFNAME, expr.CmpOpNeq, c.Bridge), ipv4(), address(sourceOffset, expr.CmpOpEq, c.Subnet), address(destinationOffset, expr.CmpOpNeq, c.Subnet), []expr.Any{&expr.Masq{}})

	arp := builder{conn: conn, table: tablesOf(c.Table)[1], anew: anew}
	arp.chain("guests", nftables.ChainTypeFilter, nftables.ChainHookRef(arpInput), nftables.ChainPriorityFilter)(fromBridge(c), setMark())
	if err := conn.Flush(); err != nil {
		return tables{}, err
	}
	content, has, err := read(conn, b.chains, arp.chains)
	want := size{parts: len(b.chains) + b.sets + len(arp.chains), rules: b.rules + arp.rules}
	if err == nil && has != want {
		err = fmt.Errorf("it has %d rules of %d, and %d chains and sets of %d: another program changes it", has.rules, want.rules, has.parts, want.parts)
	}
	return tables{chains: [][]*nftables.Chain{b.chains, arp.chains}, content: content}, err
}

// guests adds the chains that a guest's packets pass first, each behind the chains
// and sets that it names.
func (b *builder) guests(c Config, guests map[netip.Addr]egress.Policy) error {
	s := setsOf(c.Table)
	connections := &nftables.Set{Table: b.table, ID: 6, Name: "connections", KeyType: nftables.TypeIPAddr, Dynamic: true, Size: 1 << 16}
	for _, set := range []*nftables.Set{s.policies, s.filtered, s.allowed, s.denied, s.elsewhere, connections, s.groups, s.reach, s.named} {
		if err := b.conn.AddSet(set, nil); err != nil {
			return err
		}
		b.sets++
		if !b.anew && set != connections { // open connections count on
			b.conn.FlushSet(set)
		}
	}
	drop, accept := verdict(expr.VerdictDrop), verdict(expr.VerdictAccept)
	established := state(expr.CtStateBitESTABLISHED)

	begin := b.chain("begin", "", nil, nil)
	if c.Connections > 0 {
		begin(source(), []expr.Any{&expr.Dynset{
			SrcRegKey: 1, SetID: connections.ID, SetName: connections.Name, Operation: unix.NFT_DYNSET_OP_ADD,
			Exprs: []expr.Any{&expr.Connlimit{Count: uint32(c.Connections), Flags: expr.NFT_CONNLIMIT_F_INV}},
		}}, drop)
	}
	begin(setMark(), accept)

	open := b.chain("open", "", nil, nil)
	open(established, setMark(), accept)
	gateway := netip.PrefixFrom(c.Gateway, 32)
	if c.Resolver.IsValid() {
		for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			open(ipv4(), destination(gateway), port(protocol, 53), goTo("begin"))
		}
	}
	open([]expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_UNICAST)},
	}, drop)
	for _, p := range append(slices.Clone(reserved), c.Subnet) {
		open(ipv4(), destination(p), drop)
	}
	for _, p := range c.Allow {
		open(ipv4(), destination(p), goTo("begin"))
	}
	for _, p := range private {
		open(ipv4(), destination(p), drop)
	}
	open(goTo("begin"))

	asked := b.chain("asked", "", nil, nil)
	asked(established, setMark(), accept)
	asked(goTo("begin"))

	filtered := b.chain("filtered", "", nil, nil)
	filtered(port(unix.IPPROTO_UDP, 53), goTo("asked"))
	filtered(port(unix.IPPROTO_TCP, 53), goTo("asked"))
	filtered(inPairs(s.denied), drop)
	filtered(port(unix.IPPROTO_TCP, 80), goTo("open"))
	filtered(port(unix.IPPROTO_TCP, 443), goTo("open"))
	filtered(inPairs(s.allowed), goTo("open"))
	filtered(drop)

	policy := b.chain("egress", "", nil, nil)
	policy(state(expr.CtStateBitRELATED), setMark(), accept)
	policy(established, reply(), setMark(), accept)
	policy(state(expr.CtStateBitINVALID), drop)
	policy(s.toPeer(), goTo("asked"))
	if c.Policies {
		policy(source(), []expr.Any{&expr.Lookup{SourceRegister: 1, IsDestRegSet: true, SetID: s.policies.ID, SetName: s.policies.Name}})
		policy(drop)
	} else {
		policy(goTo("open"))
	}

	own := b.chain("own", "", nil, nil)
	own([]expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}}}, drop)
	own(address(sourceOffset, expr.CmpOpNeq, c.Subnet), drop)
	own(goTo("egress"))

	hook := b.chain("guests", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle)
	hook(fromBridge(c), goTo("own"))
	hook(source(), in(s.elsewhere), goTo("egress"))
	return s.each(elementsOf(c, guests), b.conn.SetAddElements)
}

// forward adds the chain of the packets that the machine passes on.
func (b *builder) forward(c Config) {
	s := setsOf(c.Table)
	from, to := fromBridge(c), link(expr.MetaKeyOIFNAME, expr.CmpOpEq, c.Bridge)
	drop, accept := verdict(expr.VerdictDrop), verdict(expr.VerdictAccept)
	forward := b.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	forward(from, to, s.toPeer(), accept)
	forward(from, to, state(expr.CtStateBitESTABLISHED), reply(), accept)
	if c.StandIns.IsValid() {
		forward(ipv4(), destination(c.StandIns), s.toPeer(), drop)
	}
	for _, p := range redirected {
		forward(source(), in(s.filtered), port(p.protocol, p.port), drop)
	}
	forward(from, to, drop)
	forward(to, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), accept)
	forward(to, drop)
}

// redirected are the ports whose packets of filtered guests are the proxy's.
var redirected = []struct {
	protocol byte
	port     uint16
}{{unix.IPPROTO_UDP, 53}, {unix.IPPROTO_TCP, 53}, {unix.IPPROTO_TCP, 80}, {unix.IPPROTO_TCP, 443}}

// redirect adds the chain that leads to the proxy and to the resolver.
func (b *builder) redirect(c Config) {
	chain := b.chain("toproxy", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	s := setsOf(c.Table)
	if c.Proxy.Peers != 0 {
		chain(ipv4(), destination(c.StandIns), protocol(unix.IPPROTO_TCP), s.toPeer(), natTo(netip.AddrPortFrom(c.Gateway, c.Proxy.Peers)))
	}
	chain(s.toPeer(), verdict(expr.VerdictAccept))
	if c.Proxy != (Proxy{}) {
		for _, p := range redirected {
			to := c.Proxy.Web
			if p.port == 53 {
				to = c.Proxy.DNS
			}
			chain(source(), in(s.filtered), port(p.protocol, p.port), natTo(netip.AddrPortFrom(c.Gateway, to)))
			if p.port == 53 {
				chain(source(), in(s.named), port(p.protocol, p.port), natTo(netip.AddrPortFrom(c.Gateway, to)))
			}
		}
	}
	if c.Resolver.IsValid() {
		for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			chain(fromBridge(c), ipv4(), destination(netip.PrefixFrom(c.Gateway, 32)), port(protocol, 53), natTo(netip.AddrPortFrom(c.Resolver, 53)))
		}
	}
}

// builder adds chains and rules to a table.
type builder struct {
	conn   *nftables.Conn
	table  *nftables.Table
	anew   bool              // the table is empty
	chains []*nftables.Chain // in the order of their addition
	sets   int
	rules  int
}

// chain adds a chain and returns a function that adds a rule to it.
func (b *builder) chain(name string, typ nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) func(...[]expr.Any) {
	c := &nftables.Chain{Name: name, Table: b.table}
	if hook != nil {
		accept := nftables.ChainPolicyAccept
		c.Type, c.Hooknum, c.Priority, c.Policy = typ, hook, priority, &accept
	}
	b.conn.AddChain(c)
	if !b.anew {
		b.conn.FlushChain(c)
	}
	b.chains = append(b.chains, c)
	return func(parts ...[]expr.Any) {
		b.rules++
		b.conn.AddRule(&nftables.Rule{Table: b.table, Chain: c, Exprs: slices.Concat(parts...)})
	}
}

// arpInput is the number of the input hook of ARP, which differs from IP's.
const arpInput = 0

// tablesOf returns the tables of the name: the one of IP and the one of ARP.
func tablesOf(name string) []*nftables.Table {
	return []*nftables.Table{{Family: nftables.TableFamilyINet, Name: name}, {Family: nftables.TableFamilyARP, Name: name}}
}

// size of tables.
type size struct {
	parts int // chains and sets
	rules int // of the chains that were asked for
}

// read returns the content of tables with these chains, and its size. The content differs after any change, even if
// another program added the same rules again: rules have handles. An error may mean that a chain is missing.
//
// It asks for each table and chain by its name. The kernel lists all chains of the machine in several messages, between
// which other programs may add and delete theirs: then the list has some chains twice, and others not at all.
func read(conn *nftables.Conn, chains ...[]*nftables.Chain) (content []byte, has size, _ error) {
	var b bytes.Buffer
	for _, of := range chains {
		t, err := conn.ListTableOfFamily(of[0].Table.Name, of[0].Table.Family)
		if err != nil {
			return nil, has, fmt.Errorf("table %s: %w", of[0].Table.Name, err)
		}
		// Use is the number of chains and sets, also of those that others added.
		fmt.Fprintf(&b, "%d %d %d\n", t.Family, t.Use, t.Flags)
		for _, c := range of {
			n, err := readChain(&b, conn, c)
			if err != nil {
				return nil, has, fmt.Errorf("chain %s: %w", c.Name, err)
			}
			has.rules += n
		}
		// The library reads the number in the machine's order of bytes.
		has.parts += int(binary.BigEndian.Uint32(binaryutil.NativeEndian.PutUint32(t.Use)))
	}
	return b.Bytes(), has, nil
}

func readChain(b *bytes.Buffer, conn *nftables.Conn, c *nftables.Chain) (rules int, _ error) {
	t := c.Table
	c, err := conn.ListChain(t, c.Name)
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(b, "%s %s", c.Name, c.Type)
	if c.Hooknum != nil && c.Priority != nil && c.Policy != nil {
		fmt.Fprintf(b, " %d %d %d", *c.Hooknum, *c.Priority, *c.Policy)
	}
	list, err := conn.GetRules(t, c)
	if err != nil {
		return 0, err
	}
	for _, r := range list {
		fmt.Fprintf(b, "\n%d", r.Handle)
		for _, e := range r.Exprs {
			data, err := expr.Marshal(byte(t.Family), e)
			if err != nil {
				return 0, fmt.Errorf("rule %d: %w", r.Handle, err)
			}
			fmt.Fprintf(b, " %x", data)
		}
	}
	b.WriteByte('\n')
	return len(list), nil
}

func removeTable(conn *nftables.Conn, name string) error {
	for _, t := range tablesOf(name) {
		conn.AddTable(t) // so that deleting it succeeds even if it does not exist
		conn.DelTable(t)
	}
	return conn.Flush()
}
