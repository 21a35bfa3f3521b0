package webhook

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

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
	workers = 16
	// perProject bounds the attempts of one project at a time, so that receivers
	// that are slow do not hold up those of others.
	perProject = 6
	// recordTimeout bounds the writes of an outcome.
	recordTimeout = 10 * time.Second
	// stopTimeout bounds them when the server stops.
	stopTimeout = time.Second
	maxMessage  = 300 // bytes
)

// Sender delivers.
type Sender struct {
	Store      entity.Store
	Webhooks   *webhooks.Service
	Informers  *informer.Set
	Allow      []netip.Prefix // networks that receivers may be in though they are not public
	FirstRetry time.Duration  // 0: webhook.FirstRetry
	Lost       time.Duration  // time after which an attempt without an outcome is lost; 0: twice its longest time
	Logger     *slog.Logger

	client     *http.Client
	deliveries deliveries

	mu      sync.Mutex
	add     func(schema.ID)
	running map[schema.ID]int                    // attempts under way, by project
	waiting map[schema.ID]map[schema.ID]struct{} // deliveries that wait for the end of one, by project
}

// Controller describes the sender to the controller runtime.
func (s *Sender) Controller() kit.Controller {
	s.client = newClient(s.Allow)
	s.deliveries = newDeliveries(s.Informers)
	s.running, s.waiting = map[schema.ID]int{}, map[schema.ID]map[schema.ID]struct{}{}
	return kit.Controller{
		Name: "webhook", Kind: webhook.WebhookDeliveryKind, Reconcile: s.Reconcile, Workers: workers,
		Watches: []kit.Source{kit.Func(func(ctx context.Context, add func(schema.ID)) {
			s.mu.Lock()
			s.add = add
			for _, keys := range s.waiting {
				for key := range keys {
					add(key)
				}
			}
			s.mu.Unlock()
			<-ctx.Done()
		})},
		Access: kit.Access{
			Reads:   []*schema.Kind{webhook.WebhookKind},
			Deletes: []*schema.Kind{webhook.WebhookDeliveryKind},
			Owns:    append(kit.Fields(webhook.WebhookDeliveryKind, "status"), kit.Fields(webhook.WebhookKind, "status")...),
			Shares: []kit.Share{{
				Field: kit.Field{Kind: webhook.WebhookKind, Path: "spec.disabled"}, Owner: "api", Why: "its receiver answered that it is gone",
				When: func(before, after schema.Object) bool {
					return !before.(*webhook.Webhook).Spec.Disabled && after.(*webhook.Webhook).Spec.Disabled
				},
			}},
		},
	}
}

// Reconcile takes one delivery on, and returns after how long to look again.
func (s *Sender) Reconcile(ctx context.Context, key schema.ID) (time.Duration, error) {
	d := s.deliveries.Get(key)
	switch {
	case d == nil:
		return 0, nil
	case d.Spec.Replays > d.Status.Replays:
		return 0, s.restart(ctx, key)
	case d.Status.Phase != webhook.DeliveryPhasePending:
		return s.retire(ctx, d)
	}
	if wait := time.Until(timeOf(d.Status.NextAttempt)); wait > 0 {
		return wait, nil
	}
	if !s.acquire(d.Project, key) {
		return 0, nil // the end of another attempt adds it again
	}
	defer s.release(d.Project)
	return 0, s.attempt(ctx, key)
}

// acquire takes one of the attempts of a project, or has the delivery wait for one.
func (s *Sender) acquire(project, key schema.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[project] < perProject {
		s.running[project]++
		return true
	}
	if s.waiting[project] == nil {
		s.waiting[project] = map[schema.ID]struct{}{}
	}
	s.waiting[project][key] = struct{}{}
	return false
}

// release gives an attempt back, and wakes as many deliveries as may begin. One that
// was deleted or ended meanwhile begins none and so wakes no other: the last attempt
// of a project wakes all.
func (s *Sender) release(project schema.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[project]--
	free := perProject - s.running[project]
	if s.running[project] == 0 {
		delete(s.running, project)
		free = len(s.waiting[project])
	}
	if s.add == nil { // it gets all of them at the start
		return
	}
	for key := range s.waiting[project] {
		if free--; free < 0 {
			break
		}
		delete(s.waiting[project], key)
		s.add(key)
	}
	if len(s.waiting[project]) == 0 {
		delete(s.waiting, project)
	}
}

// write writes the status of a delivery; name is that of the fault point.
func (s *Sender) write(ctx context.Context, name string, d *webhook.WebhookDelivery) error {
	fault.Point("webhook", name, fault.Before)
	if err := entity.UpdateStatus(ctx, s.Store, d); err != nil {
		return err
	}
	fault.Point("webhook", name, fault.After)
	return nil
}

// restart begins a replay.
func (s *Sender) restart(ctx context.Context, key schema.ID) error {
	d, err := entity.Get[webhook.WebhookDelivery](ctx, s.Store, key)
	if err != nil || d.Spec.Replays == d.Status.Replays {
		return ignoreGone(err)
	}
	now := timestamp(time.Now())
	d.Status = webhook.WebhookDeliveryStatus{Phase: webhook.DeliveryPhasePending, NextAttempt: &now, Replays: d.Spec.Replays}
	return ignoreGone(s.write(ctx, "replay", d))
}

