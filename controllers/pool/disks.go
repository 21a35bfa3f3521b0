package pool

import (
	"context"
	"fmt"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
)

// heldDisk returns why a pool cannot have a new sandbox yet, "" if it can: another
// sandbox writes to a disk that the new one writes to.
func (r *Reconciler) heldDisk(ctx context.Context, p *sandbox.SandboxPool) (string, error) {
	for _, v := range p.Spec.Template.Volumes {
		if v.ReadOnly {
			continue
		}
		// A sandbox that is being made may not have mounted the disk yet.
		all, _, err := entity.List[sandbox.Sandbox](ctx, r.Store, entity.Where(sandbox.SandboxAttrApp, p.Spec.App))
		if err != nil {
			return "", err
		}
		for _, sb := range all {
			if !sb.Status.Phase.Ended() && sandboxes.Writes(&sb.Spec.Template, v.Disk) {
				return fmt.Sprintf("waiting until sandbox %s, which writes to the disk at %s, has ended", sb.ID, v.Path), nil
			}
		}
		mounts, err := disks.Mounts(ctx, r.Store, v.Disk)
		if err != nil {
			return "", err
		}
		for _, m := range mounts {
			if !m.Spec.ReadOnly {
				return fmt.Sprintf("waiting until sandbox %s has released the disk at %s", m.Spec.Sandbox, v.Path), nil
			}
		}
	}
	return "", nil
}
