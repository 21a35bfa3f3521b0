package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// limits of each container, from [limits] of the configuration; 0 is none.
type limits struct {
	MemoryBytes   int64 `toml:"memory_bytes"`
	Tasks         int64 `toml:"tasks"`
	DiskBytes     int64 `toml:"disk_bytes"`
	DiskFreeBytes int64 `toml:"disk_free_bytes"`
}

// limit gives the container the limits that its control group holds.
func (s *ociSpec) limit(l limits) error {
	set := func(key string, value any) {
		if s.linux.Resources == nil {
			s.linux.Resources = map[string]json.RawMessage{}
		}
		raw, _ := json.Marshal(value) // a map of integers
		s.linux.Resources[key] = raw
		s.changed = true
	}
	if l.MemoryBytes > 0 {
		set("memory", map[string]int64{"limit": l.MemoryBytes})
	}
	if l.Tasks > 0 {
		set("pids", map[string]int64{"limit": l.Tasks})
	}
	if !s.changed {
		return nil
	}
	var linux map[string]json.RawMessage
	if raw, ok := s.all["linux"]; ok {
		if err := json.Unmarshal(raw, &linux); err != nil {
			return fmt.Errorf("decode linux of spec: %w", err)
		}
	}
	if linux == nil {
		linux = map[string]json.RawMessage{}
	}
	raw, err := json.Marshal(s.linux.Resources)
	if err != nil {
		return err
	}
	linux["resources"] = raw
	if raw, err = json.Marshal(linux); err != nil {
		return err
	}
	s.all["linux"] = raw
	return nil
}

// Names of limits in the line that says which one ended a container. Package buildkit of the components reads them.
const (
	limitMemory   = "memory"
	limitTasks    = "processes"
	limitDisk     = "disk"
	limitDiskFree = "disk-free"
)

// brokenLine is the line that the guard writes to the error output of a container that exceeded a limit.
func brokenLine(limit, text string) string {
	return fmt.Sprintf("runtime: limit %s: %s\n", limit, text)
}

// mebibytes renders a number of bytes for people.
func mebibytes(n int64) string {
	if n%(1<<30) == 0 {
		return fmt.Sprintf("%d GiB", n>>30)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// cgroupRoot is where control groups are mounted; runsc looks nowhere else.
const cgroupRoot = "/sys/fs/cgroup"

// brokenInGroup returns which limit of the control group at path (a linux.cgroupsPath) was reached; empty: none.
func brokenInGroup(root, path string) string {
	memory, pids := filepath.Join(root, "memory", path, "memory.oom_control"), filepath.Join(root, "pids", path, "pids.events")
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		memory, pids = filepath.Join(root, path, "memory.events"), filepath.Join(root, path, "pids.events")
	}
	switch {
	case readCounter(memory, "oom_kill") > 0:
		return limitMemory
	case readCounter(pids, "max") > 0:
		return limitTasks
	}
	return ""
}

// readCounter reads a value of a file of lines "key value"; 0 if there is none.
func readCounter(file, key string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}
	return 0
}
