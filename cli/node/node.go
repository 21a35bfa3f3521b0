// Package node has `r node`: the machines that run sandboxes.
package node

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("node", "Machines that run sandboxes",
		newList(e),
		newCordon(e, "cordon", "Place no new sandboxes on a node", server.NodesClient.Cordon),
		newCordon(e, "uncordon", "Place sandboxes on a node again", server.NodesClient.Uncordon),
		newDrain(e), newMetrics(e))
}

func newList(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*core.Node, error) {
		nodes, _, err := command.All[core.Node](ctx, e, entity.Query{})
		return nodes, err
	}
	return command.List(e, "List the nodes, and what is reserved on each", []string{core.KindNode}, load, func(ctx context.Context, nodes []*core.Node) error {
		all, _, err := command.All[sandbox.Sandbox](ctx, e, entity.Query{})
		if err != nil {
			return err
		}
		Table(e, nodes, all)
		return nil
	})
}

// Column is another column of a table of nodes.
type Column struct {
	Name string
	Cell func(*core.Node) string
}

// Table prints nodes and what the sandboxes reserve on each, with more columns before the message.
func Table(e *command.Env, nodes []*core.Node, all []*sandbox.Sandbox, more ...Column) {
	by := sandbox.ReservedByNode(all)
	var rows [][]string
	for _, n := range nodes {
		phase := e.Paint(console.Yellow, string(n.Status.Phase))
		switch {
		case n.Status.Phase == core.NodePhaseReady && n.Spec.Cordoned:
			phase = e.Paint(console.Yellow, "cordoned")
		case n.Status.Phase == core.NodePhaseReady:
			phase = e.Paint(console.Green, string(n.Status.Phase))
		}
		if n.Status.DiskFull {
			phase = e.Paint(console.Yellow, "disk full")
		}
		u, disk := by[n.GetID()], ""
		if n.Status.DiskFreeBytes != nil {
			disk = schema.CellBytes(*n.Status.DiskFreeBytes)
		}
		row := []string{
			n.Name, phase, n.Spec.Arch, strconv.FormatInt(u.Sandboxes, 10), schema.CellMillis(u.CPUMillis) + " of " + schema.CellMillis(n.Spec.CPUMillis),
			schema.CellBytes(u.MemoryBytes) + " of " + schema.CellBytes(n.Spec.MemoryBytes), disk, n.Status.Version,
		}
		for _, c := range more {
			row = append(row, c.Cell(n))
		}
		rows = append(rows, append(row, n.Status.Message, schema.CellAge(n.CreatedAt, time.Now())))
	}
	header := []string{"NODE", "STATE", "ARCH", "SANDBOXES", "CPU RESERVED", "MEMORY RESERVED", "DISK FREE", "VERSION"}
	for _, c := range more {
		header = append(header, c.Name)
	}
	e.Table(append(header, "MESSAGE", "AGE"), rows)
}

func newCordon(e *command.Env, verb, short string, call func(server.NodesClient, context.Context, *server.NodeRequest) (*server.NodeResponse, error)) *cobra.Command {
	return &cobra.Command{
		Use:               verb + " NODE",
		Short:             short,
		Args:              command.Args(1, 1, "NODE"),
		ValidArgsFunction: command.CompleteFirst(e, core.NodeKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cordon(cmd.Context(), e, verb, args[0], call)
		},
	}
}

func cordon(ctx context.Context, e *command.Env, verb, name string, call func(server.NodesClient, context.Context, *server.NodeRequest) (*server.NodeResponse, error)) error {
	c, err := e.Connect(ctx)
	if err != nil {
		return err
	}
	resp, err := call(server.NewNodesClient(c), ctx, &server.NodeRequest{Node: name})
	if err != nil {
		return err
	}
	n, err := entity.Decode[core.Node](&resp.Node)
	if err != nil {
		return err
	}
	if e.JSON {
		return e.PrintJSON(n)
	}
	e.Printf("%s %s %sed\n", e.Paint(console.Green, "✓"), n.Name, verb)
	return nil
}

type drainOptions struct {
	*command.Env
	wait time.Duration
}

// drainEvery is the time between two looks at a node that is drained.
const drainEvery = time.Second

func newDrain(e *command.Env) *cobra.Command {
	o := &drainOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Place no new sandboxes on a node, and stop those that run there",
		Long: `Places no new sandboxes on a node, stops those that run there, with reason node, and waits until they have ended. The
sandboxes of apps are replaced on other nodes. uncordon undoes the first.`,
		Args:              command.Args(1, 1, "NODE"),
		ValidArgsFunction: command.CompleteFirst(e, core.NodeKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().DurationVar(&o.wait, "wait", 5*time.Minute, "time in which they must end; 0: do not wait")
	return cmd
}

func (o *drainOptions) run(ctx context.Context, name string) error {
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	for {
		resp, err := server.NewNodesClient(c).Drain(ctx, &server.NodeRequest{Node: name})
		if err != nil {
			return err
		}
		left := time.Since(began) < o.wait
		if resp.Sandboxes > 0 && left {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(drainEvery):
			}
			continue
		}
		if o.JSON {
			return o.PrintJSON(map[string]any{"node": name, "sandboxes": resp.Sandboxes})
		}
		if resp.Sandboxes > 0 {
			if o.wait > 0 {
				return errs.New(errs.DeadlineExceeded, "%d sandboxes of %s have not ended within %s", resp.Sandboxes, name, o.wait).
					WithHint("`r sandbox list` shows them; they go on to stop")
			}
			o.Printf("%s %s is drained; %d sandboxes stop\n", o.Paint(console.Green, "✓"), name, resp.Sandboxes)
			return nil
		}
		o.Printf("%s %s is drained\n", o.Paint(console.Green, "✓"), name)
		return nil
	}
}
