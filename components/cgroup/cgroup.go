// Package cgroup limits and measures sandboxes with the control groups of the
// machine, version 1 or 2, whichever the machine has.
//
// The groups of an installation are /<instance.Name("")>/<sandbox id>, in
// every hierarchy. Their paths are given to runsc as linux.cgroupsPath: it puts sentry
// and gofer, and so the whole sandbox, into groups that exist already, and
// neither changes their limits nor removes them. So they are still there, with
// their count of OOM kills, when the sandbox has ended, until Delete.
//
// Beside the group of a sandbox is one of its helpers, which are the shim and
// the runsc commands that it runs: /<instance.Name("")>/<sandbox id>.helpers,
// with version 1 in the hierarchy of pids only. It limits nothing; it is how
// they are found.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// root is where control groups are mounted; runsc looks nowhere else.
const root = "/sys/fs/cgroup"

// Overhead is the host memory of sentry, gofer and agent besides the guest's,
// in bytes. It is added to the guest's limit.
const Overhead = 48 << 20

// Usage of a sandbox since it was started.
type Usage struct {
	CPU         time.Duration
	MemoryBytes int64
	Tasks       int64 // on the host: threads of sentry and gofer
	// OOMKills is above 0 if the sandbox ran out of memory. With version 2 the kernel
	// kills the whole group, and may count one process twice.
	OOMKills int64
}

// Manager has the groups of an installation. It is safe for concurrent use;
// calls for one sandbox must not overlap.
type Manager struct {
	parent string
	root   string

	mu       sync.Mutex
	detected bool
	v2       bool
	mounts   []string // of all hierarchies: every v1 controller, or the one of v2
}

// New returns the groups below /parent without looking at the machine.
func New(parent string) *Manager { return &Manager{parent: parent, root: root} }

// detect finds the hierarchies.
func (m *Manager) detect() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.detected {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(m.root, &st); err != nil {
		return errs.New(errs.FailedPrecondition, "control groups: %s: %w", m.root, err)
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		m.v2, m.mounts, m.detected = true, []string{m.root}, true
		return nil
	}
	entries, err := os.ReadDir(m.root)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "control groups: %w", err)
	}
	var mounts []string
	for _, e := range entries {
		path := filepath.Join(m.root, e.Name())
		// cpu may be a link to cpu,cpuacct.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		if err := unix.Statfs(path, &st); err != nil || st.Type != unix.CGROUP_SUPER_MAGIC {
			continue
		}
		if !slices.Contains(mounts, path) {
			mounts = append(mounts, path)
		}
	}
	if _, err := os.Stat(filepath.Join(m.root, "memory")); err != nil || len(mounts) == 0 {
		return errs.New(errs.FailedPrecondition, "control groups: neither version 2 nor the controllers of version 1 are mounted below %s", m.root)
	}
	m.mounts, m.detected = mounts, true
	return nil
}

// Path returns the value of linux.cgroupsPath of a sandbox.
func (m *Manager) Path(id string) string { return "/" + m.parent + "/" + id }

// dir returns the group of a sandbox for a controller.
func (m *Manager) dir(controller, id string) string {
	if m.v2 {
		return filepath.Join(m.root, m.parent, id)
	}
	return filepath.Join(m.root, controller, m.parent, id)
}

// controllers of version 1 in which sandboxes have groups.
var controllers = []string{"cpu", "cpuacct", "memory", "pids"}

// helpersSuffix ends the names of the groups of helpers. No sandbox id has a dot.
const helpersSuffix = ".helpers"

// helpersDir returns the group of a sandbox's helpers.
func (m *Manager) helpersDir(id string) string { return m.dir("pids", id+helpersSuffix) }

// HelpersFile returns the file with which a process joins the group of helpers:
// it writes 0 there. Its children are in the group too.
func (m *Manager) HelpersFile(id string) (string, error) {
	if err := m.detect(); err != nil {
		return "", err
	}
	return filepath.Join(m.helpersDir(id), "cgroup.procs"), nil
}

// Files returns the files with which a process joins the group of a sandbox, which must exist: it writes 0 to each.
func (m *Manager) Files(id string) ([]string, error) {
	if err := m.detect(); err != nil {
		return nil, err
	}
	var files []string
	for _, c := range controllers {
		if file := filepath.Join(m.dir(c, id), "cgroup.procs"); !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	return files, nil
}

// OOMKills reads how many processes of a sandbox the kernel has ended because its
// memory limit was reached. NotFound if it has no group.
func (m *Manager) OOMKills(id string) (int64, error) {
	if err := m.detect(); err != nil {
		return 0, err
	}
	n, err := m.oomKills(id)
	return n, usageError(id, err)
}

// Usage reads the resource use of a sandbox. NotFound if it has no group.
func (m *Manager) Usage(id string) (Usage, error) {
	if err := m.detect(); err != nil {
		return Usage{}, err
	}
	var u Usage
	var err error
	if m.v2 {
		err = m.usageV2(id, &u)
	} else {
		err = m.usageV1(id, &u)
	}
	return u, usageError(id, err)
}

func usageError(id string, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errs.New(errs.NotFound, "sandbox %s has no control group", id)
	case err != nil:
		return errs.New(errs.Unavailable, "usage of sandbox %s: %w", id, err)
	}
	return nil
}

