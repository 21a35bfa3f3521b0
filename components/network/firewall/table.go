package firewall

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The table, in the words of nft. Replies pass in both directions.
//
//	table inet TABLE
//	chain guests { type filter hook prerouting priority mangle; policy accept;
//	  iifname != BRIDGE accept
//	  meta nfproto != ipv4 drop
//	  ip saddr != SUBNET drop                                  # forged
//	  ct state established,related meta mark set mark|MARK accept
//	  ct state invalid drop
//	  ip daddr GATEWAY udp dport 53 goto begin                 # and tcp; with a resolver
//	  fib daddr type != unicast drop                           # all addresses of the machine
//	  ip daddr { RESERVED, SUBNET } drop
//	  ip daddr ALLOW goto begin
//	  ip daddr PRIVATE drop
//	  goto begin
//	}
//	chain begin {                                                # of a connection
//	  add @connections { ip saddr ct count over CONNECTIONS } drop
//	  meta mark set mark|MARK accept
//	}
//	chain forward { type filter hook forward priority filter; policy accept;
//	  iifname BRIDGE oifname BRIDGE drop                       # guest to guest
//	  oifname BRIDGE ct state established,related accept
//	  oifname BRIDGE drop                                      # other installations, the network
//	}
//	chain resolver { type nat hook prerouting priority dstnat; policy accept;
//	  iifname BRIDGE ip daddr GATEWAY udp dport 53 dnat ip to RESOLVER
//	}
//	chain outward { type nat hook postrouting priority srcnat; policy accept;
//	  oifname != BRIDGE ip saddr SUBNET masquerade
//	}
//
// Packets between two ports of the bridge do not pass these chains: isolated
// ports keep guests apart there.
//
// The kernel looks up a route for each ARP request for the bridge's address, too.
// A second table of the name marks them:
//
//	table arp TABLE
//	chain guests { type filter hook input priority filter; policy accept;
//	  iifname BRIDGE meta mark set mark|MARK
//	}

// applyTable replaces the tables in one transaction and returns their content in readTable's form.
func applyTable(c Config) ([]byte, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	for _, t := range tablesOf(c.Table) {
		// Added first, so that deleting it succeeds even if it did not exist.
		conn.AddTable(t)
		conn.DelTable(t)
		conn.AddTable(t)
	}
	t := tablesOf(c.Table)[0]
	b := builder{conn: conn, table: t}
	connections := &nftables.Set{Table: t, Name: "connections", KeyType: nftables.TypeIPAddr, Dynamic: true, Size: 1 << 16}
	if err := conn.AddSet(connections, nil); err != nil {
		return nil, err
	}

	begin := b.chain("begin", "", nil, nil)
	from, to := link(expr.MetaKeyIIFNAME, expr.CmpOpEq, c.Bridge), link(expr.MetaKeyOIFNAME, expr.CmpOpEq, c.Bridge)
	drop, accept, next := verdict(expr.VerdictDrop), verdict(expr.VerdictAccept), []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: "begin"}}

	guests := b.chain("guests", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle)
	guests(link(expr.MetaKeyIIFNAME, expr.CmpOpNeq, c.Bridge), accept)
	guests([]expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}}}, drop)
	guests(address(sourceOffset, expr.CmpOpNeq, c.Subnet), drop)
	guests(state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), setMark(), accept)
	guests(state(expr.CtStateBitINVALID), drop)
	gateway := netip.PrefixFrom(c.Gateway, 32)
	if c.Resolver.IsValid() {
		for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			guests(ipv4(), destination(gateway), port53(protocol), next)
		}
	}
	guests([]expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_UNICAST)},
	}, drop)
	for _, p := range append(slices.Clone(reserved), c.Subnet) {
		guests(ipv4(), destination(p), drop)
	}
	for _, p := range c.Allow {
		guests(ipv4(), destination(p), next)
	}
	for _, p := range private {
		guests(ipv4(), destination(p), drop)
	}
	guests(next)

	if c.Connections > 0 {
		begin(source(), []expr.Any{&expr.Dynset{
			SrcRegKey: 1, SetID: connections.ID, SetName: connections.Name, Operation: unix.NFT_DYNSET_OP_ADD,
			Exprs: []expr.Any{&expr.Connlimit{Count: uint32(c.Connections), Flags: expr.NFT_CONNLIMIT_F_INV}},
		}}, drop)
	}
	begin(setMark(), accept)

	forward := b.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	forward(from, to, drop)
	forward(to, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), accept)
	forward(to, drop)

	if c.Resolver.IsValid() {
		a := c.Resolver.As4()
		resolver := b.chain("resolver", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
		for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			resolver(from, ipv4(), destination(gateway), port53(protocol), []expr.Any{
				&expr.Immediate{Register: 1, Data: a[:]},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
			})
		}
	}
	outward := b.chain("outward", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	outward(link(expr.MetaKeyOIFNAME, expr.CmpOpNeq, c.Bridge), ipv4(), address(sourceOffset, expr.CmpOpEq, c.Subnet), []expr.Any{&expr.Masq{}})

	arp := builder{conn: conn, table: tablesOf(c.Table)[1]}
	arp.chain("guests", nftables.ChainTypeFilter, nftables.ChainHookRef(arpInput), nftables.ChainPriorityFilter)(from, setMark())
	if err := conn.Flush(); err != nil {
		return nil, err
	}
	content, rules, err := read(c.Table)
	if want := b.rules + arp.rules; err == nil && rules != want {
		err = fmt.Errorf("it has %d rules of %d: another program changes it", rules, want)
	}
	return content, err
}

