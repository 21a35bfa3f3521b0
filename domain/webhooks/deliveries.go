package webhooks

import (
	"time"

	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/domain/events"
	"miren.dev/runtime/pkg/schema"
)

// TypeTest is the type of the event that Test makes. It happens to a webhook alone,
// and so is in no history.
const TypeTest = "webhook.test"

// types are those of the events that webhooks get.
var types = append(events.Types[:len(events.Types):len(events.Types)], TypeTest)

func testEvent(w *webhook.Webhook) *events.Event {
	return events.New(w, "webhook", "test", string(schema.NewID("test")), time.Now())
}

// Delivery returns the delivery of an event to a webhook, which is not stored yet.
func Delivery(e *events.Event, w *webhook.Webhook) (*webhook.WebhookDelivery, error) {
	payload, err := e.Body()
	if err != nil {
		return nil, err
	}
	d := webhook.NewWebhookDelivery()
	d.Project = w.Project
	d.Spec = webhook.WebhookDeliverySpec{
		Webhook: w.GetID(), Key: Key(w, e), Event: e.ID, Type: e.Type, OccurredAt: e.At, Payload: payload,
	}
	d.Status.NextAttempt = &e.At
	return d, nil
}

// Key is the key of the delivery of an event to a webhook.
func Key(w *webhook.Webhook, e *events.Event) string { return string(w.ID) + "/" + e.ID }