func (m *Manager) usageV1(id string, u *Usage) error {
	cpu, err := readInt(filepath.Join(m.dir("cpuacct", id), "cpuacct.usage"))
	if err != nil {
		return err
	}
	u.CPU = time.Duration(cpu)
	memory := m.dir("memory", id)
	if u.MemoryBytes, err = readInt(filepath.Join(memory, "memory.usage_in_bytes")); err != nil {
		return err
	}
	if u.OOMKills, err = m.oomKills(id); err != nil {
		return err
	}
	u.Tasks, err = readInt(filepath.Join(m.dir("pids", id), "pids.current"))
	return err
}

func (m *Manager) oomKills(id string) (int64, error) {
	file := filepath.Join(m.dir("memory", id), "memory.oom_control")
	if m.v2 {
		file = filepath.Join(m.dir("", id), "memory.events")
	}
	return readKey(file, "oom_kill")
}

func (m *Manager) usageV2(id string, u *Usage) error {
	dir := m.dir("", id)
	cpu, err := readKey(filepath.Join(dir, "cpu.stat"), "usage_usec")
	if err != nil {
		return err
	}
	u.CPU = time.Duration(cpu) * time.Microsecond
	if u.MemoryBytes, err = readInt(filepath.Join(dir, "memory.current")); err != nil {
		return err
	}
	if u.OOMKills, err = m.oomKills(id); err != nil {
		return err
	}
	u.Tasks, err = readInt(filepath.Join(dir, "pids.current"))
	return err
}

// PIDs returns the processes of a sandbox on the host.
func (m *Manager) PIDs(id string) ([]int, error) {
	if err := m.detect(); err != nil {
		return nil, err
	}
	return pids(id, m.dir("memory", id))
}

// Helpers returns the processes of the host that serve a sandbox.
func (m *Manager) Helpers(id string) ([]int, error) {
	if err := m.detect(); err != nil {
		return nil, err
	}
	return pids(id, m.helpersDir(id))
}

func pids(id, dir string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "processes of sandbox %s: %w", id, err)
	}
	var pids []int
	for f := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// removeTimeout bounds how long Delete waits for killed processes to be gone.
const removeTimeout = 10 * time.Second

// Delete kills the processes in the groups of a sandbox and removes the groups.
// It returns nil when there are none.
func (m *Manager) Delete(ctx context.Context, id string) error {
	if err := m.detect(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	delay := time.Millisecond
	for {
		pids, err := m.PIDs(id)
		if err != nil {
			return err
		}
		helpers, err := m.Helpers(id)
		if err != nil {
			return err
		}
		for _, pid := range append(pids, helpers...) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if err = m.rmdir(id + helpersSuffix); err == nil {
			err = m.rmdir(id)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return errs.New(errs.Unavailable, "delete control group of %s: %w", id, err)
		}
		select {
		case <-ctx.Done():
			return errs.New(errs.Unavailable, "delete control group of %s: still in use: %w", id, err)
		case <-time.After(delay):
			delay = min(2*delay, 100*time.Millisecond)
		}
	}
}

// rmdir removes a group, or with an empty id the parent, in all hierarchies.
func (m *Manager) rmdir(id string) error {
	for _, mount := range m.mounts {
		dir := filepath.Join(mount, m.parent, id)
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// List returns the sandboxes that have a group in any hierarchy.
func (m *Manager) List() ([]string, error) {
	if err := m.detect(); err != nil {
		return nil, err
	}
	var ids []string
	for _, mount := range m.mounts {
		entries, err := os.ReadDir(filepath.Join(mount, m.parent))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, errs.New(errs.Unavailable, "list control groups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				ids = append(ids, strings.TrimSuffix(e.Name(), helpersSuffix))
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Remove removes the parent of all groups, which must be gone.
func (m *Manager) Remove() error {
	if err := m.detect(); err != nil {
		return err
	}
	if err := m.rmdir(""); err != nil {
		return errs.New(errs.FailedPrecondition, "remove control group %s: %w", m.parent, err)
	}
	return nil
}

func write(path, value string) error {
	// Without O_CREATE: if a file is missing, so is its controller.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(value); err != nil {
		return fmt.Errorf("write %q: %w", value, err)
	}
	return nil
}

func readInt(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// readKey reads a file of lines "key value".
func readKey(path, key string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s: no %s", path, key)
}
