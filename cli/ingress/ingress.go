// Package ingress has `ingress run`: the HTTP data plane as a process of its
// own, which the server starts.
package ingress

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/servers/server"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	cmd := command.Group("ingress", "The HTTP data plane", newRun(e))
	cmd.Hidden = true
	return cmd
}

type runOptions struct {
	*command.Env
	config command.Config
}

func newRun(e *command.Env) *cobra.Command {
	o := &runOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Be the ingress, in the foreground",
		Long:  "Serves HTTP for the apps of this machine until SIGTERM. The server starts it, and it goes on without the server.",
		Args:  command.Args(0, 0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.config.AddFlags(cmd)
	return cmd
}

func (o *runOptions) run(ctx context.Context) error {
	cfg, err := o.config.Load()
	if err != nil {
		return err
	}
	return server.Ingress(ctx, cfg, command.Logger(cfg, os.Stderr))
}
