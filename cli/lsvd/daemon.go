package lsvd

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/process"
	"miren.dev/runtime/lsvd/attach"
	"miren.dev/runtime/lsvd/holder"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/servers/disks"
)

type daemonOptions struct {
	base
	stop, status bool
	restart      bool
	leave        bool
	metrics      string
	drain        time.Duration
	logLevel     string
	diskCache    command.Bytes
	noDiskCache  bool
}

func newDaemon(e *command.Env) *cobra.Command {
	o := &daemonOptions{base: newBase(e), diskCache: 4 << 30}
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Be the disk daemon, or stop it",
		Long: `Is the process that has the attached disks of this machine open, in the foreground until SIGTERM. ` + "`r lsvd attach` and `r lsvd serve`" + ` start it
in the background when it does not run. When it starts, it opens again what was attached, also after it was killed.

When it stops it sends what is unsent and closes the disks; what the store does not take in time (--drain-timeout) is kept in the logs.`,
		Args: command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&o.stop, "stop", false, "stop the running daemon; it returns when that has ended")
	cmd.Flags().BoolVar(&o.leave, "leave", false, "with --stop: although block devices are attached; what uses them waits for the next daemon, half a minute at most")
	cmd.Flags().BoolVar(&o.restart, "restart", false, "replace the running daemon by a new one, as for an upgrade; block devices pause meanwhile")
	cmd.Flags().BoolVar(&o.status, "status", false, "say how the running daemon is")
	cmd.Flags().StringVar(&o.metrics, "metrics", "", "address to serve /metrics at by HTTP as well, as 127.0.0.1:9109")
	cmd.Flags().DurationVar(&o.drain, "drain-timeout", 30*time.Second, "how long disks may send what is unsent when it stops")
	cmd.Flags().Var(&o.diskCache, "disk-cache", "what all disks together keep of remote stores on the local disk")
	cmd.Flags().BoolVar(&o.noDiskCache, "no-disk-cache", false, "keep nothing of remote stores on the local disk")
	cmd.Flags().StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	cmd.MarkFlagsMutuallyExclusive("stop", "restart", "status")
	cmd.MarkFlagsMutuallyExclusive("disk-cache", "no-disk-cache")
	return cmd
}

func (o *daemonOptions) run(ctx context.Context) error {
	switch {
	case o.stop:
		return o.end(ctx)
	case o.restart:
		return o.replace(ctx)
	case o.status:
		return o.say(ctx)
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return errs.New(errs.InvalidArgument, "--log-level %q is none of debug, info, warn and error", o.logLevel)
	}
	in, err := o.instance()
	if err != nil {
		return err
	}
	if c, err := o.connect(ctx); err == nil {
		c.Close()
		return errs.New(errs.FailedPrecondition, "another disk daemon runs for %s", in.StateDir).WithHint("use it; `r lsvd daemon --restart` replaces it, --stop ends it")
	}
	if o.noDiskCache {
		o.diskCache = 0
	}
	logger := slog.New(slog.NewTextHandler(process.BoundedLog(os.Stderr), &slog.HandlerOptions{Level: level}))
	if err := attach.Prepare(logger); err != nil {
		return err
	}
	exe, err := daemonPath()
	if err != nil {
		return err
	}
	dir := in.Socket("lsvd")
	return disks.Run(ctx, disks.Config{StateDir: in.State("lsvd"), RunDir: dir, Metrics: o.metrics, Logger: logger, CloseTimeout: o.drain, DiskCacheBytes: int64(o.diskCache),
		Holder: holder.Spec{Path: exe, Dir: dir, Args: []string{"lsvd", "holder", "--dir", dir, "--state-dir", in.StateDir, "--run-dir", filepath.Dir(in.RunDir)}}})
}

// procs is the least GOMAXPROCS of a process that serves disks: its
// goroutines wait in system calls, and with few processors they wait for each
// other (docs/lsvd.md).
const procs = 8

func (o *daemonOptions) end(ctx context.Context) error {
	c, err := o.connect(ctx)
	if errs.Is(err, errs.NotFound) {
		if o.JSON {
			return o.PrintJSON(map[string]any{"running": false})
		}
		o.Notef("%v\n", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	if err := o.await(ctx, c, o.leave); err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"running": false, "stopped": true})
	}
	o.Printf("%s the disk daemon has stopped; the next one opens its disks again\n", o.Paint(console.Green, "✓"))
	return nil
}

// lostAnswer is how long to wait for the end of a daemon whose answer to that
// it shall end did not arrive.
const lostAnswer = 5 * time.Second

// await stops the daemon and waits until it has ended.
func (o *daemonOptions) await(ctx context.Context, c *client, leave bool) error {
	in, err := o.instance()
	if err != nil {
		return err
	}
	p, err := proc.Find(disks.Record(in.Socket("lsvd")))
	if err != nil {
		return err
	}
	err = c.Stop(ctx, &api.StopRequest{Leave: leave})
	if p == nil || err != nil && !errs.Is(err, errs.Unavailable) {
		return err
	}
	var lost <-chan time.Time
	if err != nil { // it may have ended before its answer was sent
		t := time.NewTimer(lostAnswer)
		defer t.Stop()
		lost = t.C
	}
	select {
	case <-p.Done():
		return nil
	case <-lost:
		return err
	case <-ctx.Done():
		return errs.New(errs.Canceled, "the disk daemon (pid %d) goes on to close its disks", p.PID())
	}
}

// replace lets a new daemon follow the one that runs.
func (o *daemonOptions) replace(ctx context.Context) error {
	c, err := o.connect(ctx)
	if err != nil {
		return err
	}
	err = o.await(ctx, c, true)
	c.Close()
	if err != nil {
		return err
	}
	if c, err = o.daemon(ctx); err != nil {
		return err
	}
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(st)
	}
	o.Printf("%s disk daemon %s runs (pid %d) and opens %d disks again\n", o.Paint(console.Green, "✓"), st.Version, st.PID, st.Disks)
	return nil
}

func (o *daemonOptions) say(ctx context.Context) error {
	c, err := o.connect(ctx)
	if err != nil {
		var e *errs.Error
		if errs.Is(err, errs.NotFound) && asError(err, &e) {
			return e.WithHint("`r lsvd attach` and `r lsvd serve` start it, and so does `r lsvd daemon`")
		}
		return err
	}
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(st)
	}
	rows := [][]string{{"version", st.Version}, {"pid", itoa(st.PID)}, {"since", st.StartedAt.UTC().Format(time.RFC3339)}, {"state", st.StateDir}, {"disks", itoa(st.Disks)}}
	for _, m := range st.Metrics {
		rows = append(rows, []string{"metrics", m})
	}
	o.pairs(rows)
	return nil
}
