// Package cli is the command line of the programs r and runtime: it registers
// the commands of the folders below (commands.go), runs one, and turns its error
// into an exit code.
//
// The program r is a client for every platform and links this package alone.
// The program runtime also links package machine, which has the commands that
// need the machine of a server; r hands these over (package handover).
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"miren.dev/runtime/cli/cluster"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/handover"
	"miren.dev/runtime/cli/mcpsandboxd"
	"miren.dev/runtime/cli/sandboxrun"
	"miren.dev/runtime/pkg/errs"
)

// Args returns the arguments of Main for those of the process: a program with the
// name of `sandbox-run` or `mcp-sandboxd` is that command.
func Args(argv []string) []string {
	name := strings.TrimSuffix(filepath.Base(argv[0]), ".exe")
	if name == sandboxrun.Name || name == mcpsandboxd.Name {
		return append([]string{name}, argv[1:]...)
	}
	return argv[1:]
}

// Main runs the command that args (without the program's name) request and
// returns the exit code. m has the commands that need the machine of a server;
// nil hands these over to the program runtime.
func Main(args []string, c *console.Console, m Machine) (code int) {
	// --json decides how every error is printed, even an error of another flag.
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
	env := command.New(c)
	defer env.Close()
	root := Root(env, m)
	if m == nil {
		if code, done := handOver(root, args, c); done {
			return code
		}
	}
	// After handOver, since a program that replaces this one handles its own
	// signals.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The second signal ends the process, whatever it is doing.
	defer context.AfterFunc(ctx, stop)()
	return run(ctx, root, args, c)
}

func run(ctx context.Context, root *cobra.Command, args []string, c *console.Console) int {
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

// handOver runs the program runtime if args request a command that needs the
// machine, help on such a command, or a completion of one. It reports whether
// it handled the command.
func handOver(root *cobra.Command, args []string, c *console.Console) (code int, done bool) {
	cmd, completing := asked(root, args)
	if !NeedsMachine(cmd) {
		return 0, false
	}
	path, err := handover.Find()
	if err != nil {
		if completing || cmd.Run == nil { // no suggestions; or the client has the command, with less
			return 0, false
		}
		err = handover.Missing(cmd.CommandPath(), err)
	} else if code, err = handover.Run(path, args); err == nil {
		return code, true
	}
	exit.Print(c, err)
	return exit.Code(err), true
}

// asked returns the command that args request, nil if there is none.
func asked(root *cobra.Command, args []string) (cmd *cobra.Command, completing bool) {
	if len(args) > 1 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd) {
		args, completing = args[1:len(args)-1], true // without the word to complete
	}
	cmd, rest, err := root.Find(args)
	if err == nil && cmd.Name() == "help" && cmd.Parent() == root {
		cmd, _, err = root.Find(rest)
	}
	if err != nil {
		return nil, completing
	}
	return cmd, completing
}

func internal(p any, stack []byte) error {
	err := errs.New(errs.Internal, "the command failed because of a defect in it: %v", p)
	if os.Getenv("RUNTIME_DEBUG") != "" {
		return err.WithHint("please report it:\n%s", stack)
	}
	return err.WithHint("please report it; with RUNTIME_DEBUG=1 the command prints where it happened")
}

// Groups of commands in the help.
const (
	groupApps      = "apps"
	groupSandboxes = "sandboxes"
	groupProject   = "project"
	groupServer    = "server"
	groupTools     = "tools"
)

// Root returns the whole tree of commands.
func Root(env *command.Env, m Machine) *cobra.Command {
	root := &cobra.Command{
		Use:   "r",
		Short: "Run apps and sandboxes in gVisor",
		Long: `r deploys apps from source and runs sandboxes, each in a gVisor kernel of its own.

Start a server with ` + "`r server start`, or name a remote one with `r cluster add`; then `r deploy`" + ` in the folder of an app.`,
		RunE:              command.RunGroup,
		PersistentPreRunE: command.CheckFlagGroups,
		SilenceErrors:     true,
		SilenceUsage:      true,
	}
	root.AddGroup(&cobra.Group{ID: groupApps, Title: "Apps:"}, &cobra.Group{ID: groupSandboxes, Title: "Sandboxes:"},
		&cobra.Group{ID: groupProject, Title: "Projects, access and records:"}, &cobra.Group{ID: groupServer, Title: "Servers and machines:"},
		&cobra.Group{ID: groupTools, Title: "Tools:"})
	root.SetHelpCommandGroupID(groupTools)
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	root.SetFlagErrorFunc(command.FlagError)
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().SortFlags = false
	env.AddFlags(root.PersistentFlags())
	addCommands(root, env, m)
	command.FilterLists(env, root)
	root.InitDefaultHelpCmd()
	_ = root.RegisterFlagCompletionFunc("cluster", cluster.CompleteNames) // fails only for flags that do not exist
	requireArgs(root)
	return root
}

// requireArgs makes sure that every command refuses arguments that it does not take.
func requireArgs(cmd *cobra.Command) {
	if cmd.Args == nil {
		if cmd.HasSubCommands() {
			cmd.Args = cobra.ArbitraryArgs // RunGroup checks them
		} else if cmd.Name() != "help" {
			panic(fmt.Sprintf("%s does not say which arguments it takes", cmd.CommandPath()))
		}
	}
	for _, c := range cmd.Commands() {
		requireArgs(c)
	}
}
