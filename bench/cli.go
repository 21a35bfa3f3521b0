package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// cliStarts is how often a turn starts a program.
const cliStarts = 20

// benchCLI compares the client r with the program runtime, which has the same
// commands and the server.
func benchCLI(ctx context.Context, b *bench) error {
	home, err := os.MkdirTemp(b.scratch.dir, "cli-")
	if err != nil {
		return err
	}
	for _, c := range []struct {
		what string
		args []string
	}{
		{"start, `version --client`", []string{"version", "--client"}},
		{"start, `help`", []string{"help"}},
		{"start, `server start --help`, which r hands over", []string{"server", "start", "--help"}},
	} {
		var p pair
		err := b.turns(ctx, 15, func(side int) (figures, error) {
			ms, err := b.startTime(ctx, home, side, c.args)
			return figures{ms}, err
		}, &p)
		if err != nil {
			return err
		}
		b.report.compare(c.what, "ms", "runtime", &p, 0, 0)
	}
	var size pair
	var mib [2]float64
	for side := range mib {
		st, err := os.Stat(b.program(side))
		if err != nil {
			return err
		}
		mib[side] = float64(st.Size()) / (1 << 20)
	}
	size.add(mib[0], mib[1])
	b.report.compare("size of the program", "MiB", "runtime", &size, 0, clientSizeGoal)
	return nil
}

// clientSizeGoal is the largest size of r relative to runtime.
const clientSizeGoal = 0.4

func (b *bench) program(side int) string {
	return filepath.Join(b.opt.bin, [2]string{"r", "runtime"}[side])
}

// startTime returns the median time from the start of a program to its end, in
// ms.
func (b *bench) startTime(ctx context.Context, home string, side int, args []string) (float64, error) {
	var all latencies
	for range cliStarts {
		cmd := exec.CommandContext(ctx, b.program(side), args...)
		cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
		began := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("%s %v: %w: %s", b.program(side), args, err, out)
		}
		all = append(all, time.Since(began))
	}
	return all.ms(50), nil
}
