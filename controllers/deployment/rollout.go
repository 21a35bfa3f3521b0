package deployment

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

// maxTaken bounds the numbers that are tried for a version while entities made by
// hand have the names.
const maxTaken = 20

// ingressBack is how long the server takes to start an ingress that died again.
const ingressBack = 3 * time.Second

// begin accepts the deployment: a deploy builds first, everything else makes
// its version from an existing one.
func (r *rollout) begin(ctx context.Context) (time.Duration, error) {
	if r.dep.Status.StartedAt == nil {
		now := r.now()
		r.dep.Status.StartedAt = &now
	}
	r.dep.Status.Previous = r.app.Status.Active()
	r.dep.Status.Steps = nil
	for _, s := range steps {
		if s == "bake" && r.Bake <= 0 || s == "build" && r.dep.Spec.Kind == app.RolloutKindPromote {
			continue
		}
		r.dep.Status.Steps = append(r.dep.Status.Steps, app.Step{Name: s, State: app.StepStatePending})
	}
	if p := r.preview(); p != nil {
		if failure, err := r.beginPreview(ctx, p); failure != nil || err != nil {
			if err == nil {
				r.step("build", "")
				err = r.fail(ctx, *failure)
			}
			return 0, err
		}
	}
	if r.dep.Spec.Kind == app.RolloutKindDeploy {
		r.step("build", "waiting for the builder")
		return poll, r.enter(ctx, app.DeploymentPhaseBuilding)
	}
	src, err := get[app.AppVersion](ctx, r.Store, r.dep.Spec.Target)
	if errs.Is(err, errs.NotFound) || err == nil && src.Spec.App != r.app.GetID() {
		return 0, r.fail(ctx, app.Failure{Reason: app.FailureReasonImage, Message: "the version to roll out does not exist any more",
			Hint: fmt.Sprintf("`r app history %s` lists those that do", r.app.Name)})
	}
	if err != nil {
		return 0, err
	}
	if r.dep.Spec.Kind == app.RolloutKindPromote {
		if !r.app.Status.Serves(src.GetID()) {
			return 0, r.fail(ctx, app.Failure{Reason: app.FailureReasonImage, Message: fmt.Sprintf("v%d does not serve any more", src.Spec.Number),
				Hint: fmt.Sprintf("`r app status %s` shows what does", r.app.Name)})
		}
		if src.Spec.Preview != "" {
			return r.createVersion(ctx, r.promoted(src))
		}
		r.dep.Status.Version = src.GetID()
		r.step("start", fmt.Sprintf("v%d", src.Spec.Number))
		return time.Millisecond, r.enter(ctx, app.DeploymentPhaseStarting)
	}
	ver := src.Spec
	ver.CopiedFrom = src.GetID()
	if r.dep.Spec.Kind == app.RolloutKindConfig {
		ver.Env, ver.Secrets = r.app.Spec.Env, r.app.Spec.Secrets
	} else if ver.Secrets, err = addons.Current(ctx, r.Store, r.app, &ver); err != nil {
		return 0, err
	}
	// Retention may delete the build while the image stays.
	if _, err := get[app.Build](ctx, r.Store, ver.Build); errs.Is(err, errs.NotFound) {
		ver.Build = ""
	} else if err != nil {
		return 0, err
	}
	return r.createVersion(ctx, ver)
}

// get is entity.Get with NotFound for a reference that is not set.
func get[T any, P entity.ObjectPtr[T], I ~string](ctx context.Context, s entity.Reader, id I) (P, error) {
	if id == "" {
		return nil, errs.New(errs.NotFound, "no %s", P(new(T)).EntityKind().Name)
	}
	return entity.Get[T, P](ctx, s, id)
}

