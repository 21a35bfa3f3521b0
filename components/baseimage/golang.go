package baseimage

import (
	"archive/tar"
	"archive/zip"
	"context"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// cgoPackages make a C toolchain for Go programs that need one.
var cgoPackages = []string{"gcc", "g++", "libc6-dev", "make", "pkg-config", "git"}

const toolchainModule = "golang.org/toolchain"

// golang is Go from the module proxy, where the go command fetches its own
// toolchains from, checked against the checksum database.
func (s *Store) golang(ctx context.Context, name, want, release string, parent *recipe) (*recipe, error) {
	base, err := s.debian(release)
	if err != nil {
		return nil, err
	}
	proxy := goProxy()
	suffix := ".linux-" + runtime.GOARCH
	version, err := s.choose(ctx, product{
		name: "go",
		list: func(ctx context.Context) ([]string, error) {
			b, err := fetchText(ctx, proxy+"/"+toolchainModule+"/@v/list")
			var v []string
			for f := range strings.FieldsSeq(string(b)) {
				if rest, ok := strings.CutPrefix(f, "v0.0.1-go"); ok && strings.HasSuffix(rest, suffix) {
					v = append(v, strings.TrimSuffix(rest, suffix))
				}
			}
			return v, err
		},
		offered: func(ctx context.Context, v string) error {
			_, err := fetchText(ctx, proxy+"/"+toolchainModule+"/@v/v0.0.1-go"+v+suffix+".zip", "Range", "bytes=0-0")
			return err
		},
	}, want)
	if err != nil {
		return nil, err
	}
	r := &recipe{
		name: name, version: version, parent: parent, inputs: append([]string{goCacheDir}, precompiled...),
		env: []string{
			"GOPATH=/go", "GOTOOLCHAIN=auto",
			"PATH=/go/bin:/usr/local/go/bin:" + strings.TrimPrefix(searchPath, "PATH="),
		},
		workdir: "/go",
		cmd:     []string{"/bin/sh"},
		make: func(ctx context.Context, b *builder) error {
			module := "v0.0.1-go" + version + suffix
			b.progress("go: fetching Go " + version)
			file := filepath.Join(b.scratch, "go.zip")
			if err := download(ctx, proxy+"/"+toolchainModule+"/@v/"+module+".zip", file); err != nil {
				return err
			}
			z, err := zip.OpenReader(file)
			if err != nil {
				return errs.New(errs.Corrupt, "Go %s: %w", version, err)
			}
			defer z.Close()
			if err := checkGoSum(ctx, proxy, b.store.cfg.Dir, module, file); err != nil {
				return err
			}
			prefix := toolchainModule + "@" + module + "/"
			if err := b.layer(func(tw *tar.Writer) error { return copyGo(tw, &z.Reader, prefix) }); err != nil {
				return err
			}
			return b.goCache(ctx, &z.Reader, prefix)
		},
	}
	if parent.name == base.name {
		return r, nil
	}
	// The same layers on another parent.
	plain := *r
	plain.name, plain.parent = "go", base
	r.make = func(ctx context.Context, b *builder) error {
		img, err := b.store.ensure(ctx, &plain, b.progress)
		if err != nil {
			return err
		}
		below, err := b.store.ensure(ctx, base, b.progress)
		if err != nil {
			return err
		}
		return b.layersAbove(img, below)
	}
	return r, nil
}

// copyGo writes the toolchain to /usr/local/go. A module has no execute bits.
func copyGo(tw *tar.Writer, z *zip.Reader, prefix string) error {
	for _, dir := range []string{"go", "go/src", "go/bin"} {
		if err := putDir(tw, dir, 0o777); err != nil {
			return err
		}
	}
	dirs := map[string]bool{}
	for _, f := range z.File {
		name, ok := strings.CutPrefix(f.Name, prefix)
		if !ok || strings.HasSuffix(name, "/") || strings.Contains(name, "..") {
			continue
		}
		if first, _, _ := strings.Cut(name, "/"); first == "test" || first == "doc" || first == "api" || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/testdata/") {
			continue
		}
		var missing []string
		for d := path.Dir("usr/local/go/" + name); d != "usr/local" && !dirs[d]; d = path.Dir(d) {
			dirs[d] = true
			missing = append(missing, d)
		}
		for _, d := range slices.Backward(missing) {
			if err := putDir(tw, d, 0o755); err != nil {
				return err
			}
		}
		mode := int64(0o644)
		if strings.HasPrefix(name, "bin/") || strings.HasPrefix(name, "pkg/tool/") || strings.HasSuffix(name, ".bash") {
			mode = 0o755
		}
		r, err := f.Open()
		if err != nil {
			return err
		}
		err = put(tw, "usr/local/go/"+name, mode, int64(f.UncompressedSize64), r)
		r.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// goCacheDir is where images have the compiled standard library, from which
// builds start their cache: compiling it takes longer than compiling most apps.
const goCacheDir = "usr/local/go-build-cache"

// precompiled are the packages whose dependencies are compiled, with the settings of generated Dockerfiles.
var precompiled = []string{"database/sql", "encoding/csv", "encoding/gob", "encoding/xml", "expvar", "html/template", "log/slog", "net/http/httputil", "net/http/pprof", "net/rpc", "os/signal", "regexp", "testing"}

// goCache adds the compiled packages as a layer. If they cannot be compiled here, the builds compile them.
func (b *builder) goCache(ctx context.Context, z *zip.Reader, prefix string) error {
	cache := filepath.Join(b.scratch, "cache")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	b.progress("go: compiling the standard library")
	if err := b.compile(ctx, z, prefix, cache); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b.store.cfg.Logger.Warn("the standard library of Go cannot be compiled ahead", "error", err, "hint", errs.HintOf(err))
		if err := os.RemoveAll(cache); err != nil {
			return err
		}
	}
	return b.layer(func(tw *tar.Writer) error {
		if err := putDir(tw, goCacheDir, 0o755); err != nil {
			return err
		}
		files, err := filepath.Glob(filepath.Join(cache, "[0-9a-f][0-9a-f]", "*"))
		if err != nil {
			return err
		}
		dirs := map[string]bool{}
		for _, f := range files {
			dir := goCacheDir + "/" + filepath.Base(filepath.Dir(f))
			if !dirs[dir] {
				dirs[dir] = true
				if err := putDir(tw, dir, 0o755); err != nil {
					return err
				}
			}
			body, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			// Go refreshes the time of a cache entry that it uses if the time is old, and removes entries that are days
			// old. It does neither for a time in the future.
			h := &tar.Header{Typeflag: tar.TypeReg, Name: dir + "/" + filepath.Base(f), Mode: 0o644, Size: int64(len(body)),
				ModTime: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC), Format: tar.FormatPAX}
			if err := tw.WriteHeader(h); err != nil {
				return err
			}
			if _, err := tw.Write(body); err != nil {
				return err
			}
		}
		return nil
	})
}

