// Package pool has `r pool`: warm pools, whose sandboxes run already and wait to
// be claimed.
package pool

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("pool", "Warm pools of templates", newList(e), newSet(e), newDelete(e))
}

type options struct {
	*command.Env
	min, max int64
	idle     time.Duration
}

func newList(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	return command.List(e, "List the warm pools", []string{sandbox.KindWarmPool}, o.load, o.print)
}

func (o *options) load(ctx context.Context) ([]*sandbox.WarmPool, error) {
	pools, _, err := command.All[sandbox.WarmPool](ctx, o.Env, entity.Query{})
	slices.SortFunc(pools, func(a, b *sandbox.WarmPool) int { return cmp.Compare(a.Name, b.Name) })
	return pools, err
}

func (o *options) print(_ context.Context, pools []*sandbox.WarmPool) error {
	if len(pools) == 0 && o.Terminal {
		o.Notef("there are no warm pools: the first sandbox of a template makes one\n")
		return nil
	}
	var rows [][]string
	for _, p := range pools {
		rows = append(rows, []string{
			p.Name, schema.Cell(p.Spec.Min), schema.Cell(p.Spec.Max), schema.Cell(p.Spec.Idle), schema.Cell(p.Status.Target),
			schema.Cell(p.Status.Warm), schema.Cell(p.Status.Starting), p.Status.Message, schema.CellAge(p.CreatedAt, time.Now()),
		})
	}
	o.Table([]string{"TEMPLATE", "MIN", "MAX", "IDLE", "TARGET", "WARM", "STARTING", "MESSAGE", "AGE"}, rows)
	return nil
}

func (o *options) client(ctx context.Context) (sandbox.TemplatesClient, error) {
	c, err := o.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return sandbox.NewTemplatesClient(c), nil
}

func newSet(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	cmd := &cobra.Command{
		Use:   "set TEMPLATE",
		Short: "Make or change the warm pool of a template",
		Long: `Makes or changes the warm pool of a template. It holds as many sandboxes as the largest burst of recent requests took,
at least --min and at most --max. With --max 0 there is none.`,
		Example: "  r pool set python --min 2 --max 10",
		Args:    command.Args(1, 1, "TEMPLATE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.set(cmd, args[0]) },
	}
	cmd.Flags().Int64Var(&o.min, "min", 0, "warm sandboxes that are always kept")
	cmd.Flags().Int64Var(&o.max, "max", 0, "most warm sandboxes")
	cmd.Flags().DurationVar(&o.idle, "idle", 0, "time without a request after which only --min are kept")
	return cmd
}

func (o *options) set(cmd *cobra.Command, template string) error {
	c, err := o.client(cmd.Context())
	if err != nil {
		return err
	}
	req := &sandbox.SetPoolRequest{Project: o.Project(), Template: template}
	if cmd.Flags().Changed("min") {
		req.Min = &o.min
	}
	if cmd.Flags().Changed("max") {
		req.Max = &o.max
	}
	if cmd.Flags().Changed("idle") {
		req.Idle = &o.idle
	}
	resp, err := c.SetPool(cmd.Context(), req)
	if err != nil {
		return err
	}
	p, err := entity.Decode[sandbox.WarmPool](&resp.Pool)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(p)
	}
	o.Printf("%s the pool of %s keeps %d to %d warm sandboxes\n", o.Paint(console.Green, "✓"), p.Name, p.Spec.Min, p.Spec.Max)
	return nil
}

func newDelete(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	return &cobra.Command{
		Use:     "delete TEMPLATE",
		Aliases: []string{"rm"},
		Short:   "Delete the warm pool of a template",
		Long:    "Deletes the warm pool of a template and the sandboxes that wait in it. The next request for the template makes another.",
		Args:    command.Args(1, 1, "TEMPLATE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.delete(cmd.Context(), args[0]) },
	}
}

func (o *options) delete(ctx context.Context, template string) error {
	c, err := o.client(ctx)
	if err != nil {
		return err
	}
	if err := c.DeletePool(ctx, &sandbox.PoolRequest{Project: o.Project(), Template: template}); err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]string{"deleted": template})
	}
	o.Printf("%s deleted the pool of %s\n", o.Paint(console.Green, "✓"), template)
	return nil
}
