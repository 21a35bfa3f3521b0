package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

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

// Create makes the group of a sandbox and the group of its helpers, or gives an
// existing group these limits.
func (m *Manager) Create(id string, l Limits) error {
	if err := m.detect(); err != nil {
		return err
	}
	err := m.make(id)
	if err == nil {
		err = errors.Join(m.setCPU(id, l.CPUMillis, l.CPUPercent), m.setMemory(id, l.MemoryBytes), m.setTasks(id, l.PIDs))
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

// Update changes the limits of a sandbox's group that are not 0. NotFound if it
// has no group; ResourceExhausted if it uses more memory than the new limit and
// the kernel cannot reclaim it.
func (m *Manager) Update(id string, l Limits) error {
	if err := m.detect(); err != nil {
		return err
	}
	var err error
	if l.CPUMillis > 0 {
		err = m.setCPU(id, l.CPUMillis, l.CPUPercent)
	}
	if err == nil && l.PIDs > 0 {
		err = m.setTasks(id, l.PIDs)
	}
	if err == nil && l.MemoryBytes > 0 {
		err = m.lowerMemory(id, l.MemoryBytes)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrNotExist):
		return errs.New(errs.NotFound, "sandbox %s has no control group", id)
	case errors.Is(err, unix.EBUSY):
		return errs.New(errs.ResourceExhausted, "sandbox %s uses more memory than %d bytes", id, l.MemoryBytes)
	}
	return errs.New(errs.FailedPrecondition, "control group of %s: %w", id, err)
}

// make makes the group of a sandbox without limits.
func (m *Manager) make(id string) error {
	if !m.v2 {
		for _, c := range controllers {
			if err := os.MkdirAll(m.dir(c, id), 0o755); err != nil {
				return err
			}
		}
		return nil
	}
	parent := filepath.Join(m.root, m.parent)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	for _, d := range []string{m.root, parent} {
		if err := write(filepath.Join(d, "cgroup.subtree_control"), "+cpu +memory +pids"); err != nil {
			return fmt.Errorf("delegate controllers: %w", err)
		}
	}
	if err := os.Mkdir(m.dir("", id), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// setting is a value of a file.
type setting struct{ file, value string }

func set(dir string, list ...setting) error {
	for _, s := range list {
		if err := write(filepath.Join(dir, s.file), s.value); err != nil {
			return err
		}
	}
	return nil
}

// setCPU limits a group to millis thousandths of a CPU, 0 is no limit, and gives
// it the weight that goes with it.
func (m *Manager) setCPU(id string, millis, percent int64) error {
	dir, burst := m.dir("cpu", id), "cpu.cfs_burst_us"
	if m.v2 {
		burst = "cpu.max.burst"
	}
	burst = filepath.Join(dir, burst)
	if err := setBurst(burst, 0); err != nil { // it may never exceed the quota
		return err
	}
	percent = cmp.Or(percent, 100)
	quota := millis * period.Microseconds() / 1000
	limit, length := strconv.FormatInt(quota, 10), strconv.FormatInt(period.Microseconds(), 10)
	if m.v2 {
		weight := int64(100)
		if millis > 0 {
			weight = millis / 10
		} else {
			limit = "max"
		}
		weight = min(10000, max(1, weight*percent/100))
		if err := set(dir, setting{"cpu.max", limit + " " + length}, setting{"cpu.weight", strconv.FormatInt(weight, 10)}); err != nil {
			return err
		}
		return setBurst(burst, quota)
	}
	shares := int64(1024)
	if millis > 0 {
		shares = millis * 1024 / 1000
	} else {
		limit = "-1"
	}
	shares = max(2, shares*percent/100)
	err := set(dir, setting{"cpu.shares", strconv.FormatInt(shares, 10)}, setting{"cpu.cfs_period_us", length}, setting{"cpu.cfs_quota_us", limit})
	if err != nil {
		return err
	}
	return setBurst(burst, quota)
}

// setBurst lets a group save up unused CPU time of at most one period and use
// it when it needs more for a moment; the average limit stays. Without it, a
// sandbox that was idle waits for the rest of a period after its first tenth of
// a second of work. Kernels before 5.14 do not have it.
func setBurst(file string, microseconds int64) error {
	err := write(file, strconv.FormatInt(microseconds, 10))
	if errors.Is(err, os.ErrNotExist) {
		if _, gone := os.Stat(filepath.Dir(file)); gone == nil {
			return nil
		}
	}
	return err
}

// setMemory limits the memory of a group, without swap, to that of the guest and the overhead; 0 is no limit.
func (m *Manager) setMemory(id string, bytes int64) error {
	dir, limit := m.dir("memory", id), "-1"
	if m.v2 {
		limit = "max"
	}
	if bytes > 0 {
		limit = strconv.FormatInt(bytes+Overhead, 10)
	}
	if !m.v2 {
		return setMemoryV1(dir, limit)
	}
	oomGroup := "1"
	if id == "" {
		oomGroup = "0" // of all sandboxes only the one that is killed ends
	}
	if err := set(dir, setting{"memory.max", limit}, setting{"memory.oom.group", oomGroup}); err != nil {
		return err
	}
	return optional(set(dir, setting{"memory.swap.max", "0"}))
}

// lowerMemory is setMemory for a group that is in use. With version 2 the kernel would kill a group that uses more;
// version 1 refuses the limit.
func (m *Manager) lowerMemory(id string, bytes int64) error {
	if m.v2 {
		used, err := readInt(filepath.Join(m.dir("", id), "memory.current"))
		if err != nil {
			return err
		}
		if used > bytes+Overhead {
			return unix.EBUSY
		}
	}
	return m.setMemory(id, bytes)
}

// setMemoryV1 sets the limits of memory, and of memory with swap where the
// kernel accounts for it. The second is never below the first, so the order
// depends on which way they change.
func setMemoryV1(dir, limit string) error {
	memory, both := setting{"memory.limit_in_bytes", limit}, setting{"memory.memsw.limit_in_bytes", limit}
	err := set(dir, memory)
	if errors.Is(err, unix.EINVAL) {
		if err = optional(set(dir, both)); err == nil {
			err = set(dir, memory)
		}
	}
	if err != nil {
		return err
	}
	return optional(set(dir, both))
}

// optional ignores that the kernel does not have a setting.
func optional(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

func (m *Manager) setTasks(id string, processes int64) error {
	limit := "max"
	if processes > 0 {
		limit = strconv.FormatInt(Tasks(processes), 10)
	}
	return set(m.dir("pids", id), setting{"pids.max", limit})
}
