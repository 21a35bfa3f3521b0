package network

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// linkLocal has the metadata services of clouds.
var linkLocal = netip.MustParsePrefix("169.254.0.0/16")

func (m *Manager) table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: m.cfg.Instance.Name("")}
}

// applyRules replaces the table in one step. Callers hold m.mu.
//
// In the words of nft:
//
//	chain forward { type filter hook forward priority filter; policy accept;
//	  iifname BRIDGE oifname BRIDGE drop                       # sandbox to sandbox
//	  iifname BRIDGE meta nfproto != ipv4 drop
//	  iifname BRIDGE ip saddr != SUBNET drop                   # forged
//	  iifname BRIDGE ip daddr 169.254.0.0/16 drop
//	  oifname BRIDGE ct state established,related accept
//	  oifname BRIDGE drop                                      # other installations, the network
//	}
//	chain input { type filter hook input priority filter; policy accept;
//	  iifname BRIDGE ct state established,related accept
//	  iifname BRIDGE drop                                      # sandbox to machine
//	}
//	chain postrouting { type nat hook postrouting priority srcnat; policy accept;
//	  oifname != BRIDGE ip saddr SUBNET masquerade
//	}
//
// Sandboxes reach each other over the bridge neither, since their ports are isolated.
func (m *Manager) applyRules() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	bridge, t := m.cfg.Instance.Bridge(), m.table()
	// Added first, so that deleting it succeeds when it was not there.
	c.AddTable(t)
	c.DelTable(t)
	c.AddTable(t)
	accept := nftables.ChainPolicyAccept
	chain := func(name string, typ nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority) func(...[]expr.Any) {
		ch := c.AddChain(&nftables.Chain{Name: name, Table: t, Type: typ, Hooknum: hook, Priority: prio, Policy: &accept})
		return func(parts ...[]expr.Any) {
			r := &nftables.Rule{Table: t, Chain: ch}
			for _, p := range parts {
				r.Exprs = append(r.Exprs, p...)
			}
			c.AddRule(r)
		}
	}
	from, to := link(expr.MetaKeyIIFNAME, expr.CmpOpEq, bridge), link(expr.MetaKeyOIFNAME, expr.CmpOpEq, bridge)
	drop, ok := verdict(expr.VerdictDrop), verdict(expr.VerdictAccept)

	forward := chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	forward(from, to, drop)
	forward(from, protocol(expr.CmpOpNeq), drop)
	forward(from, protocol(expr.CmpOpEq), source(expr.CmpOpNeq, m.subnet), drop)
	forward(from, protocol(expr.CmpOpEq), destination(expr.CmpOpEq, linkLocal), drop)
	forward(to, answers(), ok)
	forward(to, drop)

	input := chain("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter)
	input(from, answers(), ok)
	input(from, drop)

	post := chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	post(link(expr.MetaKeyOIFNAME, expr.CmpOpNeq, bridge), protocol(expr.CmpOpEq), source(expr.CmpOpEq, m.subnet), []expr.Any{&expr.Masq{}})
	return c.Flush()
}

func (m *Manager) removeRules() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	c.DelTable(m.table())
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete nftables table %s: %w", m.table().Name, err)
	}
	return nil
}

func link(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: b}}
}

// protocol compares with IPv4.
func protocol(op expr.CmpOp) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: []byte{unix.NFPROTO_IPV4}}}
}

// Offsets of the addresses in an IPv4 header.
const (
	sourceOffset      = 12
	destinationOffset = 16
)

func source(op expr.CmpOp, p netip.Prefix) []expr.Any { return address(sourceOffset, op, p) }

func destination(op expr.CmpOp, p netip.Prefix) []expr.Any { return address(destinationOffset, op, p) }

func address(offset uint32, op expr.CmpOp, p netip.Prefix) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: ipNet(p).Mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// answers matches packets that belong to a connection the other side began.
func answers() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED),
			Xor:  binaryutil.NativeEndian.PutUint32(0),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }
