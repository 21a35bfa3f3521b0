package rpcserver

import (
	"context"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/pkg/opt"
)

// addonHandler serves addon.Addons.
type addonHandler struct{ addons *addons.Service }

// Addons serves the operations on addons.
func Addons(s *addons.Service) addon.Addons { return &addonHandler{s} }

func (h *addonHandler) Create(ctx context.Context, req *addon.CreateAddonRequest) (*addon.AddonResponse, error) {
	return addonResponse(h.addons.Create(ctx, addons.CreateRequest{
		Project: req.Project, Name: req.Addon, Engine: req.Engine, Version: req.Version, SizeBytes: opt.Value(req.SizeBytes), MemoryBytes: opt.Value(req.MemoryBytes),
		Source: req.Source, Backup: req.Backup,
	}))
}

func (h *addonHandler) Attach(ctx context.Context, req *addon.AttachAddonRequest) (*addon.AttachmentResponse, error) {
	t, err := h.addons.Attach(ctx, req.Project, req.Addon, req.App, req.Prefix)
	if err != nil {
		return nil, err
	}
	rec, err := record(t)
	return &addon.AttachmentResponse{Attachment: rec}, err
}

func (h *addonHandler) Detach(ctx context.Context, req *addon.AttachAddonRequest) error {
	return h.addons.Detach(ctx, req.Project, req.Addon, req.App)
}

func (h *addonHandler) Rotate(ctx context.Context, req *addon.AddonRequest) (*addon.AddonResponse, error) {
	return addonResponse(h.addons.Rotate(ctx, req.Project, req.Addon))
}

func (h *addonHandler) Backup(ctx context.Context, req *addon.BackupAddonRequest) (*addon.BackupResponse, error) {
	b, err := h.addons.Backup(ctx, req.Project, req.Addon, req.Backup)
	if err != nil {
		return nil, err
	}
	rec, err := record(b)
	return &addon.BackupResponse{Backup: rec}, err
}

func (h *addonHandler) DeleteBackup(ctx context.Context, req *addon.AddonBackupRequest) error {
	return h.addons.DeleteBackup(ctx, req.Project, req.Addon, req.Backup)
}

func (h *addonHandler) Schedule(ctx context.Context, req *addon.ScheduleAddonRequest) (*addon.AddonResponse, error) {
	if err := mayName(ctx, h.addons.Disks, req.CopyTo); err != nil {
		return nil, err
	}
	return addonResponse(h.addons.Schedule(ctx, disks.ScheduleRequest{
		Project: req.Project, Name: req.Addon, Every: opt.Value(req.Every), Retention: disks.Retention{Keep: opt.Value(req.Keep)}, CopyTo: req.CopyTo,
	}))
}

func (h *addonHandler) Restore(ctx context.Context, req *addon.AddonBackupRequest) (*addon.AddonResponse, error) {
	return addonResponse(h.addons.Restore(ctx, req.Project, req.Addon, req.Backup))
}

func (h *addonHandler) Wait(ctx context.Context, req *addon.WaitAddonRequest) (*addon.AddonResponse, error) {
	return addonResponse(h.addons.Wait(ctx, req.Project, req.Addon, req.App))
}

func (h *addonHandler) Delete(ctx context.Context, req *addon.DeleteAddonRequest) error {
	return h.addons.Delete(ctx, req.Project, req.Addon, opt.Value(req.Force))
}

func addonResponse(a *addon.Addon, err error) (*addon.AddonResponse, error) {
	if err != nil {
		return nil, err
	}
	rec, err := record(a)
	return &addon.AddonResponse{Addon: rec}, err
}
