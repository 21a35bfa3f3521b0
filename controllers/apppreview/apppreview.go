// Package apppreview reconciles the ends of previews of apps.
//
// In: app.status.traffic, the deployment under way, and the routes of previews. Out: when the time of a preview is over, one
// transaction takes away its share, its host and its sandboxes, as when a user deletes it. A preview that is being replaced
// stays until that deployment has ended. A route of a preview that the app does not have, or that has another host now, is
// deleted once no deployment is under way: a rollout that failed left it.
package apppreview

import (
	"context"
	"log/slog"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

// longest is the longest time until an app is looked at again, so that a changed clock of the machine matters that long only.
const longest = 10 * time.Minute

// Reconciler ends the previews of apps.
type Reconciler struct {
	Store  entity.Store
	Logger *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// Controller describes the reconciler to the controller runtime.
func (r *Reconciler) Controller() kit.Controller {
	c := kit.Controller{
		Name: "app-preview", Kind: app.AppKind, Reconcile: r.Reconcile,
		Access: kit.Access{
			Reads:   []*schema.Kind{app.DeploymentKind, app.RouteKind, sandbox.SandboxPoolKind},
			Deletes: []*schema.Kind{app.RouteKind},
		},
	}
	c.Access.Shares = Shares("when the time of a preview is over")
	return c
}

// Shares declares the fields that the end of a preview changes.
func Shares(why string) []kit.Share {
	var out []kit.Share
	for _, f := range kit.Fields(app.AppKind, "status.traffic", "status.serving") {
		out = append(out, kit.Share{Field: f, Owner: "deployment", Why: why, When: func(before, after schema.Object) bool {
			return len(after.(*app.App).Status.Previews()) < len(before.(*app.App).Status.Previews())
		}})
	}
	return append(out, kit.Share{
		Field: kit.Field{Kind: sandbox.SandboxPoolKind, Path: "spec.state"}, Owner: "deployment", Why: why,
		When: func(_, after schema.Object) bool {
			return after.(*sandbox.SandboxPool).Spec.State == sandbox.PoolStateRetired
		},
	})
}

// Reconcile ends at most one preview of an app, and returns the time until the next one ends.
func (r *Reconciler) Reconcile(ctx context.Context, aid schema.ID) (time.Duration, error) {
	a, err := entity.Get[app.App](ctx, r.Store, aid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	now := time.Now()
	if r.Now != nil {
		now = r.Now()
	}
	again := time.Duration(0)
	for _, p := range a.Status.Previews() {
		if p.ExpiresAt == nil {
			continue
		}
		if left := p.ExpiresAt.Sub(now); left > 0 {
			if again == 0 || left < again {
				again = min(left, longest)
			}
			continue
		}
		replaced, err := apps.UnderWay(ctx, r.Store, a, p.Preview)
		if err != nil {
			return 0, err
		}
		if replaced {
			continue // the app changes when that has ended
		}
		if err := apps.EndPreview(ctx, r.Store, a, p.Preview); err != nil {
			return 0, err
		}
		r.Logger.Info("the time of a preview is over", "app", a.Name, "preview", p.Preview)
		return time.Millisecond, nil
	}
	return again, r.sweep(ctx, a)
}

// sweep deletes routes that belong to no preview that the app has.
func (r *Reconciler) sweep(ctx context.Context, a *app.App) error {
	if a.Status.ActiveDeployment != "" {
		return nil
	}
	all, err := apps.PreviewRoutes(ctx, r.Store, a, func(string) bool { return true })
	if err != nil {
		return err
	}
	for _, rt := range all {
		if share := a.Status.Preview(rt.Spec.Preview); share != nil && share.Host == rt.Spec.Host {
			continue
		}
		del, err := entity.DeleteOp(rt)
		if err != nil {
			return err
		}
		unchanged, err := entity.CheckOp(a) // no deployment has begun
		if err != nil {
			return err
		}
		fault.Point("preview", "sweep", fault.Before)
		_, err = r.Store.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{del, unchanged}})
		fault.Point("preview", "sweep", fault.After)
		if err != nil {
			return entity.AsConflict(err)
		}
		r.Logger.Info("deleted a route without its preview", "app", a.Name, "host", rt.Spec.Host)
	}
	return nil
}
