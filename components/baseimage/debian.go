package baseimage

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"miren.dev/runtime/pkg/errs"
)

const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// The user that generated Dockerfiles run as. It exists in every image, with an id that no other user has.
const (
	userName = "runtime"
	userID   = 10001
)

// debianPackages are in every image besides the essential ones.
var debianPackages = []string{"ca-certificates"}

// excludes are paths that are left out, as the slim images of Docker Hub do.
var excludes = []string{"/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*"}

// debian is a minimal system of the host's distribution, of a release of it; empty: the host's.
func (s *Store) debian(release string) (*recipe, error) {
	host, err := hostFor(release)
	if err != nil {
		return nil, err
	}
	inputs := append(append(slices.Clone(host.sources), host.aptConf), debianPackages...)
	round, err := s.round(host.codename)
	if err != nil {
		return nil, err
	}
	if round > 0 {
		inputs = append(inputs, fmt.Sprintf("round %d", round))
	}
	return &recipe{
		name:    "debian",
		version: host.codename,
		inputs:  inputs,
		env:     []string{searchPath},
		cmd:     []string{"/bin/sh"},
		make: func(ctx context.Context, b *builder) error {
			rootfs, err := b.bootstrap(ctx, host, debianPackages, nil)
			if err != nil {
				return err
			}
			return b.layer(func(tw *tar.Writer) error { return copyRootfs(tw, rootfs, host, nil) })
		},
	}, nil
}

// withPackages is debian with packages on top, as a separate layer.
func (s *Store) withPackages(name, version, release string, packages []string) (*recipe, error) {
	host, err := hostFor(release)
	if err != nil {
		return nil, err
	}
	parent, err := s.debian(release)
	if err != nil {
		return nil, err
	}
	return &recipe{
		name: name, version: version, parent: parent, inputs: packages,
		env: []string{searchPath}, cmd: []string{"/bin/sh"},
		make: func(ctx context.Context, b *builder) error { return b.packages(ctx, host, packages, nil) },
	}, nil
}

// packages adds a layer with packages: the files of the system with them, and
// with what the hooks make of it, that the layers so far lack.
func (b *builder) packages(ctx context.Context, host *host, packages, hooks []string) error {
	have := map[string][32]byte{}
	for _, l := range b.layers {
		if err := scanLayer(b.blob(l.Digest), have); err != nil {
			return errs.New(errs.Corrupt, "read layer %s: %w", l.Digest, err)
		}
	}
	rootfs, err := b.bootstrap(ctx, host, append(slices.Clone(debianPackages), packages...), hooks)
	if err != nil {
		return err
	}
	return b.layer(func(tw *tar.Writer) error { return copyRootfs(tw, rootfs, host, have) })
}

// bootstrap makes a root filesystem as a tar file. The hooks are options of mmdebstrap.
func (b *builder) bootstrap(ctx context.Context, host *host, packages, hooks []string) (string, error) {
	b.progress(fmt.Sprintf("%s: installing %s from %s %s", b.recipe.name, strings.Join(packages, ", "), host.id, host.codename))
	out := filepath.Join(b.scratch, "rootfs.tar")
	if tool, err := exec.LookPath("mmdebstrap"); err == nil {
		args := []string{"--mode=root", "--variant=minbase", "--include=" + strings.Join(packages, ",")}
		for _, x := range excludes {
			args = append(args, "--dpkgopt=path-exclude="+x)
		}
		args = append(args, "--dpkgopt=path-include=/usr/share/doc/*/copyright")
		args = append(append(args, hooks...), host.codename, out, "-")
		return out, b.run(ctx, strings.Join(host.sources, "\n")+"\n", tool, args...)
	}
	tool, err := exec.LookPath("debootstrap")
	if err == nil && len(hooks) > 0 {
		return "", errs.New(errs.FailedPrecondition, "mmdebstrap is not installed, and debootstrap cannot make this image").
			WithHint("run `apt-get install mmdebstrap`")
	}
	if err != nil {
		return "", errs.New(errs.FailedPrecondition, "neither mmdebstrap nor debootstrap is installed").
			WithHint("run `apt-get install mmdebstrap`")
	}
	dir := filepath.Join(b.scratch, "rootfs")
	mirror := strings.Fields(host.sources[0])[1]
	if err := b.run(ctx, "", tool, "--variant=minbase", "--include="+strings.Join(packages, ","), host.codename, dir, mirror); err != nil {
		return "", err
	}
	lists := filepath.Join(dir, "etc", "apt", "sources.list")
	if err := os.WriteFile(lists, []byte(strings.Join(host.sources, "\n")+"\n"), 0o644); err != nil {
		return "", errs.New(errs.FailedPrecondition, "write sources: %w", err)
	}
	if err := b.run(ctx, "", "tar", "--numeric-owner", "--one-file-system", "-C", dir, "-cf", out, "."); err != nil {
		return "", err
	}
	return out, os.RemoveAll(dir)
}

