package runsc

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

// A sandbox that waits for its claim gets volumes while it runs, by a directory of the
// host whose later mounts appear in it:
//
//	<run dir>/volumes/<sandbox>/     a mount of itself: shared, so that runsc's gofer gets the mounts below it,
//	                                 and read-only, so that the sandbox cannot write to it
//	                            0/   volume 0 of the claim, once it has one; and so on
//
// The agent mounts each of them, which it sees below agentproto.GuestVolume, on its target.
// The container's record has them as Spec.Mounts before that, and a snapshot's record: a
// restored sandbox gets them in the same directory before runsc opens the files of the guest.

// maxVolumes is how many volumes a claim can have.
const maxVolumes = 16

func (d *Driver) volumesDir(elem ...string) string {
	return d.cfg.Instance.Socket(append([]string{"volumes"}, elem...)...)
}

// takesVolumes says whether the sandbox has a directory of volumes.
func (cr *creation) takesVolumes() bool {
	if cr.snapshot != nil {
		return cr.snapshot.Volumes
	}
	return cr.spec.Idle && len(cr.spec.Mounts) == 0
}

// setupVolumes makes the directory of volumes, with those of a snapshot.
func (cr *creation) setupVolumes(ctx context.Context) error {
	if !cr.takesVolumes() {
		return nil
	}
	if err := cr.teardownVolumes(ctx); err != nil { // of an interrupted attempt
		return err
	}
	dir := cr.d.volumesDir(cr.spec.ID)
	for n := range maxVolumes {
		if err := os.MkdirAll(filepath.Join(dir, strconv.Itoa(n)), 0o700); err != nil {
			return errs.New(errs.FailedPrecondition, "directory: %w", err)
		}
	}
	for _, flags := range []uintptr{unix.MS_BIND, unix.MS_PRIVATE, unix.MS_SHARED, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV} {
		if err := unix.Mount(dir, dir, "", flags, ""); err != nil {
			return errs.New(errs.FailedPrecondition, "mount %s: %w", dir, err)
		}
	}
	return cr.d.showVolumes(cr.spec.ID, cr.spec.Mounts)
}

// showVolumes mounts volumes in the directory of a sandbox. It may be repeated.
func (d *Driver) showVolumes(id string, mounts []execution.Mount) error {
	for n, m := range mounts {
		if err := showVolume(m, d.volumesDir(id, strconv.Itoa(n))); err != nil {
			return errs.New(errs.FailedPrecondition, "volume of sandbox %s at %s: %w", id, m.Target, err)
		}
	}
	return nil
}

// showVolume mounts m.Source on dir, unless it is there. It appears in the sandbox with
// its flags at once: later changes of them would not.
func showVolume(m execution.Mount, dir string) error {
	var there, want unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &there), unix.Stat(m.Source, &want)); err != nil {
		return err
	}
	if there.Dev == want.Dev && there.Ino == want.Ino {
		return nil
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, m.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if m.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return err
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// teardownVolumes unmounts the volumes of a sandbox that does not run. It removes
// directories that are empty only: a volume may be mounted on one.
func (cr *creation) teardownVolumes(context.Context) error {
	dir := cr.d.volumesDir(cr.spec.ID)
	names, err := dirNames(dir)
	if err != nil {
		return err
	}
	if names == nil {
		return removeEmpty(dir)
	}
	for _, name := range names {
		if err := unmountAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := unmountAll(dir); err != nil {
		return err
	}
	for _, name := range names {
		if err := removeEmpty(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return removeEmpty(dir)
}

func removeEmpty(dir string) error {
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errs.New(errs.Unavailable, "remove %s: %w", dir, err)
	}
	return nil
}

// mountVolumes gives a sandbox the volumes of the claim that its agent accepted. The caller holds
// the sandbox's lock.
func (d *Driver) mountVolumes(ctx context.Context, c *agent.Conn, id string, i execution.Identity) error {
	if err := d.recordVolumes(ctx, id, i.Mounts); err != nil {
		return err
	}
	fault.Point("volumes", "show", fault.Before)
	if err := d.showVolumes(id, i.Mounts); err != nil {
		return err
	}
	fault.Point("volumes", "show", fault.After)
	return c.Mount(ctx, i)
}

// recordVolumes writes the volumes of a sandbox into its container's record.
func (d *Driver) recordVolumes(ctx context.Context, id string, mounts []execution.Mount) error {
	cl, err := d.client()
	if err != nil {
		return err
	}
	c, err := cl.ContainerService().Get(ctx, taskID(id))
	if err != nil {
		return containerd.Error(err, "sandbox %s", id)
	}
	rec, err := recordOf(c)
	if err != nil || slices.Equal(rec.Spec.Mounts, mounts) {
		return err
	}
	rec.Spec.Mounts = mounts
	c.Extensions = map[string]typeurl.Any{extension: &rec}
	_, err = cl.ContainerService().Update(ctx, c, "extensions."+extension)
	return containerd.Error(err, "record the volumes of sandbox %s", id)
}

// checkVolumes refuses mounts that the sandbox cannot be given.
func (d *Driver) checkVolumes(ctx context.Context, id string, mounts []execution.Mount) error {
	if err := agentdriver.CheckMounts(mounts); err != nil {
		return err
	}
	if len(mounts) > maxVolumes {
		return errs.New(errs.InvalidArgument, "sandbox %s: %d mounts, at most %d are possible", id, len(mounts), maxVolumes)
	}
	rec, err := d.record(ctx, id)
	if err == nil && !rec.Volumes {
		err = errs.New(errs.FailedPrecondition, "sandbox %s was not made to be given mounts", id)
	}
	return err
}
