// Package version has `r version`.
package version

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/version"
)

// callTimeout bounds the wait for a server.
const callTimeout = 3 * time.Second

type options struct {
	*command.Env
	client bool
}

// New makes the command.
func New(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this program and of the server",
		Args:  command.Args(0, 0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&o.client, "client", false, "show only the version of this program")
	return cmd
}

func (o *options) run(ctx context.Context) error {
	v := version.Get()
	var sv *server.VersionResponse
	if !o.client {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		if c, err := o.Connect(ctx); err == nil {
			sv, _ = server.NewServerClient(c).Version(ctx) // without an answer only the client is shown
		}
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"client": v, "server": sv})
	}
	o.Printf("client  %s %s\n", v.Version, o.Paint(console.Dim, "("+v.Commit+", "+v.Date+", "+v.Go+" "+v.Arch+")"))
	if sv != nil {
		o.Printf("server  %s %s\n", sv.Version, o.Paint(console.Dim, "("+sv.Commit+", "+sv.Date+", instance "+sv.Instance+")"))
	} else if !o.client {
		o.Notef("no server answers\n")
	}
	return nil
}
