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
func (b *taskBackend) bundleDir(id string) string {
	return filepath.Join(b.d.cfg.Containerd.StateDir(), "io.containerd.runtime.v2.task", b.d.cfg.Containerd.Namespace(), taskID(id))
}

// workDir is containerd's second directory of a task.
func (b *taskBackend) workDir(id string) string {
	return filepath.Join(b.d.cfg.Containerd.Root(), "io.containerd.runtime.v2.task", b.d.cfg.Containerd.Namespace(), taskID(id))
}

// shimSocket is where the shim of a task listens.
func (b *taskBackend) shimSocket(id string) string {
	return filepath.Join(b.d.cfg.Containerd.ShimSocketDir(), taskID(id))
}

// hashedSocket is where it does that a containerd of an earlier version started.
func (b *taskBackend) hashedSocket(id string) string {
	sum := sha256.Sum256([]byte(filepath.Join(b.d.cfg.Containerd.Socket(), b.d.cfg.Containerd.Namespace(), taskID(id))))
	return fmt.Sprintf("/run/containerd/s/%x", sum)
}

// scrub removes what a shim or a containerd that was killed has left of a task
// that containerd no longer knows.
func (b *taskBackend) scrub(ctx context.Context, id string) error {
	if err := b.d.killSandbox(id); err != nil {
		return err
	}
	if err := b.killHelpers(id); err != nil {
		return err
	}
	bundle := b.bundleDir(id)
	if _, err := os.Lstat(bundle); err == nil {
		// Before its root filesystem goes, in which it has a file.
		if err := b.scrubRunsc(ctx, id); err != nil {
			return err
		}
		if err := unmountAll(filepath.Join(bundle, "rootfs")); err != nil {
			return err
		}
		if err := os.RemoveAll(bundle); err != nil {
			return errs.New(errs.Unavailable, "remove bundle: %w", err)
		}
	}
	if err := os.RemoveAll(b.workDir(id)); err != nil {
		return errs.New(errs.Unavailable, "remove task directory: %w", err)
	}
	for _, path := range []string{b.shimSocket(id), b.hashedSocket(id)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return errs.New(errs.Unavailable, "remove shim socket: %w", err)
		}
	}
	return b.scrubRunsc(ctx, id)
}

// killHelpers kills the shim of a task that containerd no longer knows, what
// was about to start it, and the runsc commands that it left behind, which
// would go on to make a sandbox. All are in the group of the sandbox's helpers;
// only a shim that an earlier version started is not, but in the bundle's record.
func (b *taskBackend) killHelpers(id string) error {
	pids, err := b.d.cgroups.Helpers(id)
	if err != nil {
		return err
	}
	if pid := b.recordedShim(id); pid != 0 {
		pids = append(pids, pid)
	}
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return nil
}

// recordedShim returns the shim that the bundle names, if that is what runs as this process; else 0.
func (b *taskBackend) recordedShim(id string) int {
	text, err := os.ReadFile(filepath.Join(b.bundleDir(id), "shim.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
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
		!strings.Contains(rest, "\x00"+b.d.cfg.Containerd.Namespace()+"\x00") || !strings.Contains(rest, "\x00"+taskID(id)+"\x00") {
		return 0
	}
	return pid
}

// sweepSockets removes the sockets that shims of build steps left, of which no
// bundle is there. Those of sandboxes are found by List.
func (b *taskBackend) sweepSockets() error {
	dir := b.d.cfg.Containerd.ShimSocketDir()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "list sockets of shims: %w", err)
	}
	bundles := filepath.Dir(b.bundleDir("x"))
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

// scrubRunsc has runsc forget a sandbox whose processes have been killed, if it
// remembers it.
func (b *taskBackend) scrubRunsc(ctx context.Context, id string) error {
	files, err := b.runscFiles(id)
	if err != nil || len(files) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(b.d.cfg.BinDir, "runsc"), "--root", b.runscDir(), "delete", "-force", taskID(id)).CombinedOutput()
	if err != nil {
		b.d.logger.Debug("runsc cannot delete a sandbox, removing its record", "sandbox", id, "error", err, "output", strings.TrimSpace(string(out)))
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

// runscDir is where the shim has runsc keep its state: a directory of containerd's namespace.
func (b *taskBackend) runscDir() string {
	return filepath.Join(b.d.runscRoot(), b.d.cfg.Containerd.Namespace())
}

// runscFiles returns the files that runsc keeps of a sandbox.
func (b *taskBackend) runscFiles(id string) ([]string, error) { return runscFiles(b.runscDir(), id) }
