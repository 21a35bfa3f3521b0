// Package events has what happened in projects: an event for each state of an entity
// that is worth telling.
//
//	Of, OfDeleted  the event that a state of an entity is
//	List           the events of a project, newest first
//	Follow         those after one of them, and all that come, oldest first
//	Expire         deletes the oldest ones of a project
//
// controllers/webhook makes events of the change log of the store, each once, together
// with their deliveries to webhooks. The events of a project have numbers without gaps.
// Only the oldest are deleted, and the newest one stays, so the next number is known and
// a reader that knows one event finds those after it, or learns that some are gone.
package events

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/event"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// expireBatch is how many events are deleted in one transaction.
const expireBatch = 50

// Service reads and deletes the events of one store. It is safe for concurrent use.
type Service struct{ Store entity.Store }

// Query selects events of a project; all conditions must hold.
type Query struct {
	Project string    // name; "": the default project
	Type    string    // a type, NOUN.* or *; "": all
	Subject string    // id of what it happened to; "": all
	Since   time.Time // recorded at this time or later; zero: all
}

// check returns InvalidArgument if no event can match.
func (q *Query) check() error {
	if q.Type == "" || slices.ContainsFunc(Types, func(t string) bool { return Match(q.Type, t) }) {
		return nil
	}
	return errs.New(errs.InvalidArgument, "no event matches %q", q.Type).
		WithHint("events are %s; sandbox.* means all of sandboxes", strings.Join(Types, ", "))
}

func (q *Query) selects(e *event.Event) bool {
	return (q.Type == "" || Match(q.Type, e.Spec.Type)) && (q.Subject == "" || q.Subject == e.Spec.Subject)
}

// index returns the conditions that the store can check.
func (q *Query) index() []entity.IndexMatch {
	var out []entity.IndexMatch
	if q.Subject != "" {
		out = append(out, entity.IndexMatch{Attr: event.EventAttrSubject, Op: entity.IndexEq, Value: schema.EncodeIndexString(q.Subject)})
	}
	if noun, ok := strings.CutSuffix(q.Type, "*"); ok && noun != "" {
		out = append(out, entity.IndexMatch{Attr: event.EventAttrType, Op: entity.IndexPrefix, Value: schema.EncodeIndexString(noun)})
	} else if !ok && q.Type != "" {
		out = append(out, entity.IndexMatch{Attr: event.EventAttrType, Op: entity.IndexEq, Value: schema.EncodeIndexString(q.Type)})
	}
	return out
}

// order selects the events of a project with numbers of at least from and below to, in
// the order of an index; 0: unbounded.
func order(by *schema.Index, project schema.ID, from, to int64) *entity.Order {
	o := &entity.Order{Index: by.Name, Equal: [][]byte{schema.EncodeIndexString(string(project))}}
	if from > 0 {
		o.Lower = schema.EncodeIndexInt(from)
	}
	if to > 0 {
		o.Upper = schema.EncodeIndexInt(to)
	}
	return o
}

// page returns at most limit events of a project that a query selects, and the position
// of the store.
func (s *Service) page(ctx context.Context, project schema.ID, o *entity.Order, index []entity.IndexMatch, limit int) ([]*event.Event, schema.Token, error) {
	page, err := s.Store.List(ctx, entity.Query{Kind: event.KindEvent, Project: project, Order: o, Index: index, Limit: limit})
	if err != nil {
		return nil, schema.Token{}, err
	}
	out := make([]*event.Event, len(page.Records))
	for i := range page.Records {
		if out[i], err = entity.Decode[event.Event](&page.Records[i]); err != nil {
			return nil, schema.Token{}, err
		}
	}
	return out, page.Token, nil
}

// List returns a page of events, newest first, and the cursor of the next one; "" on the
// last. Events that come meanwhile do not move what the following pages show. Errors:
// NotFound if there is no such project, InvalidArgument for a type that no event has, or
// a cursor of something else.
func (s *Service) List(ctx context.Context, q Query, limit int, cursor string) (list []*event.Event, next string, err error) {
	if err := q.check(); err != nil {
		return nil, "", err
	}
	var below int64
	if cursor != "" {
		if below, err = strconv.ParseInt(cursor, 10, 64); err != nil || below < 1 {
			return nil, "", errs.New(errs.InvalidArgument, "this cursor is not of a list of events")
		}
	}
	pid, err := projects.Find(ctx, s.Store, q.Project)
	if err != nil {
		return nil, "", err
	}
	list, _, err = s.page(ctx, pid, order(event.EventIndexRecent, pid, 0, below), q.index(), limit+1)
	if err != nil {
		return nil, "", err
	}
	if i := slices.IndexFunc(list, func(e *event.Event) bool { return e.CreatedAt.Before(q.Since) }); i >= 0 {
		list = list[:i]
	}
	if len(list) > limit {
		list = list[:limit]
		next = strconv.FormatInt(list[limit-1].Spec.Number, 10)
	}
	return list, next, nil
}

// Newest returns the number of the newest event of a project, 0 if there is none, and the
// position of the store.
func (s *Service) Newest(ctx context.Context, project schema.ID) (int64, schema.Token, error) {
	list, token, err := s.page(ctx, project, order(event.EventIndexRecent, project, 0, 0), nil, 1)
	if err != nil || len(list) == 0 {
		return 0, token, err
	}
	return list[0].Spec.Number, token, nil
}

