// Package retention forgets what is over: per app, the pools of versions that
// no longer serve, and deployments, builds and versions beyond a number.
//
// In: everything that references an app. Out: deletions, and pools that are
// retired because no rollout will, each conditional on what was read and on the
// app. What serves, what is being rolled out and what a rollback may still want
// is never touched.
package retention

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/deployment"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/pool"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Config says how much is kept.
type Config struct {
	Versions    int           // per app, besides the active one
	Deployments int           // per app
	Builds      int           // per app
	EndedPools  time.Duration // after its last sandbox ended, a retired pool stays this long, for its logs
}

// Reconciler forgets what is over, an app at a time.
type Reconciler struct {
	Store  entity.Store
	Log    *slog.Logger
	Config Config
	Now    func() time.Time // nil: time.Now
}

const (
	// interval is how often an app is looked at when nothing happens.
	interval = 10 * time.Minute
	// soon is when it is looked at again while sandboxes of retired pools end.
	soon = 30 * time.Second
)

// Controller describes it to the controller runtime.
func (r *Reconciler) Controller() kit.Controller {
	return kit.Controller{
		Name: "retention", Kind: app.AppKind, Reconcile: r.Reconcile,
		Access: kit.Access{
			Reads: []*schema.Kind{
				app.DeploymentKind, app.BuildKind, app.AppVersionKind, sandbox.SandboxPoolKind, sandbox.SandboxKind,
			},
			Deletes: []*schema.Kind{app.DeploymentKind, app.BuildKind, app.AppVersionKind, sandbox.SandboxPoolKind},
			Shares: []kit.Share{{
				Field: kit.Field{Kind: app.AppKind, Path: "status.active_deployment"}, Owner: "deployment",
				Why:  "to clear it when that deployment was deleted",
				When: func(_, after schema.Object) bool { return after.(*app.App).Status.ActiveDeployment == "" },
			}, {
				Field: kit.Field{Kind: sandbox.SandboxPoolKind, Path: "spec.replicas"}, Owner: "deployment",
				Why:  "to retire what a rollout left behind",
				When: func(_, after schema.Object) bool { return after.(*sandbox.SandboxPool).Spec.Replicas == 0 },
			}},
		},
	}
}

// look is one app and what of it must stay.
type look struct {
	*Reconciler
	app   *app.App
	keep  map[id.AppVersion]bool
	build id.Build // that the deployment under way waits for
	check entity.Op
}

