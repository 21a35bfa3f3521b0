// Package build has `r build`: builds and their logs.
package build

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/rollout"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("build", "List builds and print their logs", newList(e), newLogs(e))
}

type listOptions struct {
	*command.Env
	app string
}

func newList(e *command.Env) *cobra.Command {
	o := &listOptions{Env: e}
	cmd := command.List(e, "List the builds", []string{app.KindBuild}, o.load, o.print)
	cmd.Flags().StringVarP(&o.app, "app", "a", "", "only builds of this app")
	return cmd
}

func (o *listOptions) load(ctx context.Context) ([]*app.Build, error) {
	var of id.App
	if o.app != "" {
		a, err := command.Find[app.App](ctx, o.Env, o.app)
		if err != nil {
			return nil, err
		}
		of = a.GetID()
	}
	builds, _, err := command.All[app.Build](ctx, o.Env, entity.Query{})
	builds = slices.DeleteFunc(builds, func(b *app.Build) bool { return of != "" && b.Spec.App != of })
	slices.SortFunc(builds, func(a, b *app.Build) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return builds, err
}

func (o *listOptions) print(ctx context.Context, builds []*app.Build) error {
	names, err := command.AppNames(ctx, o.Env)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, b := range builds {
		took := ""
		if b.Status.StartedAt != nil && b.Status.EndedAt != nil {
			took = b.Status.EndedAt.Sub(*b.Status.StartedAt).Round(100 * time.Millisecond).String()
		}
		rows = append(rows, []string{
			string(b.ID), names[b.Spec.App], string(b.Status.Phase), b.Status.Plan, took, schema.CellAge(b.CreatedAt, time.Now()),
			strings.SplitN(b.Status.Message, "\n", 2)[0],
		})
	}
	o.Table([]string{"BUILD", "APP", "PHASE", "PLAN", "TOOK", "AGE", "MESSAGE"}, rows)
	return nil
}

type logsOptions struct {
	*command.Env
	follow bool
}

func newLogs(e *command.Env) *cobra.Command {
	o := &logsOptions{Env: e}
	cmd := &cobra.Command{
		Use:               "logs BUILD",
		Short:             "Print a build's log",
		Args:              command.Args(1, 1, "BUILD"),
		ValidArgsFunction: command.CompleteFirst(e, app.BuildKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "keep printing until the build has ended")
	return cmd
}

func (o *logsOptions) run(ctx context.Context, name string) error {
	b, err := command.Find[app.Build](ctx, o.Env, name)
	if err != nil {
		return err
	}
	return rollout.BuildLog(ctx, o.Env, rollout.NewLines(o.Console, time.Now), b.GetID(), o.follow)
}
