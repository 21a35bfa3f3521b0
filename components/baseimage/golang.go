package baseimage

import (
	"archive/tar"
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// cgoPackages make a C toolchain for Go programs that need one.
var cgoPackages = []string{"gcc", "g++", "libc6-dev", "make", "pkg-config", "git"}

const toolchainModule = "golang.org/toolchain"

// golang is Go from the module proxy, where the go command fetches its own
// toolchains from, checked against the checksum database.
func (s *Store) golang(ctx context.Context, name, want string, parent *recipe) (*recipe, error) {
	proxy := goProxy()
	suffix := ".linux-" + runtime.GOARCH
	all, err := s.versions(ctx, "go", func(ctx context.Context) ([]string, error) {
		b, err := fetchText(ctx, proxy+"/"+toolchainModule+"/@v/list")
		if err != nil {
			return nil, errs.Wrap(err, "list versions of Go")
		}
		var v []string
		for f := range strings.FieldsSeq(string(b)) {
			if rest, ok := strings.CutPrefix(f, "v0.0.1-go"); ok && strings.HasSuffix(rest, suffix) {
				v = append(v, strings.TrimSuffix(rest, suffix))
			}
		}
		return v, nil
	})
	if err != nil {
		return nil, err
	}
	version, err := s.choose(ctx, "go", want, all, func(ctx context.Context, v string) error {
		_, err := fetchText(ctx, proxy+"/"+toolchainModule+"/@v/v0.0.1-go"+v+suffix+".zip", "Range", "bytes=0-0")
		return err
	})
	if err != nil {
		return nil, err
	}
	return &recipe{
		name: name, version: version, parent: parent,
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
			if err := checkGoSum(ctx, proxy, module, &z.Reader); err != nil {
				return err
			}
			return b.layer(func(tw *tar.Writer) error { return copyGo(tw, &z.Reader, toolchainModule+"@"+module+"/") })
		},
	}, nil
}

// checkGoSum compares a module with what the checksum database says of it.
func checkGoSum(ctx context.Context, proxy, version string, z *zip.Reader) error {
	if os.Getenv("GOSUMDB") == "off" || os.Getenv("GONOSUMDB") != "" && strings.Contains(os.Getenv("GONOSUMDB"), toolchainModule) {
		return nil
	}
	const db = "sum.golang.org"
	lookup := "/lookup/" + toolchainModule + "@" + version
	b, err := fetchText(ctx, proxy+"/sumdb/"+db+lookup)
	if err != nil {
		if b, err = fetchText(ctx, "https://"+db+lookup); err != nil {
			return errs.Wrap(err, "ask the checksum database")
		}
	}
	sum, err := hashZip(z)
	if err != nil {
		return errs.New(errs.Corrupt, "Go %s: %w", version, err)
	}
	want := toolchainModule + " " + version + " " + sum
	if !slices.Contains(strings.Split(string(b), "\n"), want) {
		return errs.New(errs.Corrupt, "Go %s is not what the checksum database knows", version)
	}
	return nil
}

// hashZip is the "h1:" hash of a module.
func hashZip(z *zip.Reader) (string, error) {
	sums := map[string]string{}
	var names []string
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			return "", err
		}
		h := sha256.New()
		_, err = io.Copy(h, r)
		r.Close()
		if err != nil {
			return "", err
		}
		names = append(names, f.Name)
		sums[f.Name] = hex.EncodeToString(h.Sum(nil))
	}
	slices.Sort(names)
	all := sha256.New()
	for _, n := range names {
		fmt.Fprintf(all, "%s  %s\n", sums[n], n)
	}
	return "h1:" + base64.StdEncoding.EncodeToString(all.Sum(nil)), nil
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
