package baseimage

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/stack"
)

// npmPackage is the registry's description of one version of a package.
type npmPackage struct {
	Version string `json:"version"`
	Dist    struct {
		Tarball   string `json:"tarball"`
		Integrity string `json:"integrity"`
	} `json:"dist"`
}

// node is Node.js from the npm package that carries its binary, and npm.
func (s *Store) node(ctx context.Context, want, release string) (*recipe, error) {
	nv, err := s.nodeVersions(ctx, want)
	if err != nil {
		return nil, err
	}
	var parent *recipe
	if compareVersions(nv.node, "25") < 0 {
		parent, err = s.debian(release)
	} else { // its binary is linked with a library that the minimal system lacks
		parent, err = s.withPackages("libatomic", "1", release, []string{"libatomic1"})
	}
	if err != nil {
		return nil, err
	}
	return &recipe{
		name: "node", version: nv.node, parent: parent, inputs: []string{"npm", nv.npm, "headers"},
		env: []string{searchPath, "NODE_VERSION=" + nv.node},
		cmd: []string{"node"},
		make: func(ctx context.Context, b *builder) error {
			node, err := b.nodeDownload(ctx, nv)
			if err != nil {
				return err
			}
			passwd, group, err := b.systemFiles()
			if err != nil {
				return err
			}
			return b.layer(func(tw *tar.Writer) error {
				// The user that Dockerfiles for Node expect.
				for name, text := range map[string]string{
					"etc/passwd": passwd + "node:x:1000:1000::/home/node:/bin/sh\n",
					"etc/group":  group + "node:x:1000:\n",
				} {
					if err := put(tw, name, 0o644, int64(len(text)), strings.NewReader(text)); err != nil {
						return err
					}
				}
				if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "home/node/", Mode: 0o755, Uid: 1000, Gid: 1000, ModTime: epoch, Format: tar.FormatPAX}); err != nil {
					return err
				}
				return node.copyTo(tw)
			})
		},
	}, nil
}

// nodeVersions are the packages that make up an image with Node.js.
type nodeVersions struct{ binary, node, npm string } // the package that carries the binary; versions

// nodeVersions chooses the newest Node.js that want selects, and its npm.
func (s *Store) nodeVersions(ctx context.Context, want string) (v nodeVersions, err error) {
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	v.binary = "node-linux-" + arch
	if v.node, err = s.choose(ctx, npmProduct(v.binary), want); err != nil {
		return v, err
	}
	text, _, _ := strings.Cut(v.node, ".")
	major, _ := strconv.Atoi(text)
	v.npm, err = s.choose(ctx, npmProduct("npm"), strconv.Itoa(stack.NPMFor(major)))
	return v, err
}

// nodeFiles are the downloaded packages.
type nodeFiles struct{ node, npm string }

func (b *builder) nodeDownload(ctx context.Context, v nodeVersions) (f nodeFiles, err error) {
	b.progress("node: fetching Node.js " + v.node + " and npm " + v.npm)
	if f.node, err = b.npmDownload(ctx, v.binary, v.node); err == nil {
		f.npm, err = b.npmDownload(ctx, "npm", v.npm)
	}
	return f, err
}

// copyTo writes Node.js and npm to /usr/local.
func (f nodeFiles) copyTo(tw *tar.Writer) error {
	if err := copyTarball(tw, f.node, func(name string) (string, bool) {
		if strings.HasPrefix(name, "include/node/") {
			return "usr/local/" + name, forHeaders(name)
		}
		return "usr/local/bin/node", name == "bin/node"
	}); err != nil {
		return err
	}
	if err := copyTarball(tw, f.npm, func(name string) (string, bool) {
		return "usr/local/lib/node_modules/npm/" + name, !strings.HasPrefix(name, "man/") && !strings.HasPrefix(name, "docs/")
	}); err != nil {
		return err
	}
	for _, l := range [][2]string{
		{"usr/local/bin/npm", "../lib/node_modules/npm/bin/npm-cli.js"},
		{"usr/local/bin/npx", "../lib/node_modules/npm/bin/npx-cli.js"},
		{"usr/local/bin/nodejs", "node"},
	} {
		if err := putLink(tw, l[0], l[1]); err != nil {
			return err
		}
	}
	return nil
}

