package disks

import (
	"context"
	"slices"
	"time"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// NewCopy returns a copy that is to be made of a snapshot of a disk in a store;
// without a snapshot, of the state that the disk has when the copy begins.
func NewCopy(d *disk.Disk, snapshot schema.ID, store string) *disk.DiskCopy {
	c := disk.NewDiskCopy()
	c.Project = d.Project
	c.Spec.Disk, c.Spec.DiskName, c.Spec.Snapshot, c.Spec.Store, c.Spec.FileSystem = d.GetID(), d.Name, string(snapshot), store, d.Spec.FileSystem
	return c
}

// Copies returns the copies of a disk.
func Copies(ctx context.Context, r entity.Reader, d id.Disk) ([]*disk.DiskCopy, error) {
	list, _, err := entity.List[disk.DiskCopy](ctx, r, entity.Where(disk.DiskCopyAttrDisk, d))
	return list, err
}

// Copying reports whether a copy still needs its snapshot.
func Copying(c *disk.DiskCopy) bool {
	return c.Status.Phase == disk.DiskPhasePending && !c.Spec.Deleted
}

// notCopied refuses while a copy of a disk is being made.
func (s *Service) notCopied(ctx context.Context, d *disk.Disk) error {
	copies, err := Copies(ctx, s.Store, d.GetID())
	if err != nil {
		return err
	}
	for _, c := range copies {
		if Copying(c) {
			return refuse("in_use", "disk %s is being copied to %s%s", d.Name, c.Spec.Store, because(c.Status.Message)).
				WithHint("wait, or end the copy: `r disk delete-copy %s`", c.ID)
		}
	}
	return nil
}

// snapshotNotCopied refuses while a copy of a snapshot is being made.
func (s *Service) snapshotNotCopied(ctx context.Context, d *disk.Disk, snap *disk.DiskSnapshot) error {
	copies, err := Copies(ctx, s.Store, d.GetID())
	if err != nil {
		return err
	}
	for _, c := range copies {
		if Copying(c) && (c.Spec.Snapshot == string(snap.ID) || snap.Spec.Copy == string(c.ID)) {
			return refuse("in_use", "snapshot %s is being copied to %s%s", snap.Spec.Name, c.Spec.Store, because(c.Status.Message)).
				WithHint("wait, or end the copy: `r disk delete-copy %s`", c.ID)
		}
	}
	return nil
}

// Copy copies a disk, or a snapshot of it if snapshot is not empty, to another
// store, and returns when that has it. It sends only what earlier copies in that
// store do not have. If ctx ends before, the copy goes on. FailedPrecondition if
// it cannot be made; then it is deleted.
func (s *Service) Copy(ctx context.Context, project, name, snapshot, store string) (*disk.DiskCopy, error) {
	if store == "" {
		return nil, errs.New(errs.InvalidArgument, "a copy needs the URL of a store")
	}
	var c *disk.DiskCopy
	err := entity.Retry(ctx, func() (err error) { c, err = s.startCopy(ctx, project, name, snapshot, store); return err })
	if err != nil {
		return nil, err
	}
	made, err := informer.Of[disk.DiskCopy](s.Informers).Await(ctx, c.ID, func(c *disk.DiskCopy) (bool, error) {
		return c.Status.Phase == disk.DiskPhaseReady || c.Status.Phase == disk.DiskPhaseFailed, nil
	})
	if errs.Is(err, errs.NotFound) {
		return nil, refuse("deleted", "the copy %s was deleted before it was complete", c.ID)
	}
	if err != nil || made.Status.Phase == disk.DiskPhaseReady {
		return made, err
	}
	_, err = entity.ModifySpec(ctx, s.Store, c.GetID(), func(c *disk.DiskCopy) error { c.Spec.Deleted = true; return nil })
	if err != nil && !errs.Is(err, errs.NotFound) {
		return nil, err
	}
	return nil, refuse("not_ready", "disk %s cannot be copied%s", name, because(made.Status.Message))
}

// startCopy creates the entity of a copy. Conflict: the disk has changed meanwhile.
func (s *Service) startCopy(ctx context.Context, project, name, snapshot, store string) (*disk.DiskCopy, error) {
	d, err := s.ready(ctx, project, name)
	if err != nil {
		return nil, err
	}
	var from schema.ID
	if snapshot != "" {
		snap, err := s.snapshot(ctx, d, snapshot)
		if err != nil {
			return nil, err
		}
		if snap.Spec.Deleted || snap.Status.Phase != disk.DiskPhaseReady {
			return nil, refuse("not_ready", "snapshot %s is %s%s", snapshot, snap.Status.Phase, because(snap.Status.Message))
		}
		from = snap.ID
	}
	c := NewCopy(d, from, store)
	create, err := entity.CreateOp(c)
	if err != nil {
		return nil, err
	}
	// A deletion of the disk that began since it was read wins.
	unchanged, err := entity.CheckOp(d)
	if err != nil {
		return nil, err
	}
	_, err = s.Store.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{create, unchanged}})
	return c, err
}

