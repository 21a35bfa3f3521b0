// Package top has `r top`: what nodes and sandboxes use now.
package top

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	api "miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/node"
	"miren.dev/runtime/cli/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// readers bounds the sandboxes that are read at once.
const readers = 8

type options struct {
	*command.Env
	once     bool
	interval time.Duration
	last     map[id.Sandbox]*api.Stats // the readings before
}

// New makes the command.
func New(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show what nodes and sandboxes use",
		Long: `Shows the nodes with the resources that are reserved on them, the use of their machines, and the running sandboxes of
the project with their use, the highest first. On a terminal it is drawn again until Ctrl-C; in a pipe and with --json it is printed once.`,
		Args: command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Repeat(cmd.Context(), o.Terminal && !o.JSON && !o.once, o.interval, o.readAll)
		},
	}
	cmd.Flags().BoolVar(&o.once, "once", false, "print it once")
	cmd.Flags().DurationVar(&o.interval, "interval", 2*time.Second, "time between two readings")
	return cmd
}

// usage is a sandbox with what it uses.
type usage struct {
	Sandbox *api.Sandbox `json:"sandbox"`
	Stats   *api.Stats   `json:"stats"`
	share   string
}

// readAll reads nodes and sandboxes, and returns what prints them.
func (o *options) readAll(ctx context.Context) (show func() error, err error) {
	// A user of one project may not list nodes.
	nodes, _, err := command.All[core.Node](ctx, o.Env, entity.Query{})
	if err != nil && !errs.Is(err, errs.PermissionDenied) {
		return nil, err
	}
	all, _, err := command.All[api.Sandbox](ctx, o.Env, entity.Query{})
	if err != nil {
		return nil, err
	}
	used, err := o.readUsage(ctx, all)
	if err != nil {
		return nil, err
	}
	machines, err := o.readMachines(ctx, nodes)
	if err != nil {
		return nil, err
	}
	return func() error { return o.show(nodes, machines, all, used) }, nil
}

func (o *options) show(nodes []*core.Node, machines []machine, all []*api.Sandbox, used []usage) error {
	if o.JSON {
		return o.PrintJSON(map[string]any{"nodes": nodes, "machines": machines, "sandboxes": used})
	}
	above := 0 // lines
	if len(nodes) > 0 {
		node.Table(o.Env, nodes, all)
		o.Printf("\n")
		above += len(nodes) + 2
	}
	if len(machines) > 0 {
		o.machineTable(machines)
		o.Printf("\n")
		above += len(machines) + 2
	}
	if h := o.Height() - above - 2; o.Terminal && h > 0 && len(used) > h {
		used = used[:h]
	}
	rows := make([][]string, len(used))
	for i, u := range used {
		s := u.Sandbox
		rows[i] = []string{
			string(s.ID), s.Name, sandbox.State(o.Console, s), u.share, u.Stats.CPU.Round(10 * time.Millisecond).String(),
			schema.CellBytes(u.Stats.MemoryBytes) + " of " + schema.CellBytes(s.Spec.Template.Resources.MemoryBytes), schema.Cell(u.Stats.PIDs),
			schema.CellAge(s.CreatedAt, time.Now()),
		}
	}
	o.Table([]string{"SANDBOX", "NAME", "STATE", "CPU", "CPU TIME", "MEMORY", "PROCESSES", "AGE"}, rows)
	return nil
}

// readUsage reads what the running sandboxes use. It leaves out one that has ended
// meanwhile.
func (o *options) readUsage(ctx context.Context, all []*api.Sandbox) ([]usage, error) {
	conn, err := o.Connect(ctx)
	if err != nil {
		return nil, err
	}
	c := api.NewSandboxesClient(conn)
	used := make([]usage, len(all))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i, s := range all {
		if s.Status.Phase != api.SandboxPhaseRunning {
			continue
		}
		g.Go(func() error {
			st, err := c.Stats(gctx, &api.SandboxRequest{Sandbox: s.GetID()})
			switch errs.ClassOf(err) {
			case errs.NotFound, errs.FailedPrecondition:
				return nil
			}
			used[i] = usage{Sandbox: s, Stats: st}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	used = slices.DeleteFunc(used, func(u usage) bool { return u.Stats == nil })
	grown := map[id.Sandbox]time.Duration{} // CPU time since the readings before
	now := map[id.Sandbox]*api.Stats{}
	for i, u := range used {
		sid := u.Sandbox.GetID()
		now[sid] = u.Stats
		if last := o.last[sid]; last != nil {
			grown[sid] = u.Stats.CPU - last.CPU
			used[i].share = sandbox.CPUShare(last, u.Stats)
		}
	}
	o.last = now
	slices.SortStableFunc(used, func(a, b usage) int {
		return cmp.Or(cmp.Compare(grown[b.Sandbox.GetID()], grown[a.Sandbox.GetID()]), cmp.Compare(b.Stats.MemoryBytes, a.Stats.MemoryBytes))
	})
	return used, nil
}
