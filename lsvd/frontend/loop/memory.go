package loop

import (
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"miren.dev/runtime/lsvd/internal/memlimit"
)

// limitMemory has the garbage collector keep the heap and the buffers of
// requests, which are outside of it, within three quarters of what the control
// groups of this process allow, of either version: else the heap may grow to
// twice what is in use, and the kernel ends the process. GOMEMLIMIT, if it is
// set, counts instead, and for the heap alone.
func limitMemory(logger *slog.Logger) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		logger.Info("the memory limit of this process is not known", "error", err)
		return
	}
	if limit := memoryLimit("/sys/fs/cgroup", string(groups)); limit < math.MaxInt64 {
		memlimit.Set(limit / 4 * 3)
		logger.Info("memory is limited", "bytes", limit)
	}
}

// memoryLimit is the least limit of the groups that /proc/self/cgroup names
// and of those they are in; MaxInt64 if there is none.
func memoryLimit(root, groups string) int64 {
	least := int64(math.MaxInt64)
	for line := range strings.Lines(groups) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		dir, file := root, "memory.max"
		switch {
		case part[0] == "0" && part[1] == "":
		case part[1] == "memory":
			dir, file = filepath.Join(root, "memory"), "memory.limit_in_bytes"
		default:
			continue
		}
		for group := part[2]; ; group = filepath.Dir(group) {
			b, err := os.ReadFile(filepath.Join(dir, group, file))
			// Version 1 says no limit with a number near the largest, version 2 with "max".
			if n, perr := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && perr == nil && n < 1<<60 {
				least = min(least, n)
			}
			if group == "/" || group == "." {
				break
			}
		}
	}
	return least
}
