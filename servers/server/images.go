package server

import (
	"archive/tar"
	"context"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/components/buildkit"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/domain/images"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/sbom"
)

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
	label := map[string]string{images.LabelBase: strings.TrimPrefix(img.Digest, "sha256:")}
	have, err := r.m.images.List(ctx, label)
	if err != nil {
		return "", err
	}
	for _, h := range have {
		// Snapshots have names of their own for the same image, which end with them.
		if strings.HasPrefix(h.Ref, images.BasePrefix) {
			return h.Ref, nil
		}
	}
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(tarDir(pw, img.Dir)) }()
	defer pr.Close()
	return r.m.images.Import(ctx, pr, images.BasePrefix+img.Name+":"+img.Version, label)
}

// Newer returns the image of the base image of that name, if image is an earlier one of it that this machine made;
// "" otherwise: with several servers, another one may have made it.
func (r *resolver) Newer(ctx context.Context, base, image string) (string, error) {
	all, err := r.m.images.List(ctx, nil)
	if err != nil {
		return "", err
	}
	made := slices.ContainsFunc(all, func(i containerd.Record) bool { return i.Ref == image && i.Labels[images.LabelBase] != "" })
	if !made {
		return "", nil
	}
	now, err := r.Resolve(ctx, base)
	if err != nil || now == image {
		return "", err
	}
	return now, nil
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

// newBases returns the base images of the machine. The programs that make them have the limits of the builds of an
// installation; nil: none.
func newBases(cfg *config.Config, binDir string, in *instance.Instance, log *slog.Logger) *baseimage.Store {
	c := baseimage.Config{Dir: filepath.Join(cfg.CacheDir, "baseimages"), BinDir: binDir, Registry: baseimage.Policy(cfg.Build.Registry), Logger: log}
	if in != nil {
		c.Groups = buildkit.NewGroups(in, buildLimits(cfg))
	}
	return baseimage.New(c)
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
