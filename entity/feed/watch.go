package feed

import (
	"context"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// watchBatch bounds the events that one Next returns, except for a single
// revision with more.
const watchBatch = 1000

// Watch is the method of entity.Reader.
func (h *Hub) Watch(ctx context.Context, q entity.WatchQuery) (entity.Watch, error) {
	if err := h.checkWatch(&q); err != nil {
		return nil, err
	}
	q.Kinds, q.IDs = slices.Clone(q.Kinds), slices.Clone(q.IDs)
	w := &watch{h: h, q: q, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	if len(q.Kinds) == 1 {
		w.kind = q.Kinds[0]
	}
	epoch, last := h.Where()
	switch {
	case q.From == (schema.Token{}):
		w.epoch, w.pos = epoch, last
	case q.From.Epoch != epoch:
		// The tailer may not know the epoch yet.
		if err := h.cfg.Source.Poll(ctx); err != nil {
			return nil, err
		}
		if epoch, _ = h.Where(); q.From.Epoch != epoch {
			return nil, eval.Compacted(q.From, "the store began a new epoch")
		}
		fallthrough
	default:
		w.epoch, w.pos = q.From.Epoch, q.From.Revision
		if err := h.checkPosition(ctx, w.kind, w.token()); err != nil {
			return nil, err
		}
	}
	w.sent = time.Now()
	h.cfg.Watching(1)
	h.add(w)
	w.close = sync.OnceFunc(func() {
		close(w.done)
		h.remove(w)
		h.cfg.Watching(-1)
	})
	return w, nil
}

func (h *Hub) checkWatch(q *entity.WatchQuery) error {
	for _, k := range q.Kinds {
		if _, err := h.cfg.Eval.Kind(k); err != nil {
			return err
		}
	}
	switch {
	case q.Bookmarks < 0 || q.From.Revision < 0:
		return errs.New(errs.InvalidArgument, "negative bookmark interval or revision")
	case len(q.IDs) > entity.MaxWatchIDs:
		return errs.New(errs.InvalidArgument, "a watch of %d ids; at most %d are allowed", len(q.IDs), entity.MaxWatchIDs).
			WithHint("watch the kind, or with a selector")
	case q.Select != nil && q.Select.Attr == "":
		return errs.New(errs.InvalidArgument, "a selector without an attribute")
	}
	return nil
}

// checkPosition checks that the store can continue from a position.
func (h *Hub) checkPosition(ctx context.Context, kind string, t schema.Token) error {
	h.mu.Lock()
	covered := t.Epoch == h.epoch && t.Revision <= h.last && t.Revision >= h.ring(kind).low
	h.mu.Unlock()
	if covered {
		return nil
	}
	p, err := h.cfg.Source.Position(ctx)
	switch {
	case err != nil:
		return err
	case p.Epoch != t.Epoch:
		return eval.Compacted(t, "the store began a new epoch")
	case t.Revision > p.Last:
		return eval.Compacted(t, "the store has not got that far")
	case t.Revision < p.Floor:
		return eval.Compacted(t, "the log was compacted")
	}
	return nil
}

// watch is one running watch. It has no goroutine and no buffer: Next reads
// the hub's ring, or the log while the position is older than the ring.
type watch struct {
	h     *Hub
	q     entity.WatchQuery
	kind  string // kind whose ring is read; empty: the ring of all kinds
	done  chan struct{}
	wake  chan struct{} // holds a token when pending was set
	close func()

	// pending is the first revision that may hold a selected change and was not
	// returned; 0 if there is none up to hub.last. The hub's mu guards it.
	pending schema.Revision

	// Used by Next only.
	epoch  string
	pos    schema.Revision // every event up to here has been returned
	live   bool            // the watch has caught up with the ring once
	marked bool            // the first bookmark was sent
	sent   time.Time       // when Next last returned
	failed error
}

// wants returns the type of the event that e is for this watch, 0 if it is
// none.
func (w *watch) wants(e *Entry) entity.EventType {
	switch q := &w.q; {
	case len(q.Kinds) > 0 && !slices.Contains(q.Kinds, e.rec.Kind),
		q.Project != "" && e.rec.Project != q.Project,
		len(q.IDs) > 0 && !slices.Contains(q.IDs, e.rec.ID):
		return 0
	case q.Select == nil, eval.HasValue(e.indexed(), q.Select.Attr, q.Select.Value):
		return e.typ
	case eval.HasValue(e.departed, q.Select.Attr, q.Select.Value):
		return entity.EventLeave
	}
	return 0
}

func (w *watch) token() schema.Token { return schema.Token{Epoch: w.epoch, Revision: w.pos} }

// Close implements entity.Watch.
func (w *watch) Close() { w.close() }

// Next implements entity.Watch.
func (w *watch) Next(ctx context.Context) ([]entity.Event, error) {
	for {
		select {
		case <-w.done:
			return nil, errs.New(errs.Canceled, "the watch is closed")
		default:
		}
		if ctx.Err() != nil {
			return nil, eval.ContextError(ctx, "watch")
		}
		if w.failed != nil {
			return nil, w.failed
		}
		evs, reset, err := w.available(ctx)
		if err != nil {
			if c := errs.ClassOf(err); c == errs.Compacted || c == errs.ResourceExhausted {
				w.failed = err
			}
			return nil, err
		}
		if len(evs) > 0 {
			w.sent = time.Now()
			return evs, nil
		}
		if reset != nil {
			w.wait(ctx, reset)
		}
	}
}

// wait waits until there may be events to take.
func (w *watch) wait(ctx context.Context, reset <-chan struct{}) {
	var mark <-chan time.Time
	if !w.marked || w.q.Bookmarks > 0 {
		d := time.Until(w.sent.Add(w.q.Bookmarks))
		if !w.marked {
			d = 0 // the first bookmark waits only for the tailer
		}
		timer := time.NewTimer(max(d, 50*time.Millisecond))
		defer timer.Stop()
		mark = timer.C
	}
	select {
	case <-ctx.Done():
	case <-w.done:
	case <-w.wake:
	case <-reset:
	case <-mark:
	}
}

// available returns the pending events. If there are none it returns a channel
// that ends the wait for them, besides a wake; nil: call available again.
func (w *watch) available(ctx context.Context) (evs []entity.Event, reset <-chan struct{}, err error) {
	h := w.h
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil, nil, eval.ErrClosed()
	}
	if h.epoch != w.epoch {
		h.mu.Unlock()
		return nil, nil, eval.Compacted(w.token(), "the store began a new epoch")
	}
	r, from := h.ring(w.kind), w.pending
	if from != 0 && from <= r.low {
		low := r.low
		h.mu.Unlock()
		if w.live {
			e := errs.New(errs.ResourceExhausted, "the watcher at revision %d is too slow: %d is the oldest kept for it", w.pos, low)
			return nil, nil, e.WithHint("watch again from the last token")
		}
		evs, err := w.catchUp(ctx, low)
		return evs, nil, err
	}
	w.live = true
	var entries []Entry
	if from != 0 {
		entries = r.after(from - 1)
		w.pending = 0
	}
	last, checked, reset := h.last, h.checked, h.reset
	h.mu.Unlock()
	// The entries are never modified in place: they can be read without mu.
	evs, w.pos = w.events(entries, max(last, w.pos))
	if w.pos < last {
		w.resume(w.pos + 1)
		return evs, nil, nil
	}
	due := w.q.Bookmarks > 0 && time.Since(w.sent) >= w.q.Bookmarks
	if last >= w.q.From.Revision && (!w.marked || due && len(evs) == 0) && !h.stale(checked) {
		w.marked = true
		evs = append(evs, entity.Event{Type: entity.EventBookmark, Token: w.token()})
	}
	return evs, reset, nil
}

// stale reports whether changes may be missing, as nobody has looked for too
// long.
func (h *Hub) stale(checked time.Time) bool {
	return h.cfg.StaleAfter > 0 && time.Since(checked) >= h.cfg.StaleAfter
}

// resume makes available read from a revision on again.
func (w *watch) resume(from schema.Revision) {
	h := w.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.pending = from; from > h.last {
		w.pending = 0
	}
}

// catchUp reads one page of the log up to where the ring begins.
func (w *watch) catchUp(ctx context.Context, to schema.Revision) ([]entity.Event, error) {
	entries, to, err := w.h.cfg.Source.Changes(ctx, w.epoch, w.pos, to, w.q.Kinds, w.q.IDs)
	if err != nil {
		return nil, err
	}
	var evs []entity.Event
	evs, w.pos = w.events(entries, to)
	w.resume(w.pos + 1)
	return evs, nil
}

// events selects from entries, which are complete up to a revision, and returns
// the revision that it reached: whole revisions, at most watchBatch events
// unless a single revision has more.
func (w *watch) events(entries []Entry, to schema.Revision) ([]entity.Event, schema.Revision) {
	var evs []entity.Event
	for i := range entries {
		e := &entries[i]
		if i > 0 && len(evs) >= watchBatch && entries[i-1].Rev != e.Rev {
			return w.seal(evs), entries[i-1].Rev
		}
		if typ := w.wants(e); typ != 0 {
			evs = append(evs, entity.Event{Type: typ, Record: *e.rec, Token: schema.Token{Epoch: w.epoch, Revision: e.Rev}})
		}
	}
	return w.seal(evs), to
}

// seal sets the tokens. Resuming within a transaction would lose the rest of
// it, so all events of a revision but the last resume before it.
func (w *watch) seal(evs []entity.Event) []entity.Event {
	for i := 0; i+1 < len(evs); i++ {
		if evs[i].Token.Revision == evs[i+1].Token.Revision {
			evs[i].Token.Revision--
		}
	}
	return evs
}
