package rpcserver

import (
	"context"
	"slices"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
)

// diskHandler serves disk.Disks.
type diskHandler struct{ disks *disks.Service }

// mayName returns PermissionDenied if the caller may not name a store, which is a
// directory of the machine, or a bucket that the server's credentials open.
func mayName(ctx context.Context, d *disks.Service, store string) error {
	if store == "" || slices.Contains(rpc.IdentityFrom(ctx).Roles, rpc.RoleAdmin) || d.Permits(store) {
		return nil
	}
	return errs.New(errs.PermissionDenied, "projects may not use the store %s", store).
		WithHint("the server's configuration lists those that they may use (disks.stores); its admins may use any")
}

func (h *diskHandler) Create(ctx context.Context, req *disk.CreateDiskRequest) (*disk.DiskResponse, error) {
	if err := mayName(ctx, h.disks, req.Store); err != nil {
		return nil, err
	}
	d, err := h.disks.Create(ctx, disks.CreateRequest{
		Project: req.Project, Name: req.Disk, SizeBytes: req.SizeBytes, Store: req.Store, FileSystem: req.FileSystem,
	})
	return diskResponse(d, err)
}

func (h *diskHandler) Clone(ctx context.Context, req *disk.CloneDiskRequest) (*disk.DiskResponse, error) {
	return diskResponse(h.disks.Clone(ctx, disks.CloneRequest{Project: req.Project, Source: req.Source, Snapshot: req.Snapshot, At: req.At, Name: req.Disk}))
}

func (h *diskHandler) Salvage(ctx context.Context, req *disk.SalvageDiskRequest) (*disk.DiskResponse, error) {
	return diskResponse(h.disks.Salvage(ctx, disks.SalvageRequest{Project: req.Project, Source: req.Source, Takeover: req.Takeover, Node: req.Node, Name: req.Disk}))
}

func (h *diskHandler) Snapshot(ctx context.Context, req *disk.SnapshotDiskRequest) (*disk.SnapshotResponse, error) {
	s, err := h.disks.Snapshot(ctx, req.Project, req.Disk, req.Snapshot)
	if err != nil {
		return nil, err
	}
	rec, err := record(s)
	return &disk.SnapshotResponse{Snapshot: rec}, err
}

func (h *diskHandler) DeleteSnapshot(ctx context.Context, req *disk.SnapshotDiskRequest) error {
	return h.disks.DeleteSnapshot(ctx, req.Project, req.Disk, req.Snapshot)
}

func (h *diskHandler) Resize(ctx context.Context, req *disk.ResizeDiskRequest) (*disk.DiskResponse, error) {
	return diskResponse(h.disks.Resize(ctx, req.Project, req.Disk, req.SizeBytes))
}

func (h *diskHandler) Schedule(ctx context.Context, req *disk.ScheduleDiskRequest) (*disk.DiskResponse, error) {
	if err := mayName(ctx, h.disks, req.CopyTo); err != nil {
		return nil, err
	}
	return diskResponse(h.disks.Schedule(ctx, disks.ScheduleRequest{
		Project: req.Project, Name: req.Disk, Every: opt.Value(req.Every), Times: req.Times, TimeZone: req.TimeZone,
		Retention: disks.Retention{Keep: opt.Value(req.Keep), For: opt.Value(req.KeepFor)}, CopyTo: req.CopyTo, CopyKeep: opt.Value(req.CopyKeep), CopyOff: opt.Value(req.CopyOff),
	}))
}

func (h *diskHandler) Copy(ctx context.Context, req *disk.CopyDiskRequest) (*disk.CopyResponse, error) {
	if err := mayName(ctx, h.disks, req.Store); err != nil {
		return nil, err
	}
	c, err := h.disks.Copy(ctx, req.Project, req.Disk, req.Snapshot, req.Store)
	if err != nil {
		return nil, err
	}
	rec, err := record(c)
	return &disk.CopyResponse{Copy: rec}, err
}

func (h *diskHandler) DeleteCopy(ctx context.Context, req *disk.DeleteCopyRequest) error {
	return h.disks.DeleteCopy(ctx, req.Project, req.Copy)
}

func (h *diskHandler) Restore(ctx context.Context, req *disk.RestoreDiskRequest) (*disk.DiskResponse, error) {
	if err := mayName(ctx, h.disks, req.Store); err != nil {
		return nil, err
	}
	return diskResponse(h.disks.Restore(ctx, disks.RestoreRequest{Project: req.Project, Copy: req.Copy, At: req.At, Name: req.Disk, Store: req.Store}))
}

func (h *diskHandler) Delete(ctx context.Context, req *disk.DiskRequest) error {
	return h.disks.Delete(ctx, req.Project, req.Disk)
}

func diskResponse(d *disk.Disk, err error) (*disk.DiskResponse, error) {
	if err != nil {
		return nil, err
	}
	rec, err := record(d)
	return &disk.DiskResponse{Disk: rec}, err
}
