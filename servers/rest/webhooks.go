package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Webhook is a receiver of the events of the project.
type Webhook struct {
	Name          string     `json:"name" doc:"Name." example:"ci"`
	URL           string     `json:"url" doc:"URL of the receiver."`
	Events        []string   `json:"events" doc:"Patterns of the events that it gets."`
	Disabled      bool       `json:"disabled" doc:"It gets no events."`
	Failures      int64      `json:"failures" doc:"Attempts that failed in a row."`
	LastOutcome   string     `json:"last_outcome,omitempty" doc:"Outcome of the last attempt of a delivery."`
	LastAttempt   *time.Time `json:"last_attempt,omitempty" doc:"Time of that attempt."`
	LastDelivered *time.Time `json:"last_delivered,omitempty" doc:"Time at which the receiver last accepted a delivery."`
	CreatedAt     time.Time  `json:"created_at" doc:"Time of its creation."`
}

// NewWebhook is a webhook with a new secret.
type NewWebhook struct {
	Webhook
	Secret string `json:"secret" doc:"Secret by which its requests are signed. It is shown this once."`
}

// WebhookDelivery is an event for a webhook.
type WebhookDelivery struct {
	ID          string         `json:"id" doc:"Id of the delivery."`
	Event       string         `json:"event" doc:"Id of the event, which the receiver gets as webhook-id."`
	Type        string         `json:"type" doc:"Type of the event." example:"sandbox.ended"`
	OccurredAt  time.Time      `json:"occurred_at" doc:"Time of the event."`
	Phase       string         `json:"phase" enum:"pending,delivered,dead" doc:"pending: another attempt follows; delivered: it was accepted; dead: it was given up."`
	Attempts    int64          `json:"attempts" doc:"Attempts since it was made or replayed."`
	HTTPStatus  *int64         `json:"http_status,omitempty" doc:"Status of the last answer; absent: there was none."`
	Message     string         `json:"message,omitempty" doc:"Reason of the last failure."`
	NextAttempt *time.Time     `json:"next_attempt,omitempty" doc:"Time of the next attempt."`
	EndedAt     *time.Time     `json:"ended_at,omitempty" doc:"Time at which it was accepted or given up."`
	Payload     map[string]any `json:"payload" doc:"Body of the request."`
}

func webhookOf(w *webhook.Webhook) Webhook {
	return Webhook{
		Name: w.Name, URL: w.Spec.URL, Events: append([]string{}, w.Spec.Events...), Disabled: w.Spec.Disabled, Failures: w.Status.Failures,
		LastOutcome: w.Status.LastOutcome, LastAttempt: w.Status.LastAttempt, LastDelivered: w.Status.LastDelivered, CreatedAt: w.CreatedAt,
	}
}

func webhookDeliveryOf(d *webhook.WebhookDelivery) (WebhookDelivery, error) {
	out := WebhookDelivery{
		ID: string(d.ID), Event: d.Spec.Event, Type: d.Spec.Type, OccurredAt: d.Spec.OccurredAt, Phase: string(d.Status.Phase), Attempts: d.Status.Attempts,
		HTTPStatus: d.Status.HTTPStatus, Message: d.Status.Message, NextAttempt: d.Status.NextAttempt, EndedAt: d.Status.EndedAt,
	}
	if err := json.Unmarshal([]byte(d.Spec.Payload), &out.Payload); err != nil {
		return out, errs.New(errs.Corrupt, "the body of the delivery %s: %w", d.ID, err)
	}
	return out, nil
}

// WebhookInput names a webhook.
type WebhookInput struct {
	Name string `path:"name" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name of the webhook." example:"ci"`
}

