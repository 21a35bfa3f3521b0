package app

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

func newList(e *command.Env) *cobra.Command {
	kinds := []string{app.KindApp, sandbox.KindSandboxPool, app.KindDeployment, app.KindRoute}
	load := func(ctx context.Context) ([]*summary, error) { return summaries(ctx, e) }
	return command.List(e, "List the apps", kinds, load, func(_ context.Context, list []*summary) error {
		table(e, list)
		return nil
	})
}

// summary is an app in the list.
type summary struct {
	Name      string   `json:"name"`
	ID        string   `json:"id"`
	Version   string   `json:"version,omitempty"` // the active one
	Traffic   []string `json:"traffic,omitempty"` // "v1 90%": shares, if several versions serve
	Serving   string   `json:"serving"`           // "2/2": ready sandboxes, and all
	Deploying string   `json:"deploying,omitempty"`
	Last      string   `json:"last_deployment,omitempty"`
	Hosts     []string `json:"hosts,omitempty"`
	Deployed  string   `json:"deployed_at,omitempty"`
	age       string
}

func table(e *command.Env, list []*summary) {
	var rows [][]string
	for _, s := range list {
		rows = append(rows, []string{s.Name, cmp.Or(strings.Join(s.Traffic, ", "), s.Version), s.Serving, paintPhase(e.Console, cmp.Or(s.Deploying, s.Last)), strings.Join(s.Hosts, ","), s.age})
	}
	if len(rows) == 0 && e.Terminal {
		e.Notef("there are no apps; `r deploy` in the folder of an app creates one\n")
		return
	}
	e.Table([]string{"APP", "VERSION", "READY", "DEPLOYMENT", "HOSTS", "DEPLOYED"}, rows)
}

func paintPhase(c *console.Console, phase string) string {
	switch phase {
	case "succeeded", "running", "ready", "done", "ok":
		return c.Paint(console.Green, phase)
	case "failed", "down":
		return c.Paint(console.Red, phase)
	case "canceled", "stopping", "unknown", "skipped":
		return c.Paint(console.Yellow, phase)
	case "stopped", "":
		return c.Paint(console.Dim, phase)
	}
	return c.Paint(console.Cyan, phase)
}

func summaries(ctx context.Context, e *command.Env) ([]*summary, error) {
	apps, _, err := command.All[app.App](ctx, e, entity.Query{})
	if err != nil {
		return nil, err
	}
	versions, _, err := command.All[app.AppVersion](ctx, e, entity.Query{})
	if err != nil {
		return nil, err
	}
	pools, _, err := command.All[sandbox.SandboxPool](ctx, e, entity.Query{})
	if err != nil {
		return nil, err
	}
	deps, _, err := command.All[app.Deployment](ctx, e, entity.Query{})
	if err != nil {
		return nil, err
	}
	routes, _, err := command.All[app.Route](ctx, e, entity.Query{})
	if err != nil {
		return nil, err
	}
	number := map[id.AppVersion]int64{}
	for _, v := range versions {
		number[v.GetID()] = v.Spec.Number
	}
	byID := map[id.Deployment]*app.Deployment{}
	for _, d := range deps {
		byID[d.GetID()] = d
	}
	list := []*summary{}
	for _, a := range apps {
		s := &summary{Name: a.Name, ID: string(a.ID)}
		s.Version, s.Traffic = versionName(number[a.Status.Active()]), shares(a, number)
		var ready, want int64
		for _, p := range pools {
			if p.Spec.AppVersion != "" && a.Status.Serves(p.Spec.AppVersion) && !isPreview(a, p.Spec.AppVersion) {
				ready += p.Status.Ready
				want += p.Wanted()
			}
		}
		s.Serving = strconv.FormatInt(ready, 10) + "/" + strconv.FormatInt(want, 10)
		if d := byID[a.Status.ActiveDeployment]; d != nil && !d.Status.Phase.Ended() {
			s.Deploying = string(d.Status.Phase)
		}
		if d := byID[a.Status.LastDeployment]; d != nil {
			s.Last = string(d.Status.Phase)
			if d.Status.EndedAt != nil {
				s.Deployed = schema.Cell(*d.Status.EndedAt)
				s.age = schema.CellAge(*d.Status.EndedAt, now())
			}
		}
		for _, r := range routes {
			if r.Spec.App == a.GetID() && r.Spec.Preview == "" {
				s.Hosts = append(s.Hosts, strings.TrimSuffix(r.Spec.Host+r.Spec.Path, "/"))
			}
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *summary) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// isPreview reports whether a version gets only the requests to the host of a preview.
func isPreview(a *app.App, v id.AppVersion) bool {
	return slices.ContainsFunc(a.Status.Previews(), func(t app.TrafficShare) bool { return t.Version == v })
}

// shares returns the shares of the requests that versions have, "v1 90%"; nil if one has all.
func shares(a *app.App, number map[id.AppVersion]int64) []string {
	if len(a.Status.Traffic) < 2 && len(a.Status.Previews()) == 0 {
		return nil
	}
	var all []string
	for _, t := range a.Status.Traffic {
		share := versionName(number[t.Version]) + " " + strconv.FormatInt(t.Weight, 10) + "%"
		if t.Preview != "" {
			share = versionName(number[t.Version]) + " preview " + t.Preview
		}
		all = append(all, share)
	}
	return all
}

func versionName(n int64) string {
	if n == 0 {
		return ""
	}
	return "v" + strconv.FormatInt(n, 10)
}

type appOptions struct {
	*command.Env
	app   string
	watch bool
}

// addApp defines --app for a command that also takes it as its argument.
func (o *appOptions) addApp(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.app, "app", "a", "", "app; default: the current folder's")
	_ = cmd.RegisterFlagCompletionFunc("app", completeApps(o.Env))
}

// completeApps completes the names of apps.
func completeApps(e *command.Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Args != nil && cmd.Name() != "set" && cmd.Name() != "unset" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return command.CompleteNames(cmd.Context(), e, app.AppKind), cobra.ShellCompDirectiveNoFileComp
	}
}

