// Package ingress has `r ingress run`: the HTTP data plane as a separate
// process, which the server starts.
package ingress

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/process"
	"miren.dev/runtime/servers/server"
)

// New makes the commands. Their one-line help is in the table of commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("ingress", "", newRun(e))
}

type runOptions struct {
	*command.Env
	config   process.Config
	node     string
	socket   string
	takeOver string
}

func newRun(e *command.Env) *cobra.Command {
	o := &runOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the ingress in the foreground",
		Long:  "Serves HTTP for the apps of this machine until SIGTERM. The server starts it, and it keeps serving without the server.",
		Args:  command.Args(0, 0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.config.AddFlags(cmd)
	cmd.Flags().StringVar(&o.node, "node", "", "id of the node whose sandboxes get the requests; default the node that this machine's server was last")
	cmd.Flags().StringVar(&o.socket, "socket", "", "admin socket; default ingress.sock in the run directory")
	cmd.Flags().StringVar(&o.takeOver, "take-over", "", "admin socket of a running ingress, whose listening sockets this one takes")
	return cmd
}

func (o *runOptions) run(ctx context.Context) error {
	// Each server that starts asks a replaced ingress to end, and the first SIGTERM has
	// ended ctx. Another one must not end the process, which finishes its requests until
	// the drain time is over. A second SIGINT does.
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGTERM)
	defer signal.Stop(again)
	cfg, err := o.config.Load()
	if err != nil {
		return err
	}
	return server.Ingress(ctx, cfg, id.Node(o.node), o.socket, o.takeOver, process.Logger(cfg, os.Stderr), process.OpenLog)
}
