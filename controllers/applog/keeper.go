package applog

import (
	"context"
	"log/slog"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/pkg/schema"
)

// keepEvery is how often a Keeper looks at all logs.
const keepEvery = 5 * time.Minute

// Keeper deletes logs whose app is gone, and lines that are too old.
type Keeper struct {
	Store  entity.Store
	Logs   *logstore.Store
	Logger *slog.Logger
}

// Controller describes it to the controller runtime.
func (k *Keeper) Controller() kit.Controller {
	return kit.Controller{Name: "app-log-retention", Kind: app.AppKind, Reconcile: k.Reconcile, Watches: []kit.Source{kit.Func(k.sweep)}}
}

// sweep deletes old lines and adds each log, again and again until ctx ends.
func (k *Keeper) sweep(ctx context.Context, add func(schema.ID)) {
	t := time.NewTicker(keepEvery)
	defer t.Stop()
	for {
		if err := k.Logs.Expire(); err != nil {
			k.Logger.Warn("delete old lines of apps", "error", err)
		}
		for _, name := range k.Logs.Names() {
			add(schema.ID(name))
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// Reconcile deletes the log of an app that the store says is gone.
func (k *Keeper) Reconcile(ctx context.Context, aid schema.ID) (time.Duration, error) {
	_, err := entity.Get[app.App](ctx, k.Store, aid)
	if !errs.Is(err, errs.NotFound) {
		return 0, err
	}
	return 0, k.Logs.Remove(string(aid))
}
