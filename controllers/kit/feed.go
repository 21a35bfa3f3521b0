package kit

import (
	"context"
	"log/slog"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// feed follows the entities of one kind for all controllers that want them:
// it lists, then watches from that revision, and lists again when the position
// is gone. Handlers are called in order of change, from one goroutine; before
// is the previous state, or nil.
type feed struct {
	reader   entity.Reader
	kind     *schema.Kind
	log      *slog.Logger
	retry    Backoff
	handlers []func(before, now schema.Object, gone bool)
	synced   chan struct{} // closed after the first list was delivered

	last map[schema.ID]schema.Object
}

func newFeed(r entity.Reader, k *schema.Kind, log *slog.Logger) *feed {
	return &feed{reader: r, kind: k, log: log.With("kind", k.Name), synced: make(chan struct{}), last: map[schema.ID]schema.Object{}}
}

func (f *feed) run(ctx context.Context) {
	var from schema.Token
	listed := false
	failures := 0
	for ctx.Err() == nil {
		var err error
		if !listed {
			from, err = f.list(ctx)
			if err == nil {
				listed = true
				failures = 0
				select {
				case <-f.synced:
				default:
					close(f.synced)
				}
			}
		}
		if listed {
			var moved bool
			from, moved, err = f.follow(ctx, from)
			if moved {
				failures = 0
			}
			if errs.Is(err, errs.Compacted) {
				f.log.Info("watch position is gone, listing again", "error", err)
				listed = false
				failures = 0 // the store answers: list soon
			}
		}
		if ctx.Err() != nil {
			return
		}
		wait := f.retry.Delay(failures, errs.New(errs.Unavailable, "%w", err))
		if failures++; failures > 1 {
			f.log.Warn("cannot follow entities, keeping the last known state", "error", err, "retry_in", wait)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// list delivers everything that exists, and the deletion of what does not any
// more.
func (f *feed) list(ctx context.Context) (schema.Token, error) {
	q := entity.Query{Kind: f.kind.Name}
	seen := map[schema.ID]bool{}
	for {
		page, err := f.reader.List(ctx, q)
		if err != nil {
			return schema.Token{}, errs.Wrap(err, "list %s", f.kind.Plural)
		}
		for i := range page.Records {
			seen[page.Records[i].ID] = true
			f.put(&page.Records[i])
		}
		if page.Cursor == "" {
			for id, o := range f.last {
				if !seen[id] {
					f.gone(id, o)
				}
			}
			return page.Token, nil
		}
		q.Cursor = page.Cursor
	}
}

// follow watches until it fails. moved tells whether anything was received.
func (f *feed) follow(ctx context.Context, from schema.Token) (_ schema.Token, moved bool, _ error) {
	w, err := f.reader.Watch(ctx, entity.WatchQuery{Kind: f.kind.Name, From: from, Bookmarks: time.Minute})
	if err != nil {
		return from, false, errs.Wrap(err, "watch %s", f.kind.Plural)
	}
	defer w.Close()
	for {
		events, err := w.Next(ctx)
		for i := range events {
			switch e := &events[i]; e.Type {
			case entity.EventPut:
				f.put(&e.Record)
			case entity.EventDelete:
				o, derr := f.kind.Decode(&e.Record)
				if derr != nil {
					f.log.Error("deleted entity cannot be decoded", "id", e.Record.ID, "error", derr)
					if o = f.last[e.Record.ID]; o == nil {
						break
					}
				}
				f.gone(e.Record.ID, o)
			}
			from, moved = events[i].Token, true
		}
		if err != nil {
			return from, moved, errs.Wrap(err, "watch %s", f.kind.Plural)
		}
	}
}

func (f *feed) put(r *schema.Record) {
	o, err := f.kind.Decode(r)
	if err != nil {
		f.log.Error("entity cannot be decoded", "id", r.ID, "error", err)
		return
	}
	before := f.last[r.ID]
	f.last[r.ID] = o
	for _, h := range f.handlers {
		h(before, o, false)
	}
}

func (f *feed) gone(id schema.ID, o schema.Object) {
	before := f.last[id]
	delete(f.last, id)
	for _, h := range f.handlers {
		h(before, o, true)
	}
}
