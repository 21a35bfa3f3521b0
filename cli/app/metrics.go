package app

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/metric"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/metricview"
)

func newMetrics(e *command.Env) *cobra.Command {
	o := &appOptions{Env: e}
	var times metricview.Flags
	var service string
	cmd := &cobra.Command{
		Use:   "metrics [APP]",
		Short: "Show the history of what an app uses and serves",
		Long: `Shows CPU, memory, processes and sandboxes of each service, and of those that serve requests these by class of
status, their latency, and how many are under way. Each line has the value now, the mean, the greatest value, and a
curve. With --json all values are printed, null where there is none.`,
		Example:           "  r app metrics shop\n  r app metrics shop --service web --since 24h\n  r app metrics shop --since 2h --step 1m --json",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.metrics(cmd.Context(), args, service, &times)
		},
	}
	o.addApp(cmd)
	cmd.Flags().StringVarP(&service, "service", "s", "", "only this service")
	times.Add(cmd)
	return cmd
}

func (o *appOptions) metrics(ctx context.Context, args []string, service string, times *metricview.Flags) error {
	name, err := command.AppArg(args, o.app)
	if err != nil {
		return err
	}
	if _, err := find(ctx, o.Env, name); err != nil {
		return err
	}
	return times.Print(ctx, o.Env, "no samples of "+name+" in this time", func(c metric.MetricsClient, r *metric.Range) (*metric.Response, error) {
		return c.App(ctx, &metric.AppRequest{Project: o.Project(), App: name, Service: service, Range: r})
	})
}