func registerWebhooks(a huma.API) {
	const tag = "webhooks"
	register(a, op(http.MethodPost, "/webhooks", "create-webhook", tag, "Make a webhook, whose secret is shown this once", status(http.StatusCreated)), createWebhook)
	register(a, op(http.MethodGet, "/webhooks", "list-webhooks", tag, "List the webhooks of the project"), listWebhooks)
	register(a, op(http.MethodGet, "/webhooks/{name}", "get-webhook", tag, "Get a webhook"), getWebhook)
	register(a, op(http.MethodPatch, "/webhooks/{name}", "update-webhook", tag, "Change, disable or enable a webhook"), updateWebhook)
	register(a, op(http.MethodDelete, "/webhooks/{name}", "delete-webhook", tag, "Delete a webhook and its deliveries", status(http.StatusNoContent)), deleteWebhook)
	register(a, op(http.MethodPost, "/webhooks/{name}/rotate-secret", "rotate-webhook-secret", tag, "Give a webhook a new secret; requests are also signed with the old one for a day"), rotateWebhookSecret)
	register(a, op(http.MethodPost, "/webhooks/{name}/test", "test-webhook", tag, "Deliver an event of the type webhook.test", status(http.StatusAccepted)), testWebhook)
	register(a, op(http.MethodGet, "/webhooks/{name}/deliveries", "list-webhook-deliveries", tag, "List the deliveries of a webhook, newest first"), listWebhookDeliveries)
	register(a, op(http.MethodPost, "/webhooks/{name}/replay", "replay-webhook-deliveries", tag, "Deliver again a delivery that has ended, or all that are dead", status(http.StatusAccepted)), replayWebhookDeliveries)
}

func webhooks(ctx context.Context) webhook.WebhooksClient {
	return webhook.NewWebhooksClient(callerFrom(ctx).Client)
}

type createWebhookInput struct {
	Body struct {
		Name   string   `json:"name" minLength:"1" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Name." example:"ci"`
		URL    string   `json:"url" minLength:"1" maxLength:"2048" doc:"URL of the receiver, http or https." example:"https://example.com/hooks"`
		Events []string `json:"events,omitempty" maxItems:"32" doc:"Patterns of events: sandbox.ended, sandbox.*, or *; absent: all." example:"[\"sandbox.*\"]"`
	}
}

type secretWebhook struct {
	CacheControl string `header:"Cache-Control"`
	Body         NewWebhook
}

func newWebhook(resp *webhook.WebhookSecretResponse, err error) (*secretWebhook, error) {
	if err != nil {
		return nil, err
	}
	w, err := entity.Decode[webhook.Webhook](&resp.Webhook)
	if err != nil {
		return nil, err
	}
	return &secretWebhook{"no-store", NewWebhook{webhookOf(w), resp.Secret}}, nil
}

func createWebhook(ctx context.Context, in *createWebhookInput) (*secretWebhook, error) {
	return newWebhook(webhooks(ctx).Create(ctx, &webhook.CreateWebhookRequest{
		Project: callerFrom(ctx).Project(), Webhook: in.Body.Name, URL: in.Body.URL, Events: in.Body.Events,
	}))
}

// WebhookPage is a page of a list.
type WebhookPage struct {
	Webhooks   []Webhook `json:"webhooks" doc:"Webhooks, in the order of their ids."`
	NextCursor string    `json:"next_cursor,omitempty" doc:"For the next page; absent on the last."`
}

func listWebhooks(ctx context.Context, in *ListInput) (*body[WebhookPage], error) {
	all, cursor, err := listPage[webhook.Webhook](ctx, webhook.KindWebhook, in)
	if err != nil {
		return nil, err
	}
	out := WebhookPage{Webhooks: []Webhook{}, NextCursor: cursor}
	for _, w := range all {
		out.Webhooks = append(out.Webhooks, webhookOf(w))
	}
	return &body[WebhookPage]{out}, nil
}

func findWebhook(ctx context.Context, name string) (*webhook.Webhook, error) {
	return byName[webhook.Webhook](ctx, name)
}

