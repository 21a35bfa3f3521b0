// Package deployment reconciles deployments: it takes one rollout from
// acceptance to a known end, whatever happens to the server meanwhile.
//
//	pending -> building -> starting -> shifting -> baking -> draining -> succeeded
//	                 \          \           \          \ -> failed | canceled
//
// In: deployment, build, disks, and the pools and sandboxes of the new version. Out:
// app_version, new disks, sandbox pools, the sandbox of the release command, routes of
// app.toml (once the version has held), app.status,
// deployment.status.
//
// A service that writes to a disk has one sandbox at a time. Its pool is created
// last, after the pool of the version before was set to no sandboxes and those have
// ended (volumes.go). If the new version fails, the end of the deployment restores
// that pool in the same transaction.
//
// The right to change an app is its deploy_lease, an entity bound to a store lease
// that the reconciler renews. Every step that others see is one transaction that
// checks the lease. So a deployment that lost it changes nothing, and two never act
// on one app. A server killed between two transactions leaves a phase from which the
// next server continues. The transaction that sets app.status.traffic shifts
// the traffic and enters baking. If the new version fails there, the end of the
// deployment sets it back. From draining on the deployment can only succeed.
package deployment

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

const (
	// poll is how often a deployment under way is reconciled when nothing changes.
	poll = 2 * time.Second
	// stuckAfter is how long a phase may meet errors that time rarely cures
	// before the deployment fails.
	stuckAfter = time.Minute
)

// Drainer reports the requests that the ingress is serving; ingress.Client is
// one.
type Drainer interface {
	// Synced waits until the ingress has read the store up to revision.
	Synced(ctx context.Context, rev schema.Revision) error
	// Inflight counts the requests under way to sandboxes of the version.
	Inflight(ctx context.Context, version schema.ID) (ingress.Inflight, error)
}