// build waits for the build and makes the version from its image.
func (r *rollout) build(ctx context.Context) (time.Duration, error) {
	b, err := get[app.Build](ctx, r.Store, r.dep.Spec.Build)
	if errs.Is(err, errs.NotFound) {
		return 0, r.fail(ctx, app.Failure{Reason: app.FailureReasonBuild, Message: "its build was deleted before it was done", Hint: "deploy again: `r deploy`"})
	}
	if err != nil {
		return 0, err
	}
	switch b.Status.Phase {
	case app.BuildPhaseSucceeded:
		network, err := r.network(ctx, b.Status.Network)
		if err != nil {
			return 0, err
		}
		if p := r.preview(); p != nil {
			return r.createPreview(ctx, p, b, network)
		}
		// Their variables must be in the app's environment before the version copies it.
		if waits, err := addons.Ensure(ctx, r.Store, r.app, b.Status.Addons); waits != "" || err != nil {
			if err == nil {
				err = r.report(ctx, waits)
			}
			return poll, err
		}
		return r.createVersion(ctx, r.built(b, network))
	case app.BuildPhaseFailed:
		return 0, r.fail(ctx, app.Failure{
			Reason: cmp.Or(b.Status.Reason, app.FailureReasonBuild), Message: cmp.Or(b.Status.Message, "the build failed"),
			Hint: cmp.Or(b.Status.Hint, fmt.Sprintf("`r build logs %s` has all of its output", b.ID)), LogTail: b.Status.LogTail,
		})
	case app.BuildPhaseCanceled:
		r.endSteps(app.StepStateFailed, "canceled")
		return 0, r.end(ctx, app.DeploymentPhaseCanceled)
	case app.BuildPhaseRunning:
		return poll, r.report(ctx, b.Status.Plan)
	}
	return poll, nil
}

// built returns the version that a build makes.
func (r *rollout) built(b *app.Build, network *app.Network) app.AppVersionSpec {
	return app.AppVersionSpec{
		Network: network,
		App:     r.app.GetID(), Image: b.Status.Image, Build: b.GetID(), Services: b.Status.Services, Tasks: b.Status.Tasks, Routes: b.Status.Routes,
		SourceEnv: b.Status.Env, Release: b.Status.Release, Env: r.app.Spec.Env, Secrets: r.app.Spec.Secrets, Git: r.dep.Spec.Git,
	}
}

// network returns the network of a new version: what its source says. What that does not say about
// the outside is as the policy of the project permits at most.
func (r *rollout) network(ctx context.Context, n *app.Network) (*app.Network, error) {
	if r.Default == nil || n != nil && n.Egress != "" {
		return n, nil
	}
	sb := sandbox.NewSandbox()
	sb.Project = r.app.Project
	if err := r.Default(ctx, sb); err != nil || sb.Spec.Template.Egress == nil {
		return n, err
	}
	if n == nil {
		n = &app.Network{}
	}
	e := sb.Spec.Template.Egress
	n.Egress, n.Allow = string(e.Mode), e.Allow
	return n, nil
}

// pointers returns pointers to the elements of a list.
func pointers[T any](list []T) []*T {
	out := make([]*T, len(list))
	for i := range list {
		out[i] = &list[i]
	}
	return out
}

