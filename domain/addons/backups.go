package addons

import (
	"context"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// backupName is the form of the names of backups without one.
const backupName = "20060102-150405"

// Disks returns the disks of an addon, by name: the one that it uses, and those that it
// used before restores in place.
func Disks(ctx context.Context, r entity.Reader, a *addon.Addon) ([]*disk.Disk, error) {
	list, _, err := entity.List[disk.Disk](ctx, r, entity.Query{Project: a.Project, Labels: map[string]string{Label: string(a.ID)}})
	slices.SortFunc(list, func(a, b *disk.Disk) int { return strings.Compare(a.Name, b.Name) })
	return list, err
}

// Backups returns the backups of an addon, the newest first: the snapshots of its disks.
func Backups(ctx context.Context, r entity.Reader, a *addon.Addon) ([]*disk.DiskSnapshot, error) {
	all, err := Disks(ctx, r, a)
	if err != nil {
		return nil, err
	}
	var list []*disk.DiskSnapshot
	for _, d := range all {
		snaps, _, err := entity.List[disk.DiskSnapshot](ctx, r, entity.Where(disk.DiskSnapshotAttrDisk, d.GetID()))
		if err != nil {
			return nil, err
		}
		for _, snap := range snaps {
			if snap.Spec.Copy == "" && !snap.Spec.Deleted {
				list = append(list, snap)
			}
		}
	}
	slices.SortFunc(list, func(a, b *disk.DiskSnapshot) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return list, nil
}

// backup returns the named backup of an addon that can be used.
func (s *Service) backup(ctx context.Context, a *addon.Addon, name string) (*disk.DiskSnapshot, error) {
	all, err := Backups(ctx, s.Store, a)
	if err != nil {
		return nil, err
	}
	for _, b := range all {
		switch {
		case b.Spec.Name != name:
		case b.Status.Phase != disk.DiskPhaseReady:
			return nil, errs.New(errs.FailedPrecondition, "backup %s of addon %s is %s: %s", name, a.Name, b.Status.Phase, b.Status.Message)
		default:
			return b, nil
		}
	}
	return nil, errs.New(errs.NotFound, "addon %s has no backup %q", a.Name, name).WithHint("`r addon backups %s` lists them", a.Name)
}

// Backup keeps the present state of an addon under a name, or the time if that is empty,
// and returns when that is durable: it has every write that the addon acknowledged.
func (s *Service) Backup(ctx context.Context, project, name, backup string) (*disk.DiskSnapshot, error) {
	a, err := s.usable(ctx, project, name)
	if err != nil {
		return nil, err
	}
	if a.Status.Disk == "" {
		return nil, errs.New(errs.FailedPrecondition, "addon %s was not ready yet: there is nothing to back up", name).WithHint("`r addon show %s` says what it waits for", name)
	}
	all, err := Backups(ctx, s.Store, a)
	if err != nil {
		return nil, err
	}
	if backup == "" {
		backup = time.Now().UTC().Format(backupName)
	}
	if slices.ContainsFunc(all, func(b *disk.DiskSnapshot) bool { return b.Spec.Name == backup }) {
		return nil, errs.New(errs.AlreadyExists, "addon %s has a backup %s already", name, backup)
	}
	if err := s.flush(ctx, a); err != nil {
		return nil, err
	}
	return s.Disks.Snapshot(ctx, project, a.Status.Disk, backup)
}

// flush writes to the disk what the addon's programs have written to files. What runs no
// sandbox has nothing to write.
func (s *Service) flush(ctx context.Context, a *addon.Addon) error {
	if s.Run == nil || a.Status.App == "" {
		return nil
	}
	runs, err := entity.Get[app.App](ctx, s.Store, a.Status.App)
	if err != nil {
		return err
	}
	sb, err := Sandbox(ctx, s.Store, runs)
	if sb == nil || err != nil {
		return err
	}
	_, err = s.Run(ctx, sb.GetID(), "", "sync", "-f", dataPath)
	return errs.Wrap(err, "write the files of addon %s to its disk", a.Name)
}

// DeleteBackup deletes a backup and returns when it is gone. Addons that were made of it
// stay.
func (s *Service) DeleteBackup(ctx context.Context, project, name, backup string) error {
	a, err := s.Find(ctx, project, name)
	if err != nil {
		return err
	}
	b, err := s.backup(ctx, a, backup)
	if err != nil {
		return err
	}
	d, err := entity.Get[disk.Disk](ctx, s.Store, b.Spec.Disk)
	if err != nil {
		return err
	}
	return s.Disks.DeleteSnapshot(ctx, project, d.Name, backup)
}

// Schedule has a backup made every so often; req names the addon in place of a disk.
func (s *Service) Schedule(ctx context.Context, req disks.ScheduleRequest) (*addon.Addon, error) {
	a, err := s.usable(ctx, req.Project, req.Name)
	if err != nil {
		return nil, err
	}
	if a.Status.Disk == "" {
		return nil, errs.New(errs.FailedPrecondition, "addon %s was not ready yet", req.Name).WithHint("`r addon show %s` says what it waits for", req.Name)
	}
	req.Name = a.Status.Disk
	_, err = s.Disks.Schedule(ctx, req)
	return a, err
}

// Restore brings an addon back to a backup: it gets a new disk with that content. The disk
// before stays until the addon is deleted, and has all later writes.
func (s *Service) Restore(ctx context.Context, project, name, backup string) (*addon.Addon, error) {
	a, err := s.usable(ctx, project, name)
	if err != nil {
		return nil, err
	}
	b, err := s.backup(ctx, a, backup)
	if err != nil {
		return nil, err
	}
	return entity.ModifySpec(ctx, s.Store, a.GetID(), func(a *addon.Addon) error {
		if a.Status.Disk != addon.DiskName(a.Name, a.Spec.Disk) {
			return errs.New(errs.Conflict, "the restore before is not over: %s", a.Status.Message).WithHint("`r addon show %s` says what it waits for", name)
		}
		a.Spec.Disk++
		a.Spec.Source = string(b.ID)
		return nil
	})
}
