package kit

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// thing and part are two kinds, made by hand so that the tests need no domain.
type thing struct {
	schema.Meta
	Spec thingSpec
}

type thingSpec struct{ Value, Owner string }

func (*thing) EntityKind() *schema.Kind { return thingKind }
func (t *thing) SpecPtr() any           { return &t.Spec }
func (*thing) StatusPtr() any           { return &struct{}{} }

type part struct{ thing }

func (*part) EntityKind() *schema.Kind { return partKind }

var thingKind, partKind *schema.Kind

func init() {
	thingKind = &schema.Kind{Name: "thing", Plural: "things", Prefix: "th", Decode: func(r *schema.Record) (schema.Object, error) {
		t := &thing{Meta: r.Meta}
		return t, json.Unmarshal(r.Spec, &t.Spec)
	}}
	partKind = &schema.Kind{Name: "part", Plural: "parts", Prefix: "pt", Decode: func(r *schema.Record) (schema.Object, error) {
		p := &part{thing{Meta: r.Meta}}
		return p, json.Unmarshal(r.Spec, &p.Spec)
	}}
}

// memory is an entity.Reader over a history in memory, with faults.
type memory struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change
	now     map[schema.ID]schema.Record
	log     []entity.Event
	floor   schema.Revision
	down    bool
	lists   int
}

func newMemory() *memory {
	return &memory{changed: make(chan struct{}), now: map[schema.ID]schema.Record{}}
}

func (m *memory) update(fn func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn()
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *memory) put(kind string, id schema.ID, s thingSpec) {
	b, _ := json.Marshal(s)
	m.update(func() {
		rev := schema.Revision(len(m.log) + 1)
		r := schema.Record{Kind: kind, Meta: schema.Meta{ID: id, Revision: rev}, Spec: b}
		m.now[id] = r
		m.log = append(m.log, entity.Event{Type: entity.EventPut, Record: r, Token: schema.Token{Revision: rev}})
	})
}

func (m *memory) delete(id schema.ID) {
	m.update(func() {
		rev := schema.Revision(len(m.log) + 1)
		r := m.now[id]
		r.Revision = rev
		delete(m.now, id)
		m.log = append(m.log, entity.Event{Type: entity.EventDelete, Record: r, Token: schema.Token{Revision: rev}})
	})
}

// compact makes every running watch fail, and every position so far gone.
func (m *memory) compact() { m.update(func() { m.floor = schema.Revision(len(m.log) + 1) }) }

func (m *memory) setDown(down bool) { m.update(func() { m.down = down }) }

func (m *memory) Get(_ context.Context, kind string, id schema.ID) (schema.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.now[id]
	switch {
	case m.down:
		return r, errs.New(errs.Unavailable, "down")
	case !ok:
		return r, errs.New(errs.NotFound, "%s %s", kind, id)
	}
	return r, nil
}

func (m *memory) List(_ context.Context, q entity.Query) (entity.Page, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return entity.Page{}, errs.New(errs.Unavailable, "down")
	}
	m.lists++
	rev := schema.Revision(len(m.log))
	if m.floor > rev { // the listing after a compaction is above the floor
		m.floor = rev
	}
	p := entity.Page{Token: schema.Token{Revision: rev}}
	for _, r := range m.now {
		if r.Kind == q.Kind {
			p.Records = append(p.Records, r)
		}
	}
	slices.SortFunc(p.Records, func(a, b schema.Record) int { return int(a.Revision - b.Revision) })
	return p, nil
}

func (m *memory) Watch(_ context.Context, q entity.WatchQuery) (entity.Watch, error) {
	return &memoryWatch{m: m, kind: q.Kind, at: q.From.Revision}, nil
}

type memoryWatch struct {
	m    *memory
	kind string
	at   schema.Revision
}

func (w *memoryWatch) Close() {}

func (w *memoryWatch) Next(ctx context.Context) ([]entity.Event, error) {
	for {
		w.m.mu.Lock()
		wait := w.m.changed
		if w.m.down {
			w.m.mu.Unlock()
			return nil, errs.New(errs.Unavailable, "down")
		}
		if w.at < w.m.floor {
			w.m.mu.Unlock()
			return nil, errs.New(errs.Compacted, "below %d", w.m.floor)
		}
		var out []entity.Event
		for _, e := range w.m.log[w.at:] {
			if e.Record.Kind == w.kind {
				out = append(out, e)
			}
		}
		w.at = schema.Revision(len(w.m.log))
		w.m.mu.Unlock()
		if len(out) > 0 {
			return out, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
