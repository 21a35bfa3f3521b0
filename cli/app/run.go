package app

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/attach"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
)

type runOptions struct {
	appOptions
	service string
	exec    command.ExecFlags
	memory  command.Bytes
	cpu     command.CPU
}

func newRun(e *command.Env) *cobra.Command {
	o := &runOptions{appOptions: appOptions{Env: e}}
	cmd := &cobra.Command{
		Use:   "run -- COMMAND...",
		Short: "Run a command in a new sandbox with the app's image, environment and secrets",
		Long: `Runs a command once in a sandbox of its own, with the image, environment and secrets of the version that serves, returns
its exit code, and deletes the sandbox. What is run again and again is a task (` + "`r task`" + `); what looks into a running process
is ` + "`r app exec`" + `.`,
		Example: "  r app run -- bin/migrate --status\n  r app run -a shop -t -- python manage.py shell",
		Args:    command.Args(1, -1, "COMMAND"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	o.addApp(cmd)
	f := cmd.Flags()
	f.StringVarP(&o.service, "service", "s", "", "service whose limits and variables it has; default web")
	f.Var(&o.memory, "memory", "memory limit: 512MB, 2GiB")
	f.Var(&o.cpu, "cpu", "CPU limit: 0.5, 2, 500m")
	o.exec.AddFlags(cmd)
	return cmd
}

func (o *runOptions) run(ctx context.Context, argv []string) error {
	name, err := command.AppArg(nil, o.app)
	if err != nil {
		return err
	}
	env, err := o.exec.Environment()
	if err != nil {
		return err
	}
	req := sandbox.RunRequest{
		Project: o.Project(), App: name, Service: o.service, Command: argv, Workdir: o.exec.Workdir, User: o.exec.User, Env: env,
		MemoryBytes: o.memory.Ptr(), CPUMillis: o.cpu.Ptr(),
	}
	if err := req.Validate(); err != nil {
		return exit.With(exit.Usage, err)
	}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	stdin := !o.exec.NoStdin
	once := &sandbox.RunOnceRequest{Sandbox: req, TTY: &o.exec.TTY, Stdin: &stdin}
	code, err := attach.RunOnce(ctx, o.Console, sandbox.NewSandboxesClient(c), once, nil)
	return attach.Code(code, err)
}