// Reconcile looks at one app. Whatever it changes, it changes only if the app
// is as it was read: a deployment that begins meanwhile comes first.
func (r *Reconciler) Reconcile(ctx context.Context, aid schema.ID) (time.Duration, error) {
	a, err := entity.Get[app.App](ctx, r.Store, aid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	l := &look{Reconciler: r, app: a, keep: map[id.AppVersion]bool{a.Status.ActiveVersion: true}}
	if l.check, err = entity.CheckOp(a); err != nil {
		return 0, err
	}
	deploying := false
	if a.Status.ActiveDeployment != "" {
		d, err := entity.Get[app.Deployment](ctx, r.Store, a.Status.ActiveDeployment)
		if err != nil && !errs.Is(err, errs.NotFound) {
			return 0, err
		}
		if err != nil { // deleted by hand; only the app still says that it is under way
			a.Status.ActiveDeployment = ""
			if err := entity.UpdateStatus(ctx, r.Store, a); err != nil {
				return 0, err
			}
			return time.Millisecond, nil
		}
		deploying = true
		l.keep[d.Status.Version], l.keep[d.Spec.Target], l.keep[d.Status.Previous] = true, true, true
		l.build = d.Spec.Build
	}
	again, err := l.pools(ctx, deploying)
	if err != nil {
		return 0, err
	}
	if err := l.history(ctx); err != nil {
		return 0, err
	}
	return again, nil
}

// pools deletes retired pools whose sandboxes have all ended a while ago, and
// asks those that a rollout left behind for no sandboxes.
func (l *look) pools(ctx context.Context, deploying bool) (time.Duration, error) {
	all, err := deployment.Pools(ctx, l.Store, l.app.GetID())
	if err != nil {
		return 0, err
	}
	now := time.Now()
	if l.Now != nil {
		now = l.Now()
	}
	again := interval
	var left []*sandbox.SandboxPool
	for _, p := range all {
		if p.Spec.AppVersion == "" || l.keep[p.Spec.AppVersion] {
			continue // made by hand, or wanted
		}
		if p.Spec.Replicas > 0 {
			if !deploying { // else it is the rollout's to stop it when it is drained
				left = append(left, p)
			}
			continue
		}
		sbs, err := pool.Sandboxes(ctx, l.Store, p.GetID())
		if err != nil {
			return 0, err
		}
		st := pool.Survey(sbs)
		if len(st.Live)+len(st.Going) > 0 {
			again = min(again, soon)
			continue
		}
		over := p.UpdatedAt
		for _, sb := range st.Ended {
			if sb.UpdatedAt.After(over) {
				over = sb.UpdatedAt
			}
		}
		if wait := l.Config.EndedPools - now.Sub(over); wait > 0 {
			again = min(again, wait)
			continue
		}
		if err := l.forget(ctx, p); err != nil {
			return 0, err
		}
	}
	if len(left) > 0 {
		l.Log.Info("pools left behind are retired", "app", l.app.Name, "pools", len(left))
		again = min(again, soon)
	}
	return again, deployment.Retire(ctx, l.Store, left, l.check)
}

// history deletes the oldest deployments, builds and versions.
func (l *look) history(ctx context.Context) error {
	mine := func(attr string) entity.Query {
		return entity.Query{Index: []entity.IndexMatch{{Attr: attr, Op: entity.IndexEq, Value: schema.EncodeIndexString(string(l.app.ID))}}}
	}
	deps, _, err := entity.List[app.Deployment](ctx, l.Store, mine(app.DeploymentAttrApp))
	if err != nil {
		return err
	}
	if err := forgetOldest(ctx, l, deps, l.Config.Deployments, nil, func(d *app.Deployment) bool { return d.Status.Phase.Ended() }); err != nil {
		return err
	}
	builds, _, err := entity.List[app.Build](ctx, l.Store, mine(app.BuildAttrApp))
	if err != nil {
		return err
	}
	if err := forgetOldest(ctx, l, builds, l.Config.Builds, nil, func(b *app.Build) bool { return b.Status.Phase.Ended() && b.GetID() != l.build }); err != nil {
		return err
	}
	vers, _, err := entity.List[app.AppVersion](ctx, l.Store, mine(app.AppVersionAttrApp))
	if err != nil {
		return err
	}
	used := map[id.AppVersion]bool{}
	pools, err := deployment.Pools(ctx, l.Store, l.app.GetID())
	if err != nil {
		return err
	}
	for _, p := range pools {
		used[p.Spec.AppVersion] = true
	}
	// Those that never served go first: nobody rolls back to them.
	served := func(a, b *app.AppVersion) int {
		return cmp.Compare(boolean(a.Status.ServedAt != nil), boolean(b.Status.ServedAt != nil))
	}
	return forgetOldest(ctx, l, vers, l.Config.Versions, served, func(v *app.AppVersion) bool { return !l.keep[v.GetID()] && !used[v.GetID()] })
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// forgetOldest deletes of those that may go all but n: first the least by
// order, among equals the oldest.
func forgetOldest[P schema.Object](ctx context.Context, l *look, all []P, n int, order func(a, b P) int, may func(P) bool) error {
	all = slices.DeleteFunc(slices.Clone(all), func(o P) bool { return !may(o) })
	slices.SortFunc(all, func(a, b P) int {
		if order != nil {
			if c := order(a, b); c != 0 {
				return c
			}
		}
		return cmp.Compare(a.GetMeta().CreateRevision, b.GetMeta().CreateRevision)
	})
	for i := 0; i < len(all)-n; i++ {
		if err := l.forget(ctx, all[i]); err != nil {
			return err
		}
	}
	return nil
}

// forget deletes o if neither it nor the app has changed.
func (l *look) forget(ctx context.Context, o schema.Object) error {
	op, err := entity.DeleteOp(o)
	if err != nil {
		return err
	}
	_, err = l.Store.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{op, l.check}})
	switch errs.ClassOf(err) {
	case "":
		l.Log.Info("forgotten", "kind", o.EntityKind().Name, "id", string(o.GetMeta().ID), "app", l.app.Name)
		return nil
	case errs.NotFound:
		return nil
	case errs.FailedPrecondition: // still referenced
		l.Log.Debug("cannot be forgotten yet", "kind", o.EntityKind().Name, "id", string(o.GetMeta().ID), "error", err)
		return nil
	}
	return err
}
