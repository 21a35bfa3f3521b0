package serverctl

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/process"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/servers/server"
)

type runnerOptions struct {
	*command.Env
	config    process.Config
	runner    server.RunnerOptions
	tokenFile string
}

// NewRunnerStart makes `r runner start`.
func NewRunnerStart(e *command.Env) *cobra.Command {
	o := &runnerOptions{Env: e}
	cmd := &cobra.Command{
		Use: "start",
		Long: `Runs this machine as a runner of a server, in the foreground until SIGTERM; sandboxes go on. It dials the server and needs
no address of its own. The first time it joins with --server and a token, which the server makes: r runner token create.
Later it needs neither.`,
		Example: "  r runner start --server runtime.example:7447 --token-file token\n  r runner start --state-dir /var/lib/runner",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.start(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.runner.Token, "token", "", "token to join with; others on this machine can see it here, and not in a file")
	f.StringVar(&o.tokenFile, "token-file", "", "file with the token to join with")
	f.StringVar(&o.runner.Name, "name", "", "name of the node to join as; default: the machine's")
	o.config.AddFlags(cmd)
	return cmd
}

func (o *runnerOptions) start(ctx context.Context) error {
	cfg, err := o.config.Load()
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errs.New(errs.PermissionDenied, "a runner must run as root").WithHint("sudo r runner start")
	}
	if o.tokenFile != "" {
		b, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return errs.New(errs.InvalidArgument, "--token-file: %w", err)
		}
		o.runner.Token = strings.TrimSpace(string(b))
	}
	o.runner.Server = o.Options.Server
	return server.RunRunner(ctx, cfg, o.runner, process.Logger(cfg, os.Stderr))
}

// NewRunnerStop makes `r runner stop`.
func NewRunnerStop(e *command.Env) *cobra.Command {
	o := &runnerOptions{Env: e}
	cmd := &cobra.Command{
		Use: "stop",
		Long: `Ends every sandbox that this machine runs as a runner, and what runs them. The process of r runner start must have ended.
The machine stays a runner: r runner start continues it.`,
		Args: command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.stop(cmd.Context()) },
	}
	o.config.AddFlags(cmd)
	return cmd
}

func (o *runnerOptions) stop(ctx context.Context) error {
	cfg, err := o.config.Load()
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errs.New(errs.PermissionDenied, "only root can stop a runner").WithHint("sudo r runner stop")
	}
	return server.Teardown(ctx, cfg, process.Logger(cfg, os.Stderr))
}
