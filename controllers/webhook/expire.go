package webhook

import (
	"context"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/event"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/events"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// expireEvery is how often the events of a project are looked at.
const expireEvery = time.Minute

// Expirer deletes the oldest events of each project.
type Expirer struct {
	Store entity.Store
	Keep  int64         // most events of a project; 0: event.MaxEvents
	For   time.Duration // longest time; 0: unlimited
	Every time.Duration // 0: expireEvery

	next map[schema.ID]time.Time // of a project, whose changes say nothing of its events
}

// Controller describes the expirer to the controller runtime.
func (x *Expirer) Controller() kit.Controller {
	x.next = map[schema.ID]time.Time{}
	if x.Keep == 0 {
		x.Keep = event.MaxEvents
	}
	if x.Every == 0 {
		x.Every = expireEvery
	}
	return kit.Controller{
		Name: "event", Kind: core.ProjectKind, Reconcile: x.Reconcile, Workers: 1,
		Access: kit.Access{Reads: []*schema.Kind{event.EventKind}, Deletes: []*schema.Kind{event.EventKind}},
	}
}

// Reconcile deletes the oldest events of a project.
func (x *Expirer) Reconcile(ctx context.Context, project schema.ID) (time.Duration, error) {
	if wait := time.Until(x.next[project]); wait > 0 {
		return wait, nil
	}
	var before time.Time
	if x.For > 0 {
		before = time.Now().Add(-x.For)
	}
	if err := (&events.Service{Store: x.Store}).Expire(ctx, project, before, x.Keep); err != nil {
		return 0, err
	}
	x.next[project] = time.Now().Add(x.Every)
	return x.Every, nil
}
