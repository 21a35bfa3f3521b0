// Package extent maps block addresses to where their data is.
//
// A [Map] is a radix tree of fan-out 256 over leaves of 512 blocks (2 MiB).
// A leaf holds sorted runs of blocks whose data lies in one piece, so
// sequential data costs one run per leaf, and untouched space nothing. The
// tree is persistent: [Map.Snapshot] shares all nodes, and each side copies
// what it changes from then on. Nodes carry the token of the map that may
// change them in place; a snapshot gives both sides new tokens.
//
// A Map is not safe for concurrent change; a snapshot and its origin may be
// used by different goroutines.
package extent

// LeafBlocks is the number of blocks a leaf covers.
const LeafBlocks = 512

const (
	leafShift = 9
	fanShift  = 8
	fan       = 1 << fanShift
)

// Zero is the Off of a run that reads as zeros and has no data.
const Zero = ^uint32(0)

// Value says where data is: block Off of the source Src. What a source is,
// the user of the map knows.
type Value struct {
	Src uint64
	Off uint32
}

// IsZero reports whether the value stands for zeros without data.
func (v Value) IsZero() bool { return v.Off == Zero }

// Skip is the value n blocks further.
func (v Value) Skip(n uint64) Value {
	if !v.IsZero() {
		v.Off += uint32(n)
	}
	return v
}

// Run is a piece of a leaf: N blocks from block Start of the leaf.
type Run struct {
	Start, N uint16
	Off      uint32
	Src      uint64
}

func (r Run) value() Value { return Value{Src: r.Src, Off: r.Off} }
func (r Run) end() uint16  { return r.Start + r.N }

// from is the part of r that begins at block b of the leaf, b inside r.
func (r Run) from(b uint16) Run {
	v := r.value().Skip(uint64(b - r.Start))
	return Run{Start: b, N: r.end() - b, Off: v.Off, Src: v.Src}
}

type token struct{ _ byte }

type node struct {
	owner *token
	kids  []*node // of an inner node: fan entries, nil where nothing is mapped
	runs  []Run   // of a leaf
}

// Map is the map of one disk.
type Map struct {
	root   *node
	height int // levels of inner nodes
	owner  *token

	// Dropped, if set, is told how many blocks of a source are no longer
	// mapped because Set or Delete replaced them. Zero runs do not count.
	Dropped func(src, blocks uint64)
}

// New returns an empty map for addresses below blocks.
func New(blocks uint64) *Map {
	m := &Map{owner: &token{}}
	for blocks > span(m.height) && m.height < 6 {
		m.height++
	}
	return m
}

// span is the number of blocks below a node of height h.
func span(h int) uint64 { return LeafBlocks << (fanShift * h) }

// Snapshot returns a map of the same content in constant time.
func (m *Map) Snapshot() *Map {
	m.owner = &token{}
	return &Map{root: m.root, height: m.height, owner: &token{}}
}

// Set maps n blocks from lba to v and the blocks that follow it.
func (m *Map) Set(lba, n uint64, v Value) {
	if n == 0 {
		return
	}
	e := edit{m: m, set: true, v: v}
	m.root = e.apply(m.root, m.height, lba, lba+n, 0)
}

// Delete unmaps n blocks from lba.
func (m *Map) Delete(lba, n uint64) {
	if n == 0 || m.root == nil {
		return
	}
	e := edit{m: m}
	m.root = e.apply(m.root, m.height, lba, lba+n, 0)
}

// SetLeaf makes runs the content of leaf i; the map keeps the slice.
func (m *Map) SetLeaf(i uint64, runs []Run) {
	e := edit{m: m, leaf: runs}
	m.root = e.apply(m.root, m.height, i<<leafShift, (i+1)<<leafShift, 0)
}

// edit is one change on its way down the tree.
type edit struct {
	m    *Map
	set  bool
	v    Value
	leaf []Run
	fill [8]*node // subtrees wholly of v, by height, when v is zero
}

// apply changes [lo,hi) below n, a node of height h that starts at base, and
// returns the node to take its place.
func (e *edit) apply(n *node, h int, lo, hi, base uint64) *node {
	whole := lo <= base && hi >= base+span(h)
	if whole && e.leaf == nil {
		if !e.set {
			e.drop(n)
			return nil
		}
		if e.v.IsZero() {
			e.drop(n)
			return e.full(h)
		}
	}
	if n == nil && !e.set && e.leaf == nil {
		return nil
	}
	n = e.own(n, h)
	if h == 0 {
		if e.leaf != nil {
			n.runs = e.leaf
		} else {
			e.splice(n, max(lo, base), min(hi, base+LeafBlocks), lo, base)
		}
		if len(n.runs) == 0 {
			return nil
		}
		return n
	}
	step := span(h - 1)
	first := uint64(0)
	if lo > base {
		first = (lo - base) / step
	}
	for i := first; i < fan && base+i*step < hi; i++ {
		n.kids[i] = e.apply(n.kids[i], h-1, lo, hi, base+i*step)
	}
	return n
}

