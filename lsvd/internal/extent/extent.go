// Package extent maps block addresses to where their data is.
//
// A [Map] is a radix tree of fan-out 256 over leaves of 512 blocks (2 MiB).
// A leaf holds sorted runs of blocks whose data lies in one piece, so
// sequential data costs one run per leaf, and untouched space nothing. The
// tree is persistent: [Map.Snapshot] shares all nodes, and each side copies
// what it changes from then on. Nodes carry the token of the map that may
// change them in place; a snapshot gives both sides new tokens.
//
// A leaf may be stored elsewhere, in a [Page], and need not be in memory:
// [Map.SetPage] says where it is, [Map.Load] brings it in, [Map.Evict] drops
// what is stored unchanged. Changing a leaf forgets its page. Walk, Set and
// Delete panic where a leaf is not loaded, since taking it for empty would
// lose data: ask Loaded first, under the lock that guards the map.
//
// A Map is not safe for concurrent change; a snapshot and its origin may be
// used by different goroutines.
package extent

import (
	"slices"
	"sort"
	"sync/atomic"
)

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

// Page says where a leaf is stored, in terms of the user of the map. One of
// length 0 is no page.
type Page struct{ Object, Off, Len uint32 }

type node struct {
	owner *token
	kids  *[fan]*node // of an inner node, nil where nothing is mapped or loaded
	pages *[fan]Page  // of an inner node above leaves, or nil
	runs  []Run       // of a leaf; a node has them for itself
	used  uint32      // atomic: a leaf that was walked since Evict passed
}

// stored reports that kid i of n, above leaves, has a page.
func (n *node) stored(i uint64) bool { return n.pages != nil && n.pages[i].Len > 0 }

// absent reports that kid i of n, above leaves, is not loaded.
func (n *node) absent(i uint64) bool { return n.kids[i] == nil && n.stored(i) }

// Map is the map of one disk.
type Map struct {
	root   *node
	height int // levels of inner nodes, at least 1
	owner  *token

	// Dropped, if set, is told how many blocks of a source are no longer
	// mapped because Set or Delete replaced them. Zero runs do not count.
	Dropped func(src, blocks uint64)
}