// Follow calls send with events of a project, oldest first: those after the event with the
// id after, or recorded since q.Since, or from now on. The first call, which may have none,
// says that all later ones will come. It ends with ctx or an error: that of send; Compacted
// if some of the events are not kept any more; those of List.
func (s *Service) Follow(ctx context.Context, q Query, after string, send func([]*event.Event) error) error {
	if err := q.check(); err != nil {
		return err
	}
	pid, err := projects.Find(ctx, s.Store, q.Project)
	if err != nil {
		return err
	}
	last, err := s.begin(ctx, pid, after, q.Since)
	if err != nil {
		return err
	}
	f := &follower{s: s, project: pid, q: &q, last: last, send: send}
	for {
		err := f.run(ctx)
		// Events are read again from the last one on.
		if !errs.Is(err, errs.Compacted) && !errs.Is(err, errs.ResourceExhausted) || f.gone {
			return err
		}
	}
}

// begin returns the number of the event before the first that is wanted.
func (s *Service) begin(ctx context.Context, project schema.ID, after string, since time.Time) (int64, error) {
	if after != "" {
		e, err := entity.Get[event.Event](ctx, s.Store, after)
		if errs.Is(err, errs.NotFound) || err == nil && e.Project != project {
			return 0, errGone(after)
		}
		if err != nil {
			return 0, err
		}
		return e.Spec.Number, nil
	}
	last, _, err := s.Newest(ctx, project)
	if err != nil || since.IsZero() {
		return last, err
	}
	for last > 0 {
		list, _, err := s.page(ctx, project, order(event.EventIndexRecent, project, 0, last+1), nil, event.MaxPage)
		if err != nil || len(list) == 0 {
			return last, err
		}
		for _, e := range list {
			if e.CreatedAt.Before(since) {
				return e.Spec.Number, nil
			}
			last = e.Spec.Number - 1
		}
	}
	return 0, nil
}

const goneHint = "list the events that are kept, and follow from the newest of them"

func errGone(after string) error {
	return errs.New(errs.Compacted, "the event %s is not kept any more, and those after it may not be", after).WithHint(goneHint)
}

// follower sends the events of a project in the order of their numbers.
type follower struct {
	s       *Service
	project schema.ID
	q       *Query
	last    int64 // number of the last event that was sent or left out
	begun   bool  // the first call was made
	gone    bool  // events after it are not kept any more
	send    func([]*event.Event) error
}

// run sends events until it fails.
func (f *follower) run(ctx context.Context) error {
	newest, token, err := f.s.Newest(ctx, f.project)
	if err != nil {
		return err
	}
	if newest < f.last {
		f.gone = true
		return errs.New(errs.Compacted, "the store was restored from before event %d", f.last).WithHint(goneHint)
	}
	w, err := f.s.Store.Watch(ctx, entity.WatchQuery{Kinds: []string{event.KindEvent}, Project: f.project, From: token})
	if err != nil {
		return err
	}
	defer w.Close()
	if !f.begun {
		if err := f.send(nil); err != nil {
			return err
		}
		f.begun = true
	}
	if err := f.upTo(ctx, newest); err != nil {
		return err
	}
	for {
		changes, err := w.Next(ctx)
		if err != nil {
			return err
		}
		var list []*event.Event
		for i := range changes {
			if changes[i].Type != entity.EventPut {
				continue
			}
			e, err := entity.Decode[event.Event](&changes[i].Record)
			if err != nil {
				return err
			}
			list = append(list, e)
		}
		slices.SortFunc(list, func(a, b *event.Event) int { return int(a.Spec.Number - b.Spec.Number) })
		if err := f.pass(list); err != nil {
			return err
		}
	}
}

// upTo sends the events up to a number from the store.
func (f *follower) upTo(ctx context.Context, newest int64) error {
	for f.last < newest {
		to := min(newest, f.last+event.MaxPage)
		list, _, err := f.s.page(ctx, f.project, order(event.EventIndexOldest, f.project, f.last+1, to+1), nil, event.MaxPage)
		if err != nil {
			return err
		}
		if int64(len(list)) != to-f.last {
			f.gone = true
			return errs.New(errs.Compacted, "events from number %d on are not kept any more", f.last+1).WithHint(goneHint)
		}
		if err := f.pass(list); err != nil {
			return err
		}
	}
	return nil
}

// pass sends the events of a list, in the order of their numbers, that come next.
func (f *follower) pass(list []*event.Event) error {
	var out []*event.Event
	for _, e := range list {
		switch n := e.Spec.Number; {
		case n <= f.last:
			continue
		case n > f.last+1:
			return errs.New(errs.Internal, "event %d of project %s came after event %d", n, f.project, f.last)
		}
		f.last++
		if f.q.selects(e) {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return f.send(out)
}

// Expire deletes the events of a project that were recorded before a time, and those beyond
// the newest keep ones, from the oldest on. The newest event stays.
func (s *Service) Expire(ctx context.Context, project schema.ID, before time.Time, keep int64) error {
	newest, _, err := s.Newest(ctx, project)
	if err != nil {
		return err
	}
	for {
		list, _, err := s.page(ctx, project, order(event.EventIndexOldest, project, 0, newest), nil, expireBatch)
		if err != nil {
			return err
		}
		var ops []entity.Op
		for _, e := range list {
			if e.Spec.Number > newest-keep && !e.CreatedAt.Before(before) {
				break
			}
			op, err := entity.DeleteOp(e)
			if err != nil {
				return err
			}
			ops = append(ops, op)
		}
		if len(ops) == 0 {
			return nil
		}
		if _, err := s.Store.Txn(ctx, entity.TxnRequest{Ops: ops}); errs.Is(err, errs.NotFound) {
			return nil // another server deletes them
		} else if err != nil {
			return err
		}
	}
}
