package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/pkg/schema"
)

type metricsOptions struct {
	*command.Env
	watch    bool
	interval time.Duration
}

func newMetrics(e *command.Env) *cobra.Command {
	o := &metricsOptions{Env: e}
	cmd := &cobra.Command{
		Use:               "metrics ID",
		Short:             "Print what a sandbox uses",
		Long:              "Prints memory, processes and CPU time of a sandbox, with --watch again and again, then with its share of a CPU.",
		Args:              command.Args(1, 1, "ID"),
		ValidArgsFunction: command.CompleteFirst(e, sandbox.SandboxKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "print again and again")
	cmd.Flags().DurationVar(&o.interval, "interval", 2*time.Second, "with --watch: time between two readings")
	return cmd
}

func (o *metricsOptions) run(ctx context.Context, name string) error {
	s, c, err := target(ctx, o.Env, name)
	if err != nil {
		return err
	}
	var last *sandbox.Stats
	return o.Repeat(ctx, o.watch, o.interval, func(ctx context.Context) (func() error, error) {
		st, err := c.Stats(ctx, &sandbox.SandboxRequest{Sandbox: s.GetID()})
		if err != nil {
			return nil, err
		}
		share := CPUShare(last, st)
		last = st
		return func() error {
			if o.JSON {
				return o.PrintJSONLine(st)
			}
			o.Table([]string{"CPU", "CPU TIME", "MEMORY", "PROCESSES"}, [][]string{{
				share, st.CPU.Round(time.Millisecond).String(),
				schema.CellBytes(st.MemoryBytes) + " of " + schema.CellBytes(s.Spec.Template.Resources.MemoryBytes), schema.Cell(st.PIDs),
			}})
			return nil
		}, nil
	})
}

// CPUShare returns the part of one CPU that was used between two readings, as a
// percentage; empty without an earlier one.
func CPUShare(last, now *sandbox.Stats) string {
	if last == nil || !now.At.After(last.At) || now.CPU < last.CPU {
		return ""
	}
	return fmt.Sprintf("%.0f%%", 100*float64(now.CPU-last.CPU)/float64(now.At.Sub(last.At)))
}