// forHeaders leaves out OpenSSL's files for other processors, which are most of the headers. With the others native
// modules can be compiled where node-gyp cannot download them.
func forHeaders(name string) bool {
	rest, ok := strings.CutPrefix(name, "include/node/openssl/archs/")
	return !ok || strings.HasPrefix(rest, "linux-x86_64/") || strings.HasPrefix(rest, "linux-aarch64/")
}

func npmProduct(pkg string) product {
	return product{
		name: pkg,
		list: func(ctx context.Context) ([]string, error) {
			b, err := fetchText(ctx, npmRegistry()+"/"+pkg, "Accept", "application/vnd.npm.install-v1+json")
			if err != nil {
				return nil, err
			}
			var doc struct {
				Versions map[string]json.RawMessage `json:"versions"`
			}
			if err := json.Unmarshal(b, &doc); err != nil {
				return nil, errs.New(errs.Unavailable, "the registry's answer is not understood: %w", err)
			}
			return slices.Collect(maps.Keys(doc.Versions)), nil
		},
		offered: func(ctx context.Context, version string) error {
			p, err := npmInfo(ctx, pkg, version)
			if err != nil {
				return err
			}
			body, err := get(ctx, p.Dist.Tarball, "Range", "bytes=0-0")
			if err != nil {
				return err
			}
			return body.Close()
		},
	}
}

func npmInfo(ctx context.Context, pkg, version string) (p npmPackage, err error) {
	b, err := fetchText(ctx, npmRegistry()+"/"+pkg+"/"+version)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(b, &p); err != nil || p.Dist.Tarball == "" {
		return p, errs.New(errs.Unavailable, "npm package %s %s: the registry's answer is not understood", pkg, version)
	}
	return p, nil
}

// npmDownload fetches a package and checks it against the registry's sum.
func (b *builder) npmDownload(ctx context.Context, pkg, version string) (string, error) {
	p, err := npmInfo(ctx, pkg, version)
	if err != nil {
		return "", errs.Wrap(err, "npm package %s %s", pkg, version)
	}
	file := filepath.Join(b.scratch, path.Base(pkg)+".tgz")
	if err := download(ctx, p.Dist.Tarball, file); err != nil {
		return "", err
	}
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha512.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	if sum := "sha512-" + base64.StdEncoding.EncodeToString(h.Sum(nil)); p.Dist.Integrity != sum {
		return "", errs.New(errs.Corrupt, "npm package %s %s is not what the registry says it is", pkg, version)
	}
	return file, nil
}

// copyTarball copies the files of an npm package for which place returns a
// path.
func copyTarball(tw *tar.Writer, file string, place func(string) (string, bool)) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return err
	}
	tr := tar.NewReader(z)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		// The first element is "package", or the package's name.
		_, name, ok := strings.Cut(strings.TrimPrefix(path.Clean("/"+h.Name), "/"), "/")
		if !ok || h.Typeflag != tar.TypeReg {
			continue
		}
		to, ok := place(name)
		if !ok {
			continue
		}
		mode := int64(0o644)
		if h.Mode&0o111 != 0 || strings.HasPrefix(name, "bin/") {
			mode = 0o755
		}
		if err := put(tw, to, mode, h.Size, tr); err != nil {
			return fmt.Errorf("copy %s: %w", name, err)
		}
	}
}

// systemFiles returns the users and groups of the layers so far.
func (b *builder) systemFiles() (passwd, group string, err error) {
	for _, l := range b.layers {
		p, g, err := readSystemFiles(b.blob(l.Digest))
		if err != nil {
			return "", "", errs.New(errs.Corrupt, "read layer %s: %w", l.Digest, err)
		}
		if p != "" {
			passwd = p
		}
		if g != "" {
			group = g
		}
	}
	return passwd, group, nil
}