// createVersion numbers and stores the version and enters the next phase in one
// transaction.
func (r *rollout) createVersion(ctx context.Context, spec app.AppVersionSpec) (time.Duration, error) {
	beside := slices.DeleteFunc(apps.Services(&app.AppVersion{Spec: spec}), writes) // the others replace sandboxes
	if k := slices.IndexFunc(pointers(spec.Services), writes); k >= 0 && r.dep.Spec.Canary > 0 && r.app.Status.Active() != "" {
		r.step("start", "")
		return 0, r.fail(ctx, app.Failure{Reason: app.FailureReasonVolume, Service: spec.Services[k].Name,
			Message: fmt.Sprintf("service %s writes to a disk, which the active version has: two versions cannot serve beside each other", spec.Services[k].Name),
			Hint:    "deploy without --canary"})
	}
	var err error
	if spec.AddonVariables, err = addons.Given(ctx, r.Store, r.app); err != nil {
		return 0, err
	}
	failure, err := r.checkRoutes(ctx, &spec)
	if failure == nil && err == nil {
		failure, err = r.checkAdmission(ctx, &app.AppVersion{Spec: spec}, beside)
	}
	if err != nil {
		return 0, err
	}
	if failure != nil { // before the release command changes anything
		r.step("start", "")
		return 0, r.fail(ctx, *failure)
	}
	counter := r.app.Spec.VersionCounter
	for attempt := 1; ; attempt++ {
		r.app.Spec.VersionCounter++
		spec.Number = r.app.Spec.VersionCounter
		ver := app.NewAppVersion()
		ver.Project, ver.Name, ver.Spec = r.app.Project, apps.VersionName(r.app.Name, spec.Number), spec
		create, err := entity.CreateOp(ver)
		if err != nil {
			return 0, err
		}
		count, err := entity.UpdateSpecOp(r.app)
		if err != nil {
			return 0, err
		}
		r.dep.Status.Version = ver.GetID()
		ops := []entity.Op{create, count}
		if r.releases(&spec) {
			run, err := r.beginRelease(ver)
			if err != nil {
				return 0, err
			}
			ops = append(ops, run)
		} else {
			r.step("start", fmt.Sprintf("v%d", spec.Number))
		}
		err = r.enter(ctx, app.DeploymentPhaseStarting, ops...)
		if errs.Is(err, errs.AlreadyExists) && attempt < maxTaken {
			continue // an entity made by hand has that name
		}
		if f := refusal(err); f != nil { // for the release command
			r.dep.Status.Version, r.app.Spec.VersionCounter = "", counter
			return 0, r.fail(ctx, *f)
		}
		return poll, err
	}
}

// version reads the version that is rolled out.
func (r *rollout) version(ctx context.Context) (*app.AppVersion, *app.Failure, error) {
	ver, err := get[app.AppVersion](ctx, r.Store, r.dep.Status.Version)
	if errs.Is(err, errs.NotFound) {
		return nil, &app.Failure{Reason: app.FailureReasonImage, Message: "the new version was deleted before it served", Hint: "deploy again: `r deploy`"}, nil
	}
	return ver, nil, err
}

// start waits for the end of the release command, if there is one, brings up the
// pools of the new version and waits until each is ready. Services that write to
// disks come last: the old version stops for them.
func (r *rollout) start(ctx context.Context) (time.Duration, error) {
	ver, failure, err := r.version(ctx)
	if err != nil {
		return 0, err
	}
	if failure != nil {
		return 0, r.fail(ctx, *failure)
	}
	if r.releaseRuns() {
		if done, err := r.release(ctx, ver); !done || err != nil {
			return poll, err
		}
		r.step("start", fmt.Sprintf("v%d", ver.Spec.Number))
		return time.Millisecond, r.enter(ctx, app.DeploymentPhaseStarting)
	}
	st, err := r.assessReadiness(ctx, ver)
	if err != nil {
		return 0, err
	}
	switch {
	case st.failure != nil:
		return 0, r.fail(ctx, *st.failure)
	case len(st.missing) > 0:
		failure, err := r.checkAdmission(ctx, ver, st.missing)
		if err != nil {
			return 0, err
		}
		if failure != nil {
			return 0, r.fail(ctx, *failure)
		}
		return r.startServices(ctx, ver, st.missing)
	case st.crowded != "":
		yielded, err := r.makeRoom(ctx, st.crowded)
		if err != nil || yielded {
			return poll, err
		}
		return st.again, r.report(ctx, r.withRoomNote(st.message))
	case len(st.writing) > 0 && st.readySoFar:
		return r.startServices(ctx, ver, st.writing)
	case !st.ready:
		return st.again, r.report(ctx, r.withRoomNote(st.message))
	}
	// A cancel since the deployment was read is a change of its spec, and a Conflict
	// here; a later one finds it shifting.
	r.step("shift", "")
	op, err := entity.UpdateSpecOp(r.dep)
	if err != nil {
		return 0, err
	}
	return time.Millisecond, r.enter(ctx, app.DeploymentPhaseShifting, op)
}

