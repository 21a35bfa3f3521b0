// Package disks has the operations on virtual disks.
//
//	Create, Clone            a disk; they return when it can be used
//	Salvage                  a disk of the writes that a takeover has left out
//	Snapshot, DeleteSnapshot the state of a disk at one moment
//	Resize                   makes a disk larger
//	Schedule                 takes snapshots regularly, and copies them
//	Copy, DeleteCopy         a copy of a disk in another store (copies.go)
//	Restore                  a disk with the content of a copy
//	Delete                   deletes a disk with its data
//	Claim, Release           which sandbox mounts which disk (mounts.go)
//	Ensure                   a disk that an app names
//
// They change entities; the disk controller of a node makes volumes, file systems
// and mounts match. A refusal is an error with the detail "reason":
//
//	in_use              sandboxes have the disk mounted, apps use it, or it is being copied or restored
//	has_snapshots       snapshots of the disk exist
//	shrink              a disk only grows
//	deleted             the disk is being deleted
//	not_ready           the disk or snapshot is not made yet, or cannot be
//	has_writer          another sandbox may write to the disk
//	attached_elsewhere  another node has the disk
//	other_node          the data of the disk is in a directory of another node
//	not_taken_over      no node is known that may have writes which the disk lacks
//	node_down           the node that has the writes is down
package disks

import (
	"context"
	"fmt"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Service is the operations on the disks of one store. It is safe for concurrent
// use.
type Service struct {
	Store     entity.Store
	Informers *informer.Set // informers of Store, to wait for the controller
	Stores    []string      // URLs of stores that projects may name, see Permits
}

func refuse(reason, format string, args ...any) *errs.Error {
	return errs.New(errs.FailedPrecondition, format, args...).With("reason", reason)
}

// Find returns the named disk of a project. NotFound if there is none.
func (s *Service) Find(ctx context.Context, project, name string) (*disk.Disk, error) {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	d, err := entity.ByName[disk.Disk](ctx, s.Store, pid, name)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "there is no disk %q", name).WithHint("`r disk list` lists them")
	}
	return d, err
}

// ready returns the named disk if it can be used.
func (s *Service) ready(ctx context.Context, project, name string) (*disk.Disk, error) {
	d, err := s.Find(ctx, project, name)
	if err != nil {
		return nil, err
	}
	return d, usable(d)
}

// usable returns why a disk cannot be used, nil if it can.
func usable(d *disk.Disk) error {
	switch {
	case d.Spec.Deleted:
		return refuse("deleted", "disk %s is being deleted", d.Name)
	case d.Status.Phase != disk.DiskPhaseReady:
		return refuse("not_ready", "disk %s is %s%s", d.Name, d.Status.Phase, because(d.Status.Message)).WithHint("`r disk show %s` says more", d.Name)
	}
	return nil
}

func because(message string) string {
	if message == "" {
		return ""
	}
	return ": " + message
}

// CreateRequest describes a new disk.
type CreateRequest struct {
	Project    string // "": the default project
	Name       string
	SizeBytes  int64
	Store      string          // URL; "": the installation's own directory
	FileSystem disk.FileSystem // "": ext4
}

// Create makes an empty disk and returns when it can be used. Errors:
// InvalidArgument for a size or name that cannot be, AlreadyExists if the name
// is taken, or the reason why the disk cannot be made; then it is deleted.
func (s *Service) Create(ctx context.Context, req CreateRequest) (*disk.Disk, error) {
	pid, err := projects.Find(ctx, s.Store, req.Project)
	if err != nil {
		return nil, err
	}
	d := disk.NewDisk()
	d.Project, d.Name = pid, req.Name
	d.Spec.SizeBytes, d.Spec.Store = req.SizeBytes, req.Store
	if req.FileSystem != "" {
		d.Spec.FileSystem = req.FileSystem
	}
	return s.create(ctx, d)
}

// Ensure returns the named disk of a project. If there is none and size is not
// nil, it creates one with that size, which cannot be used yet. NotFound if there
// is none and size is nil.
func Ensure(ctx context.Context, s entity.Store, project schema.ID, name string, size *int64) (*disk.Disk, error) {
	d, err := entity.ByName[disk.Disk](ctx, s, project, name)
	if !errs.Is(err, errs.NotFound) || size == nil {
		return d, err
	}
	d = disk.NewDisk()
	d.Project, d.Name, d.Spec.SizeBytes = project, name, *size
	if err := checkSize(d.Spec.SizeBytes, d.Spec.FileSystem); err != nil {
		return nil, err
	}
	err = entity.Create(ctx, s, d)
	if errs.Is(err, errs.AlreadyExists) {
		return entity.ByName[disk.Disk](ctx, s, project, name)
	}
	return d, err
}

