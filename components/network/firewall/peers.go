package firewall

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"miren.dev/runtime/pkg/errs"
)

// Peers are guests that reach other guests. The zero Peers: none does.
type Peers struct {
	Groups map[netip.Addr]uint32   // group of a guest
	Reach  map[uint32][]netip.Addr // guests to which those of a group may connect, and stand-ins
}

// How long the questions for names of guests are led to the proxy after a SetNamed.
const (
	NamedFor = 6 * time.Second // if this process alone answers them
	// NamedLong is for when another process answers them once this one is dead. It ends after all, so
	// that guests whose policy has no rules get names outside if both are.
	NamedLong = 7 * 24 * time.Hour
)

// SetPeers sets which guests reach other guests, from the return on, for open
// connections too. RemoveGuest removes a guest from them.
func (f *Firewall) SetPeers(p Peers) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if reflect.DeepEqual(f.peers, p) || len(f.peers.Groups)+len(p.Groups) == 0 {
		return nil
	}
	f.peers = p
	return f.replace(func(s sets) []content { return s.peers(f.peers) })
}

// SetNamed has the proxy answer all questions for names of these guests, whose policy
// has no rules, for a time: without a proxy they ask the servers that they name. It does
// nothing if it did the same less than a quarter of that time ago.
func (f *Firewall) SetNamed(guests []netip.Addr, last time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.named)+len(guests) == 0 {
		return nil
	}
	guests = slices.SortedFunc(slices.Values(guests), netip.Addr.Compare)
	if slices.Equal(guests, f.named) && last == f.namedFor && time.Since(f.namedAt) < last/4 {
		return nil
	}
	f.named, f.namedFor, f.namedAt = guests, last, time.Now()
	err := f.replace(func(s sets) []content { return []content{s.names(f.named, f.namedFor)} })
	if err != nil {
		f.namedAt = time.Time{}
	}
	return err
}

// forget removes the peer with an address. Callers hold f.mu.
func (f *Firewall) forget(a netip.Addr) error {
	if _, ok := f.peers.Groups[a]; !ok && !slices.Contains(f.named, a) {
		return nil
	}
	p := Peers{Groups: maps.Clone(f.peers.Groups), Reach: map[uint32][]netip.Addr{}}
	delete(p.Groups, a)
	for group, list := range f.peers.Reach {
		p.Reach[group] = slices.DeleteFunc(slices.Clone(list), func(b netip.Addr) bool { return a == b })
	}
	f.peers = p
	f.named = slices.DeleteFunc(f.named, func(b netip.Addr) bool { return a == b })
	return f.replace(func(s sets) []content { return append(s.peers(f.peers), s.names(f.named, f.namedFor)) })
}

// content is all elements of a set.
type content struct {
	set      *nftables.Set
	elements []nftables.SetElement
}

// replace gives sets other content in one transaction. Callers hold f.mu.
func (f *Firewall) replace(of func(sets) []content) error {
	if f.tables.content == nil { // Ensure will add them
		return nil
	}
	err := f.use(func(conn *nftables.Conn) error {
		for _, c := range of(setsOf(f.applied.Table)) {
			conn.FlushSet(c.set)
			if err := c.add(conn); err != nil {
				return err
			}
		}
		return conn.Flush()
	})
	if err == nil {
		return nil
	}
	// Another program changed the table.
	if err := f.apply(f.applied); err != nil {
		return errs.New(errs.Unavailable, "nftables table %s: %w", f.applied.Table, err)
	}
	return nil
}

func (c content) add(conn *nftables.Conn) error {
	for part := range slices.Chunk(c.elements, perMessage) {
		if err := conn.SetAddElements(c.set, part); err != nil {
			return err
		}
	}
	return nil
}

func (s sets) peers(p Peers) []content {
	groups, reach := content{set: s.groups}, content{set: s.reach}
	for a, n := range p.Groups {
		groups.elements = append(groups.elements, nftables.SetElement{Key: a.AsSlice(), Val: binaryutil.NativeEndian.PutUint32(n)})
	}
	for n, list := range p.Reach {
		for _, a := range list {
			reach.elements = append(reach.elements, nftables.SetElement{Key: append(binaryutil.NativeEndian.PutUint32(n), a.AsSlice()...)})
		}
	}
	return []content{groups, reach}
}

func (s sets) names(guests []netip.Addr, last time.Duration) content {
	c := content{set: s.named}
	for _, a := range guests {
		c.elements = append(c.elements, nftables.SetElement{Key: a.AsSlice(), Timeout: last})
	}
	return c
}

// toPeer matches packets of a guest to one that its group may connect to. The group goes by the
// priority of the packet, since nft 1.0.6 aborts on a key that has the value of a map in it. Nothing
// else sees it: the kernel sets the priority anew when it forwards a packet.
func (s sets) toPeer() []expr.Any {
	return append(source(),
		&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetID: s.groups.ID, SetName: s.groups.Name},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: 1},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: 1},
		&expr.Payload{DestRegister: secondWord, Base: expr.PayloadBaseNetworkHeader, Offset: destinationOffset, Len: 4},
		&expr.Lookup{SourceRegister: 1, SetID: s.reach.ID, SetName: s.reach.Name},
	)
}