// createPools creates the pools of services, in which sandboxes mount the disks by
// name. The time that they have to become ready begins.
func (r *rollout) createPools(ctx context.Context, ver *app.AppVersion, services []*app.Service, disks map[string]*disk.Disk) error {
	check, err := entity.CheckOp(r.lease)
	if err != nil {
		return err
	}
	began := slices.Clone(r.dep.Status.Steps)
	r.step("start", fmt.Sprintf("v%d", ver.Spec.Number))
	status, err := entity.UpdateStatusOp(r.dep)
	if err != nil {
		return err
	}
	ops := []entity.Op{check, status}
	for _, svc := range services {
		p, err := r.poolFor(ctx, ver, svc)
		if err != nil {
			return err
		}
		for _, v := range svc.Volumes {
			p.Spec.Template.Volumes = append(p.Spec.Template.Volumes, sandbox.Volume{Disk: disks[v.Disk].GetID(), Path: v.Path, ReadOnly: v.ReadOnly})
		}
		op, err := entity.CreateOp(p)
		if err != nil {
			return err
		}
		ops = append(ops, op)
	}
	fault.Point("deployment", "pools", fault.Before)
	_, err = r.Store.Txn(ctx, entity.TxnRequest{Ops: ops})
	fault.Point("deployment", "pools", fault.After)
	if err != nil {
		r.dep.Status.Steps = began // since when it fails counts
	}
	return err
}

// poolFor makes the pool of a service of a version. One that follows the load begins with as many sandboxes as the active
// version has, and with at least one, which proves that the version starts.
func (r *rollout) poolFor(ctx context.Context, ver *app.AppVersion, svc *app.Service) (*sandbox.SandboxPool, error) {
	p := apps.PoolFor(r.app, ver, svc)
	if p.Spec.Autoscale == nil || r.app.Status.Active() == "" || r.dep.Spec.Canary > 0 || r.preview() != nil {
		return p, nil
	}
	all, err := apps.Pools(ctx, r.Store, r.app.GetID())
	if err != nil {
		return nil, err
	}
	for _, old := range apps.PoolsOfVersion(all, r.app.Status.Active()) {
		if old.Spec.Service == svc.Name {
			n := max(old.Wanted(), 1)
			p.Spec.Autoscaled = &n
		}
	}
	return p, nil
}

// shift makes the new version the one that serves, if it is ready still: time may
// have passed since the last assessment.
func (r *rollout) shift(ctx context.Context) (time.Duration, error) {
	ver, failure, err := r.version(ctx)
	if err != nil {
		return 0, err
	}
	if failure != nil {
		return 0, r.fail(ctx, *failure)
	}
	st, err := r.assessReadiness(ctx, ver)
	if err != nil {
		return 0, err
	}
	if st.failure != nil {
		return 0, r.fail(ctx, *st.failure)
	}
	if !st.ready {
		r.step("start", st.message)
		return time.Millisecond, r.enter(ctx, app.DeploymentPhaseStarting)
	}
	// Conflict if the version was deleted since it was read.
	op, err := entity.CheckOp(ver)
	if err != nil {
		return 0, err
	}
	ops := []entity.Op{op}
	percent := r.dep.Spec.Canary
	if r.app.Status.Active() == "" {
		percent = 0
	}
	if r.dep.Spec.Kind == app.RolloutKindRollback {
		r.app.Spec.Env, r.app.Spec.Secrets = ver.Spec.Env, ver.Spec.Secrets
		if op, err = entity.UpdateSpecOp(r.app); err != nil {
			return 0, err
		}
		ops = append(ops, op)
	}
	if p := r.preview(); p != nil {
		failure, err := r.shiftPreview(ctx, p, ver)
		if err != nil {
			return 0, err
		}
		if failure != nil {
			return 0, r.fail(ctx, *failure)
		}
	} else if percent > 0 {
		r.app.Status.Try(ver.GetID(), percent)
	} else {
		r.app.Status.Activate(ver.GetID())
	}
	if op, err = entity.UpdateStatusOp(r.app); err != nil {
		return 0, err
	}
	ops = append(ops, op)
	others, err := r.otherPools(ctx)
	if err != nil {
		return 0, err
	}
	for _, p := range others {
		if p.Spec.State != sandbox.PoolStateActive {
			continue
		}
		p.Spec.State = sandbox.PoolStateDraining
		if op, err = entity.UpdateSpecOp(p); err != nil {
			return 0, err
		}
		ops = append(ops, op)
	}
	if share := r.previewShare(); share != nil {
		r.dep.Status.URL = r.hostURL(share.Host)
	} else if r.dep.Status.URL, err = r.url(ctx); err != nil {
		return 0, err
	}
	if r.Bake <= 0 {
		r.step("drain", "")
		return time.Millisecond, r.enter(ctx, app.DeploymentPhaseDraining, ops...)
	}
	message := fmt.Sprintf("v%d serves; the deployment succeeds when it has held for %s", ver.Spec.Number, r.Bake)
	if r.dep.Status.Previous != "" {
		message = fmt.Sprintf("v%d serves; the version before stays until it has held for %s", ver.Spec.Number, r.Bake)
	}
	r.step("bake", message)
	return time.Millisecond, r.enter(ctx, app.DeploymentPhaseBaking, ops...)
}

