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
	return filepath.Join(d.cfg.Containerd.StateDir(), "io.containerd.runtime.v2.task", d.cfg.Containerd.Namespace(), id)
}

// workDir is containerd's second directory of a task.
func (d *Driver) workDir(id string) string {
	return filepath.Join(d.cfg.Containerd.Root(), "io.containerd.runtime.v2.task", d.cfg.Containerd.Namespace(), id)
}

// shimSocket is where containerd and our shim agree that a shim listens.
func (d *Driver) shimSocket(id string) string {
	sum := sha256.Sum256([]byte(filepath.Join(d.cfg.Containerd.Socket(), d.cfg.Containerd.Namespace(), id)))
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

// scrub removes what a shim or a containerd that was killed has left of a task
// that containerd no longer knows.
func (d *Driver) scrub(ctx context.Context, id string) error {
	if err := d.killSandbox(id); err != nil {
		return err
	}
	bundle := d.bundleDir(id)
	if _, err := os.Lstat(bundle); err == nil {
		if err := d.killShim(bundle, id); err != nil {
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
	if err := os.Remove(d.shimSocket(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "remove shim socket: %w", err)
	}
	return d.scrubRunsc(ctx, id)
}

// killShim kills the shim that a bundle names, if it still is one.
func (d *Driver) killShim(bundle, id string) error {
	b, err := os.ReadFile(filepath.Join(bundle, "shim.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errs.New(errs.Unavailable, "process of the shim: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return nil
	}
	// The number may be another process's by now.
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(args), "\x00"+d.cfg.Containerd.Namespace()+"\x00") || !strings.Contains(string(args), "\x00"+id+"\x00") {
		return nil
	}
	_ = unix.Kill(pid, unix.SIGKILL)
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

// scrubRunsc has runsc forget a sandbox, if it remembers it.
func (d *Driver) scrubRunsc(ctx context.Context, id string) error {
	root := filepath.Join(d.runscRoot(), d.cfg.Containerd.Namespace())
	left, err := filepath.Glob(filepath.Join(root, id+"*"))
	if err != nil {
		return err
	}
	found := false
	for _, f := range left {
		// Files are <id>_sandbox:<id>.state and the like: not those of an id that ours is the beginning of.
		rest := strings.TrimPrefix(filepath.Base(f), id)
		found = found || strings.HasPrefix(rest, "_") || strings.HasPrefix(rest, ".")
	}
	if !found {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(d.cfg.BinDir, "runsc"), "--root", root, "delete", "-force", id).CombinedOutput()
	if err != nil {
		return errs.New(errs.Unavailable, "runsc delete: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// removeRunscRoot removes runsc's state when no sandbox is left. runsc leaves a
// mount of a network namespace there.
func (d *Driver) removeRunscRoot() error {
	root := d.runscRoot()
	for _, dir := range []string{root, filepath.Join(root, d.cfg.Containerd.Namespace())} {
		if err := unmountAll(filepath.Join(dir, "null-netns")); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(root); err != nil {
		return errs.New(errs.Unavailable, "remove state of runsc: %w", err)
	}
	return nil
}
