// Package deployment reconciles deployments: it takes one rollout from
// acceptance to a known end, whatever happens to the server meanwhile.
//
//	pending -> building -> starting -> shifting -> draining -> succeeded
//	                 \          \ -> failed | canceled
//
// In: deployment, build, and the pools and sandboxes of the new version. Out:
// app_version, sandbox pools, app.status, deployment.status. The right to
// change an app is its deploy_lease, an entity bound to a store lease that is
// kept alive here; a deployment that lost it fails, so two never act on one
// app. Writing app.status.active_version is what shifts the traffic: from then
// on the deployment can only succeed.
package deployment

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/servers/ingress/admin"
)

// LeaseTTL is how long an app stays reserved for a deployment whose server is gone.
const LeaseTTL = 60 * time.Second

// poll is how often a deployment under way is looked at without a reason.
const poll = 2 * time.Second

// Drainer tells what the ingress still does for a version; admin.Client is one.
type Drainer interface {
	// Synced waits until the ingress has seen the store's revision.
	Synced(ctx context.Context, rev schema.Revision) error
	// Inflight counts the requests under way to sandboxes of the version.
	Inflight(ctx context.Context, version schema.ID) (admin.Inflight, error)
}

// Reconciler takes deployments to their end.
type Reconciler struct {
	Store   entity.Store
	Drainer Drainer // nil: there is no ingress, nothing to wait for
	Log     *slog.Logger
	// URL returns where an app answers, "" if nowhere.
	URL func(a *app.App) string
	// DrainTimeout bounds the wait for requests to the old version.
	DrainTimeout time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// Ended reports whether a phase is an end.
func Ended(p app.DeploymentPhase) bool {
	switch p {
	case app.DeploymentPhaseSucceeded, app.DeploymentPhaseFailed, app.DeploymentPhaseCanceled:
		return true
	}
	return false
}

// rollout is one deployment being reconciled.
type rollout struct {
	*Reconciler
	dep *app.Deployment
	app *app.App
}

// Reconcile moves one deployment forward by at most one phase.
func (r *Reconciler) Reconcile(ctx context.Context, did schema.ID) (time.Duration, error) {
	dep, err := entity.Get[app.Deployment](ctx, r.Store, did)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	a, err := entity.Get[app.App](ctx, r.Store, dep.Spec.App)
	if errs.Is(err, errs.NotFound) {
		return 0, nil // being deleted; the deployment goes with it
	}
	if err != nil {
		return 0, err
	}
	ro := &rollout{Reconciler: r, dep: dep, app: a}
	if Ended(dep.Status.Phase) {
		return 0, ro.cleanUp(ctx)
	}
	if held, err := ro.holdLease(ctx); err != nil {
		return 0, err
	} else if !held {
		return 0, ro.fail(ctx, app.Failure{
			Reason: app.FailureReasonLease, Message: "the lease on the app lapsed while no server ran, and was not renewed in time",
			Hint: "deploy again",
		})
	}
	if dep.Spec.Cancel && cancelable(dep.Status.Phase) {
		return ro.cancel(ctx)
	}
	switch dep.Status.Phase {
	case "", app.DeploymentPhasePending:
		return ro.begin(ctx)
	case app.DeploymentPhaseBuilding:
		return ro.build(ctx)
	case app.DeploymentPhaseStarting:
		return ro.start(ctx)
	case app.DeploymentPhaseShifting:
		return ro.shift(ctx)
	case app.DeploymentPhaseDraining:
		return ro.drain(ctx)
	}
	return 0, errs.New(errs.Internal, "deployment %s is in unknown phase %q", dep.ID, dep.Status.Phase)
}

func cancelable(p app.DeploymentPhase) bool {
	return p != app.DeploymentPhaseShifting && p != app.DeploymentPhaseDraining
}

// holdLease renews the app's lease if this deployment holds it.
func (r *rollout) holdLease(ctx context.Context) (bool, error) {
	l, err := LeaseOf(ctx, r.Store, r.app.GetID())
	if errs.Is(err, errs.NotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if l.Spec.Deployment != r.dep.GetID() {
		return false, nil
	}
	if _, err := r.Store.KeepAlive(ctx, l.Lease); err != nil {
		if errs.Is(err, errs.NotFound) {
			return false, nil
		}
		return false, err
	}
	return true, nil
}

// LeaseOf returns the deploy lease of an app. NotFound if nobody holds it.
func LeaseOf(ctx context.Context, s entity.Reader, a id.App) (*app.DeployLease, error) {
	list, _, err := entity.List[app.DeployLease](ctx, s, entity.Query{Name: LeaseName(a)})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errs.New(errs.NotFound, "no deployment of app %s is under way", a)
	}
	return list[0], nil
}

// LeaseName is the name of an app's deploy_lease.
func LeaseName(a id.App) string { return "deploy-" + string(a) }

// step starts the named step, ending those before it as done.
func (r *rollout) step(name, message string) {
	now := r.now()
	for i := range r.dep.Status.Steps {
		s := &r.dep.Status.Steps[i]
		if s.Name == name {
			if s.State == app.StepStateRunning {
				s.Message = message
				return
			}
			s.State, s.Message, s.StartedAt = app.StepStateRunning, message, &now
			return
		}
		if s.State == app.StepStateRunning || s.State == app.StepStatePending {
			if s.State == app.StepStateRunning {
				s.State, s.EndedAt = app.StepStateDone, &now
			} else {
				s.State = app.StepStateSkipped
			}
		}
	}
}

// steps of every deployment, in order.
var steps = []string{"build", "start", "shift", "drain"}

func (r *rollout) endSteps(state app.StepState, message string) {
	now := r.now()
	for i := range r.dep.Status.Steps {
		s := &r.dep.Status.Steps[i]
		switch s.State {
		case app.StepStateRunning:
			s.State, s.EndedAt = state, &now
			if message != "" {
				s.Message = message
			}
		case app.StepStatePending:
			s.State = app.StepStateSkipped
		}
	}
}

// enter writes the next phase, with further operations in the same transaction.
func (r *rollout) enter(ctx context.Context, phase app.DeploymentPhase, ops ...entity.Op) error {
	r.dep.Status.Phase = phase
	op, err := entity.UpdateStatusOp(r.dep)
	if err != nil {
		return err
	}
	_, err = r.Store.Txn(ctx, entity.TxnRequest{Ops: append(ops, op)})
	if err == nil {
		r.Log.Info("deployment", "deployment", r.dep.ID, "app", r.app.Name, "phase", string(phase))
	}
	return err
}

// end writes a final phase and gives the lease and the app back, in one transaction.
func (r *rollout) end(ctx context.Context, phase app.DeploymentPhase) error {
	now := r.now()
	r.dep.Status.EndedAt = &now
	r.app.Status.ActiveDeployment = ""
	r.app.Status.LastDeployment = r.dep.GetID()
	appOp, err := entity.UpdateStatusOp(r.app)
	if err != nil {
		return err
	}
	if err := r.enter(ctx, phase, appOp); err != nil {
		return err
	}
	return r.cleanUp(ctx)
}

// cleanUp releases the lease and removes the pools of a version that did not
// come to serve. It is done again whenever an ended deployment is looked at.
func (r *rollout) cleanUp(ctx context.Context) error {
	if r.dep.Status.Phase != app.DeploymentPhaseSucceeded && r.dep.Status.Version != "" && r.app.Status.ActiveVersion != r.dep.Status.Version {
		if err := r.retire(ctx, r.dep.Status.Version); err != nil {
			return err
		}
	}
	l, err := LeaseOf(ctx, r.Store, r.app.GetID())
	if errs.Is(err, errs.NotFound) || (err == nil && l.Spec.Deployment != r.dep.GetID()) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := r.Store.Revoke(ctx, l.Lease); err != nil && !errs.Is(err, errs.NotFound) {
		return err
	}
	return nil
}

func (r *rollout) fail(ctx context.Context, f app.Failure) error {
	r.dep.Status.Failure = &f
	r.endSteps(app.StepStateFailed, f.Message)
	r.Log.Warn("deployment failed", "deployment", r.dep.ID, "app", r.app.Name, "reason", string(f.Reason), "message", f.Message)
	return r.end(ctx, app.DeploymentPhaseFailed)
}

// cancel stops the build, if one runs, and ends the deployment.
func (r *rollout) cancel(ctx context.Context) (time.Duration, error) {
	if r.dep.Spec.Build != "" {
		b, err := entity.Get[app.Build](ctx, r.Store, r.dep.Spec.Build)
		if err != nil && !errs.Is(err, errs.NotFound) {
			return 0, err
		}
		if err == nil && !BuildEnded(b) {
			if !b.Spec.Cancel {
				b.Spec.Cancel = true
				if err := entity.UpdateSpec(ctx, r.Store, b); err != nil {
					return 0, err
				}
			}
			return poll, nil // the build's end brings us back
		}
	}
	r.endSteps(app.StepStateFailed, "canceled")
	return 0, r.end(ctx, app.DeploymentPhaseCanceled)
}

// BuildEnded reports whether a build is over.
func BuildEnded(b *app.Build) bool {
	switch b.Status.Phase {
	case app.BuildPhaseSucceeded, app.BuildPhaseFailed, app.BuildPhaseCanceled:
		return true
	}
	return false
}

// begin accepts the deployment: a deploy builds first, everything else makes
// its version from an existing one.
func (r *rollout) begin(ctx context.Context) (time.Duration, error) {
	now := r.now()
	if r.dep.Status.StartedAt == nil {
		r.dep.Status.StartedAt = &now
	}
	r.dep.Status.Previous = r.app.Status.ActiveVersion
	r.dep.Status.Steps = nil
	for _, s := range steps {
		r.dep.Status.Steps = append(r.dep.Status.Steps, app.Step{Name: s, State: app.StepStatePending})
	}
	if r.dep.Spec.Kind == app.RolloutKindDeploy {
		r.step("build", "")
		return poll, r.enter(ctx, app.DeploymentPhaseBuilding)
	}
	src, err := entity.Get[app.AppVersion](ctx, r.Store, r.dep.Spec.Target)
	if errs.Is(err, errs.NotFound) {
		return 0, r.fail(ctx, app.Failure{Reason: app.FailureReasonImage, Message: "the version to roll out does not exist any more",
			Hint: "see `r app history` for those that do"})
	}
	if err != nil {
		return 0, err
	}
	ver := src.Spec
	ver.CopiedFrom = src.GetID()
	if r.dep.Spec.Kind == app.RolloutKindConfig {
		ver.Env, ver.Secrets = r.app.Spec.Env, r.app.Spec.Secrets
	}
	return r.createVersion(ctx, ver)
}

// build waits for the build and makes the version from its image.
func (r *rollout) build(ctx context.Context) (time.Duration, error) {
	b, err := entity.Get[app.Build](ctx, r.Store, r.dep.Spec.Build)
	if errs.Is(err, errs.NotFound) {
		return 0, r.fail(ctx, app.Failure{Reason: app.FailureReasonInternal, Message: "its build was deleted", Hint: "deploy again"})
	}
	if err != nil {
		return 0, err
	}
	switch b.Status.Phase {
	case app.BuildPhaseSucceeded:
		return r.createVersion(ctx, app.AppVersionSpec{
			App: r.app.GetID(), Image: b.Status.Image, Build: b.GetID(), Services: b.Status.Services,
			SourceEnv: b.Status.Env, Env: r.app.Spec.Env, Secrets: r.app.Spec.Secrets, Git: r.dep.Spec.Git,
		})
	case app.BuildPhaseFailed:
		reason := app.FailureReasonBuild
		if b.Status.Plan == "" {
			reason = app.FailureReasonPlan
		}
		return 0, r.fail(ctx, app.Failure{Reason: reason, Message: b.Status.Message, Hint: b.Status.Hint, LogTail: b.Status.LogTail})
	case app.BuildPhaseCanceled:
		r.endSteps(app.StepStateFailed, "canceled")
		return 0, r.end(ctx, app.DeploymentPhaseCanceled)
	}
	return poll, nil
}

// createVersion numbers and stores the version and enters the next phase in one
// transaction.
func (r *rollout) createVersion(ctx context.Context, spec app.AppVersionSpec) (time.Duration, error) {
	r.app.Spec.VersionCounter++
	spec.Number = r.app.Spec.VersionCounter
	ver := &app.AppVersion{Meta: schema.Meta{Project: r.app.Project, Name: VersionName(r.app.Name, spec.Number)}, Spec: spec}
	create, err := entity.CreateOp(ver)
	if err != nil {
		return 0, err
	}
	count, err := entity.UpdateSpecOp(r.app)
	if err != nil {
		return 0, err
	}
	r.dep.Status.Version = ver.GetID()
	r.step("start", fmt.Sprintf("v%d", spec.Number))
	return poll, r.enter(ctx, app.DeploymentPhaseStarting, create, count)
}

// VersionName is the name of version n of an app, as people see it.
func VersionName(appName string, n int64) string { return fmt.Sprintf("%s-v%d", appName, n) }
