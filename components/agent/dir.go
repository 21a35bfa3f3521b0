package agent

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// Names under LogDir/<id>.
const (
	spoolName = "spool" // written by the guest
	endedName = "ended" // written by End
)

func newToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// writeGuest makes the directories of id and the agent's configuration.
func (h *Hub) writeGuest(id, token, binary string, c GuestConfig) error {
	kept, err := capabilitySet(c.Capabilities)
	if err != nil {
		return err
	}
	config := agentproto.Config{
		Token: token, Command: c.Command, Env: c.Env, WorkDir: c.WorkDir, User: c.User,
		Start: c.Start, PIDs: c.PIDs, LogBytes: c.LogBytes, Claimable: c.Claimable, Binary: binary, CPUs: c.CPUs,
		Capabilities: kept,
	}.Append(nil)
	if len(config) > agentproto.MaxConfig {
		return errs.New(errs.InvalidArgument, "command and environment have %d bytes, which is more than %d", len(config), agentproto.MaxConfig)
	}
	for _, dir := range []string{h.c.Dir, h.c.LogDir, h.logs(id)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	for _, dir := range []string{h.dir(id), h.spool(id)} {
		if err := makeVault(dir); err != nil {
			return err
		}
	}
	return writeConfig(filepath.Join(h.dir(id), agentproto.ConfigName), config)
}

// makeVault makes a directory that only the agent can enter in the guest.
func makeVault(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Lchown(dir, agentproto.VaultUID, agentproto.VaultUID)
}

// writeConfig makes a file appear complete in a vault. It is not synced, since
// the sandbox does not outlive a crash of the machine and should start fast.
func writeConfig(path string, b []byte) error {
	f, err := atomicfile.Create(path, 0o600, atomicfile.Volatile)
	if err != nil {
		return err
	}
	defer f.Abort()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := f.Chown(agentproto.VaultUID, agentproto.VaultUID); err != nil {
		return err
	}
	return f.Commit()
}

// readToken returns the token of a prepared sandbox; NotFound if there is none.
func (h *Hub) readToken(id string) (string, error) {
	c, err := h.readConfig(id)
	return c.Token, err
}

func (h *Hub) readConfig(id string) (agentproto.Config, error) {
	b, err := os.ReadFile(filepath.Join(h.dir(id), agentproto.ConfigName))
	if errors.Is(err, fs.ErrNotExist) {
		return agentproto.Config{}, errs.New(errs.NotFound, "no agent of sandbox %s was prepared", id)
	}
	if err != nil {
		return agentproto.Config{}, errs.Wrap(err, "read agent configuration of %s", id)
	}
	c, err := agentproto.DecodeConfig(b)
	if err != nil {
		return agentproto.Config{}, errs.New(errs.Corrupt, "agent configuration of %s: %w", id, err)
	}
	return c, nil
}

// listenIn listens on the socket in dir. A socket of an earlier hub is
// replaced at once, so that an agent finds either.
func listenIn(dir string) (*net.UnixListener, error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(d)
	const tmp = agentproto.SocketName + ".new"
	if err := unix.Unlinkat(d, tmp, 0); err != nil && err != unix.ENOENT {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	// The path through the descriptor is short, however long dir is.
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d, tmp), Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false)
	if err := unix.Fchownat(d, tmp, agentproto.VaultUID, agentproto.VaultUID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		ln.Close()
		return nil, fmt.Errorf("give socket to agent: %w", err)
	}
	if err := unix.Renameat(d, tmp, d, agentproto.SocketName); err != nil {
		ln.Close()
		return nil, fmt.Errorf("publish socket: %w", err)
	}
	return ln, nil
}

// openSpool opens the directory that the guest writes.
func (h *Hub) openSpool(id string) (*os.File, error) {
	fd, err := unix.Open(h.spool(id), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil, errs.New(errs.NotFound, "there are no logs of sandbox %s", id)
	}
	if err == unix.ENOTDIR || err == unix.ELOOP {
		return nil, errs.New(errs.Corrupt, "the logs of sandbox %s are no directory", id)
	}
	if err != nil {
		return nil, errs.Wrap(err, "open logs of %s", id)
	}
	return os.NewFile(uintptr(fd), "spool"), nil
}

// openGuestFile opens a file that the guest has made, if it is a regular one: a
// link, device or pipe would lead elsewhere or block.
func openGuestFile(dir *os.File, name string) (*os.File, int64, error) {
	p, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(p)
	var st unix.Stat_t
	if err := unix.Fstat(p, &st); err != nil {
		return nil, 0, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, 0, errs.New(errs.Corrupt, "%s in the log directory is no ordinary file", name)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", p), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), st.Size, nil
}

// maxSpoolFiles is more files than an agent makes.
const maxSpoolFiles = 256

// spoolNames returns the names in the directory, at most maxSpoolFiles.
func spoolNames(dir *os.File) ([]string, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(maxSpoolFiles)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}
