package informer

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// Bounds of the pause after an interruption. Up to half of it is random.
	minPause = 20 * time.Millisecond
	maxPause = 3 * time.Second
	// slowHandlers is how long the handlers of one batch may take before a
	// warning.
	slowHandlers = time.Second
)

// Run follows the store until ctx ends, then returns nil. It never gives up: a
// caller that must know that a kind cannot be read learns it from WaitSynced.
func (s *Set) Run(ctx context.Context) error {
	pause := minPause
	for failures := 0; ; failures++ {
		progress, err := s.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		compacted := errs.Is(err, errs.Compacted)
		if progress || compacted && !errs.Is(s.Status().Err, errs.Compacted) {
			pause, failures = minPause, 0 // the store answers
		}
		if err == nil {
			continue // a kind was added
		}
		if compacted {
			s.unlist()
		}
		s.interrupted(err, failures, pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		}
		pause = min(2*pause, maxPause)
	}
}

// interrupted records why the Set lost the store.
func (s *Set) interrupted(err error, failures int, retry time.Duration) {
	switch {
	case errs.Is(err, errs.Compacted):
		s.cfg.Logger.Info("watch position is gone, listing again", "error", err, "retry_in", retry)
	case failures == 0:
		s.cfg.Logger.Info("lost the store, trying again", "error", err, "revision", s.from.Revision, "retry_in", retry)
	default:
		s.cfg.Logger.Warn("cannot follow the store, keeping the last known state", "error", err, "retry_in", retry)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Err = err
	s.status.Interruptions++
	s.wakeWaiters()
}

// unlist makes Run list every kind again.
func (s *Set) unlist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.kinds {
		c.listed = false
	}
}

// follow lists the kinds that need it, then watches until the watch fails or a
// kind is added, which is no error. progress reports whether any event came.
func (s *Set) follow(ctx context.Context) (progress bool, err error) {
	round, cancel := context.WithCancel(ctx)
	defer cancel()
	unlisted, any := s.begin(cancel)
	if !any {
		<-round.Done()
		return false, nil
	}
	if len(unlisted) > 0 {
		listings, err := s.list(ctx, unlisted)
		if err != nil {
			return false, err
		}
		if err := s.install(listings); err != nil {
			return false, err
		}
	}
	progress, err = s.watch(round)
	if round.Err() != nil {
		err = nil // ctx has ended, or a kind was added
	}
	return progress, err
}

// begin returns the kinds to list, and whether there are any kinds. A kind that
// is added from now on calls cancel.
func (s *Set) begin(cancel context.CancelFunc) (unlisted []*cache, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relist = cancel
	for _, name := range sortedKeys(s.kinds) {
		if c := s.kinds[name]; !c.listed {
			unlisted = append(unlisted, c)
		}
	}
	return unlisted, len(s.kinds) > 0
}

// listing is a kind's entities as listed.
type listing struct {
	c       *cache
	records []schema.Record
	token   schema.Token
}

// list reads kinds, each at its own revision.
func (s *Set) list(ctx context.Context, kinds []*cache) ([]listing, error) {
	out := make([]listing, len(kinds))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i, c := range kinds {
		l := &out[i]
		l.c = c
		g.Go(func() error {
			q := entity.Query{Kind: c.kind.Name}
			for {
				page, err := s.cfg.Reader.List(ctx, q)
				if err != nil {
					return errs.Wrap(err, "list %s", c.kind.Plural)
				}
				l.records, l.token = append(l.records, page.Records...), page.Token
				if q.Cursor = page.Cursor; q.Cursor == "" {
					return nil
				}
			}
		})
	}
	return out, g.Wait()
}

// install replaces the contents of kinds by their listings, and sets the
// position from which to watch: the earliest of theirs.
func (s *Set) install(listings []listing) error {
	s.delivery.Lock()
	defer s.delivery.Unlock()
	epoch, from := listings[0].token.Epoch, listings[0].token.Revision
	others := false // kinds that are listed already
	for _, c := range s.kindList() {
		others = others || c.listed
	}
	for _, l := range listings {
		if l.token.Epoch != epoch || others && l.token.Epoch != s.from.Epoch {
			return errs.New(errs.Compacted, "a new epoch began while listing")
		}
		from = min(from, l.token.Revision)
	}
	if others {
		from = min(from, s.from.Revision)
	}
	var changes []change
	for i := range listings {
		// Revisions of different epochs say nothing about each other.
		changes = append(changes, s.diff(&listings[i], epoch == s.from.Epoch)...)
	}
	s.mu.Lock()
	for _, ch := range changes {
		ch.c.set(ch.id, ch.new)
	}
	for _, c := range s.kinds {
		if c.listed { // changes that a watch from an earlier position repeats are known
			c.floor = max(c.floor, s.from.Revision)
		}
	}
	for _, l := range listings {
		l.c.listed, l.c.floor = true, l.token.Revision
	}
	s.mu.Unlock()
	s.from = schema.Token{Epoch: epoch, Revision: from}
	s.deliver(changes)
	return nil
}

