package disks

import (
	"context"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// Volume is a disk that a sandbox wants.
type Volume struct {
	Disk     id.Disk
	Path     string // in the sandbox
	ReadOnly bool
}

// Claim records that a sandbox of a node mounts a disk, so that the disk stays
// attached there until Release. It may be repeated. Many sandboxes of one node
// may read a disk, one may write to it. Errors: FailedPrecondition with a reason
// (see the package), NotFound if the disk or the sandbox does not exist.
func Claim(ctx context.Context, s entity.Store, sb *sandbox.Sandbox, v Volume) (*disk.Disk, error) {
	var d *disk.Disk
	err := entity.Retry(ctx, func() (err error) {
		if d, err = entity.Get[disk.Disk](ctx, s, v.Disk); err != nil {
			return err
		}
		mounts, err := Mounts(ctx, s, v.Disk)
		if err != nil {
			return err
		}
		for _, m := range mounts {
			switch {
			case m.Spec.Sandbox == sb.GetID() && m.Spec.Path == v.Path && m.Spec.ReadOnly == v.ReadOnly:
				return found(ctx, s, m)
			case m.Spec.Node != sb.Spec.Node:
				// The node of a sandbox that has ended may be down.
				ended, err := Ended(ctx, s, m)
				if err != nil {
					return err
				}
				if ended {
					if err := entity.Delete(ctx, s, m); err != nil && !errs.Is(err, errs.NotFound) {
						return err
					}
					continue
				}
				return refuse("attached_elsewhere", "disk %s is mounted on node %s by sandbox %s", d.Name, m.Spec.Node, m.Spec.Sandbox).
					WithHint("stop that sandbox, or clone the disk")
			case m.Spec.Writer != "" && !v.ReadOnly:
				return refuse("has_writer", "sandbox %s can write to disk %s already", m.Spec.Sandbox, d.Name).
					WithHint("mount it read-only, or clone it")
			}
		}
		if d.Project != sb.Project {
			return errs.New(errs.NotFound, "there is no disk %s in the project of the sandbox", v.Disk)
		}
		if err := usable(d); err != nil {
			return err
		}
		m := disk.NewDiskMount()
		m.Project = sb.Project
		m.Spec = disk.DiskMountSpec{Disk: v.Disk, Sandbox: sb.GetID(), Node: sb.Spec.Node, Path: v.Path, ReadOnly: v.ReadOnly}
		if !v.ReadOnly {
			m.Spec.Writer = string(d.ID)
		}
		create, err := entity.CreateOp(m)
		if err != nil {
			return err
		}
		// A deletion of the disk that began since it was read wins.
		unchanged, err := entity.CheckOp(d)
		if err != nil {
			return err
		}
		_, err = s.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{create, unchanged}})
		if errs.Is(err, errs.AlreadyExists) { // another claim was faster: look again
			return errs.New(errs.Conflict, "%w", err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// found forgets that a mount was lost: its sandbox is to get another one.
func found(ctx context.Context, s entity.Store, m *disk.DiskMount) error {
	if m.Status.LostAt == nil {
		return nil
	}
	m.Status.LostAt = nil
	return entity.UpdateStatus(ctx, s, m)
}

// Lost returns a mount of a sandbox whose block device is gone; nil: none.
func Lost(ctx context.Context, r entity.Reader, sb id.Sandbox) (*disk.DiskMount, error) {
	mounts, _, err := entity.List[disk.DiskMount](ctx, r, entity.Where(disk.DiskMountAttrSandbox, sb))
	for _, m := range mounts {
		if m.Status.LostAt != nil {
			return m, nil
		}
	}
	return nil, err
}

// Ended reports whether the sandbox of a mount has ended, or does not exist any
// more.
func Ended(ctx context.Context, r entity.Reader, m *disk.DiskMount) (bool, error) {
	sb, err := entity.Get[sandbox.Sandbox](ctx, r, m.Spec.Sandbox)
	if errs.Is(err, errs.NotFound) {
		return true, nil
	}
	return err == nil && sb.Status.Phase.Ended(), err
}

// Release forgets all mounts of a sandbox, of which no process may run any more.
func Release(ctx context.Context, s entity.Store, sb id.Sandbox) error {
	mounts, _, err := entity.List[disk.DiskMount](ctx, s, entity.Where(disk.DiskMountAttrSandbox, sb))
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if err := entity.Delete(ctx, s, m); err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
	}
	return nil
}
