package runsc

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// bundleDir is containerd's directory of a task.
func (d *Driver) bundleDir(id string) string {
	return filepath.Join(d.cfg.Containerd.StateDir(), "io.containerd.runtime.v2.task", d.cfg.Containerd.Namespace(), taskID(id))
}

// workDir is containerd's second directory of a task.
func (d *Driver) workDir(id string) string {
	return filepath.Join(d.cfg.Containerd.Root(), "io.containerd.runtime.v2.task", d.cfg.Containerd.Namespace(), taskID(id))
}

// shimSocket is where the shim of a task listens.
func (d *Driver) shimSocket(id string) string {
	return filepath.Join(d.cfg.Containerd.ShimSocketDir(), taskID(id))
}

// hashedSocket is the path where the shim of an earlier version's task listens.
func (d *Driver) hashedSocket(id string) string {
	sum := sha256.Sum256([]byte(filepath.Join(d.cfg.Containerd.Socket(), d.cfg.Containerd.Namespace(), taskID(id))))
	return fmt.Sprintf("/run/containerd/s/%x", sum)
}

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

// scrub removes what a killed shim or containerd left of a task that containerd
// no longer knows.
func (d *Driver) scrub(ctx context.Context, id string) error {
	if err := d.killSandbox(id); err != nil {
		return err
	}
	if err := d.killHelpers(id); err != nil {
		return err
	}
	bundle := d.bundleDir(id)
	if _, err := os.Lstat(bundle); err == nil {
		// Before its root filesystem is removed, which has a file of it.
		if err := d.scrubRunsc(ctx, id); err != nil {
			return err
		}
		if err := unmountAll(filepath.Join(bundle, "rootfs")); err != nil {
			return err
		}
		if err := os.RemoveAll(bundle); err != nil {
			return errs.New(errs.Unavailable, "remove bundle: %w", err)
		}
	}
	if err := os.RemoveAll(d.workDir(id)); err != nil {
		return errs.New(errs.Unavailable, "remove task directory: %w", err)
	}
	for _, path := range []string{d.shimSocket(id), d.hashedSocket(id)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return errs.New(errs.Unavailable, "remove shim socket: %w", err)
		}
	}
	return d.scrubRunsc(ctx, id)
}

// killHelpers kills the shim of a task that containerd no longer knows, the
// process that was about to start it, and the runsc commands that it left
// behind, which would continue to make a sandbox. All are in the group of the
// sandbox's helpers, except a shim that an earlier version started: the bundle
// has a record of it.
func (d *Driver) killHelpers(id string) error {
	pids, err := d.cgroups.Helpers(id)
	if err != nil {
		return err
	}
	if pid := d.recordedShim(id); pid != 0 {
		pids = append(pids, pid)
	}
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return nil
}

// recordedShim returns the pid of the shim in the bundle's record, if that process still is the shim; else 0.
func (d *Driver) recordedShim(id string) int {
	b, err := os.ReadFile(filepath.Join(d.bundleDir(id), "shim.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return 0
	}
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil { // the process has ended
		return 0
	}
	name, rest, _ := strings.Cut(string(args), "\x00")
	rest = "\x00" + rest
	if !strings.HasPrefix(filepath.Base(name), "containerd-shim-runsc-") ||
		!strings.Contains(rest, "\x00"+d.cfg.Containerd.Namespace()+"\x00") || !strings.Contains(rest, "\x00"+taskID(id)+"\x00") {
		return 0
	}
	return pid
}

// sweepSockets removes the sockets of build steps' shims that have no bundle
// any more. List finds those of sandboxes.
func (d *Driver) sweepSockets() error {
	dir := d.cfg.Containerd.ShimSocketDir()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "list sockets of shims: %w", err)
	}
	bundles := filepath.Dir(d.bundleDir("x"))
	for _, e := range entries {
		if _, ok := sandboxID(e.Name()); ok {
			continue
		}
		if _, err := os.Lstat(filepath.Join(bundles, e.Name())); !errors.Is(err, os.ErrNotExist) {
			continue // it is in use, or its state is unknown
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return errs.New(errs.Unavailable, "remove socket of a shim: %w", err)
		}
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
			// Its users have been killed, and end in a moment.
			err = unix.Unmount(path, unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return errs.New(errs.Unavailable, "unmount %s: %w", path, err)
		}
	}
}

// scrubRunsc makes runsc forget a sandbox whose processes have been killed.
func (d *Driver) scrubRunsc(ctx context.Context, id string) error {
	files, err := d.runscFiles(id)
	if err != nil || len(files) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(d.cfg.BinDir, "runsc"), "--root", d.runscDir(), "delete", "-force", taskID(id)).CombinedOutput()
	if err != nil {
		d.logger.Debug("runsc cannot delete a sandbox, removing its record", "sandbox", id, "error", err, "output", strings.TrimSpace(string(out)))
	}
	// runsc stops at parts that are gone already, and does not know a sandbox
	// of which only the socket is left. Only files are left, so remove them.
	for _, f := range files {
		if err := os.RemoveAll(f); err != nil {
			return errs.New(errs.Unavailable, "remove record of runsc: %w", err)
		}
	}
	return nil
}

// runscFiles returns the files that runsc keeps of a sandbox.
func (d *Driver) runscFiles(id string) (files []string, err error) {
	for _, pattern := range []string{taskID(id) + "_sandbox:*", "runsc-" + taskID(id) + ".sock"} {
		found, err := filepath.Glob(filepath.Join(d.runscDir(), pattern))
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
	for _, dir := range []string{root, d.runscDir()} {
		if err := unmountAll(filepath.Join(dir, "null-netns")); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(root); err != nil {
		return errs.New(errs.Unavailable, "remove state of runsc: %w", err)
	}
	return nil
}
