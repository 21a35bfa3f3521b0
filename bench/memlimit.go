package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// memRoot is where groups with a memory limit are made, and the file of the
// limit: cgroup v1 if the machine has its memory controller, else v2.
func memRoot() (root, limit string) {
	const v1, v2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(v1, "memory.limit_in_bytes")); err == nil {
		return v1, "memory.limit_in_bytes"
	}
	return v2, "memory.max"
}

// memGroup makes a group of the run with a memory limit, page cache included,
// and returns its path. A process joins it with joinGroup.
func (s *scratch) memGroup(name string, bytes int64) (string, error) {
	root, limit := memRoot()
	if limit == "memory.max" {
		// Needed in the root group; without it the limit below does not exist.
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			return "", fmt.Errorf("enable memory limits: %w", err)
		}
	}
	dir := filepath.Join(root, filepath.Base(s.dir)+"-"+name)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, limit), []byte(strconv.FormatInt(bytes, 10)), 0)
}

// joinGroup puts this process into a group; "" is none.
func joinGroup(dir string) error {
	if dir == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

// removeGroups removes the groups of the run with this scratch directory.
func removeGroups(scratchDir string) error {
	root, _ := memRoot()
	groups, _ := filepath.Glob(filepath.Join(root, filepath.Base(scratchDir)+"-*")) // the pattern is well formed
	var all []error
	for _, g := range groups {
		if !strings.HasPrefix(filepath.Base(g), strings.TrimSuffix(scratchPattern, "*")) {
			continue
		}
		err := os.Remove(g)
		for range 50 { // the kernel takes a moment after the last process
			if err == nil || errors.Is(err, os.ErrNotExist) {
				err = nil
				break
			}
			time.Sleep(20 * time.Millisecond)
			err = os.Remove(g)
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}
