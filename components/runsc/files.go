package runsc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"

	"miren.dev/runtime/components/network"
	"miren.dev/runtime/pkg/errs"
)

// setupFiles makes the sandbox's directory and /tmp, and writes the files of
// /etc that say where the sandbox is. They are in its root filesystem, not
// mounts of files of the host, so that all writes to them count as its disk.
func (cr *creation) setupFiles(context.Context) (err error) {
	if err := os.MkdirAll(cr.d.sandboxDir(cr.spec.ID), 0o711); err != nil {
		return errs.New(errs.FailedPrecondition, "directory: %w", err)
	}
	layer, err := writableLayer(cr.mounts)
	if err != nil {
		return err
	}
	etc := filepath.Join(layer, "etc")
	if err := os.Mkdir(etc, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return errs.New(errs.FailedPrecondition, "make /etc: %w", err)
	}
	if err := os.Chmod(etc, 0o755); err != nil { // whatever the server's umask is
		return errs.New(errs.FailedPrecondition, "make /etc: %w", err)
	}
	for name, content := range etcFiles(cr.d.cfg.Network.Files(hostname(cr.spec), cr.network.Address)) {
		if err := writeNew(filepath.Join(etc, name), content); err != nil {
			return errs.New(errs.FailedPrecondition, "write /etc/%s: %w", name, err)
		}
	}
	if err := setupTmp(filepath.Join(layer, "tmp")); err != nil {
		return errs.New(errs.FailedPrecondition, "make /tmp: %w", err)
	}
	cr.ca, err = cr.d.caMounts(cr.spec.ID, cr.mounts, cr.spec.Egress)
	return err
}

// setupTmp makes /tmp a directory of the root filesystem. gVisor mounts a file
// system in memory on an empty one, which would count as the sandbox's memory.
func setupTmp(dir string) error {
	if err := os.Mkdir(dir, 0o777); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		return err
	}
	return writeNew(filepath.Join(dir, ".runtime"), []byte("This file keeps /tmp on the disk of the sandbox.\n"))
}

// etcFiles returns the files of /etc that say where a sandbox is, by name.
func etcFiles(f network.Files) map[string][]byte {
	return map[string][]byte{"hosts": f.Hosts, "hostname": f.Hostname, "resolv.conf": f.ResolvConf}
}

// writableLayer returns the upper directory of a new snapshot. It has no file of the image, so that no link of the
// image is followed.
func writableLayer(mounts []mount.Mount) (string, error) {
	if len(mounts) == 1 && mounts[0].Type == "overlay" {
		for _, o := range mounts[0].Options {
			if dir, ok := strings.CutPrefix(o, "upperdir="); ok {
				return dir, nil
			}
		}
	}
	if len(mounts) == 1 && mounts[0].Type == "bind" { // the snapshot of an image without layers
		return mounts[0].Source, nil
	}
	return "", errs.New(errs.Internal, "the root filesystem is no overlay: %v", mounts)
}

// writeNew writes a file that every user may read and root may change.
func writeNew(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Chmod(0o644), f.Close())
}

func (cr *creation) teardownFiles(context.Context) error {
	if err := os.RemoveAll(cr.d.sandboxDir(cr.spec.ID)); err != nil {
		return errs.New(errs.Unavailable, "remove files: %w", err)
	}
	return nil
}
