package server

import (
	"archive/tar"
	"context"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sbom"
)

// labelBase marks a base image in the image store with the digest that it was
// made as.
const labelBase = "dev.miren.runtime/base"

// resolver maps the name that a user gives an image to a reference of the image
// store.
type resolver struct {
	m  *machine
	mu sync.Mutex // one import at a time

	scanning sync.Mutex // one scan at a time: it takes a processor for seconds
}

// Resolve finds the image by its reference, or makes the base image of that
// name and imports it.
func (r *resolver) Resolve(ctx context.Context, name string) (string, error) {
	if strings.Contains(name, "@sha256:") {
		_, err := r.m.images.Content(ctx, name) // by the exact name, from which the caller concluded whose image it is
		return name, err
	}
	ref, err := baseimage.Lookup(name)
	if errs.Is(err, errs.NotFound) {
		ref, err = baseimage.Lookup(baseimage.Prefix + name)
	}
	if err != nil {
		return "", err
	}
	img, err := r.m.bases.Ensure(ctx, ref, func(line string) { r.m.logger.Info("base image", "image", name, "progress", line) })
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	have, err := r.m.images.List(ctx, map[string]string{labelBase: strings.TrimPrefix(img.Digest, "sha256:")})
	if err != nil {
		return "", err
	}
	if len(have) > 0 {
		return have[0].Ref, nil
	}
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(tarDir(pw, img.Dir)) }()
	defer pr.Close()
	return r.m.images.Import(ctx, pr, "runtime.local/base/"+img.Name+":"+img.Version, map[string]string{labelBase: strings.TrimPrefix(img.Digest, "sha256:")})
}

// Size returns the size of an image of the image store, compressed, in bytes.
func (r *resolver) Size(ctx context.Context, ref string) (int64, error) {
	img, err := r.m.images.Resolve(ctx, ref)
	if err != nil {
		return 0, err
	}
	return img.Size, nil
}

// Software writes the list of the software in an image, as CycloneDX in JSON. The image is found by its exact name,
// name@digest. name and version say in the list whose image it is.
func (r *resolver) Software(ctx context.Context, image, name, version string, w io.Writer) error {
	r.scanning.Lock()
	defer r.scanning.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var scan sbom.Scan
	if err := r.m.images.Layers(ctx, image, scan.Layer); err != nil {
		return err
	}
	return scan.Write(w, name, version)
}

// toolchainDir is where the programs of the server are.
func toolchainDir(cfg *config.Config) (string, error) {
	if cfg.ToolchainDir != "" {
		return cfg.ToolchainDir, nil
	}
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		return "", errs.New(errs.Internal, "find this program: %w", err)
	}
	return filepath.Dir(exe), nil
}

func newBases(cfg *config.Config, binDir string, log *slog.Logger) *baseimage.Store {
	return baseimage.New(baseimage.Config{
		Dir: filepath.Join(cfg.CacheDir, "baseimages"), BinDir: binDir, Registry: baseimage.Policy(cfg.Build.Registry), Logger: log,
	})
}

// RefreshImages makes the base images of the machine again that have packages with newer versions; see
// baseimage.Store.Refresh. No server need run.
func RefreshImages(ctx context.Context, cfg *config.Config, dryRun bool, progress func(string)) ([]baseimage.Outdated, error) {
	bin, err := toolchainDir(cfg)
	if err != nil {
		return nil, err
	}
	return newBases(cfg, bin, nil).Refresh(ctx, dryRun, progress)
}

// tarDir writes the files below dir as a tar stream.
func tarDir(w io.Writer, dir string) error {
	tw := tar.NewWriter(w)
	root := os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o644, Size: info.Size()}); err != nil {
			return err
		}
		f, err := root.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(tw, f)
		return err
	})
	if err != nil {
		return err
	}
	return tw.Close()
}