// own returns a node that this map may change in place.
func (e *edit) own(n *node, h int) *node {
	switch {
	case n == nil && h == 0:
		return &node{owner: e.m.owner}
	case n == nil:
		return &node{owner: e.m.owner, kids: make([]*node, fan)}
	case n.owner == e.m.owner:
		return n
	case h == 0:
		return &node{owner: e.m.owner, runs: n.runs}
	}
	c := &node{owner: e.m.owner, kids: make([]*node, fan)}
	copy(c.kids, n.kids)
	return c
}

// full is a subtree that is zero everywhere. It belongs to no map, since it
// is shared by many places of one.
func (e *edit) full(h int) *node {
	if e.fill[h] != nil {
		return e.fill[h]
	}
	n := &node{}
	if h == 0 {
		n.runs = []Run{{N: LeafBlocks, Off: Zero, Src: e.v.Src}}
	} else {
		n.kids = make([]*node, fan)
		kid := e.full(h - 1)
		for i := range n.kids {
			n.kids[i] = kid
		}
	}
	e.fill[h] = n
	return n
}

func (e *edit) drop(n *node) {
	if n == nil || e.m.Dropped == nil {
		return
	}
	for _, k := range n.kids {
		e.drop(k)
	}
	for _, r := range n.runs {
		e.dropped(r.value(), uint64(r.N))
	}
}

func (e *edit) dropped(v Value, n uint64) {
	if e.m.Dropped != nil && !v.IsZero() {
		e.m.Dropped(v.Src, n)
	}
}

// splice replaces the addresses [lo,hi) of a leaf; start is where e.v begins.
// It always makes a new slice, since a copied leaf shares the old one.
func (e *edit) splice(n *node, lo, hi, start, base uint64) {
	a, b := uint16(lo-base), uint16(hi-base)
	out := make([]Run, 0, len(n.runs)+2)
	i := 0
	for ; i < len(n.runs) && n.runs[i].end() <= a; i++ {
		out = append(out, n.runs[i])
	}
	if i < len(n.runs) && n.runs[i].Start < a {
		left := n.runs[i]
		left.N = a - left.Start
		out = append(out, left)
	}
	if e.set {
		v := e.v.Skip(lo - start)
		out = join(out, Run{Start: a, N: b - a, Off: v.Off, Src: v.Src})
	}
	for ; i < len(n.runs); i++ {
		r := n.runs[i]
		if cut := min(r.end(), b); cut > max(r.Start, a) {
			e.dropped(r.value(), uint64(cut-max(r.Start, a)))
		}
		if r.end() <= b {
			continue
		}
		if r.Start < b {
			r = r.from(b)
		}
		out = join(out, r)
	}
	n.runs = out
}

// join appends r, to the last run where it continues it.
func join(out []Run, r Run) []Run {
	if k := len(out) - 1; k >= 0 && out[k].end() == r.Start && out[k].value().Skip(uint64(out[k].N)) == r.value() {
		out[k].N += r.N
		return out
	}
	return append(out, r)
}

// Walk calls f for the mapped pieces of [lba, lba+n) in order, joined where
// they continue each other, until f returns false.
func (m *Map) Walk(lba, n uint64, f func(lba, n uint64, v Value) bool) {
	w := walker{f: f, lo: lba, hi: lba + n}
	if w.walk(m.root, m.height, 0) && w.n > 0 {
		f(w.lba, w.n, w.v)
	}
}

type walker struct {
	f      func(lba, n uint64, v Value) bool
	lo, hi uint64
	lba, n uint64 // the piece being collected
	v      Value
}

func (w *walker) walk(n *node, h int, base uint64) bool {
	if n == nil {
		return true
	}
	if h > 0 {
		step := span(h - 1)
		first := uint64(0)
		if w.lo > base {
			first = (w.lo - base) / step
		}
		for i := first; i < fan && base+i*step < w.hi; i++ {
			if !w.walk(n.kids[i], h-1, base+i*step) {
				return false
			}
		}
		return true
	}
	for _, r := range n.runs {
		lo, hi := base+uint64(r.Start), base+uint64(r.end())
		if hi <= w.lo || lo >= w.hi {
			continue
		}
		v := r.value()
		if lo < w.lo {
			v, lo = v.Skip(w.lo-lo), w.lo
		}
		hi = min(hi, w.hi)
		if w.n > 0 && w.lba+w.n == lo && w.v.Skip(w.n) == v {
			w.n += hi - lo
			continue
		}
		if w.n > 0 && !w.f(w.lba, w.n, w.v) {
			return false
		}
		w.lba, w.n, w.v = lo, hi-lo, v
	}
	return true
}

// Diff calls f for every leaf that differs between old and m, in order; runs
// is nil where m has none. Subtrees that both share cost nothing. A nil old
// is an empty map. The heights of the two must agree.
func (m *Map) Diff(old *Map, f func(leaf uint64, runs []Run)) {
	var o *node
	if old != nil {
		o = old.root
	}
	diff(o, m.root, m.height, 0, f)
}

func diff(o, n *node, h int, base uint64, f func(uint64, []Run)) {
	if o == n {
		return
	}
	if h == 0 {
		var runs []Run
		if n != nil {
			runs = n.runs
		}
		f(base>>leafShift, runs)
		return
	}
	for i := range uint64(fan) {
		var ok, nk *node
		if o != nil {
			ok = o.kids[i]
		}
		if n != nil {
			nk = n.kids[i]
		}
		diff(ok, nk, h-1, base+i*span(h-1), f)
	}
}
