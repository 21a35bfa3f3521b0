// Package key has `r key`: the API keys by which programs call the HTTP API.
package key

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("key", "API keys for programs that call the HTTP API", newCreate(e), newList(e), newShow(e), newDelete(e))
}

type createOptions struct {
	*command.Env
	roles   []string
	expires time.Duration
	user    string
	rate    int64

	maxSandboxes, maxExecutions int64
}

func newCreate(e *command.Env) *cobra.Command {
	o := &createOptions{Env: e}
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make an API key",
		Long: `Makes an API key of the project and prints it. It is shown this once: the server keeps only a hash of it. In a pipe it is
printed alone. A key gives its roles in its project and nowhere else. The role agent works with sandboxes, their files and
executions; deployer also deploys, builds templates and sets secrets; viewer reads; admin makes keys too.`,
		Example: "  r key create ci\n  E2B_API_KEY=$(r key create ci --project shop --role deployer --expires 720h)",
		Args:    command.Args(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &core.CreateKeyRequest{Project: e.Project(), Name: args[0], Roles: o.roles, User: o.user}
			for _, f := range []struct {
				flag string
				from *int64
				to   **int64
			}{{"rate", &o.rate, &req.Rate}, {"max-sandboxes", &o.maxSandboxes, &req.MaxSandboxes}, {"max-executions", &o.maxExecutions, &req.MaxExecutions}} {
				if cmd.Flags().Changed(f.flag) {
					*f.to = f.from
				}
			}
			if o.expires != 0 {
				req.TTL = &o.expires
			}
			return o.run(cmd.Context(), req)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.roles, "role", []string{"agent"}, "role in the project: agent, viewer, deployer or admin; repeat for several")
	f.DurationVar(&o.expires, "expires", 0, "validity; default until it is deleted")
	f.StringVar(&o.user, "user", "", "user to whom it belongs, whom the audit log then names; for administrators of the installation")
	f.Int64Var(&o.rate, "rate", 0, "most requests per second to the HTTP API; default and highest: api.rate of the server")
	f.Int64Var(&o.maxSandboxes, "max-sandboxes", 0, "most sandboxes at the same time that are asked for with it, those of its executions included; default unlimited")
	f.Int64Var(&o.maxExecutions, "max-executions", 0, "most executions at the same time that are submitted with it; default unlimited")
	_ = cmd.RegisterFlagCompletionFunc("role", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []string{"agent", "viewer", "deployer", "admin"}, cobra.ShellCompDirectiveNoFileComp
	}) // fails only for flags that do not exist
	return cmd
}

func (o *createOptions) run(ctx context.Context, req *core.CreateKeyRequest) error {
	if err := req.Validate(); err != nil {
		return exit.With(exit.Usage, err)
	}
	c, err := o.Env.Connect(ctx)
	if err != nil {
		return err
	}
	resp, err := core.NewKeysClient(c).Create(ctx, req)
	if err != nil {
		return err
	}
	k, err := entity.Decode[core.APIKey](&resp.Key)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]any{"name": k.Name, "key": resp.Secret, "roles": k.Spec.Roles, "expires_at": k.Spec.ExpiresAt, "rate": k.Spec.Rate, "max_sandboxes": k.Spec.MaxSandboxes, "max_executions": k.Spec.MaxExecutions})
	}
	o.Notef("%s made the key %s (%s), %s; it is not shown again\n", o.Paint(console.Green, "✓"), k.Name, strings.Join(k.Spec.Roles, ", "), state(o.Env, k))
	o.Printf("%s\n", resp.Secret)
	return nil
}

func newList(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*core.APIKey, error) {
		all, _, err := command.All[core.APIKey](ctx, e, entity.Query{})
		slices.SortFunc(all, func(a, b *core.APIKey) int { return cmp.Compare(a.Name, b.Name) })
		return all, err
	}
	return command.List(e, "List the API keys of the project", []string{core.KindAPIKey}, load, func(_ context.Context, all []*core.APIKey) error {
		if len(all) == 0 && e.Terminal {
			e.Notef("there are no API keys: r key create makes one\n")
			return nil
		}
		var rows [][]string
		for _, k := range all {
			used := lastUsed(k)
			rows = append(rows, []string{k.Name, strings.Join(k.Spec.Roles, ", "), state(e, k), rate(k), bound(k.Spec.MaxSandboxes), bound(k.Spec.MaxExecutions), used, k.Spec.CreatedBy, schema.CellAge(k.CreatedAt, time.Now())})
		}
		e.Table([]string{"NAME", "ROLES", "STATE", "RATE", "SANDBOXES", "EXECUTIONS", "LAST USED", "CREATED BY", "AGE"}, rows)
		return nil
	})
}

// state says until when a key is valid.
func state(e *command.Env, k *core.APIKey) string {
	switch end := k.Spec.ExpiresAt; {
	case end == nil:
		return "valid until it is deleted"
	case end.Before(time.Now()):
		return e.Paint(console.Yellow, "expired "+end.Format(time.DateOnly))
	default:
		return "valid until " + end.Format(time.DateOnly)
	}
}

// rate is the key's own rate.
func rate(k *core.APIKey) string {
	if k.Spec.Rate == nil {
		return ""
	}
	return strconv.FormatInt(*k.Spec.Rate, 10) + "/s"
}

// bound is a bound of a key.
func bound(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

func lastUsed(k *core.APIKey) string {
	if k.Status.LastUsed == nil {
		return "never"
	}
	return schema.CellAge(*k.Status.LastUsed, time.Now())
}

func newShow(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Show an API key, and what is used with it",
		Long: `Shows an API key, without what its user sends: its roles and bounds, and the sandboxes that run or start and the executions that
wait or run which were asked for with it.`,
		Example:           "  r key show ci",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, core.APIKeyKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := e.Connect(cmd.Context())
			if err != nil {
				return err
			}
			resp, err := core.NewKeysClient(c).Show(cmd.Context(), &core.KeyRequest{Project: e.Project(), Name: args[0]})
			if err != nil {
				return err
			}
			k, err := entity.Decode[core.APIKey](&resp.Key)
			if err != nil {
				return err
			}
			return show(e, k, resp.Resources)
		},
	}
}

func show(e *command.Env, k *core.APIKey, used []core.QuotaUse) error {
	if e.JSON {
		return e.PrintJSON(map[string]any{"key": k, "resources": used})
	}
	rows := [][]string{
		{"key", k.Name}, {"roles", strings.Join(k.Spec.Roles, ", ")}, {"state", state(e, k)}, {"rate", cmp.Or(rate(k), "that of the server")},
		{"last used", lastUsed(k)}, {"created by", k.Spec.CreatedBy},
	}
	for _, u := range used {
		rows = append(rows, []string{string(u.Resource), fmt.Sprintf("%d of %s in use", u.Used, cmp.Or(bound(u.Limit), "unlimited"))})
	}
	e.Table(nil, rows)
	return nil
}

func newDelete(e *command.Env) *cobra.Command {
	return command.Delete(e, core.APIKeyKind, "key", "Delete an API key",
		"Deletes an API key. The server refuses it at once, and ends the calls that are made with it.",
		func(ctx context.Context, c *rpc.Client, name string) error {
			return core.NewKeysClient(c).Delete(ctx, &core.KeyRequest{Project: e.Project(), Name: name})
		})
}
