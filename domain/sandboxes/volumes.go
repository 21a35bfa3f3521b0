package sandboxes

import (
	"cmp"
	"context"
	"time"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

const (
	// volumesTimeout bounds the call that gives a claimed sandbox its volumes: a disk
	// may have to be opened in its store.
	volumesTimeout = 30 * time.Second
	// volumesTries is claimTries of a request with volumes. Each try that a disk
	// fails costs a warm sandbox.
	volumesTries = 2
)

// VolumesOf returns the disks that a sandbox mounts.
func VolumesOf(sb *sandbox.Sandbox) []disks.Volume {
	var out []disks.Volume
	for _, v := range sb.Spec.Template.Volumes {
		out = append(out, disks.Volume{Disk: v.Disk, Path: v.Path, ReadOnly: v.ReadOnly})
	}
	return out
}

// placeOfVolumes returns the node on which a warm sandbox has to run to mount the
// disks that sb names; "": any. ok is false if no warm one can have them now: a
// disk is on another node than the rest, is not ready, or has a writer. A cold
// sandbox waits for it, or says what is wrong.
func (s *Service) placeOfVolumes(ctx context.Context, sb *sandbox.Sandbox) (only id.Node, ok bool, _ error) {
	for _, v := range sb.Spec.Template.Volumes {
		d, err := entity.Get[disk.Disk](ctx, s.Store, v.Disk)
		if errs.Is(err, errs.NotFound) {
			return "", false, nil
		}
		if err != nil {
			return "", false, err
		}
		mounts, err := disks.Mounts(ctx, s.Store, v.Disk)
		if err != nil {
			return "", false, err
		}
		node := cmp.Or(d.Status.Node, id.Node(d.Status.Home))
		for _, m := range mounts {
			node = cmp.Or(node, m.Spec.Node)
			if m.Spec.Writer != "" && !v.ReadOnly {
				return "", false, nil
			}
		}
		if d.Status.Phase != disk.DiskPhaseReady || d.Spec.Deleted || node != "" && only != "" && node != only {
			return "", false, nil
		}
		only = cmp.Or(only, node)
	}
	return only, true, nil
}