// retire deletes the oldest deliveries of a webhook that have ended if there are too
// many, and returns how long this one is still kept.
func (s *Sender) retire(ctx context.Context, d *webhook.WebhookDelivery) (time.Duration, error) {
	wait := webhook.KeepFor - time.Since(timeOf(d.Status.EndedAt))
	if wait <= 0 {
		return 0, s.remove(ctx, d)
	}
	if all := s.deliveries.ended(d.Spec.Webhook); len(all) > webhook.KeepDeliveries {
		for _, old := range all[:len(all)-webhook.KeepDeliveries] {
			if err := s.remove(ctx, old); err != nil {
				return 0, err
			}
		}
	}
	return wait, nil
}

// remove deletes a delivery, unless it changed: that causes the next look.
func (s *Sender) remove(ctx context.Context, d *webhook.WebhookDelivery) error {
	last := *d // objects of informers are shared
	err := entity.Delete(ctx, s.Store, &last)
	if errs.Is(err, errs.Conflict) {
		return nil
	}
	return ignoreGone(err)
}

func ignoreGone(err error) error {
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	return err
}

// attempt claims a delivery, sends it, and records the outcome.
func (s *Sender) attempt(ctx context.Context, key schema.ID) error {
	d, err := entity.Get[webhook.WebhookDelivery](ctx, s.Store, key)
	if err != nil {
		return ignoreGone(err)
	}
	now := time.Now()
	if d.Status.Phase != webhook.DeliveryPhasePending || d.Spec.Replays != d.Status.Replays || timeOf(d.Status.NextAttempt).After(now) {
		return nil // another server has it; its change causes the next look
	}
	w, err := entity.Get[webhook.Webhook](ctx, s.Store, d.Spec.Webhook)
	if err != nil {
		return ignoreGone(err) // it goes with its webhook
	}
	switch {
	case w.Spec.Disabled:
		return s.end(ctx, d, webhook.DeliveryPhaseDead, "the webhook is disabled")
	case d.Status.Attempts >= webhook.MaxAttempts:
		return s.end(ctx, d, webhook.DeliveryPhaseDead, "the server ended during the last attempt")
	}
	at, lost := timestamp(now), timestamp(now.Add(s.lost()))
	d.Status.Attempts++
	d.Status.LastAttempt, d.Status.NextAttempt = &at, &lost
	if err := s.write(ctx, "claim", d); err != nil {
		return ignoreGone(err)
	}
	fault.Point("webhook", "send", fault.Before)
	a := s.send(ctx, w, d)
	if ctx.Err() != nil && a.status == nil {
		return nil // the server stops, and whether the receiver has it is not known; the claim ends by itself
	}
	fault.Point("webhook", "send", fault.After)
	return s.record(ctx, w, d, a)
}

func (s *Sender) lost() time.Duration {
	if s.Lost > 0 {
		return s.Lost
	}
	return 2 * webhook.AttemptTimeout
}

// end ends a delivery that is not sent.
func (s *Sender) end(ctx context.Context, d *webhook.WebhookDelivery, phase webhook.DeliveryPhase, message string) error {
	now := timestamp(time.Now())
	d.Status.Phase, d.Status.EndedAt, d.Status.NextAttempt, d.Status.Message = phase, &now, nil, message
	return ignoreGone(s.write(ctx, "end", d))
}

// record records the outcome of an attempt, and repeats that while the store is
// unavailable.
func (s *Sender) record(ctx context.Context, w *webhook.Webhook, d *webhook.WebhookDelivery, a answer) error {
	server := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	defer context.AfterFunc(server, func() { time.AfterFunc(stopTimeout, cancel) })()
	now := timestamp(time.Now())
	st := &d.Status
	st.Message, st.HTTPStatus, st.NextAttempt = a.message, a.status, nil
	switch {
	case a.accepted:
		st.Phase, st.EndedAt = webhook.DeliveryPhaseDelivered, &now
	case a.gone || st.Attempts >= webhook.MaxAttempts:
		st.Phase, st.EndedAt = webhook.DeliveryPhaseDead, &now
	default:
		next := timestamp(now.Add(max(s.backoff(st.Attempts), a.after)))
		st.NextAttempt = &next
	}
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := s.write(ctx, "outcome", d)
		if errs.Is(err, errs.Unavailable) && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			continue
		}
		if err != nil {
			return ignoreGone(err)
		}
		break
	}
	return s.note(ctx, w, now, a)
}

// note records the outcome with the webhook to which a request was sent. It disables
// the webhook if its receiver is gone for good, and it has no other one by now.
func (s *Sender) note(ctx context.Context, sent *webhook.Webhook, at time.Time, a answer) error {
	_, err := entity.ModifyStatus(ctx, s.Store, sent.GetID(), func(w *webhook.Webhook) error {
		w.Status.LastAttempt, w.Status.LastOutcome = &at, a.outcome()
		if a.accepted {
			w.Status.LastDelivered, w.Status.Failures = &at, 0
		} else {
			w.Status.Failures++
		}
		return nil
	})
	if err == nil && a.gone {
		_, err = entity.ModifySpec(ctx, s.Store, sent.GetID(), func(w *webhook.Webhook) error {
			if w.Spec.URL == sent.Spec.URL {
				w.Spec.Disabled = true
				s.Logger.Info("the receiver of a webhook is gone: the webhook is disabled", "webhook", string(w.ID))
			}
			return nil
		})
	}
	return ignoreGone(err)
}

// timestamp is a time as the store keeps it.
func timestamp(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
