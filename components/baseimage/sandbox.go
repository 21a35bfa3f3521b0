package baseimage

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/stack"
	"miren.dev/runtime/pkg/suggest"
)

// The user that processes in sandboxes run as.
const (
	sandboxUser   = "user"
	sandboxUserID = 1000
)

// sandboxNode is the major version of Node.js in sandboxes.
const sandboxNode = "26"

// sandboxImage describes an image for sandboxes. Packages are Debian's, and Ubuntu's.
type sandboxImage struct {
	name     string
	parent   string // image that it extends; empty: the minimal system
	packages []string
	env      []string
	node     bool // Node.js is there when setup runs, and in the image
	golang   bool
	// The folder sandbox/<name>, if there is one, has files of the image. The script sandbox/<name>.sh, if there is one,
	// is run in its root afterwards.
}

// sandboxImages are the images runtime/sandbox:<name>; a parent stands before its children.
var sandboxImages = []sandboxImage{
	{
		name: "base", node: true,
		packages: []string{ // libatomic1 is for Node.js
			"bash-completion", "bc", "bubblewrap", "bzip2", "curl", "fd-find", "file", "git", "gnupg", "iproute2", "jq", "less",
			"libatomic1", "lsof", "nano", "netcat-openbsd", "openssh-client", "patch", "procps", "psmisc", "python-is-python3", "python3", "python3-pip",
			"python3-venv", "ripgrep", "rsync", "sqlite3", "tree", "tzdata", "unzip", "vim-tiny", "wget", "xz-utils", "zip", "zstd",
		},
		env: []string{
			"PATH=/home/" + sandboxUser + "/.local/bin:" + strings.TrimPrefix(searchPath, "PATH="), "LANG=C.UTF-8", "PYTHONUNBUFFERED=1",
			"PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_ROOT_USER_ACTION=ignore", "NPM_CONFIG_UPDATE_NOTIFIER=false",
		},
	},
	{name: "cpp", parent: "base", packages: []string{"cmake", "g++", "gcc", "gdb", "libc6-dev", "make", "ninja-build", "pkg-config", "python3-dev"}, env: unpacked()},
	// node-gyp takes the headers in the image instead of downloading them.
	{name: "typescript", parent: "cpp", node: true, env: []string{"npm_package_config_node_gyp_nodedir=/usr/local"}},
	{name: "code-interpreter", parent: "base"},
	{name: "go", parent: "base", golang: true, env: []string{"CGO_ENABLED=0", "GOFLAGS=-trimpath"}},
	{name: "rust", parent: "cpp", packages: []string{"cargo", "rustc", "libssl-dev"}},
	{name: "java", parent: "base", packages: []string{"default-jdk-headless", "ivy", "maven"}},
	{name: "csharp", parent: "base", packages: []string{
		"libmono-microsoft-csharp4.0-cil", "libmono-system-core4.0-cil", "libmono-system-data4.0-cil", "libmono-system-json4.0-cil",
		"libmono-system-net-http4.0-cil", "libmono-system-numerics4.0-cil", "libmono-system-runtime-serialization4.0-cil",
		"libmono-system-web-extensions4.0-cil", "libmono-system-xml-linq4.0-cil", "mono-mcs", "mono-runtime",
	}},
}

// unpacked are the variables with which compilers find what apt-install unpacks.
func unpacked() []string {
	const dir = "/home/" + sandboxUser + "/.local/apt/usr/"
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	libs := dir + "lib/" + triplet + ":" + dir + "lib"
	return []string{
		"CPATH=" + dir + "include:" + dir + "include/" + triplet, "LIBRARY_PATH=" + libs, "LD_RUN_PATH=" + libs,
		"PKG_CONFIG_PATH=" + dir + "lib/" + triplet + "/pkgconfig:" + dir + "lib/pkgconfig:" + dir + "share/pkgconfig",
	}
}

//go:embed sandbox
var sandboxFiles embed.FS

// SandboxImages returns the names of the images for sandboxes, as Lookup understands them.
func SandboxImages() []string {
	var names []string
	for _, i := range sandboxImages {
		names = append(names, Prefix+"sandbox:"+i.name)
	}
	return names
}

