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
	"cmp"
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

// period of the CPU limit.
const period = 100 * time.Millisecond

// pidsFactor and pidsBase compute the host's limit of tasks from the guest's
// limit of processes. The host's limit is a backstop: it counts the sentry's
// threads, and every thread of the guest has one. gVisor itself enforces the
// guest's limit.
const (
	pidsFactor = 8
	pidsBase   = 512
)

// Limits of a sandbox; 0 is none.
type Limits struct {
	CPUMillis   int64
	MemoryBytes int64
	PIDs        int64
	// CPUPercent is the group's share of the CPU, in percent of an equal share, when others need the CPU too; 0: 100.
	CPUPercent int64
}

// Tasks returns the host's limit of threads for a guest that may have n
// processes.
func Tasks(n int64) int64 { return n*pidsFactor + pidsBase }

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

// Create makes the group of a sandbox and the group of its helpers, or gives an
// existing group these limits.
func (m *Manager) Create(id string, l Limits) error {
	if err := m.detect(); err != nil {
		return err
	}
	var err error
	if m.v2 {
		err = m.createV2(id, l)
	} else {
		err = m.createV1(id, l)
	}
	if err == nil && id != "" { // the parent serves no sandbox
		err = os.MkdirAll(m.helpersDir(id), 0o755)
	}
	if err != nil {
		return errs.New(errs.FailedPrecondition, "control group of %s: %w", cmp.Or(id, m.parent), err)
	}
	return nil
}

// LimitAll makes the parent of all groups, or gives the existing one these
// limits, which hold for all of its sandboxes together.
func (m *Manager) LimitAll(l Limits) error { return m.Create("", l) }

func (m *Manager) createV1(id string, l Limits) error {
	for _, c := range []string{"cpu", "cpuacct", "memory", "pids"} {
		if err := os.MkdirAll(m.dir(c, id), 0o755); err != nil {
			return err
		}
	}
	quota, shares := int64(-1), int64(1024)
	if l.CPUMillis > 0 {
		quota = l.CPUMillis * period.Microseconds() / 1000
		shares = l.CPUMillis * 1024 / 1000
	}
	shares = max(2, shares*cmp.Or(l.CPUPercent, 100)/100)
	memory := int64(-1)
	if l.MemoryBytes > 0 {
		memory = l.MemoryBytes + Overhead
	}
	cpu, mem := m.dir("cpu", id), m.dir("memory", id)
	burst := filepath.Join(cpu, "cpu.cfs_burst_us")
	if err := setBurst(burst, 0); err != nil { // it may never exceed the quota
		return err
	}
	for _, w := range []struct{ dir, file, value string }{
		{cpu, "cpu.shares", strconv.FormatInt(shares, 10)},
		{cpu, "cpu.cfs_period_us", strconv.FormatInt(period.Microseconds(), 10)},
		{cpu, "cpu.cfs_quota_us", strconv.FormatInt(quota, 10)},
		{mem, "memory.limit_in_bytes", strconv.FormatInt(memory, 10)},
		{m.dir("pids", id), "pids.max", tasksMax(l)},
	} {
		if err := write(filepath.Join(w.dir, w.file), w.value); err != nil {
			return err
		}
	}
	if err := setBurst(burst, quota); err != nil {
		return err
	}
	// Without swap, where the kernel can account for it.
	err := write(filepath.Join(mem, "memory.memsw.limit_in_bytes"), strconv.FormatInt(memory, 10))
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return nil
}

func (m *Manager) createV2(id string, l Limits) error {
	parent := filepath.Join(m.root, m.parent)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	for _, d := range []string{m.root, parent} {
		if err := write(filepath.Join(d, "cgroup.subtree_control"), "+cpu +memory +pids"); err != nil {
			return fmt.Errorf("delegate controllers: %w", err)
		}
	}
	dir := m.dir("", id)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	burst := filepath.Join(dir, "cpu.max.burst")
	if err := setBurst(burst, 0); err != nil { // it may never exceed the quota
		return err
	}
	cpu, weight, quota := "max", int64(100), int64(0)
	if l.CPUMillis > 0 {
		quota = l.CPUMillis * period.Microseconds() / 1000
		cpu = strconv.FormatInt(quota, 10)
		weight = l.CPUMillis / 10
	}
	weight = min(10000, max(1, weight*cmp.Or(l.CPUPercent, 100)/100))
	memory := "max"
	if l.MemoryBytes > 0 {
		memory = strconv.FormatInt(l.MemoryBytes+Overhead, 10)
	}
	oomGroup := "1"
	if id == "" {
		oomGroup = "0" // of all sandboxes only the one that is killed ends
	}
	for _, w := range []struct{ file, value string }{
		{"cpu.max", cpu + " " + strconv.FormatInt(period.Microseconds(), 10)},
		{"cpu.weight", strconv.FormatInt(weight, 10)},
		{"memory.max", memory},
		{"memory.oom.group", oomGroup},
		{"pids.max", tasksMax(l)},
	} {
		if err := write(filepath.Join(dir, w.file), w.value); err != nil {
			return err
		}
	}
	if err := setBurst(burst, quota); err != nil {
		return err
	}
	if err := write(filepath.Join(dir, "memory.swap.max"), "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// setBurst lets a group save up unused CPU time of at most one period and use
// it when it needs more for a moment; the average limit stays. Without it, a
// sandbox that was idle waits for the rest of a period after its first tenth of
// a second of work. Kernels before 5.14 do not have it.
func setBurst(file string, microseconds int64) error {
	err := write(file, strconv.FormatInt(max(0, microseconds), 10))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func tasksMax(l Limits) string {
	if l.PIDs <= 0 {
		return "max"
	}
	return strconv.FormatInt(Tasks(l.PIDs), 10)
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
	if errors.Is(err, os.ErrNotExist) {
		return u, errs.New(errs.NotFound, "sandbox %s has no control group", id)
	}
	if err != nil {
		return u, errs.New(errs.Unavailable, "usage of sandbox %s: %w", id, err)
	}
	return u, nil
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
	if u.OOMKills, err = readKey(filepath.Join(memory, "memory.oom_control"), "oom_kill"); err != nil {
		return err
	}
	u.Tasks, err = readInt(filepath.Join(m.dir("pids", id), "pids.current"))
	return err
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
	if u.OOMKills, err = readKey(filepath.Join(dir, "memory.events"), "oom_kill"); err != nil {
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
