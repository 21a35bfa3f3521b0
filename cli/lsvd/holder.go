package lsvd

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/process"
	"miren.dev/runtime/lsvd/frontend/holder"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/servers/disks"
)

// How often the holder checks that the daemon runs, and how long it waits after
// an attempt to start one.
const (
	checkInterval = 200 * time.Millisecond
	restartPause  = 3 * time.Second
)

type holderOptions struct {
	base
	dir string
}

func newHolder(e *command.Env) *cobra.Command {
	o := &holderOptions{base: newBase(e)}
	cmd := &cobra.Command{
		Use:   "holder",
		Short: "Keep block devices while no disk daemon serves them",
		Long: `Keeps the connections of attached block devices while no disk daemon runs, and starts another daemon if one was killed.
The daemon starts the holder, which exits when it has no connections.`,
		Hidden: true,
		Args:   command.Args(0, 0),
		RunE:   func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&o.dir, "dir", "", "directory of its socket")
	return cmd
}

func (o *holderOptions) run(ctx context.Context) error {
	if o.dir == "" {
		return exit.Usagef("--dir is missing")
	}
	logger := slog.New(slog.NewTextHandler(process.BoundedLog(os.Stderr), nil))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.watch(ctx, logger)
	}()
	err := holder.Run(ctx, holder.Socket(o.dir), holder.Options{Logger: logger})
	cancel()
	<-done
	return err
}

// watch starts a daemon when none runs and the holder has connections for it.
func (o *holderOptions) watch(ctx context.Context, logger *slog.Logger) {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	var last time.Time
	record := disks.Record(filepath.Clean(o.dir))
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if time.Since(last) < restartPause {
			continue
		}
		// A daemon that was stopped has removed its record; the devices wait for
		// the next one on purpose.
		if !killed(record) || !o.holds(ctx) {
			continue
		}
		last = time.Now()
		logger.Warn("the disk daemon was killed; starting another")
		c, err := o.daemon(ctx)
		if err != nil {
			logger.Error("the disk daemon could not be started", "error", err)
			continue
		}
		c.Close()
	}
}

// killed reports that the daemon has ended without removing its record.
func killed(record string) bool {
	if _, err := os.Stat(record); err != nil {
		return false
	}
	p, err := proc.Find(record)
	return err == nil && p == nil
}

// holds reports whether the holder has connections.
func (o *holderOptions) holds(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := holder.Dial(ctx, holder.Socket(o.dir))
	if err != nil {
		return false
	}
	defer c.Close()
	list, err := c.List(ctx)
	return err == nil && len(list) > 0
}

// daemonPath returns the program to start as daemon: this one, or the one that
// has replaced it at its path.
func daemonPath() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", errs.New(errs.Internal, "find this program: %w", err)
	}
	const deleted = " (deleted)"
	if n := len(exe) - len(deleted); n > 0 && exe[n:] == deleted {
		exe = exe[:n]
	}
	return exe, nil
}
