// Package cli is the command line, `runtime` or `r`: it puts the commands of
// the folders below together, runs one, and turns its error into an exit code.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
)

// Main runs the command that args (without the program's name) ask for and
// returns the exit code.
func Main(args []string, c *console.Console) (code int) {
	// --json decides how an error looks, also that of another flag.
	for _, a := range args {
		if a == "--" {
			break
		}
		c.JSON = c.JSON || a == "--json" || a == "--json=true"
	}
	defer func() {
		if p := recover(); p != nil {
			exit.Print(c, internal(p, debug.Stack()))
			code = exit.Failed
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The second signal ends the process, whatever it is doing.
	defer context.AfterFunc(ctx, stop)()
	return run(ctx, args, c)
}

func run(ctx context.Context, args []string, c *console.Console) int {
	env := command.New(c)
	defer env.Close()
	root := Root(env)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if errors.Is(err, pflag.ErrHelp) {
		return exit.OK
	}
	code := exit.Code(err)
	if code == exit.Interrupted && ctx.Err() != nil && !exit.Silent(err) {
		c.Notef("interrupted\n")
		return code
	}
	exit.Print(c, err)
	return code
}

func internal(p any, stack []byte) error {
	err := errs.New(errs.Internal, "the command failed by a mistake of its own: %v", p)
	if os.Getenv("RUNTIME_DEBUG") != "" {
		return err.WithHint("please report it:\n%s", stack)
	}
	return err.WithHint("please report it; RUNTIME_DEBUG=1 shows where it happened")
}

// Root returns the whole tree of commands.
func Root(env *command.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "r",
		Short: "Run apps and sandboxes in gVisor",
		Long: `r deploys apps from source and runs sandboxes, each in a gVisor kernel of its own.

Start a server with ` + "`r server start`" + `, then ` + "`r deploy`" + ` in the folder of an app.`,
		RunE:          command.RunGroup,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	root.SetFlagErrorFunc(command.FlagError)
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().SortFlags = false
	env.AddFlags(root.PersistentFlags())
	root.AddCommand(commands(env)...)
	root.InitDefaultHelpCmd()
	complete(root)
	return root
}

// complete makes every command refuse what it does not take.
func complete(cmd *cobra.Command) {
	if cmd.Args == nil {
		if cmd.HasSubCommands() {
			cmd.Args = cobra.ArbitraryArgs // RunGroup looks at them
		} else if cmd.Name() != "help" {
			panic(fmt.Sprintf("%s does not say which arguments it takes", cmd.CommandPath()))
		}
	}
	for _, c := range cmd.Commands() {
		complete(c)
	}
}
