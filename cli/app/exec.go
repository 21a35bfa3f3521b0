package app

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/attach"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
)

type execOptions struct {
	appOptions
	service string
	exec    command.ExecFlags
}

func newExec(e *command.Env) *cobra.Command {
	o := &execOptions{appOptions: appOptions{Env: e}}
	cmd := &cobra.Command{
		Use:     "exec [APP] -- COMMAND...",
		Short:   "Run a command in a sandbox of the app",
		Long:    "Runs a command in a ready sandbox of the app, beside the app's process. Returns the exit code of the command.",
		Example: "  r app exec -t -- sh\n  r app exec -a shop -- env",
		Args: func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); n > 1 {
				return exit.Usagef("%q: give one app, then -- and the command", args[:n])
			}
			return command.Args(1, -1, "COMMAND")(cmd, args)
		},
		ValidArgsFunction: completeApps(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			n := max(0, cmd.ArgsLenAtDash())
			return o.run(cmd.Context(), args[:n], args[n:])
		},
	}
	o.addFlags(cmd)
	return cmd
}

// shell is the command of a console: bash if the image has it, else sh.
const shell = "if command -v bash >/dev/null; then exec bash; fi; exec sh"

// NewConsole makes `r app console`, which is `r console` too.
func NewConsole(e *command.Env) *cobra.Command {
	o := &execOptions{appOptions: appOptions{Env: e}}
	cmd := &cobra.Command{
		Use:   "console [APP]",
		Short: "Open a shell in a sandbox of the app",
		Long: `Opens a shell in a ready sandbox of the app, beside the app's process, with its environment: bash if the image has it, else
sh. Without a terminal it reads commands from standard input. Returns the exit code of the shell.`,
		Example:           "  r console\n  r console shop --service worker\n  echo 'bin/rails db:version' | r console shop",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("tty") {
				o.exec.TTY = e.InTerminal && e.Terminal
			}
			return o.run(cmd.Context(), args, []string{"/bin/sh", "-c", shell})
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (o *execOptions) addFlags(cmd *cobra.Command) {
	o.addApp(cmd)
	cmd.Flags().StringVarP(&o.service, "service", "s", "", "service of the app; default web")
	o.exec.AddFlags(cmd)
}

func (o *execOptions) run(ctx context.Context, app, argv []string) error {
	name, err := command.AppArg(app, o.app)
	if err != nil {
		return err
	}
	if len(argv) == 0 {
		return exit.Usagef("a command is missing after --")
	}
	req, err := o.exec.Request(argv)
	if err != nil {
		return err
	}
	req.Project, req.App, req.Service = o.Project(), name, o.service
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	return attach.Code(attach.Run(ctx, o.Console, sandbox.NewSandboxesClient(c), req))
}
