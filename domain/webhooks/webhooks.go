// Package webhooks has the operations on webhooks, the deliveries of events (package
// events) to them, and the signatures of requests.
//
//	Create, Update, Rotate, Delete   what users do with webhooks
//	Test, Replay                     what users do with deliveries
//	Delivery                         the delivery of an event to a webhook
//	Sign                             the header by which a receiver checks a request
//
// A request is signed as Standard Webhooks says. The secret is shown when it is
// made, and is encrypted in the store.
package webhooks

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/domain/events"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// SecretPrefix begins every secret; what follows is base64.
const SecretPrefix = "whsec_"

// Service is the operations on the webhooks of one store. It is safe for
// concurrent use.
type Service struct {
	Store  entity.Store
	Sealer *schema.Sealer
}

// Request describes a webhook.
type Request struct {
	Project string // name; "": the default project
	Name    string // unique in the project
	URL     string
	Events  []string // patterns; none: all
}

// Find returns the named webhook of a project. NotFound if there is none.
func (s *Service) Find(ctx context.Context, project, name string) (*webhook.Webhook, error) {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	w, err := entity.ByName[webhook.Webhook](ctx, s.Store, pid, name)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "there is no webhook %q", name).WithHint("`r webhook list` lists those of the project")
	}
	return w, err
}

// Create makes a webhook and returns it with its secret. It gets what happens
// from then on. AlreadyExists if the project has one of that name;
// ResourceExhausted if it has too many.
func (s *Service) Create(ctx context.Context, req Request) (*webhook.Webhook, string, error) {
	if err := checkURL(req.URL); err != nil {
		return nil, "", err
	}
	patterns, err := canonical(req.Events)
	if err != nil {
		return nil, "", err
	}
	pid, err := projects.Find(ctx, s.Store, req.Project)
	if err != nil {
		return nil, "", err
	}
	page, err := s.Store.List(ctx, entity.Query{Kind: webhook.KindWebhook, Project: pid, Limit: webhook.MaxWebhooks})
	if err != nil {
		return nil, "", err
	}
	if len(page.Records) >= webhook.MaxWebhooks {
		return nil, "", errs.New(errs.ResourceExhausted, "the project has %d webhooks, which is the most", len(page.Records)).
			WithHint("delete some: `r webhook delete`")
	}
	secret, sealed, err := s.newSecret()
	if err != nil {
		return nil, "", err
	}
	w := webhook.NewWebhook()
	w.Project, w.Name, w.Spec.URL, w.Spec.Events, w.Spec.Secret = pid, req.Name, req.URL, patterns, sealed
	err = entity.Create(ctx, s.Store, w)
	if errs.Is(err, errs.AlreadyExists) {
		return nil, "", errs.New(errs.AlreadyExists, "the project has a webhook %q", req.Name).
			WithHint("choose another name, or delete that one (`r webhook delete %s`)", req.Name)
	}
	return w, secret, err
}

// Change describes a change of a webhook. Nil fields stay.
type Change struct {
	URL      *string
	Events   []string
	Disabled *bool
}

// Update changes a webhook. NotFound if there is none.
func (s *Service) Update(ctx context.Context, project, name string, ch Change) (*webhook.Webhook, error) {
	if ch.URL != nil {
		if err := checkURL(*ch.URL); err != nil {
			return nil, err
		}
	}
	var patterns []string
	if ch.Events != nil {
		var err error
		if patterns, err = canonical(ch.Events); err != nil {
			return nil, err
		}
	}
	return s.modify(ctx, project, name, func(w *webhook.Webhook) {
		if ch.URL != nil {
			w.Spec.URL = *ch.URL
		}
		if ch.Events != nil {
			w.Spec.Events = patterns
		}
		if ch.Disabled != nil {
			w.Spec.Disabled = *ch.Disabled
		}
	})
}