// checkSize refuses sizes that a disk cannot have.
func checkSize(size int64, fs disk.FileSystem) error {
	least := int64(disk.MinSize)
	if fs == disk.FileSystemXfs {
		least = disk.MinSizeXfs
	}
	switch {
	case size < least || size > disk.MaxSize:
		return errs.New(errs.InvalidArgument, "a disk with %s has between %d and %d bytes, not %d", fs, least, int64(disk.MaxSize), size)
	case size%disk.SizeMultiple != 0:
		return errs.New(errs.InvalidArgument, "the size of a disk is a multiple of %d bytes; %d is not", disk.SizeMultiple, size)
	}
	return nil
}

// create creates the entity and waits until the controller has made the disk.
func (s *Service) create(ctx context.Context, d *disk.Disk) (*disk.Disk, error) {
	if d.Name == "" {
		return nil, errs.New(errs.InvalidArgument, "a disk needs a name")
	}
	if err := checkSize(d.Spec.SizeBytes, d.Spec.FileSystem); err != nil {
		return nil, err
	}
	if err := entity.Create(ctx, s.Store, d); err != nil {
		return nil, err
	}
	made, err := s.await(ctx, d, func(d *disk.Disk) bool {
		return d.Status.Phase == disk.DiskPhaseReady || d.Status.Phase == disk.DiskPhaseFailed
	})
	if err != nil || made.Status.Phase == disk.DiskPhaseReady {
		return made, err
	}
	_, err = entity.ModifySpec(ctx, s.Store, d.GetID(), func(d *disk.Disk) error { d.Spec.Deleted = true; return nil })
	if err != nil && !errs.Is(err, errs.NotFound) {
		return nil, err
	}
	return nil, refuse("not_ready", "disk %s cannot be made%s", d.Name, because(made.Status.Message))
}

// await returns the disk as soon as the condition holds.
func (s *Service) await(ctx context.Context, d *disk.Disk, reached func(*disk.Disk) bool) (*disk.Disk, error) {
	return informer.Of[disk.Disk](s.Informers).Await(ctx, d.ID, func(d *disk.Disk) (bool, error) { return reached(d), nil })
}

// NewSnapshot returns a snapshot that is to be taken of a disk. No two snapshots
// of a disk have the same name.
func NewSnapshot(d *disk.Disk, name string) *disk.DiskSnapshot {
	s := disk.NewDiskSnapshot()
	s.Project, s.Spec.Disk, s.Spec.Name, s.Spec.Key = d.Project, d.GetID(), name, fmt.Sprintf("%s/%s", d.ID, name)
	return s
}

// snapshot returns the named snapshot of a disk.
func (s *Service) snapshot(ctx context.Context, d *disk.Disk, name string) (*disk.DiskSnapshot, error) {
	all, _, err := entity.List[disk.DiskSnapshot](ctx, s.Store, entity.Where(disk.DiskSnapshotAttrDisk, d.GetID()))
	if err != nil {
		return nil, err
	}
	for _, snap := range all {
		if snap.Spec.Name == name {
			return snap, nil
		}
	}
	return nil, errs.New(errs.NotFound, "disk %s has no snapshot %q", d.Name, name).WithHint("`r disk show %s` lists its snapshots", d.Name)
}

// Snapshot keeps the present state of a disk under a name, and returns when it
// is durable. It has every write that was acknowledged, as after a power loss.
func (s *Service) Snapshot(ctx context.Context, project, name, snapshot string) (*disk.DiskSnapshot, error) {
	d, err := s.ready(ctx, project, name)
	if err != nil {
		return nil, err
	}
	if snapshot == "" {
		return nil, errs.New(errs.InvalidArgument, "a snapshot needs a name")
	}
	snap := NewSnapshot(d, snapshot)
	if err := entity.Create(ctx, s.Store, snap); err != nil {
		return nil, err
	}
	made, err := informer.Of[disk.DiskSnapshot](s.Informers).Await(ctx, snap.ID, func(x *disk.DiskSnapshot) (bool, error) {
		return x.Status.Phase == disk.DiskPhaseReady || x.Status.Phase == disk.DiskPhaseFailed, nil
	})
	if err != nil || made.Status.Phase == disk.DiskPhaseReady {
		return made, err
	}
	_, err = entity.ModifySpec(ctx, s.Store, snap.GetID(), func(x *disk.DiskSnapshot) error { x.Spec.Deleted = true; return nil })
	if err != nil && !errs.Is(err, errs.NotFound) {
		return nil, err
	}
	return nil, refuse("not_ready", "snapshot %s of disk %s cannot be taken%s", snapshot, name, because(made.Status.Message))
}

