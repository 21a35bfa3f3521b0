package serverctl

import (
	"bytes"
	"context"
	"encoding/json"
	"os"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/process"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/servers/server"
)

type runOptions struct {
	*command.Env
	config process.Config
}

// NewRun makes `r server run`.
func NewRun(e *command.Env) *cobra.Command {
	o := &runOptions{Env: e}
	cmd := &cobra.Command{
		Use:  "run",
		Long: "Runs the server in the foreground until SIGTERM; apps keep running. For service managers; `r server start` runs it in the background.",
		Args: command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.config.AddFlags(cmd)
	return cmd
}

func (o *runOptions) run(ctx context.Context) error {
	cfg, err := o.config.Load()
	if err != nil {
		return err
	}
	return serve(ctx, cfg)
}

// serve is the server process.
func serve(ctx context.Context, cfg *config.Config) error {
	if os.Geteuid() != 0 {
		return errs.New(errs.PermissionDenied, "the server must run as root").WithHint("sudo r server start")
	}
	in, err := instance.Open(cfg.StateDir, cfg.RunDir)
	if err != nil {
		return err
	}
	// Only the process that has the lock may write these files.
	if err := in.Lock(); err != nil {
		return err
	}
	err = describe(in, cfg)
	in.Unlock()
	if err != nil {
		return err
	}
	return server.Run(ctx, cfg, process.Logger(cfg, os.Stderr))
}

// describe writes the record of this process and its configuration, which
// `r server stop` reads.
func describe(in *instance.Instance, cfg *config.Config) error {
	rec, err := proc.Identify(os.Getpid())
	if err != nil {
		return errs.New(errs.Internal, "identify this process: %w", err)
	}
	if exe, err := os.Executable(); err == nil {
		rec.Path = exe
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return errs.New(errs.Internal, "identify this process: %w", err)
	}
	if err := replace(recordFile(in), 0o644, b); err != nil {
		return err
	}
	var buf bytes.Buffer
	if err := config.Generate(&buf, cfg); err != nil {
		return err
	}
	return replace(process.LastFile(in.StateDir), 0o600, buf.Bytes())
}

// replace writes a file complete or not at all. It does not sync: the file
// describes a running server, and none runs after a crash of the machine.
func replace(path string, mode os.FileMode, b []byte) error {
	if err := atomicfile.Write(path, b, mode, atomicfile.Volatile); err != nil {
		return errs.New(errs.Unavailable, "%w", err)
	}
	return nil
}
