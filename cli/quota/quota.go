// Package quota has `r quota`: what projects may use.
package quota

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// unlimited is the value of a flag that removes a bound, and what a table shows
// where there is none.
const unlimited = "unlimited"

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("quota", "What projects may use", newShow(e), newSet(e))
}

// resource is how commands name a resource.
type resource struct {
	flag  string
	usage string
	parse func(string) (int64, error)
	cell  func(int64) string
}

// resources has every resource; the server's answer has their order.
var resources = map[core.QuotaResource]resource{
	core.QuotaResourceSandboxes:     {"sandboxes", "sandboxes that run or start at the same time", number, count},
	core.QuotaResourceCPUMillis:     {"cpu", "CPUs of these sandboxes together, as 8 or 500m", cpus, schema.CellMillis},
	core.QuotaResourceMemoryBytes:   {"memory", "memory of these sandboxes together, as 16G", size, schema.CellBytes},
	core.QuotaResourceDiskBytes:     {"disk", "root disks of sandboxes, paused ones included, and disks, as 500G", size, schema.CellBytes},
	core.QuotaResourceExecutions:    {"executions", "executions that wait or run", number, count},
	core.QuotaResourceSnapshotBytes: {"snapshots", "snapshots of sandboxes, as 50G", size, schema.CellBytes},
}

func number(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, errs.New(errs.InvalidArgument, "%q is not a number from 0 on", s)
	}
	return n, nil
}

func count(n int64) string { return strconv.FormatInt(n, 10) }

func cpus(s string) (int64, error) {
	var c command.CPU
	err := c.Set(s)
	return int64(c), err
}

func size(s string) (int64, error) {
	var b command.Bytes
	err := b.Set(s)
	return int64(b), err
}

// limitFlag adds a bound to a request: a value of its resource, 0, or unlimited.
type limitFlag struct {
	resource core.QuotaResource
	req      *core.SetQuotaRequest
}

func (f limitFlag) String() string { return "" }
func (f limitFlag) Type() string   { return "limit" }
func (f limitFlag) Set(s string) error {
	limit := core.QuotaLimit{Resource: f.resource}
	switch s {
	case unlimited:
	case "0":
		limit.Limit = new(int64)
	default:
		n, err := resources[f.resource].parse(s)
		if err != nil {
			return errs.Wrap(err, "neither %s nor a bound", unlimited)
		}
		limit.Limit = &n
	}
	f.req.Limits = append(f.req.Limits, limit)
	return nil
}

var _ pflag.Value = limitFlag{}

func client(ctx context.Context, e *command.Env) (core.QuotasClient, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return core.NewQuotasClient(c), nil
}

func newShow(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show the quota of a project, and what it uses",
		Long: `Shows the bounds of the quota of the project, and what it uses of each. Warm sandboxes that wait in a pool count from
their claim on. A paused sandbox counts its root disk only.`,
		Example: "  r quota show\n  r quota show --project research",
		Args:    command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Show(cmd.Context(), &core.QuotaRequest{Project: e.Project()})
			if err != nil {
				return err
			}
			return show(e, resp)
		},
	}
}

func show(e *command.Env, resp *core.QuotaResponse) error {
	if e.JSON {
		return e.PrintJSON(resp)
	}
	var rows [][]string
	for _, u := range resp.Resources {
		r, ok := resources[u.Resource]
		if !ok { // of a newer server
			r = resource{flag: string(u.Resource), cell: count}
		}
		limit, share := unlimited, ""
		if u.Limit != nil {
			limit = r.cell(*u.Limit)
			if *u.Limit > 0 {
				share = fmt.Sprintf("%.0f%%", 100*float64(u.Used)/float64(*u.Limit))
			}
		}
		rows = append(rows, []string{r.flag, r.cell(u.Used), limit, share})
	}
	e.Table([]string{"RESOURCE", "USED", "LIMIT", "SHARE"}, rows)
	return nil
}

func newSet(e *command.Env) *cobra.Command {
	req := &core.SetQuotaRequest{}
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Change the quota of a project",
		Long: `Changes bounds of the quota of the project; those that are not named stay. What runs goes on, also if it uses more than
a lowered bound; only what would use more is refused. The value "unlimited" removes a bound. Only administrators may do this.`,
		Example: "  r quota set --project research --sandboxes 50 --cpu 16 --memory 64G --disk 1T\n  r quota set --executions unlimited",
		Args:    command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(req.Limits) == 0 {
				return exit.Usagef("no bound is named: `r quota set --help` lists them")
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			req.Project = e.Project()
			resp, err := c.Set(cmd.Context(), req)
			if err != nil {
				return err
			}
			if !e.JSON {
				e.Notef("%s set the quota of project %s\n", e.Paint(console.Green, "✓"), resp.Project)
			}
			return show(e, resp)
		},
	}
	for _, r := range core.QuotaResource("").Choices() {
		name := core.QuotaResource(r)
		cmd.Flags().Var(limitFlag{name, req}, resources[name].flag, resources[name].usage)
	}
	return cmd
}