func newShow(e *command.Env) *cobra.Command {
	o := &appOptions{Env: e}
	cmd := &cobra.Command{
		Use:               "show [APP]",
		Short:             "Show the details of an app",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.show(cmd.Context(), args) },
	}
	o.addApp(cmd)
	return cmd
}

// detail is everything that is shown of an app.
type detail struct {
	App        *app.App               `json:"app"`
	Version    *app.AppVersion        `json:"version,omitempty"`
	Pools      []*sandbox.SandboxPool `json:"pools"`
	Sandboxes  []*sandbox.Sandbox     `json:"sandboxes"`
	Routes     []*app.Route           `json:"routes"`
	Deployment *app.Deployment        `json:"deployment,omitempty"` // under way
	Last       *app.Deployment        `json:"last_deployment,omitempty"`
	URL        string                 `json:"url,omitempty"`

	shares  []string                // of the requests, for people; empty: the active version gets all
	numbers map[id.AppVersion]int64 // of the versions that serve, and that of the newest deployment
}

func load(ctx context.Context, e *command.Env, name string) (*detail, error) {
	a, err := find(ctx, e, name)
	if err != nil {
		return nil, err
	}
	d := &detail{App: a, numbers: map[id.AppVersion]int64{}}
	store, err := e.Store(ctx)
	if err != nil {
		return nil, err
	}
	if a.Status.Active() != "" {
		if d.Version, err = entity.Get[app.AppVersion](ctx, store, a.Status.Active()); err != nil && !errs.Is(err, errs.NotFound) {
			return nil, err
		}
		if err == nil {
			d.numbers[a.Status.Active()] = d.Version.Spec.Number
		}
	}
	if d.Pools, _, err = command.All[sandbox.SandboxPool](ctx, e, ofApp(sandbox.SandboxPoolAttrApp, a)); err != nil {
		return nil, err
	}
	if d.Sandboxes, _, err = command.All[sandbox.Sandbox](ctx, e, ofApp(sandbox.SandboxAttrApp, a)); err != nil {
		return nil, err
	}
	if d.Routes, _, err = command.All[app.Route](ctx, e, ofApp(app.RouteAttrApp, a)); err != nil {
		return nil, err
	}
	get := func(dep id.Deployment) (*app.Deployment, error) {
		if dep == "" {
			return nil, nil
		}
		found, err := entity.Get[app.Deployment](ctx, store, dep)
		if errs.Is(err, errs.NotFound) {
			return nil, nil // removed with old history
		}
		return found, err
	}
	if d.Deployment, err = get(a.Status.ActiveDeployment); err != nil {
		return nil, err
	}
	if d.Last, err = get(a.Status.LastDeployment); err != nil {
		return nil, err
	}
	versions := a.Status.Versions()
	if d.Last != nil {
		d.URL = d.Last.Status.URL
		versions = append(versions, d.Last.Status.Version)
	}
	if d.Deployment != nil {
		versions = append(versions, d.Deployment.Status.Version)
	}
	for _, vid := range versions {
		if d.numbers[vid] > 0 || vid == "" {
			continue
		}
		v, err := entity.Get[app.AppVersion](ctx, store, vid)
		if err != nil && !errs.Is(err, errs.NotFound) {
			return nil, err
		}
		if err == nil {
			d.numbers[vid] = v.Spec.Number
		}
	}
	if len(a.Status.Traffic) > 1 || len(a.Status.Previews()) > 0 {
		d.shares = shares(a, d.numbers)
	}
	return d, nil
}

func (o *appOptions) show(ctx context.Context, args []string) error {
	name, err := command.AppArg(args, o.app)
	if err != nil {
		return err
	}
	d, err := load(ctx, o.Env, name)
	if err != nil {
		return err
	}
	if o.JSON {
		return o.PrintJSON(d)
	}
	d.printStatus(o.Env)
	if d.Version != nil {
		d.printVersion(o.Console)
	}
	return nil
}
