package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/server"
)

// memoryGoal is for all processes of the control plane together.
const memoryGoal = 256

// benchMemory reads what the processes of an idle installation use.
func benchMemory(ctx context.Context, b *bench) error {
	i, err := b.installation(ctx)
	if err != nil {
		return err
	}
	rest := 45 * time.Second
	if b.opt.quick {
		rest = 5 * time.Second
	}
	progress("  leaving it alone for %s", rest)
	select {
	case <-time.After(rest):
	case <-ctx.Done():
		return ctx.Err()
	}
	st, err := server.NewServerClient(i.client).Status(ctx)
	if err != nil {
		return err
	}
	sum := 0.0
	for _, c := range st.Components {
		if c.MemoryBytes == nil || c.PID == nil || *c.MemoryBytes == 0 {
			return fmt.Errorf("the server does not say what %s uses", c.Name)
		}
		mb := float64(*c.MemoryBytes) / (1 << 20)
		sum += mb
		b.report.figure(c.Name, "MiB", mb, 0)
	}
	b.report.figure("control plane together", "MiB", sum, memoryGoal)
	b.report.figure("one idle sandbox (sentry, gofer)", "MiB", float64(sandboxMemory(i.in.RunDir))/(1<<20), 0)
	return nil
}

// sandboxMemory sums the PSS of a sandbox's processes: those that have the
// installation's run directory in their arguments.
func sandboxMemory(dir string) (sum int64) {
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well formed
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		args := strings.Split(string(b), "\x00")
		if !strings.Contains(args[0], "runsc") || !strings.Contains(string(b), dir+"/") {
			continue
		}
		sum += pss(filepath.Dir(p))
	}
	return sum
}

func pss(proc string) int64 {
	f, err := os.Open(filepath.Join(proc, "smaps_rollup"))
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if w := strings.Fields(s.Text()); len(w) > 1 && w[0] == "Pss:" {
			kb, _ := strconv.ParseInt(w[1], 10, 64) // 0 if it is none
			return kb << 10
		}
	}
	return 0
}
