package serverctl

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
	"miren.dev/runtime/cli/process"
	cliserver "miren.dev/runtime/cli/server"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
)

// startTimeout and stopTimeout are how long a server may take by default.
const (
	startTimeout = 5 * time.Minute
	stopTimeout  = time.Minute
)

type startOptions struct {
	*command.Env
	config     process.Config
	foreground bool
	timeout    time.Duration
}

// NewStart makes `r server start`.
func NewStart(e *command.Env) *cobra.Command {
	o := &startOptions{Env: e}
	cmd := &cobra.Command{
		Use: "start",
		Long: `Starts the server in the background with its PostgreSQL, containerd and ingress, and returns when it is ready.
BuildKit follows with the first build. Processes that run already are adopted, without an interruption of apps. Needs root.

Every key of the configuration is a flag; ` + "`r config generate`" + ` explains them.`,
		Example: "  r server start\n  r server start --ingress-http-address 0.0.0.0:80 --rpc-address 0.0.0.0:7443",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&o.foreground, "foreground", false, "run the server in the foreground until SIGTERM")
	cmd.Flags().DurationVar(&o.timeout, "timeout", startTimeout, "how long the server may take to become ready")
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
	if _, err := cliserver.Status(ctx, o.Env); err == nil {
		o.Notef("a server already runs for %s\n", cfg.StateDir)
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
			_, err := cliserver.Status(ctx, o.Env)
			return err
		},
	})
	progress.end()
	if err != nil {
		return o.explain(ctx, in, err, began)
	}
	st, err := o.awaitParts(ctx)
	if err != nil {
		return errs.Wrap(err, "the server (pid %d) became ready and no longer answers", p.PID())
	}
	return o.ready(cfg, st, p.Adopted)
}

// partsTimeout bounds how long the last parts may take to work after the server is ready.
const partsTimeout = 15 * time.Second

// awaitParts waits until every part works; the server answers earlier. It
// returns the last status if some part still does not work after partsTimeout.
func (o *startOptions) awaitParts(ctx context.Context) (*server.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, partsTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last *server.StatusResponse
	for {
		st, err := cliserver.Status(ctx, o.Env)
		switch {
		case err == nil && st.Ready:
			return st, nil
		case err == nil:
			last = st
		case ctx.Err() == nil && !errs.Is(err, errs.DeadlineExceeded): // a slow server is asked again
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

// explain adds the end of the server's log to the reason why it did not start.
func (o *startOptions) explain(ctx context.Context, in *instance.Instance, err error, logFrom int64) error {
	if ctx.Err() != nil {
		return errs.New(errs.Canceled, "interrupted while the server was starting: %w", ctx.Err()).
			WithHint("`r server stop` stops the parts that it has started")
	}
	e := errs.New(errs.ClassOf(err), "the server did not start: %w", errors.Unwrap(err))
	if errors.Unwrap(err) == nil {
		e = errs.New(errs.ClassOf(err), "the server did not start: %w", err)
	}
	if tail := logTail(logFile(in), logFrom, 4<<10); tail != "" {
		return e.WithHint("the log %s ends with:\n%s", logFile(in), tail)
	}
	return e.WithHint("see the log %s; `r doctor` checks the machine", logFile(in))
}

// ready prints the addresses of the server.
func (o *startOptions) ready(cfg *config.Config, st *server.StatusResponse, already bool) error {
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
	if st.APIAddress != "" {
		o.Printf("  http api %s (programs need a key: r key create)\n", st.APIAddress)
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

// partsError returns an error that names the parts that do not work, nil if all do.
func partsError(cfg *config.Config, st *server.StatusResponse) error {
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
	return errs.New(errs.FailedPrecondition, "the server runs, but some parts do not work: %s", strings.Join(bad, ", ")).
		WithHint("%s", strings.Join(append(tails, "`r server status` shows them"), "\n"))
}

// progress shows the newest log message of the server while it starts.
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