// Reconciler takes deployments to their end.
type Reconciler struct {
	Store     entity.Store  // within quotas
	Informers *informer.Set // used by Controller
	Drainer   Drainer       // nil: there is no ingress to wait for
	Logger    *slog.Logger
	// URL returns the URL of an app, "" if it has none.
	URL func(a *app.App) string
	// HostURL returns the URL of the host of a preview; nil: it has none.
	HostURL func(host string) string
	Routes  Routes // nil: a source can ask for none
	// Admit returns the error with which Store would refuse operations; nil: there
	// are no quotas.
	Admit func(ctx context.Context, ops []entity.Op) error
	// Default gives a sandbox for which nothing was asked the network that the policy of its
	// project permits; nil: there are no policies.
	Default func(ctx context.Context, sb *sandbox.Sandbox) error
	// DrainTimeout bounds the wait for requests to the old version.
	DrainTimeout time.Duration
	// Bake is how long the new version must hold with the traffic before the old one
	// is stopped.
	Bake time.Duration
	// Began is when this server began. The time that a deployment gives nodes, disks and
	// probes begins again then, since they did nothing while no server ran.
	Began time.Time
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Controller describes the reconciler to the controller runtime: a change of an
// app's builds, pools or sandboxes wakes the deployment that is under way for
// the app.
func (r *Reconciler) Controller() kit.Controller {
	apps := informer.Of[app.App](r.Informers)
	active := func(aid id.App) []id.Deployment {
		if a := apps.Get(schema.ID(aid)); a != nil {
			return kit.Key(a.Status.ActiveDeployment)
		}
		return nil
	}
	c := kit.Controller{
		Name: "deployment", Kind: app.DeploymentKind, Reconcile: r.Reconcile, Workers: 4,
		Watches: []kit.Source{
			kit.Map(func(b *app.Build) []id.Deployment { return active(b.Spec.App) }),
			kit.Map(func(sb *sandbox.Sandbox) []id.Deployment { return active(sb.Spec.App) }),
			kit.Map(func(p *sandbox.SandboxPool) []id.Deployment { return active(p.Spec.App) }),
			kit.Map(func(t *addon.AddonAttachment) []id.Deployment { return active(t.Spec.App) }),
		},
		Access: kit.Access{
			Reads:   []*schema.Kind{app.AppKind, app.AppVersionKind, app.DeployLeaseKind, disk.DiskKind, disk.DiskMountKind, addon.AddonKind, app.RouteKind, app.TCPRouteKind, certificate.CertificateKind},
			Creates: []*schema.Kind{app.AppVersionKind, sandbox.SandboxPoolKind, sandbox.SandboxKind, disk.DiskKind, addon.AddonKind, addon.AddonAttachmentKind, app.AppKind, app.RouteKind},
			Deletes: []*schema.Kind{app.DeployLeaseKind, app.RouteKind},
			Owns: slices.Concat(
				kit.Fields(app.DeploymentKind, "status"), kit.Fields(app.AppKind, "spec.version_counter", "status"),
				kit.Fields(app.AppVersionKind, "status"), kit.Fields(app.BuildKind, "spec.cancel"),
				kit.Fields(sandbox.SandboxPoolKind, "spec.replicas", "spec.state", "spec.autoscale")),
		},
	}
	for _, f := range kit.Fields(app.AppKind, "spec.env", "spec.secrets") {
		c.Shares = append(c.Shares, kit.Share{
			Field: f, Owner: "api", Why: "when a rollback brings back that of its version",
			When: func(before, _ schema.Object) bool { return before.(*app.App).Status.ActiveDeployment != "" },
		})
	}
	for _, f := range kit.Fields(app.RouteKind, "spec.service", "spec.settings", "spec.source_settings") {
		c.Shares = append(c.Shares, kit.Share{
			Field: f, Owner: "api", Why: "as app.toml of its app states",
			When: func(before, after schema.Object) bool {
				return len(before.(*app.Route).Spec.SourceSettings) > 0 || len(after.(*app.Route).Spec.SourceSettings) > 0 || before.(*app.Route).Spec.FromSource
			},
		})
	}
	for _, f := range kit.Fields(disk.DiskKind, "spec.snapshot_every", "spec.snapshot_schedule", "spec.snapshot_time_zone", "spec.snapshot_since", "spec.snapshot_keep", "spec.snapshot_keep_for") {
		c.Shares = append(c.Shares, kit.Share{
			Field: f, Owner: "api", Why: "as app.toml of the app that writes to it declares",
			When: func(_, after schema.Object) bool { return after.(*disk.Disk).Spec.SnapshotSchedule != "" },
		})
	}
	for _, f := range kit.Fields(sandbox.SandboxKind, "spec.desired", "spec.stop_reason") {
		c.Shares = append(c.Shares, kit.Share{
			Field: f, Owner: "api", Why: "to stop the release command of a version that will not serve",
			When: func(before, after schema.Object) bool {
				return isRelease(before.(*sandbox.Sandbox)) && after.(*sandbox.Sandbox).Spec.Desired == sandbox.DesiredStateStopped
			},
		})
	}
	c.Shares = append(c.Shares, kit.Share{
		Field: kit.Field{Kind: sandbox.SandboxPoolKind, Path: "spec.autoscaled"}, Owner: "autoscale", Why: "when a number that was fixed begins to follow the load",
		When: func(before, _ schema.Object) bool { return before.(*sandbox.SandboxPool).Spec.Autoscale == nil },
	})
	return c
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// rollout is one deployment being reconciled.
type rollout struct {
	*Reconciler
	dep   *app.Deployment
	app   *app.App
	lease *app.DeployLease // nil: not held
}

// Reconcile moves one deployment forward by at most one phase. It returns after
// how long to reconcile it again if nothing changes (0: only after a change).
func (r *Reconciler) Reconcile(ctx context.Context, did schema.ID) (time.Duration, error) {
	ro, err := r.read(ctx, did)
	if ro == nil || err != nil {
		return 0, err
	}
	again, err := ro.advance(ctx)
	switch errs.ClassOf(err) {
	case "", errs.Conflict, errs.Unavailable, errs.DeadlineExceeded, errs.Canceled:
		return again, err
	case errs.NotFound: // of an entity that was read
		return 0, entity.AsConflict(err)
	case errs.InvalidArgument: // a retry would fail the same way
	default:
		if r.now().Sub(ro.since()) < stuckAfter {
			return 0, err
		}
	}
	// The attempt may have changed the entities in memory.
	if ro, rerr := r.read(ctx, did); rerr != nil {
		return 0, rerr
	} else if ro != nil && !ro.dep.Status.Phase.Ended() {
		return 0, ro.giveUp(ctx, err)
	}
	return 0, err
}

// read returns nil if there is no work.
func (r *Reconciler) read(ctx context.Context, did schema.ID) (*rollout, error) {
	dep, err := entity.Get[app.Deployment](ctx, r.Store, did)
	if errs.Is(err, errs.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	a, err := entity.Get[app.App](ctx, r.Store, dep.Spec.App)
	if errs.Is(err, errs.NotFound) {
		return nil, nil // the app is being deleted, and the deployment with it
	}
	if err != nil {
		return nil, err
	}
	return &rollout{Reconciler: r, dep: dep, app: a}, nil
}

func (r *rollout) advance(ctx context.Context) (time.Duration, error) {
	if r.dep.Status.Phase.Ended() {
		if err := r.correctURL(ctx); err != nil {
			return 0, err
		}
		return 0, r.cleanUp(ctx)
	}
	if err := r.holdLease(ctx); err != nil {
		return 0, err
	}
	if r.lease == nil {
		return 0, r.endWithoutLease(ctx)
	}
	if r.dep.Spec.Cancel && r.dep.Status.Phase.Cancelable() {
		if err := r.takeBack(ctx); err != nil {
			return 0, err
		}
		r.endSteps(app.StepStateFailed, "canceled")
		return 0, r.end(ctx, app.DeploymentPhaseCanceled)
	}
	switch r.dep.Status.Phase {
	case "", app.DeploymentPhasePending:
		return r.begin(ctx)
	case app.DeploymentPhaseBuilding:
		return r.build(ctx)
	case app.DeploymentPhaseStarting:
		return r.start(ctx)
	case app.DeploymentPhaseShifting:
		return r.shift(ctx)
	case app.DeploymentPhaseBaking:
		return r.bake(ctx)
	case app.DeploymentPhaseDraining:
		return r.drain(ctx)
	}
	return 0, errs.New(errs.Internal, "deployment %s is in unknown phase %q", r.dep.ID, r.dep.Status.Phase)
}

// since returns when the current phase began.
func (r *rollout) since() time.Time {
	for _, s := range r.dep.Status.Steps {
		if s.State == app.StepStateRunning && s.StartedAt != nil {
			return *s.StartedAt
		}
	}
	return r.dep.CreatedAt
}

// giveUp ends a deployment that cannot continue because of a fault of the
// system.
func (r *rollout) giveUp(ctx context.Context, why error) error {
	if err := r.holdLease(ctx); err != nil {
		return err
	}
	if r.serves() {
		// Retention retires the pools of the old one.
		r.Logger.Error("gave up stopping the old version", "deployment", r.dep.ID, "error", why)
		r.endSteps(app.StepStateDone, "the old version is stopped later: "+why.Error())
		return r.end(ctx, app.DeploymentPhaseSucceeded)
	}
	f := app.Failure{Reason: app.FailureReasonInternal, Message: why.Error(), Hint: errs.HintOf(why)}
	if f.Hint == "" {
		f.Hint = "`r doctor` checks the server; `r deploy` tries again"
	}
	return r.fail(ctx, f)
}

// serves reports whether the new version has the traffic.
func (r *rollout) serves() bool {
	return r.dep.Status.Phase == app.DeploymentPhaseBaking || r.dep.Status.Phase == app.DeploymentPhaseDraining
}

// holdLease renews the app's lease and sets r.lease if this deployment holds
// it.
func (r *rollout) holdLease(ctx context.Context) error {
	l, err := apps.LeaseOf(ctx, r.Store, r.app.GetID())
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if l.Spec.Deployment != r.dep.GetID() {
		return nil
	}
	if _, err := r.Store.KeepAlive(ctx, l.Lease); err != nil {
		if errs.Is(err, errs.NotFound) {
			return nil
		}
		return err
	}
	r.lease = l
	return nil
}

// endWithoutLease ends a deployment whose lease lapsed.
func (r *rollout) endWithoutLease(ctx context.Context) error {
	if r.serves() {
		// Its version got the traffic while it held the lease. The next holder
		// of the lease, or retention, retires the pools of the old versions.
		r.endSteps(app.StepStateDone, "")
		return r.end(ctx, app.DeploymentPhaseSucceeded)
	}
	f := app.Failure{
		Reason: app.FailureReasonLease, Message: "no server worked on this deployment for so long that its lease on the app lapsed",
		Hint: "deploy again: `r deploy`",
	}
	if r.app.Status.ActiveDeployment != "" && r.app.Status.ActiveDeployment != r.dep.GetID() {
		f.Message += fmt.Sprintf(", and deployment %s took over", r.app.Status.ActiveDeployment)
		f.Hint = fmt.Sprintf("`r app status %s` shows what becomes of that one", r.app.Name)
	}
	return r.fail(ctx, f)
}

// enter writes the next phase, with further operations in the same transaction,
// if the lease is still held.
func (r *rollout) enter(ctx context.Context, phase app.DeploymentPhase, ops ...entity.Op) error {
	check, err := entity.CheckOp(r.lease)
	if err != nil {
		return err
	}
	return r.commit(ctx, phase, append(ops, check)...)
}

func (r *rollout) commit(ctx context.Context, phase app.DeploymentPhase, ops ...entity.Op) error {
	r.dep.Status.Phase = phase
	op, err := entity.UpdateStatusOp(r.dep)
	if err != nil {
		return err
	}
	fault.Point("deployment", string(phase), fault.Before)
	if _, err = r.Store.Txn(ctx, entity.TxnRequest{Ops: append(ops, op)}); err != nil {
		return err
	}
	fault.Point("deployment", string(phase), fault.After)
	r.Logger.Info("deployment", "deployment", r.dep.ID, "app", r.app.Name, "phase", string(phase))
	return nil
}

// end writes a final phase, releases the lease and the app, and cancels the
// build if it is not needed, all in one transaction. Without the lease it
// changes no entity that may belong to another deployment.
func (r *rollout) end(ctx context.Context, phase app.DeploymentPhase) error {
	now := r.now()
	r.dep.Status.EndedAt = &now
	var ops []entity.Op
	if r.app.Status.ActiveDeployment == r.dep.GetID() {
		r.app.Status.ActiveDeployment = ""
	}
	if r.preview() == nil {
		r.app.Status.LastDeployment = r.dep.GetID()
		url, err := r.url(ctx) // of a failed deployment too: the version before serves
		if err != nil {
			return err
		}
		r.dep.Status.URL = url
	}
	op, err := entity.UpdateStatusOp(r.app)
	if err != nil {
		return err
	}
	ops = append(ops, op)
	if r.lease != nil || r.app.Status.ActiveDeployment == "" {
		scale, err := r.scale(ctx)
		if err != nil {
			return err
		}
		unchanged, err := entity.UpdateSpecOp(r.app) // Conflict if the scale has changed since it was read
		if err != nil {
			return err
		}
		ops = append(append(ops, scale...), unchanged)
	}
	served, err := r.served(ctx, phase)
	if err != nil {
		return err
	}
	ops = append(ops, served...)
	if r.lease != nil {
		if op, err = entity.DeleteOp(r.lease); err != nil {
			return err
		}
		ops = append(ops, op)
	}
	if phase != app.DeploymentPhaseSucceeded && r.dep.Spec.Build != "" {
		b, err := entity.Get[app.Build](ctx, r.Store, r.dep.Spec.Build)
		if err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
		if err == nil && !b.Status.Phase.Ended() && !b.Spec.Cancel {
			b.Spec.Cancel = true
			if op, err = entity.UpdateSpecOp(b); err != nil {
				return err
			}
			ops = append(ops, op)
		}
	}
	if err := r.commit(ctx, phase, ops...); err != nil {
		return err
	}
	if r.lease != nil {
		// No entity is bound to the store lease now. If the revocation fails,
		// the lease lapses.
		if err := r.Store.Revoke(ctx, r.lease.Lease); err != nil && !errs.Is(err, errs.NotFound) {
			r.Logger.Debug("revoke lease", "lease", string(r.lease.Lease), "error", err)
		}
	}
	return r.cleanUp(ctx)
}

// served records that the version of a deployment that ends in phase has served: it
// got all requests and held. A rollback chooses no other version.
func (r *rollout) served(ctx context.Context, phase app.DeploymentPhase) ([]entity.Op, error) {
	tried := r.dep.Spec.Canary > 0 && r.app.Status.Active() != r.dep.Status.Version
	if phase != app.DeploymentPhaseSucceeded || tried || r.preview() != nil {
		return nil, nil
	}
	ver, err := entity.Get[app.AppVersion](ctx, r.Store, r.dep.Status.Version)
	if errs.Is(err, errs.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	now := r.now()
	ver.Status.ServedAt = &now
	op, err := entity.UpdateStatusOp(ver)
	return []entity.Op{op}, err
}

// cleanUp retires the pools of a version that never got the traffic, and stops
// its release command. Each reconciliation of an ended deployment repeats it.
func (r *rollout) cleanUp(ctx context.Context) error {
	v := r.dep.Status.Version
	if r.dep.Status.Phase == app.DeploymentPhaseSucceeded || v == "" || r.app.Status.Serves(v) {
		return nil
	}
	if err := r.stopRelease(ctx, v); err != nil {
		return err
	}
	pools, err := apps.Pools(ctx, r.Store, r.app.GetID())
	if err != nil {
		return err
	}
	return apps.Retire(ctx, r.Store, apps.PoolsOfVersion(pools, v))
}

func (r *rollout) fail(ctx context.Context, f app.Failure) error {
	r.dep.Status.Failure = &f
	r.endSteps(app.StepStateFailed, f.Message)
	if err := r.end(ctx, app.DeploymentPhaseFailed); err != nil {
		return err
	}
	r.Logger.Warn("deployment failed", "deployment", r.dep.ID, "app", r.app.Name, "reason", string(f.Reason), "message", f.Message)
	return nil
}
