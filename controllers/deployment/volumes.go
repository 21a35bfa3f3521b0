package deployment

import (
	"context"
	"fmt"
	"slices"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

const (
	// diskTime is how long a new disk may take to be made.
	diskTime = 2 * time.Minute
	// diskPoll is how often a rollout reads whether a disk is ready and free.
	diskPoll = 200 * time.Millisecond
)

// writes reports whether a service writes to a disk. It has one sandbox at a time.
func writes(svc *app.Service) bool {
	return slices.ContainsFunc(svc.Volumes, func(v app.Volume) bool { return !v.ReadOnly })
}

// startServices creates the pools of services as soon as the disks of the version
// are ready and no sandbox of another version writes to those of the services.
func (r *rollout) startServices(ctx context.Context, ver *app.AppVersion, services []*app.Service) (time.Duration, error) {
	found := map[string]*disk.Disk{}
	for _, svc := range apps.Services(ver) { // of all services, before any sandbox stops
		for _, v := range svc.Volumes {
			d, err := disks.Ensure(ctx, r.Store, r.app.Project, v.Disk, v.SizeBytes)
			if err != nil && !errs.Is(err, errs.NotFound) {
				return 0, err
			}
			if failure := r.unusable(svc, v.Disk, d); failure != nil {
				return 0, r.fail(ctx, *failure)
			}
			if d.Status.Phase == disk.DiskPhasePending {
				return diskPoll, r.report(ctx, fmt.Sprintf("v%d: disk %s is being made", ver.Spec.Number, d.Name))
			}
			found[v.Disk] = d
		}
	}
	for _, svc := range services {
		for _, v := range svc.Volumes {
			if v.ReadOnly {
				continue
			}
			if done, err := r.takeDisk(ctx, ver, svc, found[v.Disk]); !done || err != nil {
				return diskPoll, err
			}
		}
	}
	return poll, r.createPools(ctx, ver, services, found)
}

// unusable explains why a service cannot have a disk, which is nil if it does not
// exist. It returns nil if the service can, or will soon.
func (r *rollout) unusable(svc *app.Service, name string, d *disk.Disk) *app.Failure {
	f := &app.Failure{Reason: app.FailureReasonVolume, Service: svc.Name, Hint: fmt.Sprintf("`r disk show %s` says more", name)}
	switch {
	case d == nil:
		f.Message = fmt.Sprintf("there is no disk %s, which service %s mounts", name, svc.Name)
		f.Hint = fmt.Sprintf("set size in [services.%s.volumes.%s] of app.toml, or create it: `r disk create %s --size 10G`", svc.Name, name, name)
	case d.Spec.Deleted:
		f.Message = fmt.Sprintf("disk %s, which service %s mounts, is being deleted", name, svc.Name)
	case d.Status.Phase == disk.DiskPhaseFailed:
		f.Message = because(fmt.Sprintf("disk %s of service %s cannot be made", name, svc.Name), d.Status.Message)
		f.Hint = fmt.Sprintf("`r disk delete %s`, then deploy again", name)
	case d.Status.Phase == disk.DiskPhasePending && r.waited(r.now(), r.stepStart("start")) >= diskTime:
		f.Message = because(fmt.Sprintf("disk %s of service %s was not made within %s", name, svc.Name, diskTime), d.Status.Message)
	default:
		return nil
	}
	return f
}

// takeDisk stops the sandboxes of other versions that write to a disk, so that one
// of the new version can. It reports whether they have ended; if they do not in
// time, it fails the deployment. If the new version never gets the traffic,
// scale restores them.
func (r *rollout) takeDisk(ctx context.Context, ver *app.AppVersion, svc *app.Service, d *disk.Disk) (bool, error) {
	if failure, err := r.foreignWriter(ctx, svc, d); failure != nil || err != nil {
		if err == nil {
			err = r.fail(ctx, *failure)
		}
		return false, err
	}
	all, err := apps.Pools(ctx, r.Store, r.app.GetID())
	if err != nil {
		return false, err
	}
	var holders []*sandbox.SandboxPool
	for _, p := range all {
		if p.Spec.AppVersion == ver.GetID() || p.Spec.State == sandbox.PoolStateRetired || p.Spec.Replicas == 0 || !sandboxes.Writes(&p.Spec.Template, d.GetID()) {
			continue
		}
		if !slices.ContainsFunc(r.dep.Status.Yielded, func(y app.YieldedPool) bool { return y.Pool == p.GetID() }) {
			r.dep.Status.Yielded = append(r.dep.Status.Yielded, app.YieldedPool{Pool: p.GetID(), Replicas: p.Spec.Replicas, Disk: d.Name})
		}
		p.Spec.Replicas = 0
		holders = append(holders, p)
	}
	if len(holders) > 0 {
		now := r.now()
		r.dep.Status.YieldedAt = &now
		r.step("start", fmt.Sprintf("v%d: the version before stops, because one sandbox at a time writes to disk %s", ver.Spec.Number, d.Name))
		return false, r.yield(ctx, holders...)
	}
	sbs, err := sandboxes.OfApp(ctx, r.Store, r.app)
	if err != nil {
		return false, err
	}
	for _, sb := range sbs {
		if sb.Status.Phase.Ended() || !sandboxes.Writes(&sb.Spec.Template, d.GetID()) {
			continue
		}
		limit := sb.Spec.Template.StopTimeout + setupTime
		if r.waited(r.now(), r.crowdedSince(r.stepStart("start"))) < limit {
			return false, nil
		}
		return false, r.fail(ctx, app.Failure{
			Reason: app.FailureReasonTimeout, Service: svc.Name,
			Message: fmt.Sprintf("sandbox %s of the version before has not released disk %s within %s", sb.ID, d.Name, limit),
			Hint:    fmt.Sprintf("`r sandbox show %s` and `r disk show %s` say more; `r deploy` tries again", sb.ID, d.Name),
		})
	}
	return true, nil
}

// foreignWriter explains which sandbox that is not the app's writes to a disk.
func (r *rollout) foreignWriter(ctx context.Context, svc *app.Service, d *disk.Disk) (*app.Failure, error) {
	mounts, err := disks.Mounts(ctx, r.Store, d.GetID())
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if m.Spec.ReadOnly {
			continue
		}
		sb, err := entity.Get[sandbox.Sandbox](ctx, r.Store, m.Spec.Sandbox)
		if errs.Is(err, errs.NotFound) {
			continue // its mount goes too
		}
		if err != nil {
			return nil, err
		}
		if sb.Status.Phase.Ended() || sb.Spec.Pool != "" && sb.Spec.App == r.app.GetID() {
			continue
		}
		f := &app.Failure{
			Reason: app.FailureReasonVolume, Service: svc.Name,
			Message: fmt.Sprintf("sandbox %s writes to disk %s, which one sandbox at a time can do", sb.ID, d.Name),
			Hint:    fmt.Sprintf("`r sandbox stop %s`; or set read_only = true in [services.%s.volumes.%s] of app.toml", sb.ID, svc.Name, d.Name),
		}
		if sb.Spec.Pool != "" {
			f.Message = fmt.Sprintf("app %s writes to disk %s (sandbox %s), which one sandbox at a time can do", sb.Labels["app"], d.Name, sb.ID)
			f.Hint = fmt.Sprintf("name a disk of its own, or set read_only = true, in [services.%s.volumes.%s] of app.toml", svc.Name, d.Name)
		}
		return f, nil
	}
	return nil, nil
}

// applySchedules gives the disks of the version that serves the schedules that it
// declares. The deployment cannot fail any more, so a disk that was deleted
// meanwhile is left out.
func (r *rollout) applySchedules(ctx context.Context) error {
	ver, err := r.servingVersion(ctx)
	if ver == nil || err != nil {
		return err
	}
	for _, svc := range apps.Services(ver) {
		for _, v := range svc.Volumes {
			if v.Snapshots == nil {
				continue
			}
			if err := disks.Declare(ctx, r.Store, r.app.Project, v.Disk, v.Snapshots, r.now()); err != nil && !errs.Is(err, errs.NotFound) {
				return err
			}
		}
	}
	return nil
}
