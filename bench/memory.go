package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/server"
)

// memoryGoal is for all processes of the control plane together, BuildKit apart: 190 MB.
const memoryGoal = 181

// buildIdleStop ends the installation's BuildKit soon after a build. The user's default is ten minutes.
const buildIdleStop = 30 * time.Second

// idleRest is how long the installation does nothing before its memory is read: Go collects garbage every two minutes at
// least and gives memory back slowly after it, and the store closes connections that a minute did not use.
const idleRest = 4 * time.Minute

// benchMemory reads what the processes of an idle installation use, with the BuildKit of the last build and after it has ended.
func benchMemory(ctx context.Context, b *bench) error {
	i, err := b.installation(ctx)
	if err != nil {
		return err
	}
	used, err := i.memory(ctx, true)
	if err != nil {
		return err
	}
	b.report.figure("buildkit, until it ends", "MiB", used[buildkitComponent], 0)
	rest := idleRest
	if b.opt.quick {
		rest = 5 * time.Second
	}
	progress("  leaving it alone for %s after the end of BuildKit", rest)
	if _, err = i.memory(ctx, false); err != nil {
		return err
	}
	select {
	case <-time.After(rest):
	case <-ctx.Done():
		return ctx.Err()
	}
	if used, err = i.memory(ctx, false); err != nil {
		return err
	}
	sum := 0.0
	for _, name := range slices.Sorted(maps.Keys(used)) {
		sum += used[name]
		b.report.figure(name, "MiB", used[name], 0)
	}
	b.report.figure("control plane together", "MiB", sum, memoryGoal)
	b.report.figure("one idle sandbox (sentry, gofer)", "MiB", float64(sandboxMemory(i.in.RunDir))/(1<<20), 0)
	return nil
}

const buildkitComponent = "buildkit"

// memory waits until BuildKit runs, or does not, and returns the MiB of each process of the control plane.
func (i *install) memory(ctx context.Context, building bool) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, buildIdleStop+time.Minute)
	defer cancel()
	for {
		st, err := server.NewServerClient(i.client).Status(ctx)
		if err != nil {
			return nil, err
		}
		used := map[string]float64{}
		for _, c := range st.Components {
			if c.PID == nil && c.Name == buildkitComponent {
				continue
			}
			if c.MemoryBytes == nil || *c.MemoryBytes == 0 {
				return nil, fmt.Errorf("the server does not say what %s uses", c.Name)
			}
			used[c.Name] = float64(*c.MemoryBytes) / (1 << 20)
		}
		if _, runs := used[buildkitComponent]; runs == building {
			return used, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("BuildKit runs: %t, after %s", !building, buildIdleStop+time.Minute)
		case <-time.After(time.Second):
		}
	}
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
