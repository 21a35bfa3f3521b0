package app

import (
	"context"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

type envOptions struct {
	changeOptions
	secret   bool
	noDeploy bool
	stdin    bool
}

// NewEnv makes `r app env`, which is `r env` too.
func NewEnv(e *command.Env) *cobra.Command {
	return command.Group("env", "Environment variables of an app", newEnvSet(e), newEnvUnset(e), newEnvList(e), newEnvImport(e), newEnvExport(e))
}

func (o *envOptions) addChange(cmd *cobra.Command) {
	o.addApp(cmd)
	o.addRollout(cmd)
	cmd.Flags().BoolVar(&o.noDeploy, "no-deploy", false, "do not roll the change out; the next deployment applies it")
}

func newEnvSet(e *command.Env) *cobra.Command {
	o := &envOptions{changeOptions: changeOptions{appOptions: appOptions{Env: e}}}
	cmd := &cobra.Command{
		Use:   "set KEY=VALUE...",
		Short: "Set variables, and roll the change out",
		Long: `Sets environment variables, and rolls the change out if the app has an active version. A secret is encrypted and never
shown again. KEY without a value takes the value from this environment; --stdin reads a dotenv file.`,
		Example: "  r app env set LOG_LEVEL=debug\n  r app env set --secret DATABASE_URL\n  r app env set --secret --stdin < .env",
		Args:    command.Args(0, -1, "KEY=VALUE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.set(cmd.Context(), args) },
	}
	o.addChange(cmd)
	cmd.Flags().BoolVar(&o.secret, "secret", false, "encrypt the values, and never show them")
	cmd.Flags().BoolVar(&o.stdin, "stdin", false, "read a dotenv file (lines of KEY=VALUE) from standard input")
	return cmd
}

func (o *envOptions) set(ctx context.Context, args []string) error {
	vars := map[string]string{}
	if o.stdin {
		var err error
		if vars, err = parseDotenv("standard input", o.In); err != nil {
			return err
		}
	}
	parse := command.ParseEnv
	if o.secret {
		parse = command.ParseSecrets
	}
	given, err := parse(args)
	if err != nil {
		return err
	}
	maps.Copy(vars, given)
	if len(vars) == 0 {
		return exit.Usagef("nothing to set: give KEY=VALUE")
	}
	return o.change(ctx, o.request(vars))
}

func newEnvUnset(e *command.Env) *cobra.Command {
	o := &envOptions{changeOptions: changeOptions{appOptions: appOptions{Env: e}}}
	cmd := &cobra.Command{
		Use:   "unset KEY...",
		Short: "Remove variables, and roll the change out",
		Args:  command.Args(1, -1, "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.change(cmd.Context(), &app.SetEnvRequest{Unset: args})
		},
	}
	o.addChange(cmd)
	return cmd
}

func (o *envOptions) change(ctx context.Context, req *app.SetEnvRequest) error {
	name, err := command.AppArg(nil, o.app)
	if err != nil {
		return err
	}
	c, err := client(ctx, o.Env)
	if err != nil {
		return err
	}
	req.Project, req.App, req.Deploy, req.Message = o.Project(), name, !o.noDeploy, o.message
	resp, err := c.SetEnv(ctx, req)
	if errs.Is(err, errs.NotFound) && o.app == "" {
		return errs.Wrap(err, "the app of this folder")
	}
	if err == nil && resp.Deployment == nil {
		unchanged := resp.Unchanged != nil && *resp.Unchanged
		if o.JSON {
			return o.PrintJSON(map[string]any{"app": name, "rolled_out": false, "changed": !unchanged})
		}
		if unchanged {
			o.Printf("%s has that environment already\n", name)
			return nil
		}
		o.Printf("%s changed; the next deployment of %s applies it\n", o.Paint(console.Green, "✓"), name)
	}
	return follow(ctx, o.Env, name, resp, err, o.detach)
}

func newEnvList(e *command.Env) *cobra.Command {
	o := &envOptions{changeOptions: changeOptions{appOptions: appOptions{Env: e}}}
	cmd := &cobra.Command{
		Use:               "list [APP]",
		Short:             "List the variables; the values of secrets stay hidden",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.list(cmd.Context(), args) },
	}
	o.addApp(cmd)
	return cmd
}

// variable is an environment variable.
type variable struct {
	Name   string `json:"name"`
	Value  string `json:"value,omitempty"`
	Secret bool   `json:"secret"`
	From   string `json:"from"` // app, or app.toml
}

func (o *envOptions) list(ctx context.Context, args []string) error {
	name, err := command.AppArg(args, o.app)
	if err != nil {
		return err
	}
	a, err := find(ctx, o.Env, name)
	if err != nil {
		return err
	}
	vars := map[string]variable{}
	if a.Status.Active() != "" {
		store, err := o.Store(ctx)
		if err != nil {
			return err
		}
		v, err := entity.Get[app.AppVersion](ctx, store, a.Status.Active())
		if err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
		if v != nil {
			for k, val := range v.Spec.SourceEnv {
				vars[k] = variable{Name: k, Value: val, From: "app.toml"}
			}
		}
	}
	for k, val := range a.Spec.Env {
		vars[k] = variable{Name: k, Value: val, From: "app"}
	}
	for k := range a.Spec.Secrets {
		vars[k] = variable{Name: k, Secret: true, From: "app"}
	}
	list := []variable{}
	var rows [][]string
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		v := vars[k]
		list = append(list, v)
		value := v.Value
		if v.Secret {
			value = o.Paint(console.Dim, "[secret]")
		}
		rows = append(rows, []string{k, value, v.From})
	}
	if o.JSON {
		return o.PrintJSON(list)
	}
	o.Table([]string{"NAME", "VALUE", "FROM"}, rows)
	return nil
}
