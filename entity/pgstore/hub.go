package pgstore

import (
	"sync"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// Bounds of a ring. A watcher that falls this far behind is closed.
const (
	ringEvents = 8192
	ringBytes  = 4 << 20
)

// entry is one change as the rings hold it. Everything in it is shared and
// never modified.
type entry struct {
	rev  schema.Revision
	typ  entity.EventType
	rec  *schema.Record
	size int
}

// ring holds the newest changes of one kind, or of all ("").
type ring struct {
	entries []entry
	bytes   int
	low     schema.Revision // every later change up to hub.last is in entries
	wake    chan struct{}   // closed when something is added, then replaced
}

func newRing(low schema.Revision) *ring { return &ring{low: low, wake: make(chan struct{})} }

func (r *ring) push(e entry) {
	r.entries = append(r.entries, e)
	r.bytes += e.size
}

// trim drops the older half when the ring is over a bound, whole revisions
// only, so that the copying is paid once per many pushes.
func (r *ring) trim(maxEvents, maxBytes int) {
	if len(r.entries) <= maxEvents && r.bytes <= maxBytes {
		return
	}
	n, left := 0, r.bytes
	for n < len(r.entries) && (len(r.entries)-n > maxEvents/2 || left > maxBytes/2) {
		left -= r.entries[n].size
		n++
	}
	n = max(n, 1)
	r.low = r.entries[n-1].rev
	for n < len(r.entries) && r.entries[n].rev == r.low {
		left -= r.entries[n].size
		n++
	}
	kept := make([]entry, len(r.entries)-n, maxEvents+maxEvents/8)
	copy(kept, r.entries[n:])
	r.entries, r.bytes = kept, left
}

// after returns the entries later than rev.
func (r *ring) after(rev schema.Revision) []entry {
	lo, hi := 0, len(r.entries)
	for lo < hi {
		if mid := (lo + hi) / 2; r.entries[mid].rev <= rev {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return r.entries[lo:]
}

// hub fans changes out to watchers. It is fed in revision order by the
// batcher, with what it has just committed, and by the tailer, with what
// others committed.
type hub struct {
	maxEvents, maxBytes int

	mu      sync.Mutex // a leaf: nothing else is locked under it
	epoch   string
	began   schema.Revision // where the history begins
	last    schema.Revision // everything up to here has been fed
	rings   map[string]*ring
	checked time.Time // when the tailer last saw that nothing is missing
	closed  bool
	reset   chan struct{} // closed when epoch or closed changes, then replaced
	gap     chan struct{} // holds one token when the tailer has to look
}

func newHub(maxEvents, maxBytes int) *hub {
	return &hub{maxEvents: maxEvents, maxBytes: maxBytes, rings: map[string]*ring{}, reset: make(chan struct{}), gap: make(chan struct{}, 1)}
}

// ring returns that of a kind; mu is held.
func (h *hub) ring(kind string) *ring {
	r, ok := h.rings[kind]
	if !ok {
		r = newRing(h.began) // it has had no change since
		h.rings[kind] = r
	}
	return r
}

// begin starts a history at a revision, ending every watch of another epoch.
func (h *hub) begin(epoch string, rev schema.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.rings {
		close(r.wake)
	}
	h.epoch, h.began, h.last, h.rings = epoch, rev, rev, map[string]*ring{}
	h.checked = time.Now()
	close(h.reset)
	h.reset = make(chan struct{})
}

// feed adds changes in revision order; those already known are left out. It
// reports whether they follow on what is known; if not nothing is added.
func (h *hub) feed(epoch string, from, to schema.Revision, entries []entry) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if epoch != h.epoch || from > h.last+1 {
		return false
	}
	if to <= h.last {
		return true
	}
	touched := map[string]*ring{}
	for _, e := range entries {
		if e.rev <= h.last {
			continue
		}
		for _, kind := range [...]string{e.rec.Kind, ""} {
			r, ok := touched[kind]
			if !ok {
				r = h.ring(kind)
				touched[kind] = r
			}
			r.push(e)
		}
	}
	h.last = to
	for _, r := range touched {
		r.trim(h.maxEvents, h.maxBytes)
		close(r.wake)
		r.wake = make(chan struct{})
	}
	return true
}

// publish feeds what this store has just committed.
func (h *hub) publish(out *outcome) {
	if out.first == 0 {
		return
	}
	var entries []entry
	for _, a := range out.accepted {
		for _, c := range a.d.changes {
			if c.new == nil {
				entries = append(entries, deleted(c.old.rec, len(c.old.raw), a.revision))
			} else {
				entries = append(entries, entry{a.revision, entity.EventPut, c.new.rec, len(c.new.raw)})
			}
		}
	}
	if !h.feed(out.epoch, out.first, out.last, entries) {
		h.look()
	}
}

// deleted is the entry of a deletion: the last object, at its revision.
func deleted(last *schema.Record, size int, rev schema.Revision) entry {
	rec := *last
	rec.Revision = rev
	return entry{rev, entity.EventDelete, &rec, size}
}

// look makes the tailer look at the log.
func (h *hub) look() {
	select {
	case h.gap <- struct{}{}:
	default:
	}
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	close(h.reset)
	h.reset = make(chan struct{})
}
