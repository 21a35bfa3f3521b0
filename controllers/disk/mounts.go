package disk

import (
	"context"
	"time"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Mounts makes the disks of a sandbox of this node usable, and returns where they
// are. The disks stay attached until Release, or until the sandbox has ended or is
// deleted. It may be repeated. Errors: those of disks.Claim, and Unavailable while
// a disk cannot be attached, for example because its store does not answer.
func (r *Reconciler) Mounts(ctx context.Context, sb *sandbox.Sandbox, volumes []disks.Volume) ([]execution.Mount, error) {
	var out []execution.Mount
	for _, v := range volumes {
		if err := r.use(ctx, sb, v); err != nil {
			return nil, errs.Wrap(err, "disk at %s", v.Path)
		}
		out = append(out, execution.Mount{Source: r.dir(schema.ID(v.Disk)), Target: v.Path, ReadOnly: v.ReadOnly})
	}
	return out, nil
}

// use claims and attaches a disk. Under its lock, because a sandbox that is claimed
// may get its disks by the claim and by the controller at once.
func (r *Reconciler) use(ctx context.Context, sb *sandbox.Sandbox, v disks.Volume) error {
	unlock, err := r.locks.lock(ctx, string(v.Disk))
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := disks.Claim(ctx, r.Store, sb, v); err != nil {
		return err
	}
	return entity.Retry(ctx, func() error {
		d, err := entity.Get[disk.Disk](ctx, r.Store, v.Disk)
		if err != nil {
			return err
		}
		return r.attach(ctx, d)
	})
}

// lose records which sandboxes of this node have a mount of a disk whose device is gone. A sandbox that is not
// running gets the next mount.
func (r *Reconciler) lose(ctx context.Context, d *disk.Disk) error {
	mounts, err := r.mounts(ctx, d)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		sb, err := entity.Get[sandbox.Sandbox](ctx, r.Store, m.Spec.Sandbox)
		if errs.Is(err, errs.NotFound) || err == nil && sb.Status.Phase != sandbox.SandboxPhaseRunning {
			continue
		}
		if err != nil {
			return err
		}
		now := time.Now()
		m.Status.LostAt = &now
		if err := entity.UpdateStatus(ctx, r.Store, m); err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
	}
	return nil
}

// Release detaches the disks of a sandbox that the driver has deleted, except
// those that other sandboxes use.
func (r *Reconciler) Release(ctx context.Context, sb id.Sandbox) error {
	return disks.Release(ctx, r.Store, sb)
}
