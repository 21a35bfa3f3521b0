// Package feed distributes the changes of an entity store to its watches, whatever
// the database is: it imports none.
//
// A Hub holds the newest changes in rings. It finds the watches of a change by
// their query: kinds, ids, or an indexed value. Watches read the rings, or the log
// of the store while they are older (watch.go). Revisions are dense and are fed in
// order, so a gap cannot be overlooked.
package feed

import (
	"context"
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

// Entry is one change as the rings hold it. All of it is shared and never
// modified.
type Entry struct {
	Rev  schema.Revision
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

func (e *Entry) indexed() []schema.IndexEntry {
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
	entries []Entry
	bytes   int
	low     schema.Revision // entries holds every later change up to hub.last
}

func (r *ring) push(e Entry) {
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
	r.low = r.entries[n-1].Rev
	for n < len(r.entries) && r.entries[n].Rev == r.low {
		left -= r.entries[n].size
		n++
	}
	kept := make([]Entry, len(r.entries)-n, maxEvents+maxEvents/8)
	copy(kept, r.entries[n:])
	r.entries, r.bytes = kept, left
}

// after returns the entries later than rev.
func (r *ring) after(rev schema.Revision) []Entry {
	lo, hi := 0, len(r.entries)
	for lo < hi {
		if mid := (lo + hi) / 2; r.entries[mid].Rev <= rev {
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

// Hub distributes changes to watchers. It is fed in revision order: by the writer
// of its store, with its own commits, and by a tailer if there is one, with those
// of other servers.
//
// A change wakes the watchers that select it and costs the others nothing.
type Hub struct {
	cfg Config

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

// Config of a Hub. Eval and Source are required.
type Config struct {
	Eval   *eval.Evaluator
	Source Source
	// MaxEvents is how many changes of a kind are kept in memory, which is how far
	// a watcher may fall behind; 0: 8192.
	MaxEvents int
	// StaleAfter is the age of the last Checked from which on no bookmark is sent;
	// 0: there are no changes but those that Publish feeds.
	StaleAfter time.Duration
	Woken      func()          // called once for each watch that is woken; nil: not needed
	Watching   func(delta int) // called when a watch begins (1) and ends (-1); nil: not needed
}

// Position is where a store stands.
type Position struct {
	Epoch       string
	Last, Floor schema.Revision // the newest one, and the oldest that can be resumed from
}

// Source is the store that a Hub belongs to. Its errors are returned to the
// callers of watches.
type Source interface {
	// Poll feeds the hub what it may lack.
	Poll(ctx context.Context) error
	Position(ctx context.Context) (Position, error)
	// Changes reads the log after a revision, up to another, in whole revisions;
	// see WholeRevisions. Compacted: part of it is gone.
	Changes(ctx context.Context, epoch string, from, to schema.Revision, kinds []string, ids []schema.ID) ([]Entry, schema.Revision, error)
}

// New returns a Hub that is to Begin.
func New(cfg Config) *Hub {
	if cfg.MaxEvents == 0 {
		cfg.MaxEvents = ringEvents
	}
	if cfg.Woken == nil {
		cfg.Woken = func() {}
	}
	if cfg.Watching == nil {
		cfg.Watching = func(int) {}
	}
	return &Hub{
		cfg: cfg, rings: map[string]*ring{}, watches: map[interest]map[*watch]struct{}{},
		reset: make(chan struct{}), gap: make(chan struct{}, 1),
	}
}

// Where returns the epoch of the hub, and the revision up to which every change
// has been fed.
func (h *Hub) Where() (epoch string, last schema.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.epoch, h.last
}

// SetChecked records when a tailer last saw that no change is missing.
func (h *Hub) SetChecked(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checked = at
}

// Gap holds a token when the tailer must read the log.
func (h *Hub) Gap() <-chan struct{} { return h.gap }

// ring returns the ring of a kind; mu is held.
func (h *Hub) ring(kind string) *ring {
	r, ok := h.rings[kind]
	if !ok {
		r = &ring{low: h.began} // the kind has had no change since
		h.rings[kind] = r
	}
	return r
}

// add registers w and gives it the changes after its position that it selects.
func (h *Hub) add(w *watch) {
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
func (h *Hub) remove(w *watch) {
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
func (h *Hub) wakeWatchers(e *Entry) {
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

func (h *Hub) tellEach(e *Entry, k interest) {
	for w := range h.watches[k] {
		if w.pending != 0 || e.Rev <= w.q.From.Revision || w.wants(e) == 0 {
			continue
		}
		w.pending = e.Rev
		select {
		case w.wake <- struct{}{}:
			h.cfg.Woken()
		default:
		}
	}
}

// Begin starts a history at a revision, ending every watch of another epoch.
func (h *Hub) Begin(epoch string, rev schema.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.epoch, h.began, h.last, h.rings = epoch, rev, rev, map[string]*ring{}
	h.checked = time.Now()
	close(h.reset)
	h.reset = make(chan struct{})
}

// Feed adds changes in revision order and leaves out known ones. It reports
// whether they continue the known changes; if not, it adds nothing.
func (h *Hub) Feed(epoch string, from, to schema.Revision, entries []Entry) bool {
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
		if e.Rev <= h.last {
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
		r.trim(h.cfg.MaxEvents, ringBytes)
	}
	return true
}

// Publish feeds the changes that this store has just committed.
func (h *Hub) Publish(out *eval.Outcome) {
	if out.First == 0 {
		return
	}
	var entries []Entry
	for _, a := range out.Accepted {
		for _, c := range a.Draft.Changes {
			if c.New == nil {
				entries = append(entries, deleted(c.Old.Rec, len(c.Old.Raw), a.Revision, &values{list: c.Old.Ext.Index}))
				continue
			}
			entries = append(entries, Entry{
				Rev: a.Revision, typ: entity.EventPut, rec: c.New.Rec, size: len(c.New.Raw),
				values: &values{list: c.New.Ext.Index}, departed: c.Departed,
			})
		}
	}
	if !h.Feed(out.Epoch, out.First, out.Last, entries) {
		h.wakeTailer()
	}
}

// deleted is the entry of a deletion: the last object, at its revision.
func deleted(last *schema.Record, size int, rev schema.Revision, v *values) Entry {
	rec := *last
	rec.Revision = rev
	return Entry{Rev: rev, typ: entity.EventDelete, rec: &rec, size: size, values: v}
}

// wakeTailer makes the tailer read the log.
func (h *Hub) wakeTailer() {
	select {
	case h.gap <- struct{}{}:
	default:
	}
}

// Close ends every watch.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	close(h.reset)
	h.reset = make(chan struct{})
}

// DecodeEntry makes an entry of a row of the log.
func (h *Hub) DecodeEntry(rev int64, typ int16, raw, departed []byte) (Entry, error) {
	rec, err := eval.DecodeRecord(raw)
	if err != nil {
		return Entry{}, err
	}
	v := &values{kind: h.cfg.Eval.Kinds[rec.Kind]}
	if typ == eval.LogDelete {
		return deleted(rec, len(raw), schema.Revision(rev), v), nil
	}
	e := Entry{Rev: schema.Revision(rev), typ: entity.EventPut, rec: rec, size: len(raw), values: v}
	e.departed, err = eval.DecodeValues(departed)
	return e, err
}

// logPage is how many log entries are read at once.
const logPage = 2000

// WholeRevisions reads a page of the log in whole revisions, at least one if
// there is one. It returns the revision up to which the entries are complete: to,
// or less if the page is full. read returns at most limit entries, in order.
func WholeRevisions(to schema.Revision, read func(limit int) ([]Entry, error)) ([]Entry, schema.Revision, error) {
	for limit := logPage; ; limit *= 10 {
		entries, err := read(limit)
		if err != nil || len(entries) < limit {
			return entries, to, err
		}
		// The last revision may continue after the page.
		n := len(entries) - 1
		for n > 0 && entries[n-1].Rev == entries[n].Rev {
			n--
		}
		if n > 0 {
			return entries[:n], entries[n].Rev - 1, nil
		}
	}
}
