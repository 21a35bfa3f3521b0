package addon

import (
	"context"
	"fmt"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// deleteApp deletes the app that runs the addon.
func (w *work) deleteApp(ctx context.Context) (outcome, error) {
	a := w.addon
	if a.Status.App != "" || a.Status.Phase != addon.AddonPhaseDeleting {
		a.Status.App, a.Status.Phase, a.Status.Message = "", addon.AddonPhaseDeleting, ""
		return changed, entity.UpdateStatus(ctx, w.Store, a)
	}
	runs, err := entity.ByName[app.App](ctx, w.Store, a.Project, a.Name)
	if errs.Is(err, errs.NotFound) || err == nil && runs.Labels[addons.Label] != string(a.ID) {
		return done, nil
	}
	if err != nil {
		return outcome{}, err
	}
	return waits, entity.Delete(ctx, w.Store, runs)
}

// deleteDisks deletes the addon's disks with their snapshots. Copies in other stores stay.
func (w *work) deleteDisks(ctx context.Context) (outcome, error) {
	all, err := addons.Disks(ctx, w.Store, w.addon)
	if err != nil {
		return outcome{}, err
	}
	for _, d := range all {
		mounts, _, err := entity.List[disk.DiskMount](ctx, w.Store, entity.Where(disk.DiskMountAttrDisk, d.GetID()))
		if err != nil {
			return outcome{}, err
		}
		if len(mounts) > 0 {
			return w.wait(ctx, addon.AddonPhaseDeleting, fmt.Sprintf("its sandbox has disk %s still", d.Name))
		}
		snaps, _, err := entity.List[disk.DiskSnapshot](ctx, w.Store, entity.Where(disk.DiskSnapshotAttrDisk, d.GetID()))
		if err != nil {
			return outcome{}, err
		}
		for _, s := range snaps {
			if s.Spec.Deleted {
				continue
			}
			s.Spec.Deleted = true
			if err := entity.UpdateSpec(ctx, w.Store, s); err != nil {
				return outcome{}, err
			}
		}
		if len(snaps) == 0 && !d.Spec.Deleted {
			d.Spec.Deleted = true
			if err := entity.UpdateSpec(ctx, w.Store, d); err != nil {
				return outcome{}, err
			}
		}
	}
	if len(all) > 0 {
		return w.wait(ctx, addon.AddonPhaseDeleting, "its disks are being deleted")
	}
	return done, nil
}

// deleteAddon deletes the entity, when nothing else of the addon exists.
func (w *work) deleteAddon(ctx context.Context) (outcome, error) {
	return done, ignoreNotFound(entity.Delete(ctx, w.Store, w.addon))
}
