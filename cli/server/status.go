package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/schema"
)

// CallTimeout bounds one call to a server about itself.
const CallTimeout = 10 * time.Second

// Status returns the status that the server of the command reports.
func Status(ctx context.Context, e *command.Env) (*server.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return server.NewServerClient(c).Status(ctx)
}

type statusOptions struct{ *command.Env }

func newStatus(e *command.Env) *cobra.Command {
	o := &statusOptions{Env: e}
	return &cobra.Command{
		Use:   "status",
		Short: "Show health, process, version and memory of every part",
		Long:  "Shows health, process, version and memory of every part of the server. Exit code 1 if a part does not work.",
		Args:  command.Args(0, 0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
}

func (o *statusOptions) run(ctx context.Context) error {
	st, err := Status(ctx, o.Env)
	if err != nil {
		return err
	}
	if o.JSON {
		err = o.PrintJSON(st)
	} else {
		o.print(st)
	}
	if err == nil && !st.Ready {
		return exit.With(exit.Failed, nil)
	}
	return err
}

func (o *statusOptions) print(st *server.StatusResponse) {
	line := func(name, value string) {
		if value != "" {
			o.Printf("%s %s\n", o.Paint(console.Dim, (name + "          ")[:10]), value)
		}
	}
	health := o.Paint(console.Green, "ready")
	if !st.Ready {
		health = o.Paint(console.Red, "not ready")
	}
	line("server", health+", up "+schema.CellAge(st.StartedAt, time.Now()))
	line("version", st.Version)
	line("instance", st.Instance)
	line("state", st.StateDir)
	line("store", st.Store)
	line("node", st.Node)
	for _, a := range st.RPCAddresses {
		line("rpc", a)
	}
	line("http api", st.APIAddress)
	line("ssh", st.SSHAddress)
	for _, a := range st.IngressAddresses {
		line("ingress", a)
	}
	line("images", refresh(st.BaseImages, time.Now()))
	var rows [][]string
	var total int64
	for _, c := range st.Components {
		memory, pid, age := "", "", ""
		if c.MemoryBytes != nil {
			memory, total = schema.CellBytes(*c.MemoryBytes), total+*c.MemoryBytes
		}
		if c.PID != nil && *c.PID > 0 {
			pid = schema.Cell(*c.PID)
		}
		if c.StartedAt != nil {
			age = schema.CellAge(*c.StartedAt, time.Now())
		}
		rows = append(rows, []string{c.Name, o.health(c.Health), pid, memory, age, c.Version, c.Message})
	}
	if len(rows) > 0 {
		o.Printf("\n")
		o.Table([]string{"PART", "HEALTH", "PID", "MEMORY", "UP", "VERSION", "MESSAGE"}, rows)
	}
	if total > 0 && o.Terminal {
		o.Printf("%s\n", o.Paint(console.Dim, "total "+schema.CellBytes(total)))
	}
}

// refresh describes the refresh of base images in a line; "" if there is none.
func refresh(r *server.ImageRefresh, now time.Time) string {
	if r == nil {
		return ""
	}
	said := "not refreshed yet"
	switch {
	case r.Running:
		said = "being refreshed for " + schema.CellAge(*r.StartedAt, now)
	case r.Error != "":
		said = "refresh failed: " + strings.SplitN(r.Error, "\n", 2)[0]
	case r.SucceededAt != nil:
		said = fmt.Sprintf("refreshed %s ago, %d were outdated", schema.CellAge(*r.SucceededAt, now), len(r.Made))
	}
	if r.NextAt != nil {
		said += ", next at " + r.NextAt.Local().Format(time.DateTime)
	}
	return said
}

func (o *statusOptions) health(h server.Health) string {
	switch h {
	case server.HealthOk:
		return o.Paint(console.Green, string(h))
	case server.HealthFailed:
		return o.Paint(console.Red, string(h))
	}
	return o.Paint(console.Yellow, string(h))
}
