package app

import (
	"context"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/logview"
)

type logsOptions struct {
	appOptions
	follow     bool
	tail       int64
	service    string
	timestamps bool
}

// NewLogs makes `r app logs`, which is `r logs` too.
func NewLogs(e *command.Env) *cobra.Command {
	o := &logsOptions{appOptions: appOptions{Env: e}}
	cmd := &cobra.Command{
		Use:               "logs [APP]",
		Short:             "Print the output of an app's processes",
		Example:           "  r app logs -f\n  r app logs shop --service worker --tail 100",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), cmd.Flags().Changed("tail"), args)
		},
	}
	o.addApp(cmd)
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "keep printing new lines, also of new sandboxes")
	cmd.Flags().Int64VarP(&o.tail, "tail", "n", 0, "how many last lines of each sandbox, 0: none, -1: all; default: all, with --follow 20")
	cmd.Flags().StringVarP(&o.service, "service", "s", "", "only this service")
	cmd.Flags().BoolVarP(&o.timestamps, "timestamps", "t", false, "print the time of each line")
	return cmd
}

// followTail is how many old lines --follow prints before new ones.
const followTail = 20

func (o *logsOptions) run(ctx context.Context, tailGiven bool, args []string) error {
	name, err := command.AppArg(args, o.app)
	if err != nil {
		return err
	}
	if _, err := find(ctx, o.Env, name); err != nil {
		return err
	}
	req := &sandbox.LogsRequest{Project: o.Project(), App: name, Service: o.service, Follow: &o.follow}
	switch {
	case tailGiven && o.tail < 0: // all
	case tailGiven:
		req.Tail = &o.tail
	case o.follow:
		n := int64(followTail)
		req.Tail = &n
	}
	v := &logview.View{Env: o.Env, Prefix: true, Timestamps: o.timestamps}
	return v.Print(ctx, req)
}