func (s *Set) kindList() []*cache {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]*cache, 0, len(s.kinds))
	for _, c := range s.kinds {
		out = append(out, c)
	}
	return out
}

// change is a Change with its cache and revision.
type change struct {
	c        *cache
	id       schema.ID
	rev      schema.Revision // revision of the event
	old, new schema.Object
}

// diff returns the changes that l makes in its kind. sameEpoch says that an
// object of the same revision is the same.
func (s *Set) diff(l *listing, sameEpoch bool) []change {
	var out []change
	present := make(map[schema.ID]bool, len(l.records))
	for i := range l.records {
		rec := &l.records[i]
		present[rec.ID] = true
		old := l.c.objects[rec.ID]
		if old != nil && sameEpoch && old.GetMeta().Revision == rec.Revision {
			continue
		}
		if o := s.decode(l.c, rec); o != nil {
			out = append(out, change{c: l.c, id: rec.ID, old: old, new: o})
		}
	}
	for id, old := range l.c.objects {
		if !present[id] {
			out = append(out, change{c: l.c, id: id, old: old})
		}
	}
	return out
}

// decode returns nil for a record that cannot be decoded. The previous object
// stays: unreadable does not mean deleted.
func (s *Set) decode(c *cache, rec *schema.Record) schema.Object {
	o, err := c.kind.Decode(rec)
	if err != nil {
		s.cfg.Logger.Error("entity cannot be decoded", "kind", rec.Kind, "id", rec.ID, "revision", rec.Revision, "error", err)
		return nil
	}
	if c.trim != nil {
		c.trim(o)
	}
	return o
}

// watch applies events until it fails. progress reports whether any came.
func (s *Set) watch(ctx context.Context) (progress bool, err error) {
	s.watched = map[string]*cache{}
	for _, c := range s.kindList() {
		if c.listed { // a kind added since is listed in the next round
			s.watched[c.kind.Name] = c
		}
	}
	w, err := s.cfg.Reader.Watch(ctx, entity.WatchQuery{Kinds: sortedKeys(s.watched), From: s.from, Bookmarks: s.cfg.Bookmarks})
	if err != nil {
		return false, errs.Wrap(err, "watch")
	}
	defer w.Close()
	for {
		events, err := w.Next(ctx)
		if err != nil {
			return progress, errs.Wrap(err, "watch")
		}
		if len(events) > 0 {
			s.apply(events)
			progress = true
		}
	}
}

// apply applies one batch of whole transactions.
func (s *Set) apply(events []entity.Event) {
	s.delivery.Lock()
	defer s.delivery.Unlock()
	var changes []change
	for i := range events {
		e := &events[i]
		c := s.watched[e.Record.Kind]
		if c == nil || e.Record.Revision <= c.floor {
			continue
		}
		ch := change{c: c, id: e.Record.ID, rev: e.Record.Revision}
		if e.Type == entity.EventPut {
			if ch.new = s.decode(c, &e.Record); ch.new == nil {
				continue
			}
		}
		changes = append(changes, ch)
	}
	s.mu.Lock()
	applied := changes[:0]
	for _, ch := range changes {
		ch.old = ch.c.objects[ch.id]
		switch {
		case ch.old == nil && ch.new == nil:
		case ch.old != nil && ch.old.GetMeta().Revision >= ch.rev:
			// A resumed watch may repeat the changes of one transaction.
		default:
			ch.c.set(ch.id, ch.new)
			applied = append(applied, ch)
		}
	}
	s.mu.Unlock()
	s.from = events[len(events)-1].Token
	s.deliver(applied)
}

// deliver passes changes to the handlers, and moves the position if every kind
// has reached it. delivery is held.
func (s *Set) deliver(changes []change) {
	begin := time.Now()
	for _, ch := range changes {
		for _, h := range s.handlers(ch.c) {
			h.fn(Change[schema.Object]{ch.old, ch.new})
		}
	}
	s.mu.Lock()
	s.status.LastSeen = begin
	complete, advance := s.complete(), s.onAdvance
	s.mu.Unlock()
	if complete {
		for _, fn := range advance {
			fn(s.from)
		}
	}
	if took := time.Since(begin); took > slowHandlers {
		s.cfg.Logger.Warn("handlers are slow, later changes wait", "took", took, "changes", len(changes))
	}
	if !complete {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.kinds {
		c.synced = c.synced || c.listed
	}
	s.status.Position, s.status.Err = s.from, nil
	s.wakeWaiters()
}

func (s *Set) handlers(c *cache) []*handler {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return c.handlers
}

// complete reports whether all listed kinds are at the position that Run has
// reached. mu is held.
func (s *Set) complete() bool {
	for _, c := range s.kinds {
		if c.listed && c.floor > s.from.Revision {
			return false
		}
	}
	return true
}
