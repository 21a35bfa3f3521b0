package disks

import (
	"context"
	"time"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// CloneRequest describes a disk that begins with the content of another one.
type CloneRequest struct {
	Project  string
	Source   string     // name of the disk to clone
	Snapshot string     // name of its snapshot; "": see At
	At       *time.Time // its newest snapshot whose state is not newer; nil: its present state
	Name     string     // of the clone
}

// Clone makes a disk with the content of another one, or of a snapshot of it,
// and returns when it can be used. NotFound if there is no such snapshot.
func (s *Service) Clone(ctx context.Context, req CloneRequest) (*disk.Disk, error) {
	if req.Snapshot != "" && req.At != nil {
		return nil, errs.New(errs.InvalidArgument, "state either a snapshot or a time")
	}
	from, err := s.ready(ctx, req.Project, req.Source)
	if err != nil {
		return nil, err
	}
	d := disk.NewDisk()
	d.Project, d.Name = from.Project, req.Name
	d.Spec.SizeBytes, d.Spec.Store, d.Spec.FileSystem, d.Spec.SourceDisk = from.Status.SizeBytes, from.Spec.Store, from.Spec.FileSystem, string(from.ID)
	var snap *disk.DiskSnapshot
	switch {
	case req.Snapshot != "":
		snap, err = s.snapshot(ctx, from, req.Snapshot)
		if err == nil && !clonable(snap) {
			err = refuse("not_ready", "snapshot %s is %s%s", req.Snapshot, snap.Status.Phase, because(snap.Status.Message))
		}
	case req.At != nil:
		snap, err = s.snapshotAt(ctx, from, *req.At)
	}
	if err != nil {
		return nil, err
	}
	if snap != nil {
		d.Spec.SourceSnapshot = string(snap.ID)
		if snap.Status.SizeBytes != nil {
			d.Spec.SizeBytes = *snap.Status.SizeBytes
		}
	}
	return s.create(ctx, d)
}

func clonable(x *disk.DiskSnapshot) bool {
	return !x.Spec.Deleted && x.Status.Phase == disk.DiskPhaseReady
}

// snapshotAt returns the newest snapshot of a disk whose state is not newer than at.
func (s *Service) snapshotAt(ctx context.Context, d *disk.Disk, at time.Time) (*disk.DiskSnapshot, error) {
	all, _, err := entity.List[disk.DiskSnapshot](ctx, s.Store, entity.Where(disk.DiskSnapshotAttrDisk, d.GetID()))
	if err != nil {
		return nil, err
	}
	var found *disk.DiskSnapshot
	for _, x := range all {
		taken := x.Status.TakenAt
		if !clonable(x) || taken == nil || taken.After(at) {
			continue
		}
		if found == nil || taken.After(*found.Status.TakenAt) {
			found = x
		}
	}
	if found == nil {
		return nil, errs.New(errs.NotFound, "disk %s has no snapshot of %s or before", d.Name, at.UTC().Format(time.RFC3339)).
			WithHint("`r disk show %s` lists its snapshots; `r disk restore` takes older states from copies", d.Name)
	}
	return found, nil
}