// run runs a program of the host; its output is shown only when it fails.
func (b *builder) run(ctx context.Context, stdin, tool string, args ...string) error {
	tmp := filepath.Join(b.scratch, "tmp")
	if err := os.MkdirAll(tmp, 0o1777); err != nil {
		return errs.New(errs.FailedPrecondition, "scratch directory: %w", err)
	}
	// The package manager drops to another user, which must be able to enter
	// the directory.
	for dir := b.scratch; dir != b.store.cfg.Dir && len(dir) > 1; dir = filepath.Dir(dir) {
		_ = os.Chmod(dir, 0o755)
	}
	_ = os.Chmod(tmp, 0o1777)
	var output bytes.Buffer
	err := b.store.run(ctx, b.recipe.dirName(), func(cmd *exec.Cmd) {
		cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch.Unix()))
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &output, &output
	}, tool, args...)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || errs.Is(err, errs.ResourceExhausted) {
			return errs.Wrap(err, "%s", filepath.Base(tool))
		}
		lines := strings.Split(strings.TrimSpace(output.String()), "\n")
		return errs.New(errs.Unavailable, "%s: %w", filepath.Base(tool), err).
			WithHint("its last lines:\n%s", strings.Join(lines[max(0, len(lines)-12):], "\n"))
	}
	return nil
}

// dropped are paths of a root filesystem that do not belong in an image.
func dropped(name string, h *tar.Header) bool {
	switch h.Typeflag {
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return true
	}
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "var/cache/apt", "var/lib/apt/lists", "var/cache/debconf", "var/cache/ldconfig", "var/log"} {
		if strings.HasPrefix(name, dir+"/") {
			// Keep directories that programs expect.
			return !(h.Typeflag == tar.TypeDir && (name == "run/lock" || strings.HasPrefix(name, "var/")))
		}
	}
	switch name {
	case "etc/hostname", "etc/resolv.conf", "etc/machine-id", "var/lib/dpkg/status-old", "var/lib/dpkg/available-old":
		return true
	}
	return strings.HasSuffix(name, "/EXTERNALLY-MANAGED") // pip may install here: the image is the environment
}

// copyRootfs copies a root filesystem to a layer, except the entries that have
// contains already.
func copyRootfs(tw *tar.Writer, rootfs string, host *host, have map[string][32]byte) error {
	f, err := os.Open(rootfs)
	if err != nil {
		return err
	}
	defer f.Close()
	if have == nil {
		if err := putHome(tw); err != nil {
			return err
		}
	}
	tr := tar.NewReader(bufio.NewReaderSize(f, 1<<20))
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if name == "" || dropped(name, h) {
			continue
		}
		var body []byte
		if h.Typeflag == tar.TypeReg {
			if body, err = io.ReadAll(tr); err != nil {
				return err
			}
			body = editFile(name, body)
			h.Size = int64(len(body))
		}
		out := &tar.Header{Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode,
			Uid: h.Uid, Gid: h.Gid, ModTime: epoch, PAXRecords: securityRecords(h), Format: tar.FormatPAX}
		if h.Typeflag == tar.TypeLink {
			out.Linkname = strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
		}
		if h.Typeflag == tar.TypeDir {
			out.Name += "/"
		}
		if have != nil && have[name] == fingerprint(out, body) {
			continue
		}
		if err := tw.WriteHeader(out); err != nil {
			return err
		}
		if _, err := tw.Write(body); err != nil {
			return err
		}
	}
	if have == nil {
		if host.aptConf == "" {
			return nil
		}
		return put(tw, "etc/apt/apt.conf.d/95host", 0o644, int64(len(host.aptConf)), strings.NewReader(host.aptConf))
	}
	return nil
}

// securityRecords keeps file capabilities.
func securityRecords(h *tar.Header) map[string]string {
	var keep map[string]string
	for k, v := range h.PAXRecords {
		if strings.HasPrefix(k, "SCHILY.xattr.security.capability") {
			keep = map[string]string{k: v}
		}
	}
	return keep
}

// editFile adds our user to the system's files.
func editFile(name string, body []byte) []byte {
	switch name {
	case "etc/passwd":
		return fmt.Appendf(body, "%s:x:%d:%d::/home/%s:/bin/sh\n", userName, userID, userID, userName)
	case "etc/group":
		return fmt.Appendf(body, "%s:x:%d:\n", userName, userID)
	case "etc/shadow":
		return fmt.Appendf(body, "%s:!:19000:0:99999:7:::\n", userName)
	}
	return body
}

// fingerprint identifies an entry of a layer with its content.
func fingerprint(h *tar.Header, body []byte) [32]byte {
	d := sha256.New()
	fmt.Fprintf(d, "%c %q %q %o %d %d %d\n", h.Typeflag, h.Name, h.Linkname, h.Mode&0o7777, h.Uid, h.Gid, len(body))
	d.Write(body)
	return [32]byte(d.Sum(nil))
}

// walkLayer calls f for every entry of a layer, with its content.
func walkLayer(file string, f func(h *tar.Header, body []byte)) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	z, err := zstd.NewReader(bufio.NewReaderSize(in, 1<<20))
	if err != nil {
		return err
	}
	defer z.Close()
	tr := tar.NewReader(z)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		body, err := io.ReadAll(tr)
		if err != nil {
			return err
		}
		f(h, body)
	}
}

// scanLayer adds the entries of a layer to have.
func scanLayer(file string, have map[string][32]byte) error {
	return walkLayer(file, func(h *tar.Header, body []byte) {
		have[strings.TrimSuffix(h.Name, "/")] = fingerprint(h, body)
	})
}

// readSystemFiles returns the lists of users and groups in a layer.
func readSystemFiles(file string) (passwd, group string, err error) {
	err = walkLayer(file, func(h *tar.Header, body []byte) {
		switch h.Name {
		case "etc/passwd":
			passwd = string(body)
		case "etc/group":
			group = string(body)
		}
	})
	return passwd, group, err
}
