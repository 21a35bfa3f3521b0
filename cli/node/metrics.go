package node

import (
	"github.com/spf13/cobra"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/metric"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/metricview"
)

func newMetrics(e *command.Env) *cobra.Command {
	var times metricview.Flags
	cmd := &cobra.Command{
		Use:               "metrics NODE",
		Short:             "Show the history of what a node uses",
		Long:              `Shows CPU, memory, processes, network and disk of the machine, and the sandboxes on it; of a runner what its sandboxes use.`,
		Args:              command.Args(1, 1, "NODE"),
		ValidArgsFunction: command.CompleteFirst(e, core.NodeKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			return times.Print(cmd.Context(), e, "no samples of the node in this time", func(c metric.MetricsClient, r *metric.Range) (*metric.Response, error) {
				return c.Node(cmd.Context(), &metric.NodeRequest{Node: args[0], Range: r})
			})
		},
	}
	times.Add(cmd)
	return cmd
}
