package runsc

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// Where the certificates of authorities are inside sandboxes.
const (
	caPath       = "/run/runtime/ca-certificates.crt"
	aptPath      = "/run/runtime/apt.conf"
	systemCAPath = "/etc/ssl/certs/ca-certificates.crt"
)

// caVariables name the bundle for the tools that do not read systemCAPath: OpenSSL, Go
// and most others; Node; pip; Python's requests; curl; git; cargo; Deno.
var caVariables = []string{
	"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE",
	"CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "DENO_CERT",
}

// aptConf is for apt, which reads no variable but the one that names such a file. Its
// other files are read after it and win.
const aptConf = `Acquire::https::CaInfo "` + caPath + `";` + "\n"

// maxBundle bounds what is read of a file of the image, in bytes.
const maxBundle = 8 << 20

// caEnv are the variables of everything that runs in a sandbox.
func (d *Driver) caEnv() []string {
	if d.cfg.CABundle == "" {
		return nil
	}
	env := []string{"APT_CONFIG=" + aptPath}
	for _, name := range caVariables {
		env = append(env, name+"="+caPath)
	}
	return env
}

func (d *Driver) aptFile() string { return d.cfg.Instance.Socket("apt.conf") }

// writeCA writes the files that all sandboxes share.
func (d *Driver) writeCA() error {
	if d.cfg.CABundle == "" {
		return nil
	}
	return atomicfile.Write(d.aptFile(), []byte(aptConf), 0o644, atomicfile.Volatile)
}

// Files of a sandbox's directory with certificates of authorities. Each sandbox has its
// own, so that the authority of the egress proxy can be added while it runs.
const (
	bundleFile = "ca-bundle.crt"       // mounted at caPath
	systemFile = "ca-certificates.crt" // mounted at systemCAPath, if the image has a bundle
	javaFile   = "cacerts"             // mounted at javaCAPath, if the image has Java
)

// caMounts returns the mounts by which a sandbox gets the host's CA bundle: as a file of
// its own, and where the image has a bundle, that one followed by the host's in its place.
// With a policy that injects secrets the proxy's authority is one of the host's.
func (d *Driver) caMounts(id string, rootfs []mount.Mount, policy *egress.Policy) ([]specs.Mount, error) {
	injects := policy != nil && len(policy.Inject) > 0
	if d.cfg.CABundle == "" {
		if injects {
			return nil, errNoBundle
		}
		return nil, nil
	}
	host, err := os.ReadFile(d.cfg.CABundle)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "CA bundle: %w", err)
	}
	if injects {
		authority, err := d.cfg.Network.Authority()
		if err != nil {
			return nil, err
		}
		host = joinPEM(host, authority)
	}
	file := d.sandboxDir(id, bundleFile)
	if err := atomicfile.Write(file, host, 0o644, atomicfile.Volatile); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "CA bundle: %w", err)
	}
	mounts := []specs.Mount{bind(file, caPath, "ro"), bind(d.aptFile(), aptPath, "ro")}
	own, err := readLayered(rootfs, systemCAPath)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "CA bundle of the image: %w", err)
	}
	if own == nil { // nothing in the image would look for one there
		return mounts, nil
	}
	file = d.sandboxDir(id, systemFile)
	if err := atomicfile.Write(file, joinPEM(own, host), 0o644, atomicfile.Volatile); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "CA bundle: %w", err)
	}
	mounts = append(mounts, bind(file, systemCAPath, "ro"))
	java, err := d.javaMount(id, rootfs, host)
	return append(mounts, java...), err
}

// errNoBundle: there is no file to which the authority of the egress proxy could be added.
var errNoBundle = errs.New(errs.FailedPrecondition, "sandboxes of this server get no certificates (ca_bundle: none), so they cannot trust the proxy that injects secrets").
	WithHint("set ca_bundle to auto or to a file, and create the sandbox anew")

