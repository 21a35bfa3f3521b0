package app

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/pkg/schema"
)

type historyOptions struct {
	appOptions
	limit int
}

func newHistory(e *command.Env) *cobra.Command {
	o := &historyOptions{appOptions: appOptions{Env: e}}
	cmd := &cobra.Command{
		Use:               "history [APP]",
		Short:             "List deployments and versions",
		Args:              command.Args(0, 1, "APP"),
		ValidArgsFunction: completeApps(e),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args) },
	}
	o.addApp(cmd)
	command.WatchFlag(cmd, &o.watch)
	cmd.Flags().IntVarP(&o.limit, "limit", "n", 30, "how many of the newest to list; 0: all")
	return cmd
}

// entry is one deployment of the history.
type entry struct {
	Version    string          `json:"version,omitempty"`
	Active     bool            `json:"active"`
	Deployment *app.Deployment `json:"deployment"`
}

func (o *historyOptions) run(ctx context.Context, args []string) error {
	name, err := command.AppArg(args, o.app)
	if err != nil {
		return err
	}
	load := func(ctx context.Context) ([]entry, error) { return o.history(ctx, name) }
	return command.Show(ctx, o.Env, o.watch, []string{app.KindDeployment}, load, func(_ context.Context, list []entry) error {
		var rows [][]string
		for _, h := range list {
			rows = append(rows, o.row(h))
		}
		o.Table([]string{"VERSION", "SERVES", "KIND", "OUTCOME", "WHEN", "TOOK", "BY", "GIT", "MESSAGE"}, rows)
		return nil
	})
}

func (o *historyOptions) history(ctx context.Context, name string) ([]entry, error) {
	a, err := find(ctx, o.Env, name)
	if err != nil {
		return nil, err
	}
	deps, _, err := command.All[app.Deployment](ctx, o.Env, ofApp(app.DeploymentAttrApp, a))
	if err != nil {
		return nil, err
	}
	versions, _, err := command.All[app.AppVersion](ctx, o.Env, ofApp(app.AppVersionAttrApp, a))
	if err != nil {
		return nil, err
	}
	number := map[id.AppVersion]int64{}
	for _, v := range versions {
		number[v.GetID()] = v.Spec.Number
	}
	slices.SortFunc(deps, func(a, b *app.Deployment) int { return b.CreatedAt.Compare(a.CreatedAt) })
	if o.limit > 0 && len(deps) > o.limit {
		deps = deps[:o.limit]
	}
	list := []entry{}
	serving := false // only the newest rollout of the active version is marked
	for _, d := range deps {
		active := !serving && d.Status.Phase == app.DeploymentPhaseSucceeded && d.Status.Version == a.Status.Active() && a.Status.Active() != ""
		serving = serving || active
		list = append(list, entry{Version: versionName(number[d.Status.Version]), Active: active, Deployment: d})
	}
	return list, nil
}

func (o *historyOptions) row(h entry) []string {
	d := h.Deployment
	serves := ""
	if h.Active {
		serves = "yes"
	}
	took := ""
	if d.Status.StartedAt != nil && d.Status.EndedAt != nil {
		took = d.Status.EndedAt.Sub(*d.Status.StartedAt).Round(100 * time.Millisecond).String()
	}
	kind := string(d.Spec.Kind)
	if p := d.Spec.Preview; p != nil {
		kind = "preview " + p.Name
	}
	message := d.Spec.Message
	if f := d.Status.Failure; f != nil {
		message = strings.TrimSpace(message + " (" + string(f.Reason) + ": " + f.Message + ")")
	}
	return []string{
		h.Version, serves, kind, paintPhase(o.Console, string(d.Status.Phase)), schema.CellAge(d.CreatedAt, now()), took,
		d.Spec.RequestedBy, gitText(d.Spec.Git), message,
	}
}
