// Package s3fifo decides which entries of a cache stay. New entries pass
// through a small FIFO of a share of the space; those read again there move to
// the main FIFO, those not are forgotten, but a ghost of them is kept: what
// comes back soon enters main at once. Main gives what was read since it came
// around another turn. So one pass over much data evicts only that share.
//
// Entries are small integers that the user gives out, with costs in bytes. A
// Policy is not safe for concurrent use.
package s3fifo

// maxFreq bounds how many turns an entry can earn.
const maxFreq = 3

const none = -1

type queue uint8

const (
	out queue = iota
	small
	main
)

type node struct {
	prev, next int32 // prev is towards the head, where entries come in
	cost       uint32
	queue      queue
	freq       uint8
	hash       uint32
}

type fifo struct {
	head, tail int32
	bytes      int64
}

// Policy is the state of one cache.
type Policy struct {
	nodes []node
	q     [3]fifo
	limit int64
	share int64    // of the small queue
	ghost []uint64 // by hash: hash and clock of the eviction
	clock uint32
}

// New returns the policy of a cache of limit bytes, share of them for the
// small queue, whose entries have about usual bytes each.
func New(limit, share, usual int64) *Policy {
	p := &Policy{limit: limit, share: share, ghost: make([]uint64, 2*max(limit/max(usual, 1), 1))}
	for i := range p.q {
		p.q[i] = fifo{head: none, tail: none}
	}
	return p
}

// Resize changes the limit and the share. The caller takes victims until all
// fits.
func (p *Policy) Resize(limit, share int64) { p.limit, p.share = limit, share }

// Bytes is the cost of all entries.
func (p *Policy) Bytes() int64 { return p.q[small].bytes + p.q[main].bytes }

// Fits reports whether an entry of this cost can be added without a victim.
func (p *Policy) Fits(cost int64) bool { return p.Bytes()+cost <= p.limit }

// Add adds the entry id, which is not in. With hot it skips the small queue.
func (p *Policy) Add(id int32, hash uint64, cost int64, hot bool) {
	for int(id) >= len(p.nodes) {
		p.nodes = append(p.nodes, node{})
	}
	n := &p.nodes[id]
	*n = node{cost: uint32(cost), hash: uint32(hash)}
	to := small
	if hot || p.haunted(n.hash) {
		to = main
	}
	p.push(id, to)
}

// Touch notes that the entry was read.
func (p *Policy) Touch(id int32) {
	if n := &p.nodes[id]; n.freq < maxFreq {
		n.freq++
	}
}

// Remove takes an entry out without a ghost.
func (p *Policy) Remove(id int32) { p.unlink(id) }

// Victim takes out the entry that should go; ok is false if there is none.
func (p *Policy) Victim() (id int32, ok bool) {
	for {
		s, m := &p.q[small], &p.q[main]
		if s.tail != none && (s.bytes > p.share || m.tail == none) {
			id := s.tail
			p.unlink(id)
			if n := &p.nodes[id]; n.freq > 1 {
				n.freq = 0
				p.push(id, main)
				continue
			}
			p.haunt(p.nodes[id].hash)
			return id, true
		}
		if m.tail == none {
			return 0, false
		}
		id := m.tail
		p.unlink(id)
		if n := &p.nodes[id]; n.freq > 0 {
			n.freq--
			p.push(id, main)
			continue
		}
		return id, true
	}
}

func (p *Policy) push(id int32, to queue) {
	n, q := &p.nodes[id], &p.q[to]
	n.queue, n.prev, n.next = to, none, q.head
	if q.head != none {
		p.nodes[q.head].prev = id
	} else {
		q.tail = id
	}
	q.head = id
	q.bytes += int64(n.cost)
}

func (p *Policy) unlink(id int32) {
	n := &p.nodes[id]
	q := &p.q[n.queue]
	if n.prev != none {
		p.nodes[n.prev].next = n.next
	} else {
		q.head = n.next
	}
	if n.next != none {
		p.nodes[n.next].prev = n.prev
	} else {
		q.tail = n.prev
	}
	q.bytes -= int64(n.cost)
	n.queue = out
}

// haunt remembers an eviction until as many others have followed as the cache
// has room for entries.
func (p *Policy) haunt(hash uint32) {
	p.clock++
	p.ghost[int(hash)%len(p.ghost)] = uint64(hash)<<32 | uint64(p.clock)
}

func (p *Policy) haunted(hash uint32) bool {
	g := p.ghost[int(hash)%len(p.ghost)]
	return g != 0 && uint32(g>>32) == hash && p.clock-uint32(g) <= uint32(len(p.ghost)/2)
}
