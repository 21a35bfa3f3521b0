package cli

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/app"
	"miren.dev/runtime/cli/audit"
	"miren.dev/runtime/cli/auth"
	"miren.dev/runtime/cli/build"
	"miren.dev/runtime/cli/certificate"
	"miren.dev/runtime/cli/cluster"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/completion"
	"miren.dev/runtime/cli/config"
	"miren.dev/runtime/cli/debug"
	"miren.dev/runtime/cli/dev"
	"miren.dev/runtime/cli/disk"
	"miren.dev/runtime/cli/doctor"
	"miren.dev/runtime/cli/entity"
	"miren.dev/runtime/cli/event"
	"miren.dev/runtime/cli/execution"
	"miren.dev/runtime/cli/key"
	"miren.dev/runtime/cli/mcp"
	"miren.dev/runtime/cli/mcpsandboxd"
	"miren.dev/runtime/cli/node"
	"miren.dev/runtime/cli/openapi"
	"miren.dev/runtime/cli/policy"
	"miren.dev/runtime/cli/pool"
	"miren.dev/runtime/cli/quota"
	"miren.dev/runtime/cli/route"
	"miren.dev/runtime/cli/runcode"
	"miren.dev/runtime/cli/runner"
	"miren.dev/runtime/cli/sandbox"
	"miren.dev/runtime/cli/sandboxrun"
	"miren.dev/runtime/cli/secret"
	"miren.dev/runtime/cli/server"
	"miren.dev/runtime/cli/session"
	"miren.dev/runtime/cli/ssh"
	"miren.dev/runtime/cli/task"
	"miren.dev/runtime/cli/template"
	"miren.dev/runtime/cli/top"
	"miren.dev/runtime/cli/user"
	"miren.dev/runtime/cli/version"
	"miren.dev/runtime/cli/webhook"
)

// Constructor makes a command, with its subcommands.
type Constructor = func(*command.Env) *cobra.Command

// entry registers a command: a new one needs a line of commands and nothing else.
type entry struct {
	// path is the words after r, such as "app" or "server start". The command above it must have an earlier entry.
	path string
	// make makes the command. nil: only the program runtime has it (Machine).
	make Constructor
	// machine says that the command needs the machine of a server: r hands it
	// over to the program runtime, and runs make, if there is one, without that program.
	machine bool
	// help is the one-line help of a command without make.
	help   string
	hidden bool
}

var commands = []entry{
	{path: "app", make: app.New},
	{path: "deploy", make: app.NewDeploy},
	{path: "logs", make: app.NewLogs},
	{path: "env", make: app.NewEnv},
	{path: "scale", make: app.NewScale},
	{path: "task", make: task.New},
	{path: "run", make: runcode.New},
	{path: "sandbox-run", make: sandboxrun.New},
	{path: "execution", make: execution.New},
	{path: "sandbox", make: sandbox.New},
	{path: "session", make: session.New},
	{path: "ssh", make: ssh.New},
	{path: "ssh-config", make: ssh.NewConfig},
	{path: "snapshot", make: sandbox.NewSnapshots},
	{path: "preview", make: sandbox.NewPreviews},
	{path: "secret", make: secret.New},
	{path: "quota", make: quota.New},
	{path: "policy", make: policy.New},
	{path: "mcp", make: mcp.New},
	{path: "mcp-sandboxd", make: mcpsandboxd.New},
	{path: "template", make: template.New},
	{path: "pool", make: pool.New},
	{path: "route", make: route.New},
	{path: "certificate", make: certificate.New},
	{path: "build", make: build.New},
	{path: "node", make: node.New},
	{path: "top", make: top.New},
	{path: "disk", make: disk.New},
	{path: "entity", make: entity.New},
	{path: "config", make: config.New},
	{path: "auth", make: auth.New},
	{path: "user", make: user.New},
	{path: "key", make: key.New},
	{path: "webhook", make: webhook.New},
	{path: "event", make: event.New},
	{path: "audit", make: audit.New},
	{path: "openapi", make: openapi.New},
	{path: "debug", make: debug.New},
	{path: "debug bundle", machine: true, help: "Write an archive for those who find out what is wrong with the server"},
	{path: "dev", make: dev.New},
	{path: "dev mock", machine: true, help: "Run a mock server of the HTTP API, which executes nothing"},
	{path: "cluster", make: cluster.New},
	{path: "version", make: version.New},
	{path: "completion", make: completion.New},

	{path: "server", make: server.New},
	{path: "server start", machine: true, help: "Start the server of this machine, with everything that it needs"},
	{path: "server stop", machine: true, help: "Stop the server of this machine, and everything that it runs"},
	{path: "server move-store", machine: true, help: "Copy the entities of the stopped server to another store"},
	{path: "server install", machine: true, help: "Make the server of this machine a service of systemd"},
	{path: "server upgrade", machine: true, help: "Make this program the server of this machine, while apps go on"},
	{path: "server uninstall", machine: true, help: "Remove the service of systemd"},
	{path: "server backup", machine: true, help: "Save the stopped server in a file"},
	{path: "server restore", machine: true, help: "Restore a server from a backup"},
	{path: "server run", machine: true, help: "Run the server in the foreground", hidden: true},
	{path: "runner", make: runner.New},
	{path: "runner start", machine: true, help: "Run this machine as a runner of a server"},
	{path: "runner stop", machine: true, help: "End what this machine runs as a runner"},
	{path: "ingress", machine: true, help: "The HTTP data plane", hidden: true},
	{path: "lsvd", machine: true, help: "Log-structured virtual disks"},
	{path: "doctor", machine: true, make: doctor.New},
}

