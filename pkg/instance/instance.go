// Package instance has the identity and the paths of one installation of
// runtime on a machine. Several installations live side by side; everything
// that one makes outside its own directories is named after its ID.
package instance

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// maxSocketPath is the longest path of a unix socket on Linux, with its NUL.
const maxSocketPath = 108

var validID = regexp.MustCompile(`^[a-z0-9]{8}$`)

// ValidID reports whether id can be the id of an installation, and so a part of paths.
func ValidID(id string) bool { return validID.MatchString(id) }

// Instance is one installation. Its fields do not change.
type Instance struct {
	ID       string // 8 characters of [a-z0-9]
	StateDir string // durable: pg/ containerd/ buildkit/ images/ disks/ logs/ ...
	RunDir   string // sockets and process records, gone after a reboot: <base>/<id>
	lock     *os.File
}

// Open reads the identity under stateDir, or makes one at first start. The run
// directory is runBase/<id>. Both directories exist afterwards, with mode 0711.
// It does not lock: see Lock.
func Open(stateDir, runBase string) (*Instance, error) {
	if !filepath.IsAbs(stateDir) || !filepath.IsAbs(runBase) {
		return nil, errs.New(errs.InvalidArgument, "state directory %q and run directory %q must be absolute paths", stateDir, runBase)
	}
	if err := os.MkdirAll(stateDir, 0o711); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "create state directory: %w", err)
	}
	id, err := readOrCreateID(filepath.Join(stateDir, "instance-id"))
	if err != nil {
		return nil, err
	}
	in := &Instance{ID: id, StateDir: filepath.Clean(stateDir), RunDir: filepath.Join(runBase, id)}
	if n := len(in.Socket("containerd/containerd.sock.ttrpc")); n >= maxSocketPath {
		return nil, errs.New(errs.InvalidArgument, "run directory %q is too long for unix sockets (%d of %d bytes)", in.RunDir, n, maxSocketPath).
			WithHint("choose a shorter --run-dir")
	}
	if err := os.MkdirAll(in.RunDir, 0o711); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "create run directory: %w", err)
	}
	return in, nil
}

// Find returns the installation under stateDir and creates nothing. NotFound if
// there is none.
func Find(stateDir, runBase string) (*Instance, error) {
	b, err := os.ReadFile(filepath.Join(stateDir, "instance-id"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errs.New(errs.NotFound, "there is no installation under %s", stateDir)
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "read instance id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if !validID.MatchString(id) {
		return nil, errs.New(errs.Corrupt, "%s/instance-id holds %q, which is not an instance id", stateDir, id)
	}
	return &Instance{ID: id, StateDir: filepath.Clean(stateDir), RunDir: filepath.Join(runBase, id)}, nil
}

func readOrCreateID(path string) (string, error) {
	for range 2 {
		b, err := os.ReadFile(path)
		if err == nil {
			id := strings.TrimSpace(string(b))
			if !validID.MatchString(id) {
				return "", errs.New(errs.Corrupt, "%s holds %q, which is not an instance id", path, id)
			}
			return id, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", errs.New(errs.Unavailable, "read instance id: %w", err)
		}
		if err := writeNewID(path); err != nil && !errors.Is(err, os.ErrExist) {
			return "", errs.New(errs.Unavailable, "write instance id: %w", err)
		}
	}
	return "", errs.New(errs.Internal, "instance id %s appears and vanishes", path)
}

// writeNewID creates the file complete or not at all.
func writeNewID(path string) error {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	var b [8]byte
	rand.Read(b[:])
	for i := range b {
		b[i] = alphabet[int(b[i])%len(alphabet)]
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".instance-id-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if _, err := fmt.Fprintf(tmp, "%s\n", b[:]); err != nil {
		return err
	}
	if err := tmp.Chmod(0o644); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), path); err != nil {
		return err
	}
	// Everything outside the directories is named after the id: it must survive
	// a power loss.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// Lock makes this process the only server on the state directory, until it ends
// or calls Unlock. FailedPrecondition if another process holds the lock.
func (in *Instance) Lock() error {
	f, err := os.OpenFile(filepath.Join(in.StateDir, "server.lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return errs.New(errs.Unavailable, "open server lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			holder := make([]byte, 32)
			n, _ := f.ReadAt(holder, 0)
			return errs.New(errs.FailedPrecondition, "another server (pid %s) is running on %s", cmp.Or(strings.TrimSpace(string(holder[:n])), "unknown"), in.StateDir).
				WithHint("stop it with `r server stop`, or choose another --state-dir")
		}
		return errs.New(errs.Unavailable, "lock %s: %w", f.Name(), err)
	}
	_, _ = f.WriteAt(fmt.Appendf(nil, "%-10d\n", os.Getpid()), 0) // for the message above; one write, so that no reader sees a part of it
	in.lock = f
	return nil
}

// Unlock releases the state directory.
func (in *Instance) Unlock() {
	if in.lock != nil {
		in.lock.Close()
		in.lock = nil
	}
}

// State returns a path under the state directory.
func (in *Instance) State(elem ...string) string {
	return filepath.Join(append([]string{in.StateDir}, elem...)...)
}

// Socket returns a path under the run directory.
func (in *Instance) Socket(elem ...string) string {
	return filepath.Join(append([]string{in.RunDir}, elem...)...)
}

// DiskMounts returns the directory below which the file systems of disks are
// mounted. It is not in the state directory: no mount outlives the machine.
func (in *Instance) DiskMounts() string { return in.Socket("disks") }

// Name returns a host-wide name of this installation, "rt-<id>" or
// "rt-<id>-<suffix>": containerd namespace, nftables table, cgroup.
func (in *Instance) Name(suffix string) string {
	if suffix == "" {
		return "rt-" + in.ID
	}
	return "rt-" + in.ID + "-" + suffix
}

// Bridge returns the name of the bridge: at most 15 bytes.
func (in *Instance) Bridge() string { return "rt" + in.ID + "br" }
