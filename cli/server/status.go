package server

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/schema"
)

// Status is what the server says of itself.
type Status = server.StatusResponse

// askTimeout bounds one question to the server.
const askTimeout = 10 * time.Second

// status asks the server how it is, over a connection of its own: the server
// may have been another one a moment ago.
func status(ctx context.Context, e *command.Env) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return server.NewServerClient(c).Status(ctx)
}

// askStop asks the server to end.
func askStop(ctx context.Context, e *command.Env) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, err := e.Connect(ctx)
	if err != nil {
		return err
	}
	defer e.Close()
	// What the server leaves running is torn down here, so that it works the
	// same when the server is dead.
	return server.NewServerClient(c).Stop(ctx, &server.StopRequest{KeepRunning: true})
}

func itoa(n int) string { return strconv.Itoa(n) }

// portOf is ":8080" of an address, empty for the default port of HTTP.
func portOf(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil || port == "80" {
		return ""
	}
	return ":" + port
}

type statusOptions struct{ *command.Env }

func newStatus(e *command.Env) *cobra.Command {
	o := &statusOptions{Env: e}
	return &cobra.Command{
		Use:   "status",
		Short: "Show health, process, version and memory of every part",
		Long:  "Shows health, process, version and memory of every part of the server. Exit code 1 if something does not work.",
		Args:  command.Args(0, 0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
}

func (o *statusOptions) run(ctx context.Context) error {
	st, err := status(ctx, o.Env)
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

func (o *statusOptions) print(st *Status) {
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
	for _, a := range st.IngressAddresses {
		line("ingress", a)
	}
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
		o.Printf("%s\n", o.Paint(console.Dim, "together "+schema.CellBytes(total)))
	}
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
