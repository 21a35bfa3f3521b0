// Package node has `r node`: the machines that run sandboxes.
package node

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("node", "Machines that run sandboxes",
		newList(e),
		newCordon(e, "cordon", "Place no new sandboxes on a node", server.NodesClient.Cordon),
		newCordon(e, "uncordon", "Place sandboxes on a node again", server.NodesClient.Uncordon))
}

type listOptions struct {
	*command.Env
	watch bool
}

func newList(e *command.Env) *cobra.Command {
	o := &listOptions{Env: e}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the nodes",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "draw again after every change")
	return cmd
}

func (o *listOptions) run(ctx context.Context) error {
	return o.Watch(ctx, o.watch, []string{core.KindNode}, func(ctx context.Context) error {
		nodes, _, err := command.All[core.Node](ctx, o.Env, entity.Query{})
		if err != nil {
			return err
		}
		if o.JSON {
			if nodes == nil {
				nodes = []*core.Node{}
			}
			if o.watch {
				return o.PrintJSONLine(nodes)
			}
			return o.PrintJSON(nodes)
		}
		var rows [][]string
		for _, n := range nodes {
			phase := o.Paint(console.Yellow, string(n.Status.Phase))
			switch {
			case n.Status.Phase == core.NodePhaseReady && n.Spec.Cordoned:
				phase = o.Paint(console.Yellow, "cordoned")
			case n.Status.Phase == core.NodePhaseReady:
				phase = o.Paint(console.Green, string(n.Status.Phase))
			}
			rows = append(rows, []string{
				n.Name, phase, n.Spec.Arch, schema.CellMillis(n.Spec.CPUMillis), schema.CellBytes(n.Spec.MemoryBytes), n.Status.Version,
				n.Status.Message, schema.CellAge(n.CreatedAt, time.Now()),
			})
		}
		o.Table([]string{"NODE", "STATE", "ARCH", "CPU", "MEMORY", "VERSION", "MESSAGE", "AGE"}, rows)
		return nil
	})
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
