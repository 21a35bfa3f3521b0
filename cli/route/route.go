// Package route has `r route`: hosts and paths that the ingress routes to apps.
package route

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("route", "Route hosts and paths to apps", newList(e), newSet(e), newConfigure(e), newDelete(e))
}

type options struct {
	*command.Env
	path    string
	app     string
	service string
	tcp     tcp
}

func newList(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	return command.List(e, "List the routes", []string{app.KindRoute}, o.load, o.print)
}

func (o *options) load(ctx context.Context) ([]*app.Route, error) {
	routes, _, err := command.All[app.Route](ctx, o.Env, entity.Query{})
	slices.SortFunc(routes, func(a, b *app.Route) int {
		return cmp.Or(cmp.Compare(a.Spec.Host, b.Spec.Host), cmp.Compare(a.Spec.Path, b.Spec.Path))
	})
	return routes, err
}

func (o *options) print(ctx context.Context, routes []*app.Route) error {
	names, err := command.AppNames(ctx, o.Env)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, r := range routes {
		rows = append(rows, []string{r.Spec.Host, r.Spec.Path, names[r.Spec.App], r.Spec.Service, schema.CellAge(r.CreatedAt, time.Now())})
	}
	ports, _, err := command.All[app.TCPRoute](ctx, o.Env, entity.Query{})
	if err != nil {
		return err
	}
	slices.SortFunc(ports, func(a, b *app.TCPRoute) int {
		return cmp.Or(cmp.Compare(a.Spec.Port, b.Spec.Port), cmp.Compare(a.Spec.Host, b.Spec.Host))
	})
	for _, r := range ports {
		host := "tcp:" + strconv.FormatInt(r.Spec.Port, 10)
		if r.Spec.Host != "" {
			host += "/" + r.Spec.Host
		}
		rows = append(rows, []string{host, "", names[r.Spec.App], r.Spec.Service, schema.CellAge(r.CreatedAt, time.Now())})
	}
	o.Table([]string{"HOST", "PATH", "APP", "SERVICE", "AGE"}, rows)
	return nil
}

func newSet(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	cmd := &cobra.Command{
		Use:     "set [HOST]",
		Short:   "Route a host and path, or a TCP port, to an app",
		Long:    "Routes a host (* for every host without a route), and a path prefix of it, to a service of an app. With --tcp it routes a port of the ingress instead, to the service's port; with --host also only the connections whose TLS names that server.",
		Example: "  r route set shop.example.com --app shop\n  r route set example.com --path /api --app shop --service api\n  r route set --tcp 20000 --app shop --service db --idle 30m\n  r route set --tcp 20001 --host db.example.com --passthrough --app shop --service db",
		Args:    command.Args(0, 1, "HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			host, err := o.tcp.host(cmd, args)
			if err != nil {
				return err
			}
			return o.set(cmd.Context(), host)
		},
	}
	cmd.Flags().StringVar(&o.path, "path", "", "path prefix; default /")
	cmd.Flags().StringVarP(&o.app, "app", "a", "", "app; default: the current folder's")
	cmd.Flags().StringVarP(&o.service, "service", "s", "", "service of the app; default web")
	o.tcp.addFlags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("app", func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return command.CompleteNames(cmd.Context(), e, app.AppKind), cobra.ShellCompDirectiveNoFileComp
	}) // fails only for flags that do not exist
	return cmd
}

func (o *options) client(ctx context.Context) (app.RoutesClient, error) {
	c, err := o.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return app.NewRoutesClient(c), nil
}

func (o *options) set(ctx context.Context, host string) error {
	name, err := command.AppArg(nil, o.app)
	if err != nil {
		return err
	}
	c, err := o.client(ctx)
	if err != nil {
		return err
	}
	if host == "" {
		return o.setTCP(ctx, c, name)
	}
	resp, err := c.Set(ctx, &app.SetRouteRequest{Project: o.Project(), Host: host, Path: o.path, App: name, Service: o.service})
	if err != nil {
		return err
	}
	r, err := entity.Decode[app.Route](&resp.Route)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(r)
	}
	o.Printf("%s routed %s%s to %s of %s\n", o.Paint(console.Green, "✓"), r.Spec.Host, r.Spec.Path, r.Spec.Service, name)
	return nil
}

func newDelete(e *command.Env) *cobra.Command {
	o := &options{Env: e}
	cmd := &cobra.Command{
		Use:     "delete [HOST]",
		Aliases: []string{"rm"},
		Short:   "Delete a route",
		Args:    command.Args(0, 1, "HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			host, err := o.tcp.host(cmd, args)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return o.deleteTCP(cmd.Context())
			}
			return o.delete(cmd.Context(), host)
		},
	}
	o.tcp.addPort(cmd)
	cmd.Flags().StringVar(&o.path, "path", "", "path prefix; default /")
	return cmd
}

func (o *options) delete(ctx context.Context, host string) error {
	if host == "" {
		return exit.Usagef("HOST is empty")
	}
	c, err := o.client(ctx)
	if err != nil {
		return err
	}
	if err := c.Delete(ctx, &app.DeleteRouteRequest{Project: o.Project(), Host: host, Path: o.path}); err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(map[string]string{"deleted": host, "path": cmp.Or(o.path, "/")})
	}
	o.Printf("%s deleted %s%s\n", o.Paint(console.Green, "✓"), host, cmp.Or(o.path, "/"))
	return nil
}
