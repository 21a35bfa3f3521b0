// Package retention deletes history: per app, the pools of versions that no longer
// serve, and deployments, builds and versions beyond a number; sandboxes of no pool
// some time after their end; images that nothing names.
//
// In: everything that references an app. Out: deletions, and the retirement of
// pools that no rollout retires, each conditional on the entity and on the app as
// they were read. The version that serves, the one that is rolled out and those
// that a rollback may need stay.
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
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Config bounds the history that is kept.
type Config struct {
	Versions    int           // versions per app, besides the active one
	Deployments int           // deployments per app
	Builds      int           // builds per app
	EndedPools  time.Duration // how long a retired pool stays after its last sandbox ended, for its logs
}

// Reconciler deletes the history of apps, one app at a time.
type Reconciler struct {
	Store  entity.Store
	Logger *slog.Logger
	Config Config
	Now    func() time.Time // nil: time.Now
}

const (
	// interval is the time between two sweeps of an app without changes.
	interval = 10 * time.Minute
	// soon is the time to the next sweep while sandboxes of retired pools end.
	soon = 30 * time.Second
)

// Controller describes the reconciler to the controller runtime.
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
				Field: kit.Field{Kind: sandbox.SandboxPoolKind, Path: "spec.state"}, Owner: "deployment",
				Why: "to retire what a rollout left behind",
				When: func(_, after schema.Object) bool {
					return after.(*sandbox.SandboxPool).Spec.State == sandbox.PoolStateRetired
				},
			}},
		},
	}
}

// sweep is one pass over an app.
type sweep struct {
	*Reconciler
	app   *app.App
	keep  map[id.AppVersion]bool // versions to keep
	build id.Build               // the build of the deployment under way, to keep
	check entity.Op              // condition: the app is unchanged since it was read
}

