package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
)

type startOptions struct {
	*command.Env
	config     command.Config
	foreground bool
	timeout    time.Duration
}

func newStart(e *command.Env) *cobra.Command {
	o := &startOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Start the server, and everything that it needs",
		Long: `Starts the server in the background with its PostgreSQL, containerd, BuildKit and ingress, and returns when it
is ready. What runs already is adopted: apps notice nothing. Needs root.

Every key of the configuration is a flag; ` + "`r config generate`" + ` explains them.`,
		Example: "  r server start\n  r server start --ingress-http-address 0.0.0.0:80 --rpc-address 0.0.0.0:7443",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&o.foreground, "foreground", false, "stay, and be the server")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long it may take to become ready")
	o.config.AddFlags(cmd)
	return cmd
}

func (o *startOptions) run(ctx context.Context) error {
	cfg, err := o.config.Load()
	if err != nil {
		return err
	}
	if o.foreground {
		return serve(ctx, cfg)
	}
	connectTo(o.Env, cfg)
	if os.Geteuid() != 0 {
		return errs.New(errs.PermissionDenied, "the server must run as root").WithHint("sudo r server start")
	}
	in, err := instance.Open(cfg.StateDir, cfg.RunDir)
	if err != nil {
		return err
	}
	if _, err := status(ctx, o.Env); err == nil {
		o.Notef("a server is running already for %s\n", cfg.StateDir)
		st, err := o.awaitParts(ctx)
		if err != nil {
			return err
		}
		return o.ready(cfg, st, true)
	}
	args, err := o.config.Args()
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return errs.New(errs.Internal, "find this program: %w", err)
	}
	began := fileSize(logFile(in))
	progress := o.progress(logFile(in), began)
	p, err := proc.Ensure(ctx, proc.Spec{
		Name: "the server", Path: exe, Args: append([]string{"server", "run"}, args...),
		LogFile: logFile(in), RecordFile: recordFile(in), ReadyTimeout: o.timeout,
		Ready: func(ctx context.Context) error {
			progress.tick()
			_, err := status(ctx, o.Env)
			return err
		},
	})
	progress.end()
	if err != nil {
		return o.explain(ctx, in, err, began)
	}
	st, err := o.awaitParts(ctx)
	if err != nil {
		return errs.Wrap(err, "the server (pid %d) became ready and does not answer any more", p.PID())
	}
	return o.ready(cfg, st, p.Adopted)
}

// partsTimeout is how long the parts that the server starts last may take.
const partsTimeout = 15 * time.Second

// awaitParts waits until every part works; the server serves before.
func (o *startOptions) awaitParts(ctx context.Context) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, partsTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last *Status
	for {
		st, err := status(ctx, o.Env)
		switch {
		case err == nil && st.Ready:
			return st, nil
		case err == nil:
			last = st
		case ctx.Err() == nil && !errs.Is(err, errs.DeadlineExceeded): // it may just be slow
			return nil, err
		case ctx.Err() != nil && last == nil:
			return nil, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if last == nil {
				return nil, err
			}
			return last, nil
		}
	}
}

// explain says why the server did not start.
func (o *startOptions) explain(ctx context.Context, in *instance.Instance, err error, logFrom int64) error {
	if ctx.Err() != nil {
		return errs.New(errs.Canceled, "interrupted while the server was starting: %w", ctx.Err()).
			WithHint("`r server stop` removes what was begun")
	}
	e := errs.New(errs.ClassOf(err), "the server did not start: %w", errors.Unwrap(err))
	if errors.Unwrap(err) == nil {
		e = errs.New(errs.ClassOf(err), "the server did not start: %w", err)
	}
	if tail := logTail(logFile(in), logFrom, 4<<10); tail != "" {
		return e.WithHint("its log is %s; it ends with:\n%s", logFile(in), tail)
	}
	return e.WithHint("its log is %s; `r doctor` checks the machine", logFile(in))
}

// ready prints where the server is.
func (o *startOptions) ready(cfg *config.Config, st *Status, already bool) error {
	if o.JSON {
		if err := o.PrintJSON(map[string]any{"already_running": already, "state_dir": cfg.StateDir, "status": st}); err != nil {
			return err
		}
		return partsError(cfg, st)
	}
	o.Printf("%s runtime %s runs for %s\n", o.Paint(console.Green, "✓"), st.Version, cfg.StateDir)
	t, err := o.Target()
	if err != nil {
		return err
	}
	o.Printf("  server   %s\n", t.Address)
	if cfg.RPC.Address != "" {
		o.Printf("  network  %s (clients need a certificate: r auth generate)\n", cfg.RPC.Address)
	}
	if a := cfg.Ingress.HTTPAddress; a != "" {
		domain := "localhost"
		if len(cfg.Ingress.LocalDomains) > 0 {
			domain = cfg.Ingress.LocalDomains[0]
		}
		o.Printf("  apps     http://<app>.%s%s\n", domain, portOf(a))
	}
	return partsError(cfg, st)
}

// partsError names the parts that do not work; the server runs all the same.
func partsError(cfg *config.Config, st *Status) error {
	if st.Ready {
		return nil
	}
	var bad, tails []string
	for _, c := range st.Components {
		if c.Health != server.HealthOk {
			bad = append(bad, fmt.Sprintf("%s is %s", c.Name, c.Health))
			if tail := logTail(filepath.Join(cfg.StateDir, "logs", c.Name+".log"), 0, 1<<10); tail != "" {
				tails = append(tails, fmt.Sprintf("the log of %s ends with:\n%s", c.Name, tail))
			}
		}
	}
	return errs.New(errs.FailedPrecondition, "the server runs, but not everything works: %s", strings.Join(bad, ", ")).
		WithHint("%s", strings.Join(append(tails, "`r server status` shows when it does"), "\n"))
}

// progress shows what the server in the background does.
type progress struct {
	c     *console.Console
	live  *console.Live
	log   string
	from  int64
	began time.Time
	last  time.Time
	said  string
	frame int
}

func (o *startOptions) progress(log string, from int64) *progress {
	p := &progress{c: o.Console, live: o.Live(), log: log, from: from, began: time.Now()}
	if o.JSON || o.Quiet {
		p.live = nil
	} else if !o.Terminal {
		o.Notef("starting the server\n")
	}
	return p
}

func (p *progress) tick() {
	now := time.Now()
	if p.live == nil || now.Sub(p.last) < 80*time.Millisecond {
		return
	}
	p.last = now
	msg := lastMessage(p.log, p.from)
	if !p.c.Terminal {
		if msg != "" && msg != p.said {
			p.c.Notef("  %s\n", msg)
		}
		p.said = msg
		return
	}
	p.frame++
	p.live.Draw([]string{fmt.Sprintf("%s starting the server %s  %s", p.c.Paint(console.Cyan, console.Spinner(p.frame)),
		p.c.Paint(console.Dim, fmt.Sprintf("%.1fs", now.Sub(p.began).Seconds())), msg)})
}

func (p *progress) end() {
	if p.live != nil {
		p.live.Draw(nil)
	}
}
