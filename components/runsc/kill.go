package runsc

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// killSandbox kills sentry and gofer.
func (d *Driver) killSandbox(id string) error {
	pids, err := d.cgroups.PIDs(id)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return nil
}

func unmountAll(path string) error {
	for {
		err := unix.Unmount(path, 0)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.EBUSY):
			// What used it has been killed, and is gone in a moment.
			err = unix.Unmount(path, unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return errs.New(errs.Unavailable, "unmount %s: %w", path, err)
		}
	}
}

// runscFiles returns the files that runsc keeps of a sandbox in dir.
func runscFiles(dir, id string) (files []string, err error) {
	for _, pattern := range []string{taskID(id) + "_sandbox:*", "runsc-" + taskID(id) + ".sock"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	return files, nil
}

// removeRunscRoot removes runsc's state when no sandbox is left. runsc leaves a
// mount of a network namespace there.
func (d *Driver) removeRunscRoot() error {
	root := d.runscRoot()
	dirs := []string{root}
	for _, b := range d.backends {
		dirs = append(dirs, b.runscDir())
	}
	for _, dir := range dirs {
		if err := unmountAll(filepath.Join(dir, "null-netns")); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(root); err != nil {
		return errs.New(errs.Unavailable, "remove state of runsc: %w", err)
	}
	return nil
}
