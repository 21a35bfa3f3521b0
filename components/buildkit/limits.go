package buildkit

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"miren.dev/runtime/components/cgroup"
	"miren.dev/runtime/pkg/errs"
)

// Limits of build steps. Memory and processes are those of one step; the steps
// of all builds together get at most half of the machine's memory, or that of
// one step if it is more. The zero value has the defaults.
type Limits struct {
	// MemoryBytes of one step; 0: a quarter of the machine's, at least 1 GiB.
	MemoryBytes int64
	// CPUMillis that all steps together use at most; 0: all of the machine's. When
	// others want the CPU too, steps get a quarter of an equal share.
	CPUMillis int64
	// Processes of one step; 0: DefaultProcesses.
	Processes int64
	// DiskBytes that one step may write; 0: DefaultDiskBytes.
	DiskBytes int64
	// DiskFreeBytes is what steps leave free on the disk; 0: DefaultDiskFreeBytes.
	DiskFreeBytes int64
}

// Defaults of Limits.
const (
	DefaultProcesses     = 4096
	DefaultDiskBytes     = 20 << 30
	DefaultDiskFreeBytes = 1 << 30
)

const (
	minMemory  = 1 << 30 // of the default
	cpuPercent = 25      // of an equal share of the CPU, for all steps together
)

// withDefaults fills in what is 0.
func (l Limits) withDefaults(machine int64) Limits {
	if l.MemoryBytes == 0 {
		l.MemoryBytes = max(minMemory, machine/4)
	}
	if l.CPUMillis == 0 {
		l.CPUMillis = int64(runtime.NumCPU()) * 1000
	}
	if l.Processes == 0 {
		l.Processes = DefaultProcesses
	}
	if l.DiskBytes == 0 {
		l.DiskBytes = DefaultDiskBytes
	}
	if l.DiskFreeBytes == 0 {
		l.DiskFreeBytes = DefaultDiskFreeBytes
	}
	return l
}

// limitSteps gives the control group of all steps its limits. Those of one step
// are in the configuration of the shim, which holds them. d.mu is held.
func (d *Daemon) limitSteps() error {
	var err error
	d.limits, err = limitAll(cgroup.New(d.cgroup()), d.cfg.Limits, d.cpuPercent)
	return err
}

// limitAll gives the control group of all steps its limits, and returns the limits with their defaults.
func limitAll(groups *cgroup.Manager, l Limits, cpuPercent int64) (Limits, error) {
	machine, err := machineMemory()
	if err != nil {
		return l, errs.New(errs.FailedPrecondition, "limits of builds: %w", err)
	}
	l = l.withDefaults(machine)
	err = groups.LimitAll(cgroup.Limits{MemoryBytes: max(l.MemoryBytes, machine/2), CPUMillis: l.CPUMillis, CPUPercent: cpuPercent})
	return l, errs.Wrap(err, "limits of builds")
}

// stepLimits returns what was set by limitSteps.
func (d *Daemon) stepLimits() Limits {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.limits
}

// machineMemory returns the memory of the machine in bytes.
func machineMemory() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no MemTotal")
}

// Limit names a limit that ended a step.
type Limit string

// Limits that end steps, as the shim names them.
const (
	LimitMemory    Limit = "memory"
	LimitProcesses Limit = "processes"
	LimitDisk      Limit = "disk"
	LimitDiskFree  Limit = "disk-free"
)

var limitLine = regexp.MustCompile(`^runtime: limit (memory|processes|disk|disk-free): `)

// limitIn returns the limit that a line of the error output says has ended the step; empty: none.
func limitIn(line string) Limit {
	if m := limitLine.FindStringSubmatch(line); m != nil {
		return Limit(m[1])
	}
	return ""
}

// explain returns what happened, and what to do about it.
func (l Limits) explain(limit Limit) (message, hint string) {
	switch limit {
	case LimitMemory:
		return "out of memory: it used more than " + size(l.MemoryBytes),
			"let it need less (fewer jobs at a time, for example), or raise build.memory_bytes in the server's configuration"
	case LimitProcesses:
		return fmt.Sprintf("too many processes: it had more than %d", l.Processes),
			"let it start fewer, or raise build.processes in the server's configuration"
	case LimitDisk:
		return "it wrote more than " + size(l.DiskBytes) + " to the disk",
			"let it write less, or raise build.step_bytes in the server's configuration"
	case LimitDiskFree:
		return "the disk of the server is full: less than " + size(l.DiskFreeBytes) + " are free",
			"`r doctor` on the server says what uses it; build.free_bytes says how much steps leave free"
	}
	return "", ""
}

// size writes an amount of memory or disk for people.
func size(n int64) string {
	switch {
	case n >= 1<<30 && n%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