// New returns an empty map for addresses below blocks.
func New(blocks uint64) *Map {
	m := &Map{owner: &token{}, height: 1}
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

// Empty reports that nothing is mapped, or was.
func (m *Map) Empty() bool { return m.root == nil }

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

// slot returns the node above leaf i, made and owned, and the leaf's place.
func (m *Map) slot(i uint64) (*node, uint64) {
	at := &m.root
	for h := m.height; ; h-- {
		*at = m.own(*at, h)
		k := i >> (fanShift * (h - 1)) & (fan - 1)
		if h == 1 {
			return *at, k
		}
		at = &(*at).kids[k]
	}
}

// SetLeaf makes runs the content of leaf i; the map keeps the slice.
func (m *Map) SetLeaf(i uint64, runs []Run) {
	n, k := m.slot(i)
	n.setPage(k, Page{})
	n.kids[k] = nil
	if len(runs) > 0 {
		n.kids[k] = &node{owner: m.owner, runs: runs}
	}
}

func (n *node) setPage(k uint64, p Page) {
	if n.pages == nil {
		if p.Len == 0 {
			return
		}
		n.pages = &[fan]Page{}
	}
	n.pages[k] = p
}

// SetPage says that leaf i is stored in p, with the content that it has in
// memory, or if it has none, with what Load will say.
func (m *Map) SetPage(i uint64, p Page) {
	n, k := m.slot(i)
	n.setPage(k, p)
}

// Load gives leaf i, if it still is not loaded and stored in p, its content;
// the map keeps the slice.
func (m *Map) Load(i uint64, p Page, runs []Run) {
	n, k := m.slot(i)
	if n.absent(k) && n.pages[k] == p {
		n.kids[k] = &node{owner: m.owner, runs: runs, used: 1}
	}
}

// Loaded reports that no leaf in [lba, lba+n) is absent.
func (m *Map) Loaded(lba, n uint64) bool {
	all := true
	m.Absent(lba, n, func(uint64, Page) bool { all = false; return false })
	return all
}

// Absent calls f for the leaves in [lba, lba+n) that are not loaded, in order,
// until it returns false.
func (m *Map) Absent(lba, n uint64, f func(leaf uint64, p Page) bool) {
	if n > 0 {
		absent(m.root, m.height, 0, lba, lba+n, f)
	}
}

func absent(n *node, h int, base, lo, hi uint64, f func(uint64, Page) bool) bool {
	if n == nil {
		return true
	}
	step := span(h - 1)
	first := uint64(0)
	if lo > base {
		first = (lo - base) / step
	}
	for i := first; i < fan && base+i*step < hi; i++ {
		if h > 1 {
			if !absent(n.kids[i], h-1, base+i*step, lo, hi, f) {
				return false
			}
		} else if n.absent(i) && !f((base+i*step)>>leafShift, n.pages[i]) {
			return false
		}
	}
	return true
}

// Leaves calls f for every leaf in order. Page is where it is stored unchanged,
// runs its content if it is loaded.
func (m *Map) Leaves(f func(leaf uint64, p Page, runs []Run)) {
	m.above(m.root, m.height, 0, func(n *node, base uint64) {
		for i := range uint64(fan) {
			var p Page
			if n.pages != nil {
				p = n.pages[i]
			}
			if n.kids[i] != nil {
				f(base>>leafShift+i, p, n.kids[i].runs)
			} else if p.Len > 0 {
				f(base>>leafShift+i, p, nil)
			}
		}
	})
}

// above calls f for the nodes above leaves.
func (m *Map) above(n *node, h int, base uint64, f func(n *node, base uint64)) {
	if n == nil {
		return
	}
	if h == 1 {
		f(n, base)
		return
	}
	for i, k := range n.kids {
		m.above(k, h-1, base+uint64(i)*span(h-1), f)
	}
}

// leafBytes is about what a leaf of no runs takes.
const leafBytes = 80

// Evict drops leaves that are stored unchanged: those that were not walked
// since it passed before if idle is set, and if all take more than limit bytes
// then whichever come until they do not. It returns what is left, in bytes.
func (m *Map) Evict(idle bool, limit int64) int64 {
	total := int64(0)
	var clean []uint64
	m.above(m.root, m.height, 0, func(n *node, base uint64) {
		for i, k := range n.kids {
			if k == nil {
				continue
			}
			total += leafBytes + int64(cap(k.runs))*16
			if n.stored(uint64(i)) {
				clean = append(clean, base>>leafShift+uint64(i))
			}
		}
	})
	drop := func(forced bool) {
		kept := clean[:0]
		for _, leaf := range clean {
			n, k := m.slot(leaf)
			kid := n.kids[k]
			unused := atomic.LoadUint32(&kid.used) == 0
			if unused && idle || total > limit && (unused || forced) {
				total -= leafBytes + int64(cap(kid.runs))*16
				n.kids[k] = nil
				continue
			}
			kept = append(kept, leaf)
		}
		clean = kept
	}
	if idle || total > limit {
		drop(false)
	}
	if total > limit {
		drop(true)
	}
	if idle {
		for _, leaf := range clean {
			n, k := m.slot(leaf)
			atomic.StoreUint32(&n.kids[k].used, 0)
		}
	}
	return total
}

// edit is one change on its way down the tree.
type edit struct {
	m    *Map
	set  bool
	v    Value
	fill [8]*node // subtrees wholly of v, by height, when v is zero
}

// apply changes [lo,hi) below n, a node of height h that starts at base, and
// returns the node to take its place.
func (e *edit) apply(n *node, h int, lo, hi, base uint64) *node {
	if lo <= base && hi >= base+span(h) {
		if !e.set {
			e.drop(n, h)
			return nil
		}
		if e.v.IsZero() {
			e.drop(n, h)
			return e.full(h)
		}
	}
	if n == nil && !e.set {
		return nil
	}
	n = e.m.own(n, h)
	if h == 0 {
		e.splice(n, max(lo, base), min(hi, base+LeafBlocks), lo, base)
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
		if h == 1 {
			if n.absent(i) {
				panic("extent: change of a leaf that is not loaded")
			}
			n.setPage(i, Page{})
		}
		n.kids[i] = e.apply(n.kids[i], h-1, lo, hi, base+i*step)
	}
	return n
}

// own returns a node that this map may change in place.
func (m *Map) own(n *node, h int) *node {
	switch {
	case n == nil && h == 0:
		return &node{owner: m.owner}
	case n == nil:
		return &node{owner: m.owner, kids: new([fan]*node)}
	case n.owner == m.owner:
		return n
	case h == 0:
		return &node{owner: m.owner, runs: slices.Clone(n.runs), used: 1}
	}
	c := &node{owner: m.owner, kids: new([fan]*node)}
	*c.kids = *n.kids
	if n.pages != nil {
		c.pages = new([fan]Page)
		*c.pages = *n.pages
	}
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
		n.kids = new([fan]*node)
		kid := e.full(h - 1)
		for i := range n.kids {
			n.kids[i] = kid
		}
	}
	e.fill[h] = n
	return n
}