// trustAuthority adds the authority of the egress proxy to the certificates of a sandbox
// that runs. It may be repeated. The sandbox keeps it until it ends.
func (d *Driver) trustAuthority(id string) error {
	if d.cfg.CABundle == "" {
		return errNoBundle
	}
	authority, err := d.cfg.Network.Authority()
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name     string
		required bool
		add      func(b, authority []byte) ([]byte, error)
	}{
		{bundleFile, true, addPEM}, {systemFile, false, addPEM}, {javaFile, false, addToJKS},
	} {
		file := d.sandboxDir(id, f.name)
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) && f.required {
			return errs.New(errs.FailedPrecondition, "sandbox %s was made by a version without injected secrets", id).WithHint("create it anew")
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var with []byte
		if err == nil {
			with, err = f.add(b, authority)
		}
		if err == nil && !bytes.Equal(with, b) {
			err = overwrite(file, with)
		}
		if err != nil {
			return errs.New(errs.FailedPrecondition, "certificates of sandbox %s: %w", id, err)
		}
	}
	return nil
}

// overwrite replaces the content of a file that is mounted in a sandbox: another file in
// its place would not be seen there. The content never becomes shorter.
func overwrite(file string, b []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// addPEM returns a bundle with a certificate, once.
func addPEM(bundle, certificate []byte) ([]byte, error) {
	if bytes.Contains(bundle, certificate) {
		return bundle, nil
	}
	return joinPEM(bundle, certificate), nil
}

// joinPEM returns one bundle followed by another.
func joinPEM(a, b []byte) []byte {
	if len(a) > 0 && a[len(a)-1] != '\n' {
		a = append(a, '\n')
	}
	return append(a, b...)
}

// javaMount returns the mount of the image's certificates for Java with those of the host's bundle added. There is none
// if the image has no such file, or one of another format.
func (d *Driver) javaMount(id string, rootfs []mount.Mount, host []byte) ([]specs.Mount, error) {
	own, err := readLayered(rootfs, javaCAPath)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "Java's certificates of the image: %w", err)
	}
	store, err := addToJKS(own, host)
	if err != nil {
		return nil, nil
	}
	file := d.sandboxDir(id, javaFile)
	if err := atomicfile.Write(file, store, 0o644, atomicfile.Volatile); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "Java's certificates: %w", err)
	}
	return []specs.Mount{bind(file, javaCAPath, "ro")}, nil
}

// readLayered reads a regular file of a root filesystem that is not mounted: from the
// uppermost layer that has it. It returns nil if there is none, or one of the directories
// above it is a link: the image is not trusted, and no link is followed.
func readLayered(rootfs []mount.Mount, path string) ([]byte, error) {
	if len(rootfs) != 1 {
		return nil, nil
	}
	layers := []string{rootfs[0].Source} // of a bind mount
	if rootfs[0].Type == "overlay" {
		layers = nil
		for _, o := range rootfs[0].Options {
			if dirs, ok := strings.CutPrefix(o, "lowerdir="); ok {
				layers = strings.Split(dirs, ":")
			}
		}
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for _, dir := range layers {
		b, found, err := readIn(dir, parts)
		if err != nil || found {
			return b, err
		}
	}
	return nil, nil
}

// readIn reads a file of one layer. It is found, and nil, also where the layer says that
// neither it nor those below have the file.
func readIn(layer string, parts []string) (_ []byte, found bool, err error) {
	root, err := os.OpenRoot(layer)
	if err != nil {
		return nil, false, err
	}
	defer root.Close()
	opaque := false // what is below does not show through
	for i := range parts {
		name := filepath.Join(parts[:i+1]...)
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, opaque, nil
		}
		if err != nil {
			return nil, false, err
		}
		last := i == len(parts)-1
		if last && info.Mode().IsRegular() {
			break
		}
		if last || !info.IsDir() { // a link, or the mark of something that was deleted
			return nil, true, nil
		}
		mark := make([]byte, 1)
		n, err := unix.Lgetxattr(filepath.Join(layer, name), "trusted.overlay.opaque", mark)
		opaque = opaque || err == nil && n == 1 && mark[0] == 'y'
	}
	f, err := root.Open(filepath.Join(parts...))
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxBundle))
	return b, true, err
}
