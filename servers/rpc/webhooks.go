package rpcserver

import (
	"context"

	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/domain/webhooks"
)

// webhookHandler serves webhook.Webhooks.
type webhookHandler struct{ webhooks *webhooks.Service }

// Webhooks serves s to its callers.
func Webhooks(s *webhooks.Service) webhook.Webhooks { return &webhookHandler{s} }

func (h *webhookHandler) Create(ctx context.Context, req *webhook.CreateWebhookRequest) (*webhook.WebhookSecretResponse, error) {
	return webhookSecret(h.webhooks.Create(ctx, webhooks.Request{Project: req.Project, Name: req.Webhook, URL: req.URL, Events: req.Events}))
}

func (h *webhookHandler) Update(ctx context.Context, req *webhook.UpdateWebhookRequest) (*webhook.WebhookResponse, error) {
	ch := webhooks.Change{Events: req.Events, Disabled: req.Disabled}
	if req.URL != "" {
		ch.URL = &req.URL
	}
	w, err := h.webhooks.Update(ctx, req.Project, req.Webhook, ch)
	if err != nil {
		return nil, err
	}
	rec, err := record(w)
	return &webhook.WebhookResponse{Webhook: rec}, err
}

func (h *webhookHandler) Delete(ctx context.Context, req *webhook.WebhookRequest) error {
	return h.webhooks.Delete(ctx, req.Project, req.Webhook)
}

func (h *webhookHandler) RotateSecret(ctx context.Context, req *webhook.WebhookRequest) (*webhook.WebhookSecretResponse, error) {
	return webhookSecret(h.webhooks.Rotate(ctx, req.Project, req.Webhook))
}

func (h *webhookHandler) Test(ctx context.Context, req *webhook.WebhookRequest) (*webhook.DeliveriesResponse, error) {
	d, err := h.webhooks.Test(ctx, req.Project, req.Webhook)
	return deliveriesResponse([]*webhook.WebhookDelivery{d}, err)
}

func (h *webhookHandler) Replay(ctx context.Context, req *webhook.ReplayRequest) (*webhook.DeliveriesResponse, error) {
	return deliveriesResponse(h.webhooks.Replay(ctx, req.Project, req.Webhook, req.Delivery))
}

func webhookSecret(w *webhook.Webhook, secret string, err error) (*webhook.WebhookSecretResponse, error) {
	if err != nil {
		return nil, err
	}
	rec, err := record(w)
	return &webhook.WebhookSecretResponse{Webhook: rec, Secret: secret}, err
}

func deliveriesResponse(list []*webhook.WebhookDelivery, err error) (*webhook.DeliveriesResponse, error) {
	if err != nil {
		return nil, err
	}
	records, err := recordsOf(list)
	return &webhook.DeliveriesResponse{Deliveries: records}, err
}