func (e *edit) drop(n *node, h int) {
	if n == nil {
		return
	}
	if h == 0 {
		for _, r := range n.runs {
			e.dropped(r.value(), uint64(r.N))
		}
		return
	}
	if h == 1 && n.pages != nil {
		for i := range uint64(fan) {
			if n.absent(i) {
				panic("extent: deletion of a leaf that is not loaded")
			}
		}
	}
	if e.m.Dropped == nil && h == 1 {
		return
	}
	for _, k := range n.kids {
		e.drop(k, h-1)
	}
}

func (e *edit) dropped(v Value, n uint64) {
	if e.m.Dropped != nil && !v.IsZero() {
		e.m.Dropped(v.Src, n)
	}
}

// splice replaces the addresses [lo,hi) of an owned leaf; start is where e.v
// begins.
func (e *edit) splice(n *node, lo, hi, start, base uint64) {
	a, b := uint16(lo-base), uint16(hi-base)
	runs := n.runs
	i := sort.Search(len(runs), func(i int) bool { return runs[i].end() > a })
	j := i
	for ; j < len(runs) && runs[j].Start < b; j++ {
		e.dropped(runs[j].value(), uint64(min(runs[j].end(), b)-max(runs[j].Start, a)))
	}
	var room [5]Run
	rep := room[:0]
	if i < j && runs[i].Start < a {
		left := runs[i]
		left.N = a - left.Start
		rep = append(rep, left)
	} else if i > 0 && runs[i-1].end() == a {
		i--
		rep = append(rep, runs[i])
	}
	if e.set {
		v := e.v.Skip(lo - start)
		rep = join(rep, Run{Start: a, N: b - a, Off: v.Off, Src: v.Src})
	}
	if j > 0 && j > i && runs[j-1].end() > b {
		rep = join(rep, runs[j-1].from(b))
	} else if j < len(runs) && runs[j].Start == b {
		rep = join(rep, runs[j])
		j++
	}
	n.runs = slices.Replace(runs, i, j, rep...)
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
			if h == 1 && n.absent(i) {
				panic("extent: walk of a leaf that is not loaded")
			}
			if !w.walk(n.kids[i], h-1, base+i*step) {
				return false
			}
		}
		return true
	}
	if atomic.LoadUint32(&n.used) == 0 {
		atomic.StoreUint32(&n.used, 1)
	}
	from := sort.Search(len(n.runs), func(i int) bool { return base+uint64(n.runs[i].end()) > w.lo })
	for _, r := range n.runs[from:] {
		lo, hi := base+uint64(r.Start), base+uint64(r.end())
		if lo >= w.hi {
			break
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

// State says what is known of an address.
type State uint8

// The states.
const (
	Unmapped State = iota
	Mapped
	Absent // its leaf is not loaded
)

// Get returns the value of block lba and for how many blocks from it the
// answer holds at least. It does not allocate and does not look beyond one
// leaf.
func (m *Map) Get(lba uint64) (v Value, n uint64, is State) {
	x, h := m.root, m.height
	for x != nil && h > 0 {
		h--
		i := lba >> (leafShift + fanShift*h) & (fan - 1)
		if h == 0 && x.absent(i) {
			return Value{}, LeafBlocks - lba&(LeafBlocks-1), Absent
		}
		x = x.kids[i]
	}
	if x == nil {
		return Value{}, span(h) - lba&(span(h)-1), Unmapped
	}
	if atomic.LoadUint32(&x.used) == 0 {
		atomic.StoreUint32(&x.used, 1)
	}
	b := uint16(lba & (LeafBlocks - 1))
	lo, hi := 0, len(x.runs) // the first run that ends after b
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); x.runs[mid].end() <= b {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	switch {
	case lo == len(x.runs):
		return Value{}, uint64(LeafBlocks - b), Unmapped
	case x.runs[lo].Start > b:
		return Value{}, uint64(x.runs[lo].Start - b), Unmapped
	}
	r := x.runs[lo].from(b)
	return r.value(), uint64(r.N), Mapped
}

// MaxBlocks is how many blocks the largest disk has, 16 TiB. All maps are made
// for so many: it gives them the same height.
const MaxBlocks = 16 << 40 / 4096
