package pgstore

import (
	"sync"
	"sync/atomic"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/schema"
)

// Bounds of a ring. A watcher that falls this far behind is closed.
const (
	ringEvents = 8192
	ringBytes  = 4 << 20
)

// entry is one change as the rings hold it. All of it is shared and never
// modified.
type entry struct {
	rev  schema.Revision
	typ  entity.EventType
	rec  *schema.Record
	size int
	// values are the indexed values of rec; departed are those that the change
	// removed.
	values   *values
	departed []schema.IndexEntry
}

// values are the indexed values of a record, extracted when they are first
// needed unless they are known.
type values struct {
	kind *schema.Kind // nil: they are known
	once sync.Once
	list []schema.IndexEntry
}

func (e *entry) indexed() []schema.IndexEntry {
	v := e.values
	if v.kind != nil {
		v.once.Do(func() {
			if ext, err := eval.Extract(v.kind, e.rec); err == nil {
				v.list = ext.Index
			}
		})
	}
	return v.list
}

// ring holds the newest changes of one kind, or of all ("").
type ring struct {
	entries []entry
	bytes   int
	low     schema.Revision // entries holds every later change up to hub.last
}

func (r *ring) push(e entry) {
	r.entries = append(r.entries, e)
	r.bytes += e.size
}

// trim drops the older half when the ring is over a bound, in whole revisions,
// so that one copy serves many pushes.
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

// interest is the key under which watchers are found: an id, an indexed value,
// or a kind.
type interest struct {
	by   uint8
	a, b string
}

const (
	byKind  uint8 = iota // holds a kind; empty: every kind
	byID                 // holds an id
	byValue              // holds an attribute and a value
)

// interests returns the keys of a query: the most selective ones.
func interests(q *entity.WatchQuery) []interest {
	switch {
	case len(q.IDs) > 0:
		out := make([]interest, len(q.IDs))
		for i, id := range q.IDs {
			out[i] = interest{byID, string(id), ""}
		}
		return out
	case q.Select != nil:
		return []interest{{byValue, q.Select.Attr, string(q.Select.Value)}}
	case len(q.Kinds) > 0:
		out := make([]interest, len(q.Kinds))
		for i, k := range q.Kinds {
			out[i] = interest{byKind, k, ""}
		}
		return out
	}
	return []interest{{byKind, "", ""}}
}

// hub distributes changes to watchers. Two sources feed it in revision order:
// the batcher, with its own commits, and the tailer, with those of other
// servers.
//
// A change wakes the watchers that select it and costs the others nothing.
type hub struct {
	maxEvents, maxBytes int
	wakes               func() // called once for each watcher that is woken

	selecting atomic.Int64 // watchers that are found by value

	mu      sync.Mutex // a leaf: nothing else is locked under it
	epoch   string
	began   schema.Revision // where the history begins
	last    schema.Revision // every change up to here has been fed
	rings   map[string]*ring
	watches map[interest]map[*watch]struct{}
	checked time.Time // when the tailer last saw that no change is missing
	closed  bool
	reset   chan struct{} // closed when epoch or closed changes, then replaced
	gap     chan struct{} // holds a token when the tailer must read the log
}

func newHub(maxEvents, maxBytes int, wakes func()) *hub {
	return &hub{
		maxEvents: maxEvents, maxBytes: maxBytes, wakes: wakes, rings: map[string]*ring{}, watches: map[interest]map[*watch]struct{}{},
		reset: make(chan struct{}), gap: make(chan struct{}, 1),
	}
}

// ring returns the ring of a kind; mu is held.
func (h *hub) ring(kind string) *ring {
	r, ok := h.rings[kind]
	if !ok {
		r = &ring{low: h.began} // the kind has had no change since
		h.rings[kind] = r
	}
	return r
}