// DeleteSnapshot deletes a snapshot and returns when it is gone. Clones of it
// stay.
func (s *Service) DeleteSnapshot(ctx context.Context, project, name, snapshot string) error {
	d, err := s.Find(ctx, project, name)
	if err != nil {
		return err
	}
	snap, err := s.snapshot(ctx, d, snapshot)
	if err != nil {
		return err
	}
	if err := s.snapshotNotCopied(ctx, d, snap); err != nil {
		return err
	}
	_, err = entity.ModifySpec(ctx, s.Store, snap.GetID(), func(x *disk.DiskSnapshot) error { x.Spec.Deleted = true; return nil })
	if err == nil {
		_, err = informer.Of[disk.DiskSnapshot](s.Informers).Await(ctx, snap.ID, func(*disk.DiskSnapshot) (bool, error) { return false, nil })
	}
	return gone(err)
}

// gone turns the end of a wait for a deletion into success.
func gone(err error) error {
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	return err
}

// Resize makes a disk larger and returns when its file system is.
// FailedPrecondition for a size below the present one, and if the file system can
// grow only later; then it does so when sandboxes no longer have the disk mounted.
func (s *Service) Resize(ctx context.Context, project, name string, size int64) (*disk.Disk, error) {
	d, err := s.ready(ctx, project, name)
	if err != nil {
		return nil, err
	}
	if err := checkSize(size, d.Spec.FileSystem); err != nil {
		return nil, err
	}
	d, err = entity.ModifySpec(ctx, s.Store, d.GetID(), func(d *disk.Disk) error {
		if size < d.Spec.SizeBytes {
			return refuse("shrink", "disk %s has %d bytes and cannot shrink to %d: the data beyond would be lost", name, d.Spec.SizeBytes, size).
				WithHint("create a smaller disk and copy the files")
		}
		d.Spec.SizeBytes = size
		return usable(d)
	})
	if err != nil {
		return nil, err
	}
	return informer.Of[disk.Disk](s.Informers).Await(ctx, d.ID, func(d *disk.Disk) (bool, error) {
		done := d.Status.SizeBytes >= size
		if !done && d.Status.Message != "" {
			return false, refuse("in_use", "disk %s is not larger yet: %s", name, d.Status.Message)
		}
		return done, nil
	})
}

// Delete deletes a disk with its data, and returns when it is gone. It refuses
// while sandboxes have the disk mounted, apps use it, it is being copied, or
// snapshots of it exist. Copies stay.
func (s *Service) Delete(ctx context.Context, project, name string) error {
	d, err := s.Find(ctx, project, name)
	if err != nil {
		return err
	}
	d, err = entity.ModifySpec(ctx, s.Store, d.GetID(), func(d *disk.Disk) error {
		users, err := s.users(ctx, d)
		if err != nil {
			return err
		}
		if len(users) > 0 {
			return refuse("in_use", "disk %s is used by app %s", name, strings.Join(users, ", ")).
				WithHint("deploy the app without the disk, or delete it: `r app delete %s`", users[0])
		}
		mounts, _, err := entity.List[disk.DiskMount](ctx, s.Store, entity.Where(disk.DiskMountAttrDisk, d.GetID()))
		if err != nil {
			return err
		}
		if len(mounts) > 0 {
			return refuse("in_use", "disk %s is mounted in sandbox %s", name, mounts[0].Spec.Sandbox).WithHint("stop the sandbox first")
		}
		if err := s.notCopied(ctx, d); err != nil {
			return err
		}
		snaps, _, err := entity.List[disk.DiskSnapshot](ctx, s.Store, entity.Where(disk.DiskSnapshotAttrDisk, d.GetID()))
		if err != nil {
			return err
		}
		if len(snaps) > 0 {
			return refuse("has_snapshots", "disk %s has snapshots (%d)", name, len(snaps)).WithHint("delete them first; clones of them stay")
		}
		d.Spec.Deleted = true
		return nil
	})
	if err != nil {
		return err
	}
	_, err = informer.Of[disk.Disk](s.Informers).Await(ctx, schema.ID(d.ID), func(*disk.Disk) (bool, error) { return false, nil })
	return gone(err)
}

// users returns the names of the apps that use a disk.
func (s *Service) users(ctx context.Context, d *disk.Disk) ([]string, error) {
	apps, _, err := entity.List[app.App](ctx, s.Store, entity.Query{Project: d.Project})
	if err != nil {
		return nil, err
	}
	pools, _, err := entity.List[sandbox.SandboxPool](ctx, s.Store, entity.Query{Project: d.Project})
	return app.DiskUsers(d.GetID(), apps, pools), err
}

// Mounts returns the mounts of a disk.
func Mounts(ctx context.Context, r entity.Reader, d id.Disk) ([]*disk.DiskMount, error) {
	list, _, err := entity.List[disk.DiskMount](ctx, r, entity.Where(disk.DiskMountAttrDisk, d))
	return list, err
}
