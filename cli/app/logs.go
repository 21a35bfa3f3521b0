package app

import (
	"context"
	"time"

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
	since      string
	until      string
	grep       string
	level      string
	limit      int64
}

// NewLogs makes `r app logs`, which is `r logs` too.
func NewLogs(e *command.Env) *cobra.Command {
	o := &logsOptions{appOptions: appOptions{Env: e}}
	cmd := &cobra.Command{
		Use:   "logs [APP]",
		Short: "Print the output of an app's processes",
		Long: `Print what the processes of an app print and printed, also in sandboxes that are gone.

A line of JSON is shown on a terminal as its level, message and fields; in a pipe as it is. With --json
each line is an object with ts, app, version, service, sandbox, stream, level, message and fields.`,
		Example:           "  r logs -f\n  r logs shop --since 1h --grep 'timeout|refused'\n  r logs shop --level warn --limit 100 --service worker",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), cmd.Flags().Changed("tail"), args)
		},
	}
	o.addApp(cmd)
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "keep printing new lines, also of new sandboxes")
	cmd.Flags().Int64VarP(&o.tail, "tail", "n", 0, "how many last lines of each sandbox that exists, 0: none, -1: all; default: all, with --follow 20")
	cmd.Flags().StringVarP(&o.service, "service", "s", "", "only this service")
	f := cmd.Flags()
	f.BoolVarP(&o.timestamps, "timestamps", "t", false, "print the time of each line")
	f.StringVar(&o.since, "since", "", "only lines since then: an age (90m, 24h, 7d), a date, or a time (2026-01-02T15:04:05Z)")
	f.StringVar(&o.until, "until", "", "only lines before then")
	f.StringVarP(&o.grep, "grep", "g", "", "only lines that match this regular expression (RE2)")
	f.StringVarP(&o.level, "level", "l", "", "only lines of this level or a more serious one: trace, debug, info, warn, error, fatal")
	f.Int64Var(&o.limit, "limit", 0, "at most this many of the existing lines, the last ones")
	cmd.MarkFlagsMutuallyExclusive("follow", "until")
	cmd.MarkFlagsMutuallyExclusive("tail", "limit")
	cmd.MarkFlagsMutuallyExclusive("tail", "since")
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
	req := &sandbox.LogsRequest{Project: o.Project(), App: name, Service: o.service, Follow: &o.follow, Grep: o.grep, Level: o.level}
	for _, x := range []struct {
		name, value string
		to          **time.Time
	}{{"since", o.since, &req.Since}, {"until", o.until, &req.Until}} {
		if x.value == "" {
			continue
		}
		t, err := command.ParseTime(x.name, x.value, time.Now())
		if err != nil {
			return err
		}
		*x.to = &t
	}
	switch {
	case o.limit != 0:
		req.Limit = &o.limit
	case o.since != "": // all
	case tailGiven && o.tail < 0: // all
	case tailGiven:
		req.Tail = &o.tail
	case o.follow && o.grep == "" && o.level == "":
		n := int64(followTail)
		req.Tail = &n
	case o.follow:
		n := int64(followTail)
		req.Limit = &n // of those that match
	}
	v := &logview.View{Env: o.Env, Prefix: true, Timestamps: o.timestamps, App: name}
	return v.Print(ctx, req)
}
