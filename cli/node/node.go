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

func newList(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*core.Node, error) {
		nodes, _, err := command.All[core.Node](ctx, e, entity.Query{})
		return nodes, err
	}
	return command.List(e, "List the nodes", []string{core.KindNode}, load, func(_ context.Context, nodes []*core.Node) error {
		table(e, nodes)
		return nil
	})
}

func table(e *command.Env, nodes []*core.Node) {
	var rows [][]string
	for _, n := range nodes {
		phase := e.Paint(console.Yellow, string(n.Status.Phase))
		switch {
		case n.Status.Phase == core.NodePhaseReady && n.Spec.Cordoned:
			phase = e.Paint(console.Yellow, "cordoned")
		case n.Status.Phase == core.NodePhaseReady:
			phase = e.Paint(console.Green, string(n.Status.Phase))
		}
		rows = append(rows, []string{
			n.Name, phase, n.Spec.Arch, schema.CellMillis(n.Spec.CPUMillis), schema.CellBytes(n.Spec.MemoryBytes), n.Status.Version,
			n.Status.Message, schema.CellAge(n.CreatedAt, time.Now()),
		})
	}
	e.Table([]string{"NODE", "STATE", "ARCH", "CPU", "MEMORY", "VERSION", "MESSAGE", "AGE"}, rows)
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