// otherPools returns the pools of versions that do not serve.
func (r *rollout) otherPools(ctx context.Context) ([]*sandbox.SandboxPool, error) {
	pools, err := apps.Pools(ctx, r.Store, r.app.GetID())
	return slices.DeleteFunc(pools, func(p *sandbox.SandboxPool) bool {
		return p.Spec.AppVersion == "" || r.app.Status.Serves(p.Spec.AppVersion) // made by hand, or has traffic
	}), err
}

// drain waits until the ingress uses the new version and has finished the requests
// to the others, and retires their pools.
func (r *rollout) drain(ctx context.Context) (time.Duration, error) {
	if err := r.applyRoutes(ctx); err != nil {
		return 0, err
	}
	if err := r.applySchedules(ctx); err != nil {
		return 0, err
	}
	others, err := r.otherPools(ctx)
	if err != nil {
		return 0, err
	}
	if again, message := r.pollDrain(ctx, others); again > 0 {
		return again, r.report(ctx, message)
	}
	check, err := entity.CheckOp(r.lease)
	if err != nil {
		return 0, err
	}
	if err := apps.Retire(ctx, r.Store, others, check); err != nil {
		return 0, err
	}
	r.endSteps(app.StepStateDone, "")
	return 0, r.end(ctx, app.DeploymentPhaseSucceeded)
}

// pollDrain returns after how long to ask again whether requests to other versions
// are under way; 0 if there are none, or the timeout has passed.
func (r *rollout) pollDrain(ctx context.Context, others []*sandbox.SandboxPool) (time.Duration, string) {
	waited := r.now().Sub(r.stepStart("drain"))
	if r.Drainer == nil || waited >= r.DrainTimeout {
		return 0, ""
	}
	// An ingress that does not answer may be busy, so errors delay the rollout until
	// the timeout. One that does not run has no requests, but its successor may begin
	// with a table from before the shift.
	ask, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := r.Drainer.Synced(ask, r.app.StatusRevision); err != nil {
		if ingress.Down(err) && waited >= ingressBack {
			return 0, ""
		}
		return 50 * time.Millisecond, "waiting for the ingress"
	}
	seen := map[schema.ID]bool{}
	for _, p := range others {
		v := schema.ID(p.Spec.AppVersion)
		if seen[v] || p.Spec.State == sandbox.PoolStateRetired { // asked already, or retired already
			continue
		}
		seen[v] = true
		n, err := r.Drainer.Inflight(ask, v)
		switch {
		case err != nil:
			return 100 * time.Millisecond, "waiting for the ingress"
		case n.Total > 0:
			return 100 * time.Millisecond, "requests to the old version are under way"
		}
	}
	return 0, ""
}