// sandbox is an image for sandboxes, made of the newest release whose packages the host's sources have.
func (s *Store) sandbox(ctx context.Context, name string) (*recipe, error) {
	name = cmp.Or(name, sandboxImages[0].name)
	i := slices.IndexFunc(sandboxImages, func(i sandboxImage) bool { return i.name == name })
	if i < 0 {
		return nil, unknownSandbox(name)
	}
	img := sandboxImages[i]
	host, err := readHost()
	if err != nil {
		return nil, err
	}
	if host, err = hostFor(host.newest()); err != nil {
		return nil, err
	}
	var parent *recipe
	if img.parent == "" {
		parent, err = s.debian(host.codename)
	} else {
		parent, err = s.sandbox(ctx, img.parent)
	}
	if err != nil {
		return nil, err
	}
	inputs, err := img.inputs()
	if err != nil {
		return nil, err
	}
	r := &recipe{
		name: "sandbox-" + name, version: host.codename, parent: parent, inputs: inputs,
		env: img.env, workdir: "/home/" + sandboxUser, user: sandboxUser, cmd: []string{"/bin/bash"},
	}
	if img.golang {
		return s.sandboxGo(ctx, r)
	}
	var nv nodeVersions
	if img.node {
		if nv, err = s.nodeVersions(ctx, sandboxNode); err != nil {
			return nil, err
		}
		r.inputs = append(r.inputs, nv.node, nv.npm)
	}
	r.make = func(ctx context.Context, b *builder) error {
		hooks, err := img.hooks(ctx, b, nv)
		if err != nil {
			return err
		}
		return b.packages(ctx, host, img.allPackages(), hooks)
	}
	return r, nil
}

func unknownSandbox(name string) error {
	var known []string
	for _, i := range sandboxImages {
		known = append(known, i.name)
	}
	err := errs.New(errs.NotFound, "no base image %ssandbox:%s", Prefix, name)
	if near := suggest.Nearest(name, known); near != "" {
		return err.WithHint("did you mean %ssandbox:%s?", Prefix, near)
	}
	return err.WithHint("the images for sandboxes are %s", strings.Join(known, ", "))
}

// newest is the newest release whose packages the host's sources have; empty: the host's own.
func (h *host) newest() string {
	newest := ""
	for _, r := range releases {
		if r.id == h.id {
			newest = r.codename
		}
	}
	if !slices.ContainsFunc(releases, func(r distribution) bool { return r.id == h.id && r.codename == h.codename }) {
		return "" // a release that is newer than this list
	}
	return newest
}

// allPackages are those of the image and of the images below it.
func (i sandboxImage) allPackages() []string {
	list := slices.Clone(i.packages)
	for _, p := range sandboxImages {
		if p.name == i.parent {
			list = append(p.allPackages(), list...)
		}
	}
	return list
}

// inputs are what the image is made from besides its parent.
func (i sandboxImage) inputs() ([]string, error) {
	in := slices.Clone(i.packages)
	err := fs.WalkDir(sandboxFiles, "sandbox", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Dir(name) == "sandbox" && !i.runs(name) ||
			path.Dir(name) != "sandbox" && !strings.HasPrefix(name, "sandbox/"+i.name+"/") {
			return err
		}
		text, err := sandboxFiles.ReadFile(name)
		in = append(in, name, string(text))
		return err
	})
	return in, err
}

// runs reports whether a script is run for the image.
func (i sandboxImage) runs(script string) bool { return slices.Contains(i.scripts(), script) }

// scripts are run in the root of the image, in this order, if they exist.
func (i sandboxImage) scripts() []string {
	return []string{"sandbox/all.sh", "sandbox/" + i.name + ".sh", "sandbox/pyc.sh"}
}

// hooks are the options with which mmdebstrap makes the image of a root with its packages.
func (i sandboxImage) hooks(ctx context.Context, b *builder, nv nodeVersions) ([]string, error) {
	files, script := filepath.Join(b.scratch, "files.tar"), filepath.Join(b.scratch, "setup.sh")
	if err := i.writeFiles(ctx, b, nv, files); err != nil {
		return nil, err
	}
	text := setupEnvironment()
	for _, name := range i.scripts() {
		part, err := sandboxFiles.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		text += string(part)
	}
	if err := os.WriteFile(script, []byte(text), 0o644); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "write script: %w", err)
	}
	// The packages of Java fail where this folder was left out.
	hooks := []string{`--essential-hook=mkdir -p "$1"/usr/share/man/man1`}
	if ca := cmp.Or(os.Getenv("SSL_CERT_FILE"), "/etc/ssl/certs/ca-certificates.crt"); isFile(ca) {
		hooks = append(hooks, fmt.Sprintf(`--customize-hook=install -m 644 %s "$1"%s`, shellQuote(ca), setupCA))
	}
	return append(hooks, "--customize-hook=tar-in "+shellQuote(files)+" /",
		`--customize-hook=chroot "$1" /usr/bin/env -i /bin/sh -eu <`+shellQuote(script)), nil
}