// compile runs the downloaded toolchain, on this machine.
func (b *builder) compile(ctx context.Context, z *zip.Reader, prefix, cache string) error {
	root := filepath.Join(b.scratch, "goroot")
	for _, f := range z.File {
		name, ok := strings.CutPrefix(f.Name, prefix)
		if !ok || strings.HasSuffix(name, "/") || !filepath.IsLocal(name) || strings.HasSuffix(name, "_test.go") {
			continue
		}
		if err := extract(f, filepath.Join(root, name), strings.HasPrefix(name, "bin/") || strings.HasPrefix(name, "pkg/tool/")); err != nil {
			return err
		}
	}
	args := append([]string{"build", "-trimpath"}, precompiled...)
	return b.run(ctx, "", "env", append([]string{"-i", "-C", root,
		"PATH=/usr/bin:/bin", "HOME=" + b.scratch, "GOCACHE=" + cache, "GOPATH=" + filepath.Join(b.scratch, "gopath"),
		"GOROOT=" + root, "GOENV=off", "GOWORK=off", "GOTOOLCHAIN=local", "GOFLAGS=-buildvcs=false", "GOPROXY=off", "CGO_ENABLED=0",
		filepath.Join(root, "bin", "go")}, args...)...)
}

func extract(f *zip.File, to string, executable bool) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if executable {
		mode = 0o755
	}
	in, err := f.Open()
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}
