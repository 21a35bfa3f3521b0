package execution

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
)

type executeOptions struct {
	submitOptions
	ephemeral bool
	detach    bool
}

// NewExecute makes `r session execute`.
func NewExecute(e *command.Env) *cobra.Command {
	o := &executeOptions{submitOptions: submitOptions{Env: e, attempts: execution.DefaultAttempts, delay: execution.DefaultRetryDelay}}
	cmd := &cobra.Command{
		Use:   "execute [-l LANGUAGE] SESSION FILE|CODE [ARGS...] | SESSION -- COMMAND [ARGS...]",
		Short: "Execute a program or a command in a session",
		Long: `Submits a program, as for r run, or after -- a command, which the server runs to its end in a session. It prints the
output and returns the exit code of the program, or with --detach prints the id of the execution and returns. With
--ephemeral there is no SESSION: a new one executes it and ends.`,
		Example: "  r session execute -l python sb-4k2j 'print(6*7)'\n  r session execute sb-4k2j -- make test\n" +
			"  r session execute --ephemeral --memory 1GiB train.py",
		Args:              command.Args(1, -1, "SESSION"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args, cmd.ArgsLenAtDash() == 0)
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows the program are its arguments
	o.addFlags(cmd)
	cmd.Flags().BoolVar(&o.ephemeral, "ephemeral", false, "in a new session, which ends with it")
	cmd.Flags().BoolVar(&o.detach, "detach", false, "print the id of the execution instead of its output")
	return cmd
}

func (o *executeOptions) run(ctx context.Context, args []string, isCommand bool) error {
	o.wait = !o.detach
	if !o.ephemeral {
		name := args[0]
		if args = args[1:]; len(args) > 0 && args[0] == "--" {
			args, isCommand = args[1:], true
		}
		if len(args) == 0 {
			return exit.Usagef("give what session %s executes: FILE, --language and CODE, or -- COMMAND", name)
		}
		s, err := command.Find[sandbox.Sandbox](ctx, o.Env, name)
		if err != nil {
			return err
		}
		o.sandbox = string(s.ID)
	}
	req, err := o.request(args, isCommand)
	if err != nil {
		return err
	}
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	return o.submit(ctx, c, req)
}