// add registers w and gives it the changes after its position that it selects.
func (h *hub) add(w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range interests(&w.q) {
		if k.by == byValue {
			h.selecting.Add(1)
		}
		if h.watches[k] == nil {
			h.watches[k] = map[*watch]struct{}{}
		}
		h.watches[k][w] = struct{}{}
	}
	if w.pos < h.last {
		w.pending = w.pos + 1
	}
}

// remove undoes add.
func (h *hub) remove(w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range interests(&w.q) {
		if k.by == byValue {
			h.selecting.Add(-1)
		}
		if delete(h.watches[k], w); len(h.watches[k]) == 0 {
			delete(h.watches, k)
		}
	}
}

// wakeWatchers wakes the watchers that select e; mu is held.
func (h *hub) wakeWatchers(e *entry) {
	h.tellEach(e, interest{byKind, e.rec.Kind, ""})
	h.tellEach(e, interest{byKind, "", ""})
	h.tellEach(e, interest{byID, string(e.rec.ID), ""})
	if h.selecting.Load() == 0 {
		return
	}
	for _, list := range [...][]schema.IndexEntry{e.indexed(), e.departed} {
		for _, x := range list {
			h.tellEach(e, interest{byValue, x.Attr, string(x.Value)})
		}
	}
}

func (h *hub) tellEach(e *entry, k interest) {
	for w := range h.watches[k] {
		if w.pending != 0 || e.rev <= w.q.From.Revision || w.wants(e) == 0 {
			continue
		}
		w.pending = e.rev
		select {
		case w.wake <- struct{}{}:
			h.wakes()
		default:
		}
	}
}

// begin starts a history at a revision, ending every watch of another epoch.
func (h *hub) begin(epoch string, rev schema.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.epoch, h.began, h.last, h.rings = epoch, rev, rev, map[string]*ring{}
	h.checked = time.Now()
	close(h.reset)
	h.reset = make(chan struct{})
}

// feed adds changes in revision order and leaves out known ones. It reports
// whether they continue the known changes; if not, it adds nothing.
func (h *hub) feed(epoch string, from, to schema.Revision, entries []entry) bool {
	if h.selecting.Load() > 0 {
		for i := range entries {
			entries[i].indexed() // extract outside mu, as far as that can be foreseen
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if epoch != h.epoch || from > h.last+1 {
		return false
	}
	if to <= h.last {
		return true
	}
	touched := map[string]*ring{}
	for i := range entries {
		e := &entries[i]
		if e.rev <= h.last {
			continue
		}
		for _, kind := range [...]string{e.rec.Kind, ""} {
			r, ok := touched[kind]
			if !ok {
				r = h.ring(kind)
				touched[kind] = r
			}
			r.push(*e)
		}
		h.wakeWatchers(e)
	}
	h.last = to
	for _, r := range touched {
		r.trim(h.maxEvents, h.maxBytes)
	}
	return true
}

// publish feeds the changes that this store has just committed.
func (h *hub) publish(out *eval.Outcome) {
	if out.First == 0 {
		return
	}
	var entries []entry
	for _, a := range out.Accepted {
		for _, c := range a.Draft.Changes {
			if c.New == nil {
				entries = append(entries, deleted(c.Old.Rec, len(c.Old.Raw), a.Revision, &values{list: c.Old.Ext.Index}))
				continue
			}
			entries = append(entries, entry{
				rev: a.Revision, typ: entity.EventPut, rec: c.New.Rec, size: len(c.New.Raw),
				values: &values{list: c.New.Ext.Index}, departed: c.Departed,
			})
		}
	}
	if !h.feed(out.Epoch, out.First, out.Last, entries) {
		h.wakeTailer()
	}
}

// deleted is the entry of a deletion: the last object, at its revision.
func deleted(last *schema.Record, size int, rev schema.Revision, v *values) entry {
	rec := *last
	rec.Revision = rev
	return entry{rev: rev, typ: entity.EventDelete, rec: &rec, size: size, values: v}
}

// wakeTailer makes the tailer read the log.
func (h *hub) wakeTailer() {
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
