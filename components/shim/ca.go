package main

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Where the bundle is inside containers.
const (
	caPath  = "/run/runtime/ca-certificates.crt"
	aptPath = "/run/runtime/apt.conf"
)

// caVariables are the variables that tools read which do not use systemCAPath: OpenSSL, Go and most others; Node; pip;
// Python's requests; curl; git; cargo; Deno.
var caVariables = []string{
	"SSL_CERT_FILE",
	"NODE_EXTRA_CA_CERTS",
	"PIP_CERT",
	"REQUESTS_CA_BUNDLE",
	"CURL_CA_BUNDLE",
	"GIT_SSL_CAINFO",
	"CARGO_HTTP_CAINFO",
	"DENO_CERT",
}

// aptConf is for apt, which reads no variable but the one that names a file such as this. Its other files are read
// after it and win.
const aptConf = `Acquire::https::CaInfo "` + caPath + `";` + "\n"

// caFiles are the host's files to mount.
type caFiles struct {
	bundle string
	apt    string
}

// addCA gives the container the host's CA bundle. It returns the mounted paths.
func (s *ociSpec) addCA(files caFiles) (mounted []string) {
	bind := func(source, destination string) bool {
		if source == "" || !s.bindFile(source, destination) {
			return false
		}
		mounted = append(mounted, destination)
		return true
	}
	bind(files.bundle, caPath)
	for _, name := range caVariables {
		s.defaultEnv(name, caPath)
	}
	if bind(files.apt, aptPath) {
		s.defaultEnv("APT_CONFIG", aptPath)
	}
	return mounted
}

// prepareCA makes the files to mount, in the bundle of a container whose root is at rootfs.
func prepareCA(hostBundle, bundle, rootfs string) (caFiles, error) {
	files := caFiles{bundle: hostBundle}
	// The image is not trusted: no link out of it is ever followed.
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return files, err
	}
	defer root.Close()

	if _, err := root.Lstat("etc/apt"); err == nil {
		files.apt = filepath.Join(bundle, "apt.conf")
		if err := os.WriteFile(files.apt, []byte(aptConf), 0o644); err != nil {
			return files, err
		}
	}
	return files, nil
}

// stubs are the mount points, and the directories above them, that the root lacks: runsc will make them. The deepest
// come first.
func stubs(rootfs string, mounted []string) ([]string, error) {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var missing []string
	seen := map[string]bool{}
	for _, m := range mounted {
		for p := strings.TrimPrefix(m, "/"); p != "." && !seen[p]; p = path.Dir(p) {
			if _, err := root.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
				break
			}
			seen[p] = true
			missing = append(missing, p)
		}
	}
	// A path is longer than those above it.
	slices.SortStableFunc(missing, func(a, b string) int { return len(b) - len(a) })
	return missing, nil
}

// removeStubs removes the mount points that runsc made for our mounts. The container was root in there: only empty
// files and empty directories are removed, and never through a link.
func removeStubs(rootfs string, missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, p := range missing {
		info, err := root.Lstat(p)
		if err != nil || !info.IsDir() && (!info.Mode().IsRegular() || info.Size() > 0) {
			continue
		}
		if err := root.Remove(p); err != nil && info.Mode().IsRegular() {
			return err
		}
	}
	return nil
}
