// Package history has an entity.Reader over a list of changes in memory, whose
// failures a test chooses. It serves tests of packages that follow a store, in
// a bubble of testing/synctest, where a real store cannot run. The promises of
// a real store are tested with a real one: see entity/storetest.
package history

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Reader is an entity.Reader. It is safe for concurrent use.
type Reader struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change
	epoch   int
	now     map[schema.ID]schema.Record
	log     []entity.Event // changes of this epoch; the revision is the index plus 1
	floor   schema.Revision
	fail    error
	lists   int
}

var _ entity.Reader = (*Reader)(nil)

// New returns a Reader without entities, at revision 0.
func New() *Reader {
	return &Reader{changed: make(chan struct{}), now: map[schema.ID]schema.Record{}}
}

func (r *Reader) update(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Reader) token(rev schema.Revision) schema.Token {
	return schema.Token{Epoch: fmt.Sprint("epoch-", r.epoch), Revision: rev}
}

// Put creates or replaces an entity and returns its revision.
func (r *Reader) Put(kind string, id schema.ID, spec []byte) (rev schema.Revision) {
	r.update(func() {
		rev = schema.Revision(len(r.log) + 1)
		rec := schema.Record{Kind: kind, Meta: schema.Meta{ID: id, Revision: rev, CreateRevision: rev}, Spec: spec}
		if old, ok := r.now[id]; ok {
			rec.CreateRevision = old.CreateRevision
		}
		r.now[id] = rec
		r.log = append(r.log, entity.Event{Type: entity.EventPut, Record: rec, Token: r.token(rev)})
	})
	return rev
}

// Delete deletes an existing entity and returns the revision.
func (r *Reader) Delete(id schema.ID) (rev schema.Revision) {
	r.update(func() {
		rev = schema.Revision(len(r.log) + 1)
		rec := r.now[id]
		rec.Revision = rev
		delete(r.now, id)
		r.log = append(r.log, entity.Event{Type: entity.EventDelete, Record: rec, Token: r.token(rev)})
	})
	return rev
}

// Compact invalidates every position so far, and makes running watches fail.
func (r *Reader) Compact() { r.update(func() { r.floor = schema.Revision(len(r.log) + 1) }) }

// Restore goes back to the state at a revision and begins a new epoch there, as
// a restored backup does: revisions after it are used again.
func (r *Reader) Restore(to schema.Revision) {
	r.update(func() {
		r.epoch++
		r.floor = 0
		r.log = slices.Clone(r.log[:to])
		r.now = map[schema.ID]schema.Record{}
		for i := range r.log {
			e := &r.log[i]
			e.Token.Epoch = r.token(0).Epoch
			if e.Type == entity.EventPut {
				r.now[e.Record.ID] = e.Record
			} else {
				delete(r.now, e.Record.ID)
			}
		}
	})
}

// Fail makes every call fail with err, until Fail(nil).
func (r *Reader) Fail(err error) { r.update(func() { r.fail = err }) }

// Lists returns how many listings there were.
func (r *Reader) Lists() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lists
}

// Get implements entity.Reader.
func (r *Reader) Get(_ context.Context, kind string, id schema.ID) (schema.Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return schema.Record{}, r.fail
	}
	rec, ok := r.now[id]
	if !ok || rec.Kind != kind {
		return rec, errs.New(errs.NotFound, "%s %s does not exist", kind, id)
	}
	return rec, nil
}

// List implements entity.Reader.
func (r *Reader) List(_ context.Context, q entity.Query) (entity.Page, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return entity.Page{}, r.fail
	}
	r.lists++
	rev := schema.Revision(len(r.log))
	r.floor = min(r.floor, rev) // a listing after a compaction is above the floor
	p := entity.Page{Token: r.token(rev)}
	for _, rec := range r.now {
		if rec.Kind == q.Kind {
			p.Records = append(p.Records, rec)
		}
	}
	slices.SortFunc(p.Records, func(a, b schema.Record) int { return cmp.Compare(a.ID, b.ID) })
	return p, nil
}

// Watch implements entity.Reader. It supports Kinds, From and Bookmarks of the
// query.
func (r *Reader) Watch(_ context.Context, q entity.WatchQuery) (entity.Watch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return nil, r.fail
	}
	from := q.From
	if from == (schema.Token{}) {
		from = r.token(schema.Revision(len(r.log)))
	}
	return &watch{r: r, kinds: q.Kinds, bookmarks: q.Bookmarks, at: from}, nil
}

type watch struct {
	r         *Reader
	kinds     []string
	bookmarks time.Duration
	at        schema.Token
	sent      time.Time // when the watch last returned events; zero: never
}

func (w *watch) Close() {}

func (w *watch) Next(ctx context.Context) ([]entity.Event, error) {
	for {
		events, wait, err := w.take()
		if len(events) > 0 || err != nil {
			return events, err
		}
		var mark <-chan time.Time
		if w.bookmarks > 0 {
			mark = time.After(time.Until(w.sent.Add(w.bookmarks)))
		}
		select {
		case <-wait:
		case <-mark:
		case <-ctx.Done():
			return nil, errs.New(errs.ClassOf(ctx.Err()), "watch: %w", ctx.Err())
		}
	}
}

func (w *watch) take() ([]entity.Event, <-chan struct{}, error) {
	r := w.r
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.token(schema.Revision(len(r.log)))
	switch {
	case r.fail != nil:
		return nil, nil, r.fail
	case w.at.Epoch != last.Epoch:
		return nil, nil, errs.New(errs.Compacted, "a new epoch began")
	case w.at.Revision < r.floor, w.at.Revision > last.Revision:
		return nil, nil, errs.New(errs.Compacted, "position %d is gone", w.at.Revision)
	}
	var out []entity.Event
	for _, e := range r.log[w.at.Revision:] {
		if len(w.kinds) == 0 || slices.Contains(w.kinds, e.Record.Kind) {
			out = append(out, e)
		}
	}
	due := w.bookmarks > 0 && time.Since(w.sent) >= w.bookmarks
	if w.at = last; w.sent.IsZero() || due && len(out) == 0 {
		out = append(out, entity.Event{Type: entity.EventBookmark, Token: last})
	}
	if len(out) > 0 {
		w.sent = time.Now()
	}
	return out, r.changed, nil
}
