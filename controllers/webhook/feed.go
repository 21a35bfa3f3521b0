// Package webhook makes events of what changes in the store, and delivers them to
// the webhooks of their projects.
//
//	change log -> Feed -> event + webhook_delivery -> Sender -> receiver
//
// # No event is lost, none is made twice
//
// Feed follows the change log of the store, in its order and without gaps. It writes
// the events of some changes, their deliveries, and how far it has come (webhook_feed)
// in one transaction, so a server that is killed goes on where it was. The id of an
// event depends on the entity and its state alone: when the position is gone from the
// log (compacted, or a store that was restored), Feed makes the events of all present
// states, and those that exist are refused. Events much older than the position were
// made before, and may be deleted: they are not made again. The end of a sandbox is an
// exception while the log is followed, for a node that was cut off tells of it late.
//
// Several servers may follow the same log. The position has one writer at a time; the
// others read it again and stay behind it. So the events of a project are numbered
// without gaps (domain/events). Expirer deletes the oldest.
//
// # Deliveries
//
// Sender claims a delivery by a conditional write before each attempt, which also sets
// the time at which the attempt counts as lost, and records the outcome afterwards. A
// server that is killed in between leaves a claim that ends by itself: the receiver may
// get that request again, with the same id. Deliveries are in no order.
//
// In: sandbox, execution, snapshot, template_version, deployment, webhook. Out: event,
// webhook_delivery, webhook_feed, webhook.status; spec.disabled of a webhook whose
// receiver answers 410 Gone.
package webhook

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/event"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/events"
	"miren.dev/runtime/domain/webhooks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

const (
	// feedName is the name of the one webhook_feed.
	feedName = "feed"
	// feedRetry is the time before a failed Feed begins again where it was;
	// feedBehind that of one that met another server.
	feedRetry  = time.Second
	feedBehind = 3 * time.Second
	// positionEvery is how often the position is written while no event is made.
	positionEvery = time.Minute
	// overlap is how much older than the position an event may be that is made again.
	overlap = time.Hour
	// maxBatch is how many entities a transaction creates, about: one event and its
	// deliveries are not divided. etcd permits some 120.
	maxBatch = 50
)

// sources are the kinds whose changes are events.
var sources = []*schema.Kind{sandbox.SandboxKind, execution.ExecutionKind, sandbox.SnapshotKind, sandbox.TemplateVersionKind, app.DeploymentKind}

// Feed makes events of changes, and their deliveries.
type Feed struct {
	Store     entity.Store
	Informers *informer.Set // in which it counts deliveries that wait
	Logger    *slog.Logger

	deliveries deliveries
	pos        *webhook.WebhookFeed
	webhooks   map[schema.ID]*webhook.Webhook
	made       map[schema.ID]string // last event of an entity that was made by this run
	numbers    map[schema.ID]int64  // number of the newest event of a project, if it is known
	since      time.Time            // events from before it are not made again
}

// Controller describes the feed to the controller runtime.
func (f *Feed) Controller() kit.Controller {
	f.deliveries = newDeliveries(f.Informers)
	return kit.Controller{
		Name: "webhook-feed", Reconcile: func(context.Context, schema.ID) (time.Duration, error) { return 0, nil },
		Watches: []kit.Source{kit.Func(func(ctx context.Context, _ func(schema.ID)) { f.run(ctx) })},
		Access: kit.Access{
			Reads:   append(slices.Clone(sources), event.EventKind, webhook.WebhookKind, webhook.WebhookDeliveryKind, webhook.WebhookFeedKind),
			Creates: []*schema.Kind{event.EventKind, webhook.WebhookDeliveryKind, webhook.WebhookFeedKind},
			Owns:    kit.Fields(webhook.WebhookFeedKind, "status"),
		},
	}
}

