package firewall

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// SetGuest sets the policy of the guest with this address. Until the first call
// for it, a guest reaches nothing. The policy holds from the return on, for open
// connections too.
func (f *Firewall) SetGuest(a netip.Addr, p egress.Policy) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.change(a, &p)
}

// RemoveGuest forgets a guest. Its address on the bridge then reaches nothing.
func (f *Firewall) RemoveGuest(a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.forget(a); err != nil { // first: the address may be another guest's soon
		return err
	}
	return f.change(a, nil)
}

// change replaces the elements of one guest in one transaction. p is nil for a
// guest to be removed. Callers hold f.mu.
func (f *Firewall) change(a netip.Addr, p *egress.Policy) error {
	before, had := f.guests[a]
	if !had && p == nil {
		return nil
	}
	if p != nil {
		f.guests[a] = *p
	} else {
		delete(f.guests, a)
	}
	if f.tables.content == nil { // Ensure will add the guests
		return nil
	}
	err := f.use(func(conn *nftables.Conn) error { return f.changeElements(conn, a, before, had, p) })
	if err == nil {
		return nil
	}
	// Another program changed the table, or the guest's elements.
	if err := f.apply(f.applied); err != nil {
		return errs.New(errs.Unavailable, "nftables table %s: %w", f.applied.Table, err)
	}
	return nil
}

func (f *Firewall) changeElements(conn *nftables.Conn, a netip.Addr, before egress.Policy, had bool, p *egress.Policy) error {
	s := setsOf(f.applied.Table)
	if had {
		if err := s.each(elementsOf(f.applied, map[netip.Addr]egress.Policy{a: before}), conn.SetDeleteElements); err != nil {
			return err
		}
	}
	if p != nil {
		if err := s.each(elementsOf(f.applied, map[netip.Addr]egress.Policy{a: *p}), conn.SetAddElements); err != nil {
			return err
		}
	}
	return conn.Flush()
}

// sets of the table.
type sets struct{ policies, filtered, allowed, denied, elsewhere, groups, reach, named *nftables.Set }

// setsOf names the sets. They have fixed ids within a transaction.
func setsOf(table string) sets {
	set := func(id uint32, name string) *nftables.Set {
		return &nftables.Set{Table: tablesOf(table)[0], ID: id, Name: name, KeyType: nftables.TypeIPAddr}
	}
	s := sets{set(1, "policies"), set(2, "filtered"), set(3, "allowed"), set(4, "denied"), set(5, "elsewhere"), set(7, "groups"), set(8, "reach"), set(9, "named")}
	s.policies.IsMap, s.policies.DataType = true, nftables.TypeVerdict
	s.groups.IsMap, s.groups.DataType = true, nftables.TypeClassID
	s.reach.KeyType, s.reach.Concatenation = nftables.MustConcatSetType(nftables.TypeClassID, nftables.TypeIPAddr), true
	s.named.HasTimeout = true
	for _, pairs := range []*nftables.Set{s.allowed, s.denied} {
		pairs.KeyType = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr)
		pairs.Interval, pairs.Concatenation = true, true
	}
	return s
}

// elements of the sets.
type elements struct{ policies, filtered, allowed, denied, elsewhere []nftables.SetElement }

// perMessage bounds the elements in one message, whose list has at most 64 KiB.
const perMessage = 256

// each calls change for the elements of each set.
func (s sets) each(e elements, change func(*nftables.Set, []nftables.SetElement) error) error {
	for _, c := range []struct {
		set      *nftables.Set
		elements []nftables.SetElement
	}{{s.policies, e.policies}, {s.filtered, e.filtered}, {s.allowed, e.allowed}, {s.denied, e.denied}, {s.elsewhere, e.elsewhere}} {
		for part := range slices.Chunk(c.elements, perMessage) {
			if err := change(c.set, part); err != nil {
				return err
			}
		}
	}
	return nil
}

func elementsOf(c Config, guests map[netip.Addr]egress.Policy) (e elements) {
	for a, p := range guests {
		verdict := &expr.Verdict{Kind: expr.VerdictGoto}
		switch {
		case p.Filtered():
			verdict.Chain = "filtered"
			e.filtered = append(e.filtered, nftables.SetElement{Key: a.AsSlice()})
			e.denied = append(e.denied, pairs(a, egress.Networks(p.Deny))...)
			allowed := egress.Networks(p.Allow)
			if p.Mode == egress.All {
				allowed = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
			}
			e.allowed = append(e.allowed, pairs(a, allowed)...)
		case p.Mode == egress.All:
			verdict.Chain = "open"
		default:
			verdict.Kind = expr.VerdictDrop
		}
		e.policies = append(e.policies, nftables.SetElement{Key: a.AsSlice(), VerdictData: verdict})
		if !c.Subnet.Contains(a) {
			e.elsewhere = append(e.elsewhere, nftables.SetElement{Key: a.AsSlice()})
		}
	}
	return e
}

// pairs returns the elements for the networks of a guest.
func pairs(guest netip.Addr, networks []netip.Prefix) []nftables.SetElement {
	var out []nftables.SetElement
	for _, n := range networks {
		first, last := n.Addr().As4(), n.Addr().As4()
		for i := n.Bits(); i < 32; i++ {
			last[i/8] |= 0x80 >> (i % 8)
		}
		out = append(out, nftables.SetElement{Key: append(guest.AsSlice(), first[:]...), KeyEnd: append(guest.AsSlice(), last[:]...)})
	}
	return out
}
