// Package build has `r build`: builds and what they said.
package build

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/rollout"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("build", "Builds", newList(e), newLogs(e))
}

type listOptions struct {
	*command.Env
	app   string
	watch bool
}

func newList(e *command.Env) *cobra.Command {
	o := &listOptions{Env: e}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the builds",
		Args:    command.Args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	cmd.Flags().StringVarP(&o.app, "app", "a", "", "only those of an app")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "draw again after every change")
	return cmd
}

func (o *listOptions) run(ctx context.Context) error {
	return o.Watch(ctx, o.watch, []string{app.KindBuild}, func(ctx context.Context) error {
		apps, _, err := command.All[app.App](ctx, o.Env, entity.Query{})
		if err != nil {
			return err
		}
		names := map[id.App]string{}
		for _, a := range apps {
			names[a.GetID()] = a.Name
		}
		builds, _, err := command.All[app.Build](ctx, o.Env, entity.Query{})
		if err != nil {
			return err
		}
		if o.app != "" {
			if _, err := command.Find[app.App](ctx, o.Env, o.app); err != nil {
				return err
			}
			builds = slices.DeleteFunc(builds, func(b *app.Build) bool { return names[b.Spec.App] != o.app })
		}
		slices.SortFunc(builds, func(a, b *app.Build) int { return b.CreatedAt.Compare(a.CreatedAt) })
		if o.JSON {
			if builds == nil {
				builds = []*app.Build{}
			}
			if o.watch {
				return o.PrintJSONLine(builds)
			}
			return o.PrintJSON(builds)
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
	})
}

type logsOptions struct {
	*command.Env
	follow bool
}

func newLogs(e *command.Env) *cobra.Command {
	o := &logsOptions{Env: e}
	cmd := &cobra.Command{
		Use:               "logs BUILD",
		Short:             "Print what a build said",
		Args:              command.Args(1, 1, "BUILD"),
		ValidArgsFunction: command.CompleteFirst(e, app.BuildKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on until the build has ended")
	return cmd
}

// redial is the pause before the server is asked again after it went away.
const redial = time.Second

func (o *logsOptions) run(ctx context.Context, name string) error {
	b, err := command.Find[app.Build](ctx, o.Env, name)
	if err != nil {
		return err
	}
	c, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	req := &app.BuildLogsRequest{Build: b.GetID(), Follow: &o.follow}
	v := rollout.NewLines(o.Console, time.Now)
	for {
		err := o.once(ctx, app.NewBuildsClient(c), req, v)
		if !o.follow || !errs.Is(err, errs.Unavailable) {
			return err
		}
		select {
		case <-time.After(redial):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (o *logsOptions) once(ctx context.Context, c app.BuildsClient, req *app.BuildLogsRequest, v rollout.View) error {
	s, err := c.Logs(ctx, req)
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		l, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		req.Offset = &l.Offset
		v.Build(&l.Event)
	}
}
