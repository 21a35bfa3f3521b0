// Package webhook makes events of what changes in the store, and delivers them to
// the webhooks of their projects.
//
//	change log -> Feed -> webhook_delivery -> Sender -> receiver
//
// # No event is lost, none is made twice
//
// Feed follows the change log of the store, in its order and without gaps. It writes
// the deliveries of some changes and how far it has come (webhook_feed) in one
// transaction, so a server that is killed goes on where it was. The id of an event
// depends on the entity and its state alone, and the key of a delivery is unique: when
// the position is gone from the log (compacted, or a store that was restored), Feed
// makes the events of all present states, and those that exist are refused. Events
// much older than the position were made before, and their deliveries may be gone:
// they are not made again. The end of a sandbox is an exception while the log is
// followed, for a node that was cut off tells of it late.
//
// Several servers may follow the same log. The position has one writer at a time; the
// others read it again and stay behind it.
//
// # Deliveries
//
// Sender claims a delivery by a conditional write before each attempt, which also sets
// the time at which the attempt counts as lost, and records the outcome afterwards. A
// server that is killed in between leaves a claim that ends by itself: the receiver may
// get that request again, with the same id. Deliveries are in no order.
//
// In: sandbox, execution, snapshot, template_version, deployment, webhook. Out:
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
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/controllers/kit"
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
	// positionEvery is how often the position is written while no delivery is made.
	positionEvery = time.Minute
	// overlap is how much older than the position an event may be that is made again.
	overlap = time.Hour
	// maxBatch bounds the deliveries of one transaction.
	maxBatch = 200
)

// sources are the kinds whose changes are events.
var sources = []*schema.Kind{sandbox.SandboxKind, execution.ExecutionKind, sandbox.SnapshotKind, sandbox.TemplateVersionKind, app.DeploymentKind}

// Feed makes deliveries of changes.
type Feed struct {
	Store     entity.Store
	Informers *informer.Set // in which it counts deliveries that wait
	Logger    *slog.Logger

	deliveries deliveries
	pos        *webhook.WebhookFeed
	webhooks   map[schema.ID]*webhook.Webhook
	made       map[schema.ID]string // last event of an entity that was made by this run
	since      time.Time            // events from before it are not made again
}

