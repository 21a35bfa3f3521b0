package buildkit

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	ctd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/mounts"
	"miren.dev/runtime/pkg/errs"
)

// sweep removes what steps of a buildkitd that no longer runs left: their
// containers, mounts, network namespaces and cgroups.
func (d *Daemon) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := d.sweepContainers(ctx); err != nil {
		return errs.Wrap(err, "sweep build steps")
	}
	if err := mounts.UnmountBelow(d.tmpDir(), filepath.Join(d.root(), "net"), d.runFile("runsc")); err != nil {
		return errs.New(errs.Unavailable, "sweep mounts of builds: %w", err)
	}
	for _, dir := range []string{d.tmpDir(), filepath.Join(d.root(), "net"), d.runFile("addresses"), d.runFile("runsc")} {
		if err := os.RemoveAll(dir); err != nil {
			return errs.New(errs.Unavailable, "sweep files of builds: %w", err)
		}
	}
	return d.sweepCgroups()
}

// sweepContainers deletes the containers of steps, known by their cgroup.
func (d *Daemon) sweepContainers(ctx context.Context) error {
	c, err := d.cfg.Containerd.Client()
	if err != nil {
		return err
	}
	all, err := c.Containers(ctx)
	if err != nil {
		return errs.New(errs.Unavailable, "list containers: %w", err)
	}
	for _, one := range all {
		info, err := one.Info(ctx, ctd.WithoutRefreshedMetadata)
		if err != nil {
			return errs.New(errs.Unavailable, "inspect container %s: %w", one.ID(), err)
		}
		var spec specs.Spec
		if info.Spec == nil || json.Unmarshal(info.Spec.GetValue(), &spec) != nil || spec.Linux == nil ||
			!strings.HasPrefix(spec.Linux.CgroupsPath, "/"+d.cgroup()+"/") {
			continue // not ours
		}
		task, err := one.Task(ctx, nil)
		if err == nil {
			_, err = task.Delete(ctx, ctd.WithProcessKill)
		}
		if err != nil && !errdefs.IsNotFound(err) {
			return errs.New(errs.Unavailable, "end step %s: %w", one.ID(), err)
		}
		if err := one.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
			return errs.New(errs.Unavailable, "delete step %s: %w", one.ID(), err)
		}
	}
	return nil
}

// sweepCgroups removes the empty cgroups of steps from every hierarchy.
func (d *Daemon) sweepCgroups() error {
	roots, err := filepath.Glob("/sys/fs/cgroup/*")
	if err != nil {
		return err
	}
	for _, root := range append(roots, "/sys/fs/cgroup") {
		top := filepath.Join(root, d.cgroup())
		var dirs []string
		err := filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		if err != nil {
			return errs.New(errs.Unavailable, "sweep cgroups of builds: %w", err)
		}
		for _, dir := range slices.Backward(dirs) {
			// Busy only while a process of it is still dying; the next sweep gets it.
			if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOENT) {
				return errs.New(errs.Unavailable, "remove cgroup %s: %w", dir, err)
			}
		}
	}
	return nil
}