// findCopy returns a copy of a project by its id.
func (s *Service) findCopy(ctx context.Context, project schema.ID, cid string) (*disk.DiskCopy, error) {
	c, err := entity.Get[disk.DiskCopy](ctx, s.Store, id.DiskCopy(cid))
	if err == nil && c.Project != project {
		err = errs.New(errs.NotFound, "it belongs to another project")
	}
	if errs.Is(err, errs.NotFound) || errs.Is(err, errs.InvalidArgument) {
		return nil, errs.New(errs.NotFound, "there is no copy %q", cid).WithHint("`r disk copies` lists them")
	}
	return c, err
}

// DeleteCopy deletes a copy, complete or not, with the data that no other copy
// needs, and returns when it is gone. It refuses while a disk is restored from it.
func (s *Service) DeleteCopy(ctx context.Context, project, cid string) error {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return err
	}
	c, err := s.findCopy(ctx, pid, cid)
	if err != nil {
		return err
	}
	all, _, err := entity.List[disk.Disk](ctx, s.Store, entity.Query{Project: pid})
	if err != nil {
		return err
	}
	for _, d := range all {
		if d.Spec.SourceCopy == cid && d.Status.Phase == disk.DiskPhasePending {
			return refuse("in_use", "disk %s is being restored from copy %s", d.Name, cid).WithHint("wait, or delete the disk")
		}
	}
	_, err = entity.ModifySpec(ctx, s.Store, c.GetID(), func(c *disk.DiskCopy) error { c.Spec.Deleted = true; return nil })
	if err == nil {
		_, err = informer.Of[disk.DiskCopy](s.Informers).Await(ctx, c.ID, func(*disk.DiskCopy) (bool, error) { return false, nil })
	}
	return gone(err)
}

// RestoreRequest describes a disk that is restored.
type RestoreRequest struct {
	Project string
	Copy    string     // id of the copy, or name of the disk: the newest one
	At      *time.Time // with the name of a disk: the newest one that is not newer
	Name    string     // of the new disk
	Store   string     // URL of the store of the new disk; "": the installation's own directory
}

// Restore makes a disk with the content of a copy, and returns when it can be
// used. NotFound if there is no such copy.
func (s *Service) Restore(ctx context.Context, req RestoreRequest) (*disk.Disk, error) {
	pid, err := projects.Find(ctx, s.Store, req.Project)
	if err != nil {
		return nil, err
	}
	c, err := s.pickCopy(ctx, pid, req)
	if err != nil {
		return nil, err
	}
	if c.Spec.Deleted || c.Status.Phase != disk.DiskPhaseReady || c.Status.SizeBytes == nil {
		return nil, refuse("not_ready", "copy %s is %s%s", c.ID, c.Status.Phase, because(c.Status.Message))
	}
	d := disk.NewDisk()
	d.Project, d.Name = pid, req.Name
	d.Spec.SizeBytes, d.Spec.Store, d.Spec.FileSystem, d.Spec.SourceCopy = *c.Status.SizeBytes, req.Store, c.Spec.FileSystem, string(c.ID)
	return s.create(ctx, d)
}

// pickCopy returns the copy that a request names.
func (s *Service) pickCopy(ctx context.Context, project schema.ID, req RestoreRequest) (*disk.DiskCopy, error) {
	all, _, err := entity.List[disk.DiskCopy](ctx, s.Store, entity.Query{Project: project})
	if err != nil {
		return nil, err
	}
	of := slices.DeleteFunc(all, func(c *disk.DiskCopy) bool { return c.Spec.DiskName != req.Copy })
	if len(of) == 0 {
		if req.At != nil {
			return nil, errs.New(errs.NotFound, "there is no copy of a disk %q", req.Copy).WithHint("with a time, name the disk; `r disk copies` lists the copies")
		}
		return s.findCopy(ctx, project, req.Copy)
	}
	var found *disk.DiskCopy
	for _, c := range of {
		taken := c.Status.TakenAt
		if c.Spec.Deleted || c.Status.Phase != disk.DiskPhaseReady || taken == nil || req.At != nil && taken.After(*req.At) {
			continue
		}
		if found == nil || taken.After(*found.Status.TakenAt) {
			found = c
		}
	}
	if found == nil && req.At != nil {
		return nil, errs.New(errs.NotFound, "disk %s has no complete copy of %s or before", req.Copy, req.At.UTC().Format(time.RFC3339)).
			WithHint("`r disk copies` lists the copies")
	}
	if found == nil {
		return nil, errs.New(errs.NotFound, "disk %s has no complete copy", req.Copy).WithHint("`r disk copies` says why")
	}
	return found, nil
}
