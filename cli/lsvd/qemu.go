package lsvd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"miren.dev/runtime/lsvd/frontend/nbd"
	"miren.dev/runtime/lsvd/metrics"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/errs"
)

// formats that images may have; all but raw are read and written by qemu-img.
var formats = []string{"raw", "qcow2", "vmdk", "vdi", "vhdx", "vpc"}

// detect returns the format of an image by its first bytes: raw or qcow2. The
// user names other formats, whose magic could also start a raw disk.
func detect(f *os.File) string {
	head := make([]byte, 4)
	if _, err := f.ReadAt(head, 0); err == nil && string(head) == "QFI\xfb" {
		return "qcow2"
	}
	return "raw"
}

func qemuImg() (string, error) {
	path, err := exec.LookPath("qemu-img")
	if err != nil {
		return "", errs.New(errs.FailedPrecondition, "images that are not raw need qemu-img, which is not installed").
			WithHint("install qemu-utils (apt-get install qemu-utils), or convert the image to raw")
	}
	return path, nil
}

// qemuInfo returns the size of the disk in an image. It refuses an image that
// refers to other files: its author would choose files of this machine.
func qemuInfo(ctx context.Context, file, format string) (int64, error) {
	out, err := qemu(ctx, "info", "--output=json", "-f", format, file)
	if err != nil {
		return 0, err
	}
	var i struct {
		Size    int64  `json:"virtual-size"`
		Backing string `json:"backing-filename"`
		Special struct {
			Data struct {
				File string `json:"data-file"`
			} `json:"data"`
		} `json:"format-specific"`
	}
	if err := json.Unmarshal(out, &i); err != nil || i.Size <= 0 {
		return 0, errs.New(errs.Corrupt, "qemu-img reports no size for %s", file)
	}
	if i.Backing != "" || i.Special.Data.File != "" {
		return 0, errs.New(errs.FailedPrecondition, "image %s needs another file: %s%s", file, i.Backing, i.Special.Data.File).
			WithHint("merge them first: qemu-img convert -O qcow2 %s merged.qcow2", file)
	}
	return i.Size, nil
}

func qemu(ctx context.Context, args ...string) ([]byte, error) {
	path, err := qemuImg()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	var errw bytes.Buffer
	cmd.Stderr = &errw
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "qemu-img %s: %w: %s", args[0], err, strings.TrimSpace(errw.String()))
	}
	return out, nil
}

// byNBD serves the disk by NBD during a call of f, with the URI.
func byNBD(ctx context.Context, d *host.Disk, counted *metrics.Disk, f func(uri string) error) error {
	dir, err := os.MkdirTemp("", "r-lsvd-")
	if err != nil {
		return errs.New(errs.Unavailable, "make a socket: %w", err)
	}
	defer os.RemoveAll(dir)
	sock := filepath.Join(dir, "nbd.sock") // the directory is ours alone
	l, err := net.Listen("unix", sock)
	if err != nil {
		return errs.New(errs.Unavailable, "make a socket: %w", err)
	}
	srv := nbd.New(slog.New(slog.DiscardHandler))
	if err := srv.Add(nbd.Export{Disk: counted}); err != nil {
		l.Close()
		return err
	}
	sctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(sctx, l) }()
	err = f("nbd+unix:///?socket=" + sock)
	cancel()
	return errors.Join(err, <-served)
}
