package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// binaries keeps the agents that sandboxes mount, each in a file named by its
// content, since an upgrade replaces HubConfig.AgentPath while sandboxes run.
// The configuration of a sandbox names its file; one that no sandbox names, and
// that is not the present one, is removed.
type binaries struct {
	// held for reading from the choice of a binary until a configuration names
	// it, and for writing while files are removed or the choice changes.
	mu      sync.RWMutex
	source  unix.Stat_t // of AgentPath when it was copied
	current string      // name of that copy
}

// binaryPrefix begins the names of the files; the rest is the SHA-256 sum.
const binaryPrefix = "agent-"

// useBinary calls use with the name of an agent's copy, which is kept meanwhile. Without a name it is that of the
// present agent, which is copied unless that was done.
func (h *Hub) useBinary(name string, use func(name string) error) error {
	b := &h.binaries
	if name != "" {
		b.mu.RLock()
		defer b.mu.RUnlock()
		if err := h.checkBinary(name); err != nil {
			return err
		}
		return use(name)
	}
	for {
		var st unix.Stat_t
		if err := unix.Stat(h.c.AgentPath, &st); err != nil {
			return errs.New(errs.FailedPrecondition, "the agent's program: %w", &os.PathError{Op: "stat", Path: h.c.AgentPath, Err: err})
		}
		b.mu.RLock()
		if b.current != "" && sameFile(b.source, st) {
			defer b.mu.RUnlock()
			return use(b.current)
		}
		b.mu.RUnlock()
		if err := h.copyBinary(); err != nil {
			return errs.New(errs.FailedPrecondition, "copy the agent's program: %w", err)
		}
	}
}

// Binary returns the name of the agent that a sandbox has; NotFound if it was not prepared, empty if a version without
// copies prepared it.
func (h *Hub) Binary(id string) (string, error) {
	c, err := h.readConfig(id)
	return c.Binary, err
}

// CheckBinary returns FailedPrecondition if the agent of a snapshot is not on this node. One that it finds stays as long
// as HubConfig.Pinned returns it, or the configuration of a sandbox names it.
func (h *Hub) CheckBinary(name string) error {
	h.binaries.mu.RLock() // a sweep that began earlier has ended
	defer h.binaries.mu.RUnlock()
	return h.checkBinary(name)
}

// checkBinary is CheckBinary; binaries.mu is held.
func (h *Hub) checkBinary(name string) error {
	_, err := os.Lstat(h.binary(name))
	if errors.Is(err, fs.ErrNotExist) {
		return errs.New(errs.FailedPrecondition, "the agent %s is not on this node", strings.TrimPrefix(name, binaryPrefix)).
			WithHint("a sandbox is restored where its snapshot was taken, with all files in %s", h.c.AgentDir)
	}
	return errs.Wrap(err, "agent")
}

// BinaryPath returns the file of the agent of a snapshot, if it is on this node.
func (h *Hub) BinaryPath(name string) string { return h.binary(name) }

// AddBinary adds the agent of a snapshot of another node, from a file. Corrupt: the file is not
// that agent.
func (h *Hub) AddBinary(name, path string) error {
	h.binaries.mu.Lock()
	defer h.binaries.mu.Unlock()
	from, err := os.Open(path)
	if err != nil {
		return errs.Wrap(err, "agent")
	}
	defer from.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, from); err != nil {
		return errs.Wrap(err, "agent")
	}
	if name != binaryPrefix+hex.EncodeToString(sum.Sum(nil)) {
		return errs.New(errs.Corrupt, "the file is not the agent %s", strings.TrimPrefix(name, binaryPrefix))
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return errs.Wrap(err, "agent")
	}
	return errs.Wrap(h.writeBinary(name, from), "agent")
}

// inUse returns the name of the present agent's copy.
func (b *binaries) inUse() string {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.current
}

func sameFile(a, b unix.Stat_t) bool {
	return a.Dev == b.Dev && a.Ino == b.Ino && a.Size == b.Size && a.Mtim == b.Mtim && a.Ctim == b.Ctim
}

// copyBinary makes the copy of the present agent.
func (h *Hub) copyBinary() error {
	b := &h.binaries
	b.mu.Lock()
	defer b.mu.Unlock()
	from, err := os.Open(h.c.AgentPath)
	if err != nil {
		return err
	}
	defer from.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, from); err != nil {
		return err
	}
	name := binaryPrefix + hex.EncodeToString(sum.Sum(nil))
	if old, err := os.Stat(h.binary(name)); err != nil || old.Size() != st.Size {
		if _, err := from.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := h.writeBinary(name, from); err != nil {
			return err
		}
	}
	b.source, b.current = st, name
	return nil
}

func (h *Hub) writeBinary(name string, from io.Reader) error {
	if err := os.MkdirAll(h.c.AgentDir, 0o700); err != nil {
		return err
	}
	f, err := atomicfile.Create(h.binary(name), 0o555)
	if err != nil {
		return err
	}
	defer f.Abort()
	if _, err := io.Copy(f, from); err != nil {
		return err
	}
	return f.Commit()
}

func (h *Hub) binary(name string) string { return filepath.Join(h.c.AgentDir, name) }

// SweepBinaries removes the agents that no sandbox uses. It removes none when
// it cannot tell.
func (h *Hub) SweepBinaries() error {
	h.binaries.mu.Lock()
	defer h.binaries.mu.Unlock()
	entries, err := os.ReadDir(h.c.AgentDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errs.Wrap(err, "list agents")
	}
	ids, err := h.IDs()
	if err != nil {
		return err
	}
	used := map[string]bool{h.binaries.current: true}
	if h.c.Pinned != nil {
		pinned, err := h.c.Pinned()
		if err != nil {
			return err
		}
		for _, name := range pinned {
			used[name] = true
		}
	}
	for _, id := range ids {
		c, err := h.readConfig(id)
		if err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
		used[c.Binary] = true
	}
	var all error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), binaryPrefix) && !used[e.Name()] {
			all = errors.Join(all, os.Remove(h.binary(e.Name())))
		}
	}
	return errs.Wrap(all, "remove old agents")
}