// run follows the change log until ctx ends.
func (f *Feed) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.follow(ctx)
		wait := feedRetry
		if errs.Is(err, errs.Conflict) {
			wait = feedBehind
		} else if err != nil && ctx.Err() == nil {
			f.Logger.Warn("follow changes for events again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// follow makes events from the position on until it fails. Conflict: another
// server moved the position.
func (f *Feed) follow(ctx context.Context) error {
	if err := f.load(ctx); err != nil {
		return err
	}
	token := schema.Token{Epoch: f.pos.Status.Epoch, Revision: schema.Revision(f.pos.Status.Revision)}
	err := f.watch(ctx, token)
	if !errs.Is(err, errs.Compacted) {
		return err
	}
	f.Logger.Info("changes for events are gone from the log: every entity is read", "revision", token.Revision)
	if token, err = f.relist(ctx); err != nil {
		return err
	}
	return f.watch(ctx, token)
}

// load reads the position, and makes that of now in a store that has none.
func (f *Feed) load(ctx context.Context) error {
	f.made, f.numbers = map[schema.ID]string{}, map[schema.ID]int64{}
	pos, err := entity.ByName[webhook.WebhookFeed](ctx, f.Store, "", feedName)
	if errs.Is(err, errs.NotFound) {
		pos, err = f.begin(ctx)
	}
	if err != nil {
		return err
	}
	f.pos = pos
	f.since = time.Now()
	if pos.Status.ChangedAt != nil {
		f.since = *pos.Status.ChangedAt
	}
	f.since = f.since.Add(-overlap)
	all, _, err := entity.List[webhook.Webhook](ctx, f.Store, entity.Query{})
	f.webhooks = map[schema.ID]*webhook.Webhook{}
	for _, w := range all {
		f.webhooks[w.ID] = w
	}
	return err
}

// begin makes the position of now.
func (f *Feed) begin(ctx context.Context) (*webhook.WebhookFeed, error) {
	_, token, err := entity.List[webhook.WebhookFeed](ctx, f.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	pos := webhook.NewWebhookFeed()
	pos.Name = feedName
	f.setPosition(pos, token)
	return pos, entity.Create(ctx, f.Store, pos)
}

func (f *Feed) setPosition(pos *webhook.WebhookFeed, t schema.Token) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	pos.Status.Epoch, pos.Status.Revision, pos.Status.ChangedAt = t.Epoch, int64(t.Revision), &now
}

// watch makes the events of the changes after a token.
func (f *Feed) watch(ctx context.Context, from schema.Token) error {
	w, err := f.Store.Watch(ctx, entity.WatchQuery{Kinds: append(slices.Clone(events.Kinds), webhook.KindWebhook), From: from})
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		changes, err := w.Next(ctx)
		if err != nil {
			return err
		}
		b := batch{made: map[schema.ID]string{}}
		for i := range changes {
			if err := f.change(&changes[i], &b); err != nil {
				return err
			}
		}
		if len(changes) > 0 {
			if err := f.commit(ctx, &b, changes[len(changes)-1].Token); err != nil {
				return err
			}
		}
	}
}

// relist makes the events of the present states, and returns the token from which
// changes follow.
func (f *Feed) relist(ctx context.Context) (schema.Token, error) {
	var token schema.Token
	b := batch{made: map[schema.ID]string{}, states: true}
	for i, kind := range events.Kinds {
		q := entity.Query{Kind: kind}
		for more := true; more; more = q.Cursor != "" {
			page, err := f.Store.List(ctx, q)
			if err != nil {
				return token, err
			}
			if i == 0 && q.Cursor == "" {
				token = page.Token
			}
			for i := range page.Records {
				if err := f.change(&entity.Event{Type: entity.EventPut, Record: page.Records[i]}, &b); err != nil {
					return token, err
				}
			}
			q.Cursor = page.Cursor
		}
	}
	return token, f.commit(ctx, &b, token)
}

// item is an event and its deliveries, which are written together.
type item struct {
	event      *event.Event
	deliveries []*webhook.WebhookDelivery
}

// batch is what some changes make.
type batch struct {
	items  []item
	made   map[schema.ID]string
	states bool // all present states, and not changes
}

// change adds to b what a change makes.
func (f *Feed) change(c *entity.Event, b *batch) error {
	if c.Type == entity.EventBookmark {
		return nil
	}
	eid := c.Record.ID
	if c.Record.Kind == webhook.KindWebhook {
		w, err := entity.Decode[webhook.Webhook](&c.Record)
		if err != nil {
			return err
		}
		if delete(f.webhooks, eid); c.Type != entity.EventDelete {
			f.webhooks[eid] = w
		}
		return nil
	}
	e, err := eventOf(c)
	if err != nil {
		return err
	}
	if e != nil && f.made[eid] != e.ID && b.made[eid] != e.ID && (e.At.After(f.since) || e.Ends && !b.states) {
		made := item{}
		if made.event, err = e.Entity(); err != nil {
			return err
		}
		for _, w := range f.webhooks {
			if w.Project != e.Project || !webhooks.Matches(w, e.Type) || c.Record.Revision <= w.CreateRevision {
				continue
			}
			d, err := webhooks.Delivery(e, w)
			if err != nil {
				return err
			}
			made.deliveries = append(made.deliveries, d)
		}
		b.items = append(b.items, made)
	}
	if e != nil {
		b.made[eid] = e.ID
	}
	if c.Type == entity.EventDelete {
		b.made[eid] = ""
	}
	return nil
}

// eventOf returns the event that a change makes, if any.
func eventOf(c *entity.Event) (*events.Event, error) {
	i := slices.IndexFunc(sources, func(k *schema.Kind) bool { return k.Name == c.Record.Kind })
	if i < 0 {
		return nil, errs.New(errs.Internal, "a change of %s, which was not asked for", c.Record.Kind)
	}
	o, err := sources[i].Decode(&c.Record)
	if err != nil {
		return nil, err
	}
	if c.Type == entity.EventDelete {
		return events.OfDeleted(o), nil
	}
	return events.Of(o), nil
}

// commit writes what changes up to a token made, and the position. Nothing of b
// counts as made if it fails.
func (f *Feed) commit(ctx context.Context, b *batch, token schema.Token) error {
	due := f.pos.Status.ChangedAt == nil || time.Since(*f.pos.Status.ChangedAt) > positionEvery
	if len(b.items) > 0 || due || b.states {
		for rest := b.items; ; {
			n, size := 0, 0
			for n < len(rest) && size < maxBatch {
				size += 1 + len(rest[n].deliveries)
				n++
			}
			last := n == len(rest)
			if last { // the position moves with the last part
				f.setPosition(f.pos, token)
			}
			if err := f.write(ctx, rest[:n]); err != nil {
				return err
			}
			if rest = rest[n:]; last {
				break
			}
		}
	}
	maps.Copy(f.made, b.made)
	maps.DeleteFunc(f.made, func(_ schema.ID, event string) bool { return event == "" })
	return nil
}

// refuse gives up the deliveries of webhooks of which too many wait.
func (f *Feed) refuse(list []*webhook.WebhookDelivery) {
	for _, d := range list {
		if f.deliveries.pending(d.Spec.Webhook) >= webhook.MaxPending {
			now := time.Now().UTC().Truncate(time.Millisecond)
			d.Status.Phase, d.Status.EndedAt, d.Status.Message = webhook.DeliveryPhaseDead, &now, "too many deliveries of the webhook wait"
		}
	}
}

// write creates events and their deliveries, and writes the position. Those that
// exist, and deliveries to webhooks that do not, are left out.
func (f *Feed) write(ctx context.Context, items []item) error {
	numbers := maps.Clone(f.numbers)
	made := f.pos.Status.Events
	for checked := false; ; checked = true {
		var ops []entity.Op
		add := func(o schema.Object) error {
			op, err := entity.CreateOp(o)
			ops = append(ops, op)
			return err
		}
		for _, it := range items {
			if err := f.number(ctx, it.event); err != nil {
				return err
			}
			if err := add(it.event); err != nil {
				return err
			}
			f.refuse(it.deliveries)
			for _, d := range it.deliveries {
				if err := add(d); err != nil {
					return err
				}
			}
		}
		// It changes each time, so that no other server numbers events meanwhile.
		f.pos.Status.Events = made + int64(len(items))
		op, err := entity.UpdateStatusOp(f.pos)
		if err != nil {
			return err
		}
		fault.Point("webhook", "events", fault.Before)
		res, err := f.Store.Txn(ctx, entity.TxnRequest{Ops: append(ops, op)})
		if err == nil {
			fault.Point("webhook", "events", fault.After)
			f.pos.Meta = res.Records[len(ops)].Meta
			return nil
		}
		if checked || !errs.Is(err, errs.AlreadyExists) && !errs.Is(err, errs.FailedPrecondition) {
			return err
		}
		f.numbers = maps.Clone(numbers)
		if items, err = f.missing(ctx, items); err != nil {
			return err
		}
	}
}

// number gives an event the next number of its project.
func (f *Feed) number(ctx context.Context, e *event.Event) error {
	n, known := f.numbers[e.Project]
	if !known {
		var err error
		if n, _, err = (&events.Service{Store: f.Store}).Newest(ctx, e.Project); err != nil {
			return err
		}
	}
	e.Spec.Number = n + 1
	f.numbers[e.Project] = n + 1
	return nil
}

// missing returns those of the items whose event does not exist, with the deliveries
// that do not exist and whose webhook does.
func (f *Feed) missing(ctx context.Context, items []item) ([]item, error) {
	var out []item
	seen := map[schema.ID]bool{}
	for _, it := range items {
		_, err := entity.Get[event.Event](ctx, f.Store, it.event.ID)
		if err != nil && !errs.Is(err, errs.NotFound) {
			return nil, err
		}
		if err == nil || seen[it.event.ID] {
			continue
		}
		seen[it.event.ID] = true
		if it.deliveries, err = f.missingDeliveries(ctx, it.deliveries); err != nil {
			return nil, err
		}
		out = append(out, it)
	}
	return out, nil
}

// missingDeliveries returns those of the deliveries that do not exist and whose webhook
// does.
func (f *Feed) missingDeliveries(ctx context.Context, list []*webhook.WebhookDelivery) ([]*webhook.WebhookDelivery, error) {
	var out []*webhook.WebhookDelivery
	for _, d := range list {
		if _, err := entity.Get[webhook.Webhook](ctx, f.Store, d.Spec.Webhook); errs.Is(err, errs.NotFound) {
			continue
		} else if err != nil {
			return nil, err
		}
		q := entity.Where(webhook.WebhookDeliveryAttrKey, d.Spec.Key)
		q.Kind, q.Limit = webhook.KindWebhookDelivery, 1
		page, err := f.Store.List(ctx, q)
		if err != nil {
			return nil, err
		}
		if len(page.Records) == 0 {
			out = append(out, d)
		}
	}
	return out, nil
}

// deliveries are those in memory, without their payloads.
type deliveries struct {
	informer.Informer[webhook.WebhookDelivery, *webhook.WebhookDelivery]
}

// Names of indexes of deliveries, by webhook.
const (
	indexPending = "webhook pending"
	indexEnded   = "webhook ended"
)

// newDeliveries returns the deliveries of a set, before that runs.
func newDeliveries(set *informer.Set) deliveries {
	d := deliveries{informer.Of[webhook.WebhookDelivery](set)}
	d.Trim(func(d *webhook.WebhookDelivery) { d.Spec.Payload = "" })
	index := func(name string, pending bool) {
		d.AddIndex(name, func(d *webhook.WebhookDelivery) []string {
			if (d.Status.Phase == webhook.DeliveryPhasePending) != pending {
				return nil
			}
			return []string{string(d.Spec.Webhook)}
		})
	}
	index(indexPending, true)
	index(indexEnded, false)
	return d
}

func (d deliveries) pending(w id.Webhook) int { return len(d.ByIndex(indexPending, string(w))) }

// ended returns the deliveries of a webhook that have ended, the oldest first.
func (d deliveries) ended(w id.Webhook) []*webhook.WebhookDelivery {
	all := d.ByIndex(indexEnded, string(w))
	slices.SortStableFunc(all, func(a, b *webhook.WebhookDelivery) int {
		return cmp.Or(timeOf(a.Status.EndedAt).Compare(timeOf(b.Status.EndedAt)), cmp.Compare(a.ID, b.ID))
	})
	return all
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
