package sandbox

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/attach"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/transfer"
)

type runOptions struct {
	*command.Env
	createFlags
	exec   command.ExecFlags
	detach bool
	keep   bool
	wait   time.Duration
	out    []string
}

func newRun(e *command.Env) *cobra.Command {
	o := &runOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND...",
		Short: "Run a command in a new sandbox",
		Long: `Runs a command in a new sandbox, returns its exit code, and deletes the sandbox. Input and output pass through
unchanged. With --detach the command becomes the main process of a sandbox that stays, and r prints its id.`,
		Example: "  r sandbox run --image python -- python3 -c 'print(6*7)'\n  r sandbox run -t --image debian -- bash\n  r sandbox run --app shop --detach --ttl 1h -- ./worker",
		Args:    command.Args(0, -1, "COMMAND"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	o.createFlags.AddFlags(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.detach, "detach", false, "leave it running and print its id")
	f.BoolVar(&o.keep, "keep", false, "keep the sandbox after the command has ended")
	f.DurationVar(&o.wait, "wait", 0, "time in which the sandbox must run, 1s to 1h; default 1m")
	f.StringArrayVarP(&o.out, "out", "o", nil, "files and folders to copy out when the command has ended: PATH, or PATH:DESTINATION")
	o.exec.AddFlags(cmd)
	return cmd
}

func (o *runOptions) request(argv []string) (*sandbox.RunRequest, error) {
	if o.agent != "" {
		o.keep = true
	}
	if !o.detach && len(argv) == 0 {
		return nil, exit.Usagef("no command is given; put it after --, or run the image's own with --detach")
	}
	if o.detach && len(o.out) > 0 {
		return nil, exit.Usagef("--out and --detach exclude each other: `r sandbox cp` copies files out later")
	}
	if o.detach && o.exec.TTY {
		return nil, exit.Usagef("--tty and --detach exclude each other")
	}
	env, err := o.exec.Environment()
	if err != nil {
		return nil, err
	}
	return o.createFlags.request(o.Env, &sandbox.RunRequest{Command: argv, Workdir: o.exec.Workdir, User: o.exec.User, Env: env})
}

func (o *runOptions) run(ctx context.Context, argv []string) error {
	req, err := o.request(argv)
	if err != nil {
		return err
	}
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	if o.detach {
		return o.detached(ctx, c, req)
	}
	stdin := !o.exec.NoStdin
	once := &sandbox.RunOnceRequest{Sandbox: *req, Keep: &o.keep, TTY: &o.exec.TTY, Stdin: &stdin}
	if o.wait > 0 {
		once.StartTimeout = &o.wait
	}
	out := transfer.NewOutputs(o.out)
	once.Outputs = out.Paths
	code, err := attach.RunOnce(ctx, o.Console, c, once, out.Receive)
	return attach.Code(out.Finish(o.Console, code, err))
}

// detached creates a sandbox that stays and prints its id.
func (o *runOptions) detached(ctx context.Context, c sandbox.SandboxesClient, req *sandbox.RunRequest) error {
	s, err := create(ctx, c, req)
	if err != nil {
		return err
	}
	return printCreated(o.Env, s)
}

// printCreated prints a new sandbox: its id for people.
func printCreated(e *command.Env, s *sandbox.Sandbox) error {
	if e.JSON {
		return e.PrintJSON(s)
	}
	e.Printf("%s\n", s.ID)
	return nil
}