func getWebhook(ctx context.Context, in *WebhookInput) (*body[Webhook], error) {
	w, err := findWebhook(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	return &body[Webhook]{webhookOf(w)}, nil
}

type updateWebhookInput struct {
	WebhookInput
	Body struct {
		URL      string   `json:"url,omitempty" maxLength:"2048" doc:"URL of the receiver; absent: as it is."`
		Events   []string `json:"events,omitempty" maxItems:"32" doc:"Patterns of events; absent: as they are."`
		Disabled *bool    `json:"disabled,omitempty" doc:"Whether it gets no events; absent: as it is."`
	}
}

func updateWebhook(ctx context.Context, in *updateWebhookInput) (*body[Webhook], error) {
	resp, err := webhooks(ctx).Update(ctx, &webhook.UpdateWebhookRequest{
		Project: callerFrom(ctx).Project(), Webhook: in.Name, URL: in.Body.URL, Events: in.Body.Events, Disabled: in.Body.Disabled,
	})
	if err != nil {
		return nil, err
	}
	w, err := entity.Decode[webhook.Webhook](&resp.Webhook)
	if err != nil {
		return nil, err
	}
	return &body[Webhook]{webhookOf(w)}, nil
}

func webhookRequest(ctx context.Context, in *WebhookInput) *webhook.WebhookRequest {
	return &webhook.WebhookRequest{Project: callerFrom(ctx).Project(), Webhook: in.Name}
}

func deleteWebhook(ctx context.Context, in *WebhookInput) (*struct{}, error) {
	return nil, webhooks(ctx).Delete(ctx, webhookRequest(ctx, in))
}

func rotateWebhookSecret(ctx context.Context, in *WebhookInput) (*secretWebhook, error) {
	return newWebhook(webhooks(ctx).RotateSecret(ctx, webhookRequest(ctx, in)))
}

// WebhookDeliveryPage is a page of a list.
type WebhookDeliveryPage struct {
	Deliveries []WebhookDelivery `json:"deliveries" doc:"Deliveries."`
	NextCursor string            `json:"next_cursor,omitempty" doc:"For the next page; absent on the last."`
}

func deliveryPage(records []schema.Record, cursor string) (*body[WebhookDeliveryPage], error) {
	all, err := decodeAll[webhook.WebhookDelivery](records)
	if err != nil {
		return nil, err
	}
	out := WebhookDeliveryPage{Deliveries: []WebhookDelivery{}, NextCursor: cursor}
	for _, d := range all {
		one, err := webhookDeliveryOf(d)
		if err != nil {
			return nil, err
		}
		out.Deliveries = append(out.Deliveries, one)
	}
	return &body[WebhookDeliveryPage]{out}, nil
}

func testWebhook(ctx context.Context, in *WebhookInput) (*body[WebhookDeliveryPage], error) {
	resp, err := webhooks(ctx).Test(ctx, webhookRequest(ctx, in))
	if err != nil {
		return nil, err
	}
	return deliveryPage(resp.Deliveries, "")
}

type listDeliveriesInput struct {
	WebhookInput
	ListInput
}

func listWebhookDeliveries(ctx context.Context, in *listDeliveriesInput) (*body[WebhookDeliveryPage], error) {
	w, err := findWebhook(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	page, err := remote.New(callerFrom(ctx).Client).List(ctx, entity.Query{
		Kind: webhook.KindWebhookDelivery, Limit: in.Limit, Cursor: in.Cursor,
		Order: &entity.Order{Index: webhook.WebhookDeliveryIndexRecent.Name, Equal: [][]byte{schema.EncodeIndexString(string(w.ID))}},
	})
	if err != nil {
		return nil, err
	}
	return deliveryPage(page.Records, page.Cursor)
}

type replayInput struct {
	WebhookInput
	Body struct {
		Delivery string `json:"delivery,omitempty" maxLength:"63" doc:"Id of a delivery that has ended; absent: all that are dead."`
	}
}

func replayWebhookDeliveries(ctx context.Context, in *replayInput) (*body[WebhookDeliveryPage], error) {
	resp, err := webhooks(ctx).Replay(ctx, &webhook.ReplayRequest{
		Project: callerFrom(ctx).Project(), Webhook: in.Name, Delivery: in.Body.Delivery,
	})
	if err != nil {
		return nil, err
	}
	return deliveryPage(resp.Deliveries, "")
}
