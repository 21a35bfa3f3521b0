package baseimage

import (
	"archive/tar"
	"context"
	"runtime"
)

// defaultDeno is the major version when nothing asks for another.
const defaultDeno = "2"

// deno is Deno from the npm package that carries its binary.
func (s *Store) deno(ctx context.Context, want, release string) (*recipe, error) {
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	pkg := "@deno/linux-" + arch + "-glibc"
	version, err := s.choose(ctx, npmProduct(pkg), want)
	if err != nil {
		return nil, err
	}
	parent, err := s.debian(release)
	if err != nil {
		return nil, err
	}
	return &recipe{
		name: "deno", version: version, parent: parent,
		env: []string{searchPath, "DENO_DIR=/deno-dir", "DENO_NO_UPDATE_CHECK=1", "DENO_NO_PROMPT=1"}, cmd: []string{"deno"},
		make: func(ctx context.Context, b *builder) error {
			b.progress("deno: fetching Deno " + version)
			file, err := b.npmDownload(ctx, pkg, version)
			if err != nil {
				return err
			}
			return b.layer(func(tw *tar.Writer) error {
				return copyTarball(tw, file, func(name string) (string, bool) { return "usr/local/bin/deno", name == "deno" })
			})
		},
	}, nil
}