// Controller describes the feed to the controller runtime.
func (f *Feed) Controller() kit.Controller {
	f.deliveries = newDeliveries(f.Informers)
	return kit.Controller{
		Name: "webhook-feed", Reconcile: func(context.Context, schema.ID) (time.Duration, error) { return 0, nil },
		Watches: []kit.Source{kit.Func(func(ctx context.Context, _ func(schema.ID)) { f.run(ctx) })},
		Access: kit.Access{
			Reads:   append(slices.Clone(sources), webhook.WebhookKind, webhook.WebhookDeliveryKind, webhook.WebhookFeedKind),
			Creates: []*schema.Kind{webhook.WebhookDeliveryKind, webhook.WebhookFeedKind},
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
			f.Logger.Warn("follow changes for webhooks again", "error", err)
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
	f.Logger.Info("changes for webhooks are gone from the log: every entity is read", "revision", token.Revision)
	if token, err = f.relist(ctx); err != nil {
		return err
	}
	return f.watch(ctx, token)
}

// load reads the position, and makes that of now in a store that has none.
func (f *Feed) load(ctx context.Context) error {
	f.made = map[schema.ID]string{}
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
	w, err := f.Store.Watch(ctx, entity.WatchQuery{Kinds: append(slices.Clone(webhooks.Kinds), webhook.KindWebhook), From: from})
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
	for i, kind := range webhooks.Kinds {
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

// batch is what some changes make.
type batch struct {
	deliveries []*webhook.WebhookDelivery
	made       map[schema.ID]string
	states     bool // all present states, and not changes
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
		for _, w := range f.webhooks {
			if w.Project != e.Project || !webhooks.Matches(w, e.Type) || c.Record.Revision <= w.CreateRevision {
				continue
			}
			d, err := e.Delivery(w)
			if err != nil {
				return err
			}
			b.deliveries = append(b.deliveries, d)
		}
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
func eventOf(c *entity.Event) (*webhooks.Event, error) {
	i := slices.IndexFunc(sources, func(k *schema.Kind) bool { return k.Name == c.Record.Kind })
	if i < 0 {
		return nil, errs.New(errs.Internal, "a change of %s, which was not asked for", c.Record.Kind)
	}
	o, err := sources[i].Decode(&c.Record)
	if err != nil {
		return nil, err
	}
	if c.Type == entity.EventDelete {
		return webhooks.EventOfDeleted(o), nil
	}
	return webhooks.EventOf(o), nil
}

// commit writes what changes up to a token made, and the position. Nothing of b
// counts as made if it fails.
func (f *Feed) commit(ctx context.Context, b *batch, token schema.Token) error {
	due := f.pos.Status.ChangedAt == nil || time.Since(*f.pos.Status.ChangedAt) > positionEvery
	if len(b.deliveries) > 0 || due || b.states {
		f.refuse(b.deliveries)
		for chunk := range slices.Chunk(b.deliveries, maxBatch) {
			if len(b.deliveries) > maxBatch { // the position moves with none of several
				if err := f.write(ctx, chunk, nil); err != nil {
					return err
				}
			}
		}
		last := b.deliveries
		if len(last) > maxBatch {
			last = nil
		}
		f.setPosition(f.pos, token)
		if err := f.write(ctx, last, f.pos); err != nil {
			return err
		}
	}
	maps.Copy(f.made, b.made)
	maps.DeleteFunc(f.made, func(_ schema.ID, event string) bool { return event == "" })
	return nil
}

// refuse gives up deliveries of webhooks of which too many wait.
func (f *Feed) refuse(list []*webhook.WebhookDelivery) {
	for _, d := range list {
		if f.deliveries.pending(d.Spec.Webhook) >= webhook.MaxPending {
			now := time.Now().UTC().Truncate(time.Millisecond)
			d.Status.Phase, d.Status.EndedAt, d.Status.Message = webhook.DeliveryPhaseDead, &now, "too many deliveries of the webhook wait"
		}
	}
}

// write creates deliveries, and writes the position if it is not nil. Deliveries
// that exist, and those of webhooks that do not, are left out.
func (f *Feed) write(ctx context.Context, list []*webhook.WebhookDelivery, pos *webhook.WebhookFeed) error {
	for checked := false; ; checked = true {
		var ops []entity.Op
		for _, d := range list {
			op, err := entity.CreateOp(d)
			if err != nil {
				return err
			}
			ops = append(ops, op)
		}
		if pos != nil {
			op, err := entity.UpdateStatusOp(pos)
			if err != nil {
				return err
			}
			ops = append(ops, op)
		}
		if len(ops) == 0 {
			return nil
		}
		fault.Point("webhook", "events", fault.Before)
		res, err := f.Store.Txn(ctx, entity.TxnRequest{Ops: ops})
		if err == nil {
			fault.Point("webhook", "events", fault.After)
			if pos != nil {
				pos.Meta = res.Records[len(res.Records)-1].Meta
			}
			return nil
		}
		if checked || !errs.Is(err, errs.AlreadyExists) && !errs.Is(err, errs.FailedPrecondition) {
			return err
		}
		if list, err = f.missing(ctx, list); err != nil {
			return err
		}
	}
}

// missing returns those of the deliveries that do not exist and whose webhook does.
func (f *Feed) missing(ctx context.Context, list []*webhook.WebhookDelivery) ([]*webhook.WebhookDelivery, error) {
	var out []*webhook.WebhookDelivery
	seen := map[string]bool{}
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
		if len(page.Records) == 0 && !seen[d.Spec.Key] {
			out = append(out, d)
		}
		seen[d.Spec.Key] = true
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
