// Package retention forgets what is over: per app, the pools of versions that
// no longer serve, and deployments, builds and versions beyond a number.
//
// In: everything that references an app. Out: deletions, each conditional on
// what was read. What serves, what is being rolled out and what a rollback may
// still want is never touched.
package retention

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/controllers/deployment"
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

// interval is how often an app is looked at when nothing happens.
const interval = 10 * time.Minute

// Reconcile looks at one app.
func (r *Reconciler) Reconcile(ctx context.Context, aid schema.ID) (time.Duration, error) {
	a, err := entity.Get[app.App](ctx, r.Store, aid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	keep := map[id.AppVersion]bool{a.Status.ActiveVersion: true}
	if a.Status.ActiveDeployment != "" {
		d, err := entity.Get[app.Deployment](ctx, r.Store, a.Status.ActiveDeployment)
		if err != nil && !errs.Is(err, errs.NotFound) {
			return 0, err
		}
		if err == nil {
			keep[d.Status.Version], keep[d.Spec.Target], keep[d.Status.Previous] = true, true, true
		}
	}
	again, err := r.pools(ctx, a, keep)
	if err != nil {
		return 0, err
	}
	if err := r.history(ctx, a, keep); err != nil {
		return 0, err
	}
	return again, nil
}

// pools deletes retired pools whose sandboxes have all ended a while ago, and
// asks those that a failed rollout left behind for no sandboxes.
func (r *Reconciler) pools(ctx context.Context, a *app.App, keep map[id.AppVersion]bool) (time.Duration, error) {
	all, err := deployment.Pools(ctx, r.Store, a.GetID())
	if err != nil {
		return 0, err
	}
	now := time.Now()
	if r.Now != nil {
		now = r.Now()
	}
	again := interval
	for _, p := range all {
		if keep[p.Spec.AppVersion] || p.Spec.Replicas > 0 {
			continue
		}
		sbs, err := pool.Sandboxes(ctx, r.Store, p.GetID())
		if err != nil {
			return 0, err
		}
		st := pool.Survey(sbs)
		if len(st.Live)+len(st.Going) > 0 {
			continue
		}
		over := p.UpdatedAt
		for _, sb := range st.Ended {
			if sb.UpdatedAt.After(over) {
				over = sb.UpdatedAt
			}
		}
		if wait := r.Config.EndedPools - now.Sub(over); wait > 0 {
			again = min(again, wait)
			continue
		}
		if err := r.forget(ctx, p); err != nil {
			return 0, err
		}
	}
	return again, nil
}

// history deletes the oldest deployments, builds and versions.
func (r *Reconciler) history(ctx context.Context, a *app.App, keep map[id.AppVersion]bool) error {
	mine := func(attr string) entity.Query {
		return entity.Query{Index: []entity.IndexMatch{{Attr: attr, Op: entity.IndexEq, Value: schema.EncodeIndexString(string(a.ID))}}}
	}
	deps, _, err := entity.List[app.Deployment](ctx, r.Store, mine(app.DeploymentAttrApp))
	if err != nil {
		return err
	}
	if err := forgetOldest(ctx, r, deps, r.Config.Deployments, func(d *app.Deployment) bool { return deployment.Ended(d.Status.Phase) }); err != nil {
		return err
	}
	builds, _, err := entity.List[app.Build](ctx, r.Store, mine(app.BuildAttrApp))
	if err != nil {
		return err
	}
	if err := forgetOldest(ctx, r, builds, r.Config.Builds, deployment.BuildEnded); err != nil {
		return err
	}
	vers, _, err := entity.List[app.AppVersion](ctx, r.Store, mine(app.AppVersionAttrApp))
	if err != nil {
		return err
	}
	used := map[id.AppVersion]bool{}
	pools, err := deployment.Pools(ctx, r.Store, a.GetID())
	if err != nil {
		return err
	}
	for _, p := range pools {
		used[p.Spec.AppVersion] = true
	}
	return forgetOldest(ctx, r, vers, r.Config.Versions, func(v *app.AppVersion) bool { return !keep[v.GetID()] && !used[v.GetID()] })
}

// forgetOldest deletes the oldest of those that may go, so that at most n of them stay.
func forgetOldest[P schema.Object](ctx context.Context, r *Reconciler, all []P, n int, may func(P) bool) error {
	all = slices.DeleteFunc(slices.Clone(all), func(o P) bool { return !may(o) })
	slices.SortFunc(all, func(a, b P) int { return cmp.Compare(a.GetMeta().CreateRevision, b.GetMeta().CreateRevision) })
	for i := 0; i < len(all)-n; i++ {
		if err := r.forget(ctx, all[i]); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reconciler) forget(ctx context.Context, o schema.Object) error {
	err := entity.Delete(ctx, r.Store, o)
	if err == nil {
		r.Log.Info("forgotten", "kind", o.EntityKind().Name, "id", string(o.GetMeta().ID))
	}
	if errs.Is(err, errs.NotFound) || errs.Is(err, errs.Conflict) || errs.Is(err, errs.FailedPrecondition) {
		return nil // changed meanwhile, or still referenced: the next look decides
	}
	return err
}
