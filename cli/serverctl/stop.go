package serverctl

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/process"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/servers/server"
)

type stopOptions struct {
	*command.Env
	config  process.Config
	keep    bool
	timeout time.Duration
}

// NewStop makes `r server stop`.
func NewStop(e *command.Env) *cobra.Command {
	o := &stopOptions{Env: e}
	cmd := &cobra.Command{
		Use: "stop",
		Long: `Stops the server of this machine and everything of its installation: sandboxes, ingress, BuildKit, containerd and
PostgreSQL. The next start brings the apps back. With --keep-running only the control plane stops and apps keep
answering. It also stops the remaining parts of a server that has died.`,
		Args: command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&o.keep, "keep-running", false, "stop only the control plane; apps keep answering")
	cmd.Flags().DurationVar(&o.timeout, "timeout", stopTimeout, "how long the server may take to stop before it is killed")
	o.config.AddFlags(cmd)
	return cmd
}

func (o *stopOptions) run(ctx context.Context) error {
	cfg, err := process.LastConfig(&o.config)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(cfg.StateDir, "instance-id")); errors.Is(err, os.ErrNotExist) {
		return o.result(cfg, false, "nothing was running: "+cfg.StateDir+" contains no installation")
	}
	if os.Geteuid() != 0 {
		return errs.New(errs.PermissionDenied, "only root can stop the server").WithHint("sudo r server stop")
	}
	connectTo(o.Env, cfg)
	in, err := instance.Open(cfg.StateDir, cfg.RunDir)
	if err != nil {
		return err
	}
	was, err := o.stopServer(ctx, in)
	if err != nil {
		return err
	}
	if !o.keep {
		log := slog.New(slog.NewTextHandler(o.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
		if err := server.Teardown(ctx, cfg, log); err != nil {
			return errs.Wrap(err, "stop the processes of the server")
		}
	}
	what := "stopped everything of " + cfg.StateDir
	switch {
	case o.keep && was:
		what = "stopped the server; apps keep answering"
	case o.keep:
		what = "no server was running"
	}
	return o.result(cfg, was, what)
}

// result prints what was done.
func (o *stopOptions) result(cfg *config.Config, was bool, what string) error {
	if o.JSON {
		return o.PrintJSON(map[string]any{"was_running": was, "kept_running": o.keep, "state_dir": cfg.StateDir})
	}
	if !o.Quiet {
		o.Printf("%s %s\n", o.Paint(console.Green, "✓"), what)
	}
	return nil
}

// stopServer stops the server process and reports whether there was one.
func (o *stopOptions) stopServer(ctx context.Context, in *instance.Instance) (bool, error) {
	p, err := proc.Find(recordFile(in))
	if err != nil && !errs.Is(err, errs.Corrupt) {
		return false, err
	}
	if p != nil && !isServer(p.PID()) {
		p = nil
	}
	asked := requestStop(ctx, o.Env) == nil
	if p == nil {
		if asked {
			return true, o.awaitLock(ctx, in)
		}
		return false, nil
	}
	if asked {
		timer := time.NewTimer(o.timeout)
		defer timer.Stop()
		select {
		case <-p.Done():
		case <-timer.C:
			o.Notef("the server (pid %d) does not stop; killing it\n", p.PID())
		case <-ctx.Done():
			return true, ctx.Err()
		}
		return true, p.Stop(ctx, syscall.SIGKILL, 0)
	}
	return true, p.Stop(ctx, syscall.SIGTERM, o.timeout)
}

// awaitLock waits until a server without a record has ended.
func (o *stopOptions) awaitLock(ctx context.Context, in *instance.Instance) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := in.Lock()
		if err == nil {
			in.Unlock()
			return nil
		}
		if !errs.Is(err, errs.FailedPrecondition) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errs.Wrap(err, "wait for the server to stop")
		}
	}
}

// isServer reports whether a recorded process is a server: the record could be
// a copy from another machine.
func isServer(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return false
	}
	args := strings.Split(string(b), "\x00")
	return len(args) > 2 && args[1] == "server"
}
