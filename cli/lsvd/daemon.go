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
	"miren.dev/runtime/lsvd/frontend/holder"
	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/servers/disks"
)

type daemonOptions struct {
	base
	stop, status bool
	restart      bool
	force        bool
	metrics      string
	drain        time.Duration
	logLevel     string
	diskCache    command.Bytes
	noDiskCache  bool
	logSpace     command.Bytes
	memory       command.Bytes
}

func newDaemon(e *command.Env) *cobra.Command {
	o := &daemonOptions{base: newBase(e), diskCache: 4 << 30}
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Run or stop the disk daemon",
		Long: `Runs the disk daemon, which has the attached disks of this machine open, in the foreground until SIGTERM. If it does not
run, ` + "`r lsvd attach` and `r lsvd serve`" + ` start it in the background. At its start it reopens the attached disks, also after it was
killed.

When it stops, it sends unsent data and closes the disks. The logs keep data that the store does not take within
--drain-timeout.`,
		Args: command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&o.stop, "stop", false, "stop the running daemon and wait for its end")
	cmd.Flags().BoolVar(&o.force, "force", false, "with --stop: stop it although block devices are attached; their I/O waits for the next daemon, at most 30 s")
	cmd.Flags().BoolVar(&o.restart, "restart", false, "replace the running daemon by a new one, as for an upgrade; I/O of block devices waits meanwhile")
	cmd.Flags().BoolVar(&o.status, "status", false, "show the status of the running daemon")
	cmd.Flags().StringVar(&o.metrics, "metrics", "", "also serve /metrics over HTTP at this address, as 127.0.0.1:9109")
	cmd.Flags().DurationVar(&o.drain, "drain-timeout", 30*time.Second, "how long to wait for unsent data when it stops")
	cmd.Flags().Var(&o.diskCache, "disk-cache", "limit of the local disk cache of remote stores, for all disks together")
	cmd.Flags().BoolVar(&o.noDiskCache, "no-disk-cache", false, "no local disk cache")
	cmd.Flags().Var(&o.logSpace, "log-space", "limit of the local logs of all disks together; each may always have 96 MiB (RUNTIME_LSVD_LOG_SPACE; default 8 GiB)")
	cmd.Flags().Var(&o.memory, "memory", "limit of what all disks together keep in memory to be read again; each may always have 1 MiB (RUNTIME_LSVD_MEMORY; default 1 GiB)")
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
		return errs.New(errs.FailedPrecondition, "another disk daemon runs for %s", in.StateDir).WithHint("use that one; `r lsvd daemon --restart` replaces it, --stop stops it")
	}
	if o.noDiskCache {
		o.diskCache = 0
	}
	if err := fromEnvironment(&o.logSpace, "RUNTIME_LSVD_LOG_SPACE", defaultLogSpace); err != nil {
		return err
	}
	if err := fromEnvironment(&o.memory, "RUNTIME_LSVD_MEMORY", defaultMemory); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(process.BoundedLog(os.Stderr), &slog.HandlerOptions{Level: level}))
	if err := loop.Prepare(logger); err != nil {
		return err
	}
	exe, err := daemonPath()
	if err != nil {
		return err
	}
	dir := in.Socket("lsvd")
	return disks.Run(ctx, disks.Config{StateDir: in.State("lsvd"), RunDir: dir, Metrics: o.metrics, Logger: logger, CloseTimeout: o.drain, DiskCacheBytes: int64(o.diskCache), LogSpaceBytes: int64(o.logSpace), MemoryBytes: int64(o.memory),
		Holder: holder.Spec{Path: exe, Dir: dir, Args: []string{"lsvd", "holder", "--dir", dir, "--state-dir", in.StateDir, "--run-dir", filepath.Dir(in.RunDir)}}})
}

// defaultLogSpace is room for seven disks that have as much unsent as they may
// by default.
const defaultLogSpace = 8 << 30

// defaultMemory is room for ten disks that have as much in memory as they may.
const defaultMemory = 1 << 30

// fromEnvironment sets a limit from the environment if no flag did. So it holds for
// daemons that other commands or the holder start.
func fromEnvironment(limit *command.Bytes, variable string, usual command.Bytes) error {
	if *limit != 0 {
		return nil
	}
	*limit = usual
	v := os.Getenv(variable)
	if v == "" {
		return nil
	}
	return errs.Wrap(limit.Set(v), "%s", variable)
}

// procs is the minimum of GOMAXPROCS for a process that serves disks: its
// goroutines block in system calls, and with few processors delay each other
// (docs/lsvd.md).
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
	if err := o.await(ctx, c, o.force); err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"running": false, "stopped": true})
	}
	o.Printf("%s the disk daemon has stopped; the next one reopens its disks\n", o.Paint(console.Green, "✓"))
	return nil
}

// exitTimeout is how long to wait for the end of a daemon whose answer to the
// call to stop did not arrive.
const exitTimeout = 5 * time.Second

// await stops the daemon and waits for its end.
func (o *daemonOptions) await(ctx context.Context, c *client, force bool) error {
	in, err := o.instance()
	if err != nil {
		return err
	}
	p, err := proc.Find(disks.Record(in.Socket("lsvd")))
	if err != nil {
		return err
	}
	err = c.Stop(ctx, &api.StopRequest{Leave: force})
	if p == nil || err != nil && !errs.Is(err, errs.Unavailable) {
		return err
	}
	var lost <-chan time.Time
	if err != nil { // it may have ended before its answer was sent
		t := time.NewTimer(exitTimeout)
		defer t.Stop()
		lost = t.C
	}
	select {
	case <-p.Done():
		return nil
	case <-lost:
		return err
	case <-ctx.Done():
		return errs.New(errs.Canceled, "interrupted; the disk daemon (pid %d) is still closing its disks", p.PID())
	}
}

// replace stops the running daemon and starts another.
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
	o.Printf("%s disk daemon %s runs (pid %d) and reopens %d disks\n", o.Paint(console.Green, "✓"), st.Version, st.PID, st.Disks)
	return nil
}

func (o *daemonOptions) say(ctx context.Context) error {
	c, err := o.connect(ctx)
	if err != nil {
		var e *errs.Error
		if errs.Is(err, errs.NotFound) && asError(err, &e) {
			return e.WithHint("`r lsvd attach`, `r lsvd serve` and `r lsvd daemon` start it")
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
	if st.LogSpaceBytes != nil && st.LogSpaceUsedBytes != nil {
		rows = append(rows, []string{"log space", bytesCell(*st.LogSpaceUsedBytes) + " of " + bytesCell(*st.LogSpaceBytes)})
	}
	if st.MemoryBytes != nil && st.MemoryUsedBytes != nil {
		rows = append(rows, []string{"memory", bytesCell(*st.MemoryUsedBytes) + " of " + bytesCell(*st.MemoryBytes)})
	}
	for _, m := range st.Metrics {
		rows = append(rows, []string{"metrics", m})
	}
	o.pairs(rows)
	return nil
}