// Machine has the commands that need the machine of a server, by their path in
// the table of commands. Package machine fills it for the program runtime; it
// is nil in r, which hands these commands over.
type Machine map[string]Constructor

// needsMachine marks commands that need the machine of a server.
const needsMachine = "runtime.miren.dev/machine"

// NeedsMachine reports whether a command, or one above it, needs the machine
// of a server.
func NeedsMachine(cmd *cobra.Command) bool {
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd.Annotations[needsMachine] != "" {
			return true
		}
	}
	return false
}

// addCommands adds the commands of the table to root.
func addCommands(root *cobra.Command, env *command.Env, m Machine) {
	for _, e := range commands {
		cmd := e.command(env, m)
		if name := e.path[strings.LastIndexByte(e.path, ' ')+1:]; cmd.Name() != name {
			panic(fmt.Sprintf("the command registered as %q calls itself %q", e.path, cmd.Name()))
		}
		cmd.Hidden = cmd.Hidden || e.hidden
		parent := root
		if cmd.GroupID = groupClient; e.machine {
			cmd.GroupID = groupMachine
		}
		if i := strings.LastIndexByte(e.path, ' '); i > 0 {
			var rest []string
			var err error
			cmd.GroupID = ""
			if parent, rest, err = root.Find(strings.Fields(e.path[:i])); err != nil || len(rest) > 0 {
				panic(fmt.Sprintf("command %q is registered before %q", e.path, e.path[:i]))
			}
		}
		parent.AddCommand(cmd)
	}
	for path := range m {
		if cmd, rest, err := root.Find(strings.Fields(path)); err != nil || len(rest) > 0 || !NeedsMachine(cmd) {
			panic(fmt.Sprintf("command %q is not in the table of commands", path))
		}
	}
}

func (e *entry) command(env *command.Env, m Machine) *cobra.Command {
	build := e.make
	if e.machine && m != nil {
		if build = m[e.path]; build == nil {
			panic(fmt.Sprintf("command %q has no constructor", e.path))
		}
	}
	if build == nil {
		return e.handedOver()
	}
	cmd := build(env)
	if e.help != "" {
		cmd.Short = e.help
	}
	if e.machine {
		annotate(cmd)
	}
	return cmd
}

// handedOver returns a command that stands for one of the program runtime in
// help and completion. The client runs runtime instead of it.
func (e *entry) handedOver() *cobra.Command {
	cmd := &cobra.Command{
		Use: e.path[strings.LastIndexByte(e.path, ' ')+1:], Short: e.help, DisableFlagParsing: true, Args: cobra.ArbitraryArgs,
		Run:               func(*cobra.Command, []string) {},
		ValidArgsFunction: cobra.NoFileCompletions,
		// On other systems there is no program runtime that could run it.
		Hidden: runtime.GOOS != "linux",
	}
	annotate(cmd)
	return cmd
}

func annotate(cmd *cobra.Command) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[needsMachine] = "true"
}
