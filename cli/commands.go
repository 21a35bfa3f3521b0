package cli

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/addon"
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
	"miren.dev/runtime/cli/man"
	"miren.dev/runtime/cli/mcp"
	"miren.dev/runtime/cli/mcpsandboxd"
	"miren.dev/runtime/cli/node"
	"miren.dev/runtime/cli/openapi"
	"miren.dev/runtime/cli/policy"
	"miren.dev/runtime/cli/pool"
	"miren.dev/runtime/cli/preview"
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
	// group is the group of the help in which a command of one word is.
	group string
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
	{path: "app", group: groupApps, make: app.New},
	{path: "deploy", group: groupApps, make: app.NewDeploy},
	{path: "logs", group: groupApps, make: app.NewLogs},
	{path: "status", group: groupApps, make: app.NewStatus},
	{path: "open", group: groupApps, make: app.NewOpen},
	{path: "console", group: groupApps, make: app.NewConsole},
	{path: "env", group: groupApps, make: app.NewEnv},
	{path: "scale", group: groupApps, make: app.NewScale},
	{path: "task", group: groupApps, make: task.New},
	{path: "addon", group: groupApps, make: addon.New},
	{path: "run", group: groupSandboxes, make: runcode.New},
	{path: "sandbox-run", group: groupSandboxes, make: sandboxrun.New},
	{path: "execution", group: groupSandboxes, make: execution.New},
	{path: "sandbox", group: groupSandboxes, make: sandbox.New},
	{path: "session", group: groupSandboxes, make: session.New},
	{path: "ssh", group: groupSandboxes, make: ssh.New},
	{path: "ssh-config", group: groupSandboxes, make: ssh.NewConfig},
	{path: "snapshot", group: groupSandboxes, make: sandbox.NewSnapshots},
	{path: "preview", group: groupApps, make: preview.New},
	{path: "secret", group: groupProject, make: secret.New},
	{path: "quota", group: groupProject, make: quota.New},
	{path: "policy", group: groupProject, make: policy.New},
	{path: "mcp", group: groupSandboxes, make: mcp.New},
	{path: "mcp-sandboxd", group: groupSandboxes, make: mcpsandboxd.New},
	{path: "template", group: groupSandboxes, make: template.New},
	{path: "pool", group: groupSandboxes, make: pool.New},
	{path: "route", group: groupApps, make: route.New},
	{path: "certificate", group: groupApps, make: certificate.New},
	{path: "build", group: groupApps, make: build.New},
	{path: "node", group: groupServer, make: node.New},
	{path: "top", group: groupServer, make: top.New},
	{path: "disk", group: groupProject, make: disk.New},
	{path: "entity", group: groupServer, make: entity.New},
	{path: "config", group: groupServer, make: config.New},
	{path: "auth", group: groupProject, make: auth.New},
	{path: "user", group: groupProject, make: user.New},
	{path: "key", group: groupProject, make: key.New},
	{path: "webhook", group: groupProject, make: webhook.New},
	{path: "event", group: groupProject, make: event.New},
	{path: "audit", group: groupProject, make: audit.New},
	{path: "openapi", group: groupTools, make: openapi.New},
	{path: "debug", group: groupServer, make: debug.New},
	{path: "debug bundle", machine: true, help: "Write an archive with the state of the server, for the diagnosis of a fault"},
	{path: "dev", group: groupTools, make: dev.New},
	{path: "dev mock", machine: true, help: "Run a mock server of the HTTP API, which executes nothing"},
	{path: "cluster", group: groupServer, make: cluster.New},
	{path: "version", group: groupTools, make: version.New},
	{path: "completion", group: groupTools, make: completion.New},
	{path: "man", group: groupTools, make: man.New},

	{path: "server", group: groupServer, make: server.New},
	{path: "server start", machine: true, help: "Start the server of this machine, with everything that it needs"},
	{path: "server stop", machine: true, help: "Stop the server of this machine, and everything that it runs"},
	{path: "server move-store", machine: true, help: "Copy the entities of the stopped server to another store"},
	{path: "server refresh-images", machine: true, help: "Make base images again that have packages with newer versions"},
	{path: "server export-images", machine: true, help: "Write the base images of this machine to a file"},
	{path: "server import-images", machine: true, help: "Take the base images of a file"},
	{path: "server install", machine: true, help: "Make the server of this machine a service of systemd"},
	{path: "server upgrade", machine: true, help: "Make this program the server of this machine, while apps go on"},
	{path: "server uninstall", machine: true, help: "Remove the service of systemd"},
	{path: "server backup", machine: true, help: "Save the stopped server in a file"},
	{path: "server restore", machine: true, help: "Restore a server from a backup"},
	{path: "server run", machine: true, help: "Run the server in the foreground", hidden: true},
	{path: "runner", group: groupServer, make: runner.New},
	{path: "runner start", machine: true, help: "Run this machine as a runner of a server"},
	{path: "runner stop", machine: true, help: "End what this machine runs as a runner"},
	{path: "ingress", group: groupServer, machine: true, help: "The HTTP data plane", hidden: true},
	{path: "lsvd", group: groupServer, machine: true, help: "Log-structured virtual disks"},
	{path: "doctor", group: groupServer, machine: true, make: doctor.New},
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
		cmd.GroupID = e.group
		if i := strings.LastIndexByte(e.path, ' '); i > 0 {
			var rest []string
			var err error
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
