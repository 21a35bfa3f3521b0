// Package key has `r key`: the API keys by which programs call the HTTP API.
package key

import (
	"cmp"
	"context"
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
	return command.Group("key", "API keys for programs that call the HTTP API", newCreate(e), newList(e), newDelete(e))
}

type createOptions struct {
	*command.Env
	roles   []string
	expires time.Duration
	user    string
	rate    int64
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
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.roles, "role", []string{"agent"}, "role in the project: agent, viewer, deployer or admin; repeat for several")
	f.DurationVar(&o.expires, "expires", 0, "validity; default until it is deleted")
	f.StringVar(&o.user, "user", "", "user to whom it belongs, whom the audit log then names; for administrators of the installation")
	f.Int64Var(&o.rate, "rate", 0, "most requests per second to the HTTP API; default and highest: api.rate of the server")
	_ = cmd.RegisterFlagCompletionFunc("role", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []string{"agent", "viewer", "deployer", "admin"}, cobra.ShellCompDirectiveNoFileComp
	}) // fails only for flags that do not exist
	return cmd
}

func (o *createOptions) run(ctx context.Context, name string) error {
	req := &core.CreateKeyRequest{Project: o.Project(), Name: name, Roles: o.roles, User: o.user}
	if o.expires != 0 {
		req.TTL = &o.expires
	}
	if o.rate != 0 {
		req.Rate = &o.rate
	}
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
		return o.PrintJSON(map[string]any{"name": k.Name, "key": resp.Secret, "roles": k.Spec.Roles, "expires_at": k.Spec.ExpiresAt, "rate": k.Spec.Rate})
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
			used := "never"
			if k.Status.LastUsed != nil {
				used = schema.CellAge(*k.Status.LastUsed, time.Now())
			}
			rows = append(rows, []string{k.Name, strings.Join(k.Spec.Roles, ", "), state(e, k), rate(k), used, k.Spec.CreatedBy, schema.CellAge(k.CreatedAt, time.Now())})
		}
		e.Table([]string{"NAME", "ROLES", "STATE", "RATE", "LAST USED", "CREATED BY", "AGE"}, rows)
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

func newDelete(e *command.Env) *cobra.Command {
	return command.Delete(e, core.APIKeyKind, "key", "Delete an API key",
		"Deletes an API key. The server refuses it at once, and ends the calls that are made with it.",
		func(ctx context.Context, c *rpc.Client, name string) error {
			return core.NewKeysClient(c).Delete(ctx, &core.KeyRequest{Project: e.Project(), Name: name})
		})
}