// setupCA is where scripts find the host's CA bundle. Nothing of /tmp gets into an image.
const setupCA = "/tmp/host-ca-certificates.crt"

// setupEnvironment are the first lines of a script: the proxies and indexes that the host uses, and its CA bundle.
func setupEnvironment() string {
	var b strings.Builder
	for _, v := range os.Environ() {
		name, value, _ := strings.Cut(v, "=")
		switch lower := strings.ToLower(name); {
		case strings.HasSuffix(lower, "_proxy"), lower == "pip_index_url", lower == "pip_extra_index_url", lower == "npm_config_registry":
			fmt.Fprintf(&b, "export %s=%s\n", name, shellQuote(value))
		}
	}
	for _, name := range []string{"SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE"} {
		fmt.Fprintf(&b, "export %s=%s\n", name, setupCA)
	}
	return b.String() + "export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8\n"
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

// writeFiles writes the files of the image that come in no package as a tar file.
func (i sandboxImage) writeFiles(ctx context.Context, b *builder, nv nodeVersions, to string) error {
	var node nodeFiles
	if i.node {
		var err error
		if node, err = b.nodeDownload(ctx, nv); err != nil {
			return err
		}
	}
	f, err := os.Create(to)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "write files: %w", err)
	}
	defer f.Close()
	tw := tar.NewWriter(f)
	if i.node {
		if err := node.copyTo(tw); err != nil {
			return err
		}
	}
	dir := "sandbox/" + i.name
	err = fs.WalkDir(sandboxFiles, dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := sandboxFiles.ReadFile(name)
		if err != nil {
			return err
		}
		mode := int64(0o644)
		if strings.Contains(name, "/bin/") {
			mode = 0o755
		}
		return put(tw, strings.TrimPrefix(name, dir+"/"), mode, int64(len(body)), bytes.NewReader(body))
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return f.Close()
}

// sandboxGo makes the recipe one of the toolchain and the compiled packages of runtime/go on top of its parent. The user
// owns the compiled packages, as the cache of its builds.
func (s *Store) sandboxGo(ctx context.Context, r *recipe) (*recipe, error) {
	below, err := s.debian("")
	if err != nil {
		return nil, err
	}
	golang, err := s.golang(ctx, "go", stack.DefaultGo, "", below)
	if err != nil {
		return nil, err
	}
	r.inputs = append(r.inputs, golang.key())
	r.make = func(ctx context.Context, b *builder) error {
		img, err := b.store.ensure(ctx, golang, b.progress)
		if err != nil {
			return err
		}
		under, err := b.store.ensure(ctx, below, b.progress)
		if err != nil {
			return err
		}
		if err := b.layersAbove(img, under); err != nil {
			return err
		}
		cache := b.blob(b.dropLayer().Digest)
		defer os.Remove(cache)
		return b.layer(func(tw *tar.Writer) error {
			for _, name := range []string{"go", "gofmt"} {
				if err := putLink(tw, "usr/local/bin/"+name, "../go/bin/"+name); err != nil {
					return err
				}
			}
			return moveCache(tw, cache)
		})
	}
	return r, nil
}

// moveCache copies the layer of compiled packages to the cache of the user's builds.
func moveCache(tw *tar.Writer, layer string) error {
	home := "home/" + sandboxUser
	err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: home + "/.cache/", Mode: 0o755, Uid: sandboxUserID, Gid: sandboxUserID, ModTime: epoch, Format: tar.FormatPAX})
	if err != nil {
		return err
	}
	werr := walkLayer(layer, func(h *tar.Header, body []byte) {
		if err != nil {
			return
		}
		h.Name = home + "/.cache/go-build" + strings.TrimPrefix(h.Name, goCacheDir)
		h.Uid, h.Gid = sandboxUserID, sandboxUserID
		if err = tw.WriteHeader(h); err == nil {
			_, err = tw.Write(body)
		}
	})
	return cmp.Or(werr, err)
}
