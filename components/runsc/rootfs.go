package runsc

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"miren.dev/runtime/components/containerd"
)

// setupRootfs puts a snapshot on top of the image's.
func (cr *creation) setupRootfs(ctx context.Context) error {
	c, err := cr.d.client()
	if err != nil {
		return err
	}
	s := c.SnapshotService(containerd.Snapshotter)
	key := snapshotKey(cr.spec.ID)
	labels := snapshots.WithLabels(map[string]string{
		labelSandbox:  cr.spec.ID,
		labelInstance: cr.d.cfg.Instance.ID,
		labelGCRoot:   time.Now().UTC().Format(time.RFC3339),
	})
	for attempt := range 3 {
		if cr.image, err = cr.d.cfg.Images.Resolve(ctx, cr.spec.Image); err != nil {
			return err
		}
		cr.mounts, err = s.Prepare(ctx, key, cr.image.ChainID, labels)
		switch {
		case errdefs.IsAlreadyExists(err): // of an interrupted attempt
			if err := s.Remove(ctx, key); err != nil && !errdefs.IsNotFound(err) {
				return containerd.Error(err, "remove old root filesystem")
			}
		case errdefs.IsNotFound(err) && attempt == 0: // collected since it was resolved
			cr.d.cfg.Images.Forget(cr.image.Digest)
		default:
			return containerd.Error(err, "prepare root filesystem from %s", cr.spec.Image)
		}
	}
	return containerd.Error(err, "prepare root filesystem from %s", cr.spec.Image)
}

func (cr *creation) teardownRootfs(ctx context.Context) error {
	c, err := cr.d.client()
	if err != nil {
		return err
	}
	err = c.SnapshotService(containerd.Snapshotter).Remove(ctx, snapshotKey(cr.spec.ID))
	if err != nil && !errdefs.IsNotFound(err) {
		return containerd.Error(err, "remove root filesystem")
	}
	return nil
}
