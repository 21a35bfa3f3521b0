package baseimage

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// objectStoreModule has the program of object stores (docs/decisions/0038-object-store.md).
const objectStoreModule = "github.com/versity/versitygw"

// objectStorePackages are the client that people use in the sandbox of an object store.
var objectStorePackages = []string{"s3cmd"}

// objectStore is versitygw of the toolchain. The version of the image is the major version, which decides about the
// format of the disk.
func (s *Store) objectStore(want, release string) (*recipe, error) {
	file := filepath.Join(s.cfg.BinDir, "versitygw")
	version, digest, err := readObjectStore(file)
	if err != nil {
		return nil, err
	}
	major, _, _ := strings.Cut(version, ".")
	if want != "" && !covers(want, version) {
		return nil, errs.New(errs.NotFound, "the object store (versitygw) %s cannot be had on this machine, which has %s", want, version).
			WithHint("ask for %s, or for none", major)
	}
	host, err := hostFor(release)
	if err != nil {
		return nil, err
	}
	parent, err := s.debian(release)
	if err != nil {
		return nil, err
	}
	files, err := filesOf("s3")
	if err != nil {
		return nil, err
	}
	r := &recipe{
		name: "s3", version: major, parent: parent, inputs: append(slices.Clone(objectStorePackages), digest),
		env: []string{searchPath, "ADDON_VERSION=" + major}, cmd: []string{"addon-start"},
	}
	for _, f := range files {
		r.inputs = append(r.inputs, f.name, string(f.body))
	}
	r.make = func(ctx context.Context, b *builder) error {
		if err := b.packages(ctx, host, objectStorePackages, nil); err != nil {
			return err
		}
		return b.layer(func(tw *tar.Writer) error {
			if err := putFiles(tw, files); err != nil {
				return err
			}
			return putFile(tw, "usr/local/bin/versitygw", 0o755, file)
		})
	}
	return r, nil
}

// readObjectStore returns the version of the program in a file, such as "1.8.0", and the digest of the file.
func readObjectStore(file string) (version, digest string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", "", errs.New(errs.FailedPrecondition, "the program of object stores is not installed: %w", err).
			WithHint("run `make toolchain`")
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", "", errs.New(errs.Unavailable, "read the program of object stores: %w", err)
	}
	info, err := buildinfo.Read(f)
	if err != nil {
		return "", "", errs.New(errs.Corrupt, "the program of object stores, %s: %w", file, err)
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == objectStoreModule {
			return strings.TrimPrefix(m.Version, "v"), hex.EncodeToString(h.Sum(nil)), nil
		}
	}
	return "", "", errs.New(errs.Corrupt, "%s is not versitygw", file)
}