// Rotate gives a webhook a new secret and returns it. Requests are also signed
// with the one before for webhook.SecretOverlap. NotFound if there is no such webhook.
func (s *Service) Rotate(ctx context.Context, project, name string) (*webhook.Webhook, string, error) {
	secret, sealed, err := s.newSecret()
	if err != nil {
		return nil, "", err
	}
	until := time.Now().Add(webhook.SecretOverlap).UTC().Truncate(time.Millisecond)
	w, err := s.modify(ctx, project, name, func(w *webhook.Webhook) {
		previous := w.Spec.Secret
		w.Spec.PreviousSecret, w.Spec.PreviousUntil, w.Spec.Secret = &previous, &until, sealed
	})
	return w, secret, err
}

func (s *Service) modify(ctx context.Context, project, name string, change func(*webhook.Webhook)) (*webhook.Webhook, error) {
	w, err := s.Find(ctx, project, name)
	if err != nil {
		return nil, err
	}
	return entity.ModifySpec(ctx, s.Store, w.GetID(), func(w *webhook.Webhook) error { change(w); return nil })
}

// Delete deletes a webhook and its deliveries. NotFound if there is none.
func (s *Service) Delete(ctx context.Context, project, name string) error {
	w, err := s.Find(ctx, project, name)
	if err != nil {
		return err
	}
	return entity.Remove[webhook.Webhook](ctx, s.Store, w.GetID())
}

// Test delivers an event of the type webhook.test to a webhook. FailedPrecondition if
// it is disabled, ResourceExhausted if too many of its deliveries wait.
func (s *Service) Test(ctx context.Context, project, name string) (*webhook.WebhookDelivery, error) {
	w, err := s.Find(ctx, project, name)
	if err != nil {
		return nil, err
	}
	if w.Spec.Disabled {
		return nil, errs.New(errs.FailedPrecondition, "the webhook %s is disabled", name).WithHint("enable it: `r webhook enable %s`", name)
	}
	q := inPhase(w, webhook.DeliveryPhasePending)
	q.Kind, q.Limit = webhook.KindWebhookDelivery, webhook.MaxPending
	page, err := s.Store.List(ctx, q)
	if err != nil {
		return nil, err
	}
	if len(page.Records) >= webhook.MaxPending || page.Cursor != "" {
		return nil, errs.New(errs.ResourceExhausted, "too many deliveries of the webhook %s wait", name).
			WithHint("`r webhook deliveries %s` shows why; `r webhook replay` tests with one that has ended", name)
	}
	d, err := Delivery(testEvent(w), w)
	if err != nil {
		return nil, err
	}
	return d, entity.Create(ctx, s.Store, d)
}

// inPhase returns the query for the deliveries of a webhook in a phase.
func inPhase(w *webhook.Webhook, p webhook.DeliveryPhase) entity.Query {
	q := entity.Where(webhook.WebhookDeliveryAttrWebhook, w.GetID())
	q.Index = append(q.Index, entity.Where(webhook.WebhookDeliveryAttrPhase, p).Index...)
	return q
}

// Replay sends deliveries that have ended to the receiver again: the one with an id, or
// without an id all that are dead. The receiver gets the same webhook-id and body. NotFound if the webhook
// has no such delivery, FailedPrecondition if that has not ended.
func (s *Service) Replay(ctx context.Context, project, name, delivery string) ([]*webhook.WebhookDelivery, error) {
	w, err := s.Find(ctx, project, name)
	if err != nil {
		return nil, err
	}
	if w.Spec.Disabled {
		return nil, errs.New(errs.FailedPrecondition, "the webhook %s is disabled", name).WithHint("enable it: `r webhook enable %s`", name)
	}
	if delivery != "" {
		d, err := entity.Get[webhook.WebhookDelivery](ctx, s.Store, delivery)
		if errs.Is(err, errs.NotFound) || err == nil && d.Spec.Webhook != w.GetID() {
			return nil, errs.New(errs.NotFound, "the webhook %s has no delivery %q", name, delivery).
				WithHint("`r webhook deliveries %s` lists those that are kept", name)
		}
		if err != nil {
			return nil, err
		}
		if !replayable(d) {
			return nil, errs.New(errs.FailedPrecondition, "the delivery %s has not ended", delivery).WithHint("another attempt follows by itself")
		}
		d, err = s.replay(ctx, d)
		return []*webhook.WebhookDelivery{d}, err
	}
	dead, _, err := entity.List[webhook.WebhookDelivery](ctx, s.Store, inPhase(w, webhook.DeliveryPhaseDead))
	if err != nil {
		return nil, err
	}
	var out []*webhook.WebhookDelivery
	for _, d := range dead {
		if !replayable(d) {
			continue
		}
		d, err := s.replay(ctx, d)
		if errs.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return out, err
		}
		out = append(out, d)
	}
	return out, nil
}

