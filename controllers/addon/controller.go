// Package addon reconciles addons: it makes the disk of one, deploys the app that runs
// its program, gives the program its users, and the attached apps their variables.
//
//	pending -> ready <-> rotating       failed: it is tried again
//	       \-> deleting
//
// In: addon.spec, addon_attachment.spec, and the apps, disks, sandboxes and deployments
// that belong to them. Out: the addon's disks, deployments of its app, users in its
// program, the environment of attached apps, addon.status, addon_attachment.status.
//
// Each reconciliation goes through the steps in order and ends with the first that is not
// done. A step compares and acts, and can be repeated: a server that is killed between
// two writes leaves a state from which the next one continues. A password is stored
// before the program knows it, and the program knows it before an app gets it. An old
// one is forgotten when no sandbox of an attached app has it any more, and then refused.
package addon

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// poll is how often an addon that waits is reconciled when nothing changes.
	poll = 2 * time.Second
	// retryAfter is the time between deployments that failed.
	retryAfter = time.Minute
	// retrySoon is that time if the deployment met a fault of the system, such as a killed containerd.
	retrySoon = 10 * time.Second
	// runTimeout bounds a command in the addon's sandbox.
	runTimeout = time.Minute
	// requestedBy is the identity that deployments of this controller name.
	requestedBy = "addon"
)

// Reconciler keeps addons.
type Reconciler struct {
	Store     entity.Store // within quotas
	Informers *informer.Set
	Apps      *apps.Service // on Store
	Sealer    *schema.Sealer
	Run       addons.Runner // runs commands in the sandboxes of addons
	Logger    *slog.Logger
	Now       func() time.Time // nil: time.Now
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// Controller describes the reconciler to the controller runtime: a change of the app that
// runs an addon, of an attached app, and of their sandboxes wakes the addon.
func (r *Reconciler) Controller() kit.Controller {
	attachments := informer.Of[addon.AddonAttachment](r.Informers)
	byApp := func(t *addon.AddonAttachment) []string { return []string{string(t.Spec.App)} }
	attachments.AddIndex("app", byApp)
	runners := informer.Of[addon.Addon](r.Informers)
	runners.AddIndex("app", func(a *addon.Addon) []string { return []string{string(a.Status.App)} })
	of := func(a id.App) (keys []id.Addon) {
		for _, t := range attachments.ByIndex("app", string(a)) {
			keys = append(keys, t.Spec.Addon)
		}
		for _, x := range runners.ByIndex("app", string(a)) {
			keys = append(keys, x.GetID())
		}
		return keys
	}
	labelled := func(labels map[string]string) []id.Addon { return kit.Key(id.Addon(labels[addons.Label])) }
	c := kit.Controller{
		Name: "addon", Kind: addon.AddonKind, Reconcile: r.Reconcile, Workers: 2,
		Watches: []kit.Source{
			kit.Map(func(t *addon.AddonAttachment) []id.Addon { return kit.Key(t.Spec.Addon) }),
			kit.Map(func(a *app.App) []id.Addon { return of(a.GetID()) }),
			kit.Map(func(sb *sandbox.Sandbox) []id.Addon { return of(sb.Spec.App) }),
			kit.Map(func(d *disk.Disk) []id.Addon { return labelled(d.Labels) }),
		},
		Access: kit.Access{
			Reads:   []*schema.Kind{core.ProjectKind, app.AppVersionKind, app.BuildKind, app.DeploymentKind, app.DeployLeaseKind, disk.DiskSnapshotKind, disk.DiskMountKind},
			Creates: []*schema.Kind{app.BuildKind, app.DeploymentKind, app.DeployLeaseKind, disk.DiskKind},
			Deletes: []*schema.Kind{addon.AddonKind, addon.AddonAttachmentKind, app.AppKind},
			Owns:    slices.Concat(kit.Fields(addon.AddonKind, "status"), kit.Fields(addon.AddonAttachmentKind, "status")),
			Shares: []kit.Share{{
				Field: kit.Field{Kind: app.AppKind, Path: "status.active_deployment"}, Owner: "deployment",
				Why:  "to accept a deployment, together with its lease",
				When: func(_, after schema.Object) bool { return after.(*app.App).Status.ActiveDeployment != "" },
			}, {
				Field: kit.Field{Kind: disk.DiskKind, Path: "spec.deleted"}, Owner: "api", Why: "to delete those of an addon that is deleted",
				When: func(before, after schema.Object) bool {
					return before.(*disk.Disk).Labels[addons.Label] != "" && after.(*disk.Disk).Spec.Deleted
				},
			}, {
				Field: kit.Field{Kind: disk.DiskSnapshotKind, Path: "spec.deleted"}, Owner: "api", Why: "to delete the backups of an addon that is deleted",
				When: func(_, after schema.Object) bool { return after.(*disk.DiskSnapshot).Spec.Deleted },
			}},
		},
	}
	for _, f := range kit.Fields(app.AppKind, "spec.env", "spec.secrets") {
		c.Access.Shares = append(c.Access.Shares, kit.Share{
			Field: f, Owner: "api", Why: "to give an attached app the variables of its addon",
			When: func(before, _ schema.Object) bool { return before.(*app.App).Labels[addons.Label] == "" },
		})
	}
	return c
}

// work is one addon being reconciled.
type work struct {
	*Reconciler
	addon *addon.Addon
	app   *app.App         // runs it
	sb    *sandbox.Sandbox // its ready sandbox
}

// outcome of a step: whether it is done, and if not after how long to reconcile again if
// nothing changes.
type outcome struct {
	done  bool
	again time.Duration
}

var (
	done    = outcome{done: true}
	waits   = outcome{again: poll}
	changed = outcome{again: time.Millisecond} // the entity in memory is old now
)

// Reconcile moves one addon forward.
func (r *Reconciler) Reconcile(ctx context.Context, key schema.ID) (time.Duration, error) {
	a, err := entity.Get[addon.Addon](ctx, r.Store, key)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	w := &work{Reconciler: r, addon: a}
	steps := []func(context.Context) (outcome, error){w.disk, w.deploy, w.ready, w.credentials, w.attach, w.forget}
	if a.Spec.Deleted {
		steps = []func(context.Context) (outcome, error){w.attach, w.deleteApp, w.deleteDisks, w.deleteAddon}
	}
	for _, step := range steps {
		out, err := step(ctx)
		if errs.Is(err, errs.NotFound) {
			err = entity.AsConflict(err) // of an entity that was read
		}
		if err != nil || !out.done {
			return out.again, err
		}
	}
	if a.Spec.Deleted {
		return 0, nil
	}
	return 0, w.report(ctx, addon.AddonPhaseReady, "")
}

// report stores phase and message, if they changed.
func (w *work) report(ctx context.Context, phase addon.AddonPhase, message string) error {
	s := &w.addon.Status
	if s.Phase == phase && s.Message == message {
		return nil
	}
	if s.Phase != phase {
		w.Logger.Info("addon", "addon", w.addon.Name, "phase", string(phase), "message", message)
	}
	s.Phase, s.Message = phase, message
	return entity.UpdateStatus(ctx, w.Store, w.addon)
}

// wait reports what the addon waits for.
func (w *work) wait(ctx context.Context, phase addon.AddonPhase, message string) (outcome, error) {
	return waits, w.report(ctx, phase, message)
}