// Reconcile sweeps one app. It changes nothing if the app changed since it was
// read: a deployment that begins meanwhile comes first.
func (r *Reconciler) Reconcile(ctx context.Context, aid schema.ID) (time.Duration, error) {
	a, err := entity.Get[app.App](ctx, r.Store, aid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	w := &sweep{Reconciler: r, app: a, keep: map[id.AppVersion]bool{}}
	for _, v := range a.Status.Versions() {
		w.keep[v] = true
	}
	if w.check, err = entity.CheckOp(a); err != nil {
		return 0, err
	}
	deploying := false
	if a.Status.ActiveDeployment != "" {
		d, err := entity.Get[app.Deployment](ctx, r.Store, a.Status.ActiveDeployment)
		if err != nil && !errs.Is(err, errs.NotFound) {
			return 0, err
		}
		if err != nil { // deleted meanwhile, or before the store cleared references
			a.Status.ActiveDeployment = ""
			if err := entity.UpdateStatus(ctx, r.Store, a); err != nil {
				return 0, err
			}
			return time.Millisecond, nil
		}
		deploying = true
		w.keep[d.Status.Version], w.keep[d.Spec.Target], w.keep[d.Status.Previous] = true, true, true
		w.build = d.Spec.Build
	}
	again, err := w.pools(ctx, deploying)
	if err != nil {
		return 0, err
	}
	if err := w.history(ctx); err != nil {
		return 0, err
	}
	return again, nil
}

// pools deletes retired pools whose sandboxes ended some time ago, and retires
// pools that a rollout left behind.
func (w *sweep) pools(ctx context.Context, deploying bool) (time.Duration, error) {
	all, err := apps.Pools(ctx, w.Store, w.app.GetID())
	if err != nil {
		return 0, err
	}
	now := time.Now()
	if w.Now != nil {
		now = w.Now()
	}
	again := interval
	var abandoned []*sandbox.SandboxPool
	for _, p := range all {
		if p.Spec.AppVersion == "" || w.keep[p.Spec.AppVersion] {
			continue // a user made it, or a version needs it
		}
		if p.Spec.State != sandbox.PoolStateRetired {
			if !deploying { // otherwise the rollout retires it after draining
				abandoned = append(abandoned, p)
			}
			continue
		}
		sbs, err := sandboxes.InPool(ctx, w.Store, p.GetID())
		if err != nil {
			return 0, err
		}
		members := sandboxes.Classify(sbs)
		if len(members.Live)+len(members.Suspended)+len(members.Stopping) > 0 {
			again = min(again, soon)
			continue
		}
		ended := p.UpdatedAt
		for _, sb := range members.Ended {
			if sb.UpdatedAt.After(ended) {
				ended = sb.UpdatedAt
			}
		}
		if wait := w.Config.EndedPools - now.Sub(ended); wait > 0 {
			again = min(again, wait)
			continue
		}
		if err := w.delete(ctx, p); err != nil {
			return 0, err
		}
	}
	if len(abandoned) > 0 {
		w.Logger.Info("retired pools that a rollout left behind", "app", w.app.Name, "pools", len(abandoned))
		again = min(again, soon)
	}
	return again, apps.Retire(ctx, w.Store, abandoned, w.check)
}

// history deletes the oldest deployments, builds and versions.
func (w *sweep) history(ctx context.Context) error {
	deps, err := apps.Deployments(ctx, w.Store, w.app.GetID())
	if err != nil {
		return err
	}
	if err := deleteOldest(ctx, w, deps, w.Config.Deployments, nil, func(d *app.Deployment) bool { return d.Status.Phase.Ended() }); err != nil {
		return err
	}
	builds, err := apps.Builds(ctx, w.Store, w.app.GetID())
	if err != nil {
		return err
	}
	if err := deleteOldest(ctx, w, builds, w.Config.Builds, nil, func(b *app.Build) bool { return b.Status.Phase.Ended() && b.GetID() != w.build }); err != nil {
		return err
	}
	versions, err := apps.Versions(ctx, w.Store, w.app.GetID())
	if err != nil {
		return err
	}
	used := map[id.AppVersion]bool{}
	pools, err := apps.Pools(ctx, w.Store, w.app.GetID())
	if err != nil {
		return err
	}
	for _, p := range pools {
		used[p.Spec.AppVersion] = true
	}
	// Delete versions that never served first: a rollback does not choose them.
	served := func(a, b *app.AppVersion) int {
		x, y := a.Status.ServedAt != nil, b.Status.ServedAt != nil
		switch {
		case x == y:
			return 0
		case y:
			return -1
		}
		return 1
	}
	return deleteOldest(ctx, w, versions, w.Config.Versions, served, func(v *app.AppVersion) bool { return !w.keep[v.GetID()] && !used[v.GetID()] })
}

// deleteOldest deletes all but n of the objects that deletable allows: those of
// the least order first, among equals the oldest.
func deleteOldest[P schema.Object](ctx context.Context, w *sweep, all []P, n int, order func(a, b P) int, deletable func(P) bool) error {
	all = slices.DeleteFunc(slices.Clone(all), func(o P) bool { return !deletable(o) })
	slices.SortFunc(all, func(a, b P) int {
		if order != nil {
			if c := order(a, b); c != 0 {
				return c
			}
		}
		return cmp.Compare(a.GetMeta().CreateRevision, b.GetMeta().CreateRevision)
	})
	for i := 0; i < len(all)-n; i++ {
		if err := w.delete(ctx, all[i]); err != nil {
			return err
		}
	}
	return nil
}

// delete deletes o if neither o nor the app has changed.
func (w *sweep) delete(ctx context.Context, o schema.Object) error {
	op, err := entity.DeleteOp(o)
	if err != nil {
		return err
	}
	res, err := w.Store.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{op, w.check}})
	switch errs.ClassOf(err) {
	case "":
		w.check.If = res.Records[1].Revision // the app may have referred to o
		w.Logger.Info("deleted", "kind", o.EntityKind().Name, "id", string(o.GetMeta().ID), "app", w.app.Name)
		return nil
	case errs.NotFound:
		return nil
	case errs.FailedPrecondition: // another entity still refers to o
		w.Logger.Debug("cannot delete yet", "kind", o.EntityKind().Name, "id", string(o.GetMeta().ID), "error", err)
		return nil
	}
	return err
}