// replayable reports whether a delivery has ended, and no replay is wanted that has
// not begun.
func replayable(d *webhook.WebhookDelivery) bool {
	return d.Status.Phase != webhook.DeliveryPhasePending && d.Spec.Replays == d.Status.Replays
}

func (s *Service) replay(ctx context.Context, d *webhook.WebhookDelivery) (*webhook.WebhookDelivery, error) {
	return entity.ModifySpec(ctx, s.Store, d.GetID(), func(d *webhook.WebhookDelivery) error {
		if replayable(d) {
			d.Spec.Replays++
		}
		return nil
	})
}

// checkURL returns InvalidArgument for a URL that no receiver can have.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case len(text) > webhook.MaxURL:
		return errs.New(errs.InvalidArgument, "the URL has %d bytes, more than %d", len(text), webhook.MaxURL)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Opaque != "":
		return errs.New(errs.InvalidArgument, "the URL is none of http or https").WithHint("write it like https://example.com/hooks")
	case u.User != nil:
		return errs.New(errs.InvalidArgument, "the URL has a user name or password, which would be shown").
			WithHint("have the receiver check the signature of requests")
	case u.Fragment != "":
		return errs.New(errs.InvalidArgument, "the URL has a fragment, which is never sent")
	}
	return nil
}

// canonical returns patterns sorted, each once; all events for none.
// InvalidArgument if no event matches one.
func canonical(patterns []string) ([]string, error) {
	if len(patterns) == 0 {
		return []string{"*"}, nil
	}
	if len(patterns) > webhook.MaxPatterns {
		return nil, errs.New(errs.InvalidArgument, "a webhook has at most %d event patterns, not %d", webhook.MaxPatterns, len(patterns))
	}
	for _, p := range patterns {
		if !slices.ContainsFunc(types, func(t string) bool { return events.Match(p, t) }) {
			return nil, errs.New(errs.InvalidArgument, "no event matches %q", p).
				WithHint("events are %s; sandbox.* means all of sandboxes, * all", strings.Join(types, ", "))
		}
	}
	out := slices.Sorted(slices.Values(patterns))
	return slices.Compact(out), nil
}

// Matches reports whether a webhook gets events of a type.
func Matches(w *webhook.Webhook, eventType string) bool {
	return !w.Spec.Disabled && slices.ContainsFunc(w.Spec.Events, func(p string) bool { return events.Match(p, eventType) })
}

// newSecret returns a secret, also sealed.
func (s *Service) newSecret() (string, schema.Secret, error) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	secret := SecretPrefix + base64.StdEncoding.EncodeToString(b[:])
	sealed, err := s.Sealer.Seal(secret)
	return secret, sealed, err
}

// Secrets returns the secrets by which requests of a webhook are signed at a time.
func (s *Service) Secrets(w *webhook.Webhook, now time.Time) ([]string, error) {
	secret, err := s.Sealer.Open(w.Spec.Secret)
	if err != nil {
		return nil, err
	}
	out := []string{secret}
	if until := w.Spec.PreviousUntil; w.Spec.PreviousSecret != nil && until != nil && now.Before(*until) {
		previous, err := s.Sealer.Open(*w.Spec.PreviousSecret)
		if err != nil {
			return nil, err
		}
		out = append(out, previous)
	}
	return out, nil
}

// Sign returns the header webhook-signature of a request: a signature by each
// secret, of its id, the seconds of its time, and its body.
func Sign(secrets []string, id string, at time.Time, body []byte) (string, error) {
	var signatures []string
	for _, secret := range secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, SecretPrefix))
		if err != nil {
			return "", errs.New(errs.Corrupt, "the secret of a webhook is not base64")
		}
		h := hmac.New(sha256.New, key)
		fmt.Fprintf(h, "%s.%d.", id, at.Unix())
		h.Write(body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil)))
	}
	return strings.Join(signatures, " "), nil
}