// builder adds chains and rules to a table.
type builder struct {
	conn  *nftables.Conn
	table *nftables.Table
	rules int
}

// chain adds a chain and returns a function that adds a rule to it.
func (b *builder) chain(name string, typ nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) func(...[]expr.Any) {
	c := &nftables.Chain{Name: name, Table: b.table}
	if hook != nil {
		accept := nftables.ChainPolicyAccept
		c.Type, c.Hooknum, c.Priority, c.Policy = typ, hook, priority, &accept
	}
	b.conn.AddChain(c)
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

// readTable returns the content of the tables. It differs after any change, even if another program added the same
// rules again: rules have handles.
func readTable(name string) ([]byte, error) {
	content, _, err := read(name)
	return content, err
}

func read(name string) (content []byte, rules int, _ error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, 0, err
	}
	var b bytes.Buffer
	for _, t := range tablesOf(name) {
		all, err := conn.ListChainsOfTableFamily(t.Family)
		if err != nil {
			return nil, 0, fmt.Errorf("list chains: %w", err)
		}
		slices.SortFunc(all, func(a, b *nftables.Chain) int { return cmp.Compare(a.Name, b.Name) })
		for _, c := range all {
			if c.Table.Name != name {
				continue
			}
			n, err := readChain(&b, conn, t, c)
			if err != nil {
				return nil, 0, fmt.Errorf("chain %s: %w", c.Name, err)
			}
			rules += n
		}
	}
	return b.Bytes(), rules, nil
}

func readChain(b *bytes.Buffer, conn *nftables.Conn, t *nftables.Table, c *nftables.Chain) (rules int, _ error) {
	fmt.Fprintf(b, "%d %s %s", t.Family, c.Name, c.Type)
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

func removeTable(name string) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	for _, t := range tablesOf(name) {
		conn.AddTable(t) // so that deleting it succeeds even if it does not exist
		conn.DelTable(t)
	}
	return conn.Flush()
}

// Parts of rules.

func link(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: b}}
}

func ipv4() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}}}
}

// Offsets of the addresses in an IPv4 header.
const (
	sourceOffset      = 12
	destinationOffset = 16
)

// source loads the address of the sender.
func source() []expr.Any {
	return append(ipv4(), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: sourceOffset, Len: 4})
}

func destination(p netip.Prefix) []expr.Any { return address(destinationOffset, expr.CmpOpEq, p) }

func address(offset uint32, op expr.CmpOp, p netip.Prefix) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: net.CIDRMask(p.Bits(), 32), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// port53 matches packets to a name server.
func port53(protocol byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, 53)},
	}
}

// state matches packets by the state of their connection in the machine's
// tracking.
func state(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// setMark lets the packet through the gate.
func setMark() []expr.Any {
	keep := ^uint32(Mark)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(keep), Xor: binaryutil.NativeEndian.PutUint32(Mark),
		},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	}
}

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }
