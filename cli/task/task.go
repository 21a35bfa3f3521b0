// Package task has `r task`: commands of an app that run to their end, at times or
// on request.
package task

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	return command.Group("task", "Commands of an app that run to their end, at times or on request",
		newList(e), newRun(e), newHistory(e), newLogs(e), newCancel(e),
		newSuspend(e, "suspend", "Do not run a task at its times until it is resumed", true),
		newSuspend(e, "resume", "Run a task at its times again", false))
}

// client connects and returns the operations on tasks.
func client(ctx context.Context, e *command.Env) (app.TasksClient, error) {
	c, err := e.Connect(ctx)
	return app.NewTasksClient(c), err
}

// appFlag adds the flag that names the app.
func appFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVarP(to, "app", "a", "", "app; default: the current folder's")
}

// item is a task in the list.
type item struct {
	app.Task
	Next      *time.Time   `json:"next,omitempty"`
	Suspended bool         `json:"suspended"`
	Missed    int64        `json:"missed"`
	Message   string       `json:"message,omitempty"`
	Last      *app.TaskRun `json:"last_run,omitempty"`
}

func newList(e *command.Env) *cobra.Command {
	var name string
	var watch bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the tasks of an app, with their next and their last run",
		Example: "  r task list\n  r task list -a shop --watch",
		Args:    command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command.Show(cmd.Context(), e, watch, []string{app.KindApp, app.KindTaskSchedule, app.KindTaskRun}, func(ctx context.Context) ([]*item, error) {
				return load(ctx, e, name)
			}, func(_ context.Context, all []*item) error {
				draw(e, all)
				return nil
			})
		},
	}
	appFlag(cmd, &name)
	command.WatchFlag(cmd, &watch)
	return cmd
}

// load returns the tasks of the active version of an app, by name.
func load(ctx context.Context, e *command.Env, name string) ([]*item, error) {
	a, err := find(ctx, e, name)
	if err != nil {
		return nil, err
	}
	all := []*item{}
	store, err := e.Store(ctx)
	if err != nil || a.Status.Active() == "" {
		return all, err
	}
	ver, err := entity.Get[app.AppVersion](ctx, store, a.Status.Active())
	if err != nil {
		return nil, err
	}
	schedules, _, err := command.All[app.TaskSchedule](ctx, e, entity.Where(app.TaskScheduleAttrApp, a.GetID()))
	if err != nil {
		return nil, err
	}
	runs, err := runsOf(ctx, e, a)
	if err != nil {
		return nil, err
	}
	for _, t := range ver.Spec.Tasks {
		x := &item{Task: t}
		if i := slices.IndexFunc(schedules, func(s *app.TaskSchedule) bool { return s.Spec.Task == t.Name }); i >= 0 {
			s := schedules[i]
			x.Next, x.Suspended, x.Missed, x.Message = s.Status.Next, s.Spec.Suspended, s.Status.Missed, s.Status.Message
		}
		if i := slices.IndexFunc(runs, func(r *app.TaskRun) bool { return r.Spec.Task == t.Name }); i >= 0 {
			x.Last = runs[i]
		}
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b *item) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// runsOf returns the runs of an app, the newest first.
func runsOf(ctx context.Context, e *command.Env, a *app.App) ([]*app.TaskRun, error) {
	all, _, err := command.All[app.TaskRun](ctx, e, entity.Where(app.TaskRunAttrApp, a.GetID()))
	slices.SortFunc(all, func(a, b *app.TaskRun) int { return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ID, a.ID)) })
	return all, err
}

// ended reports whether a run has ended.
func ended(r *app.TaskRun) bool { return r.Status.Phase != app.TaskRunPhaseRunning }

// find returns an app: the named one, or that of the current folder.
func find(ctx context.Context, e *command.Env, name string) (*app.App, error) {
	name, err := command.AppArg(nil, name)
	if err != nil {
		return nil, err
	}
	return command.Find[app.App](ctx, e, name)
}

func draw(e *command.Env, all []*item) {
	if len(all) == 0 && e.Terminal {
		e.Notef("the app has no tasks; a task is a table of app.toml: [tasks.NAME]\n")
		return
	}
	now := time.Now()
	var rows [][]string
	for _, x := range all {
		next := "by hand"
		switch {
		case x.Suspended:
			next = e.Paint(console.Yellow, "suspended")
		case x.Next != nil:
			next = "in " + schema.CellAge(now, *x.Next)
		case x.Schedule != "":
			next = cmp.Or(x.Message, "-")
		}
		last, age := "-", "-"
		if x.Last != nil {
			last, age = paint(e, x.Last.Status.Phase), schema.CellAge(x.Last.CreatedAt, now)
		}
		rows = append(rows, []string{x.Name, cmp.Or(strings.TrimSpace(x.Schedule+" "+x.TimeZone), "-"), next, last, age, strings.Join(x.Command, " ")})
	}
	e.Table([]string{"TASK", "SCHEDULE", "NEXT", "LAST RUN", "AGE", "COMMAND"}, rows)
}

func paint(e *command.Env, p app.TaskRunPhase) string {
	switch p {
	case app.TaskRunPhaseSucceeded:
		return e.Paint(console.Green, string(p))
	case app.TaskRunPhaseFailed:
		return e.Paint(console.Red, string(p))
	case app.TaskRunPhaseSkipped, app.TaskRunPhaseCanceled:
		return e.Paint(console.Yellow, string(p))
	}
	return e.Paint(console.Cyan, string(p))
}

func newSuspend(e *command.Env, use, short string, suspended bool) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:     use + " TASK",
		Short:   short,
		Example: "  r task " + use + " cleanup -a shop",
		Args:    command.Args(1, 1, "TASK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := command.AppArg(nil, name)
			if err != nil {
				return err
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Suspend(cmd.Context(), &app.SuspendTaskRequest{Project: e.Project(), App: name, Task: args[0], Suspended: suspended})
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(resp.Schedule)
			}
			e.Printf("%s task %s: %s\n", e.Paint(console.Green, "✓"), args[0], map[bool]string{true: "suspended", false: "resumed"}[suspended])
			return nil
		},
	}
	appFlag(cmd, &name)
	return cmd
}

// unknown is the error for a run that does not exist.
func unknown(run string) error {
	return errs.New(errs.NotFound, "run %q does not exist", run).WithHint("`r task history` lists those that do; the last %d of a task are kept", app.KeptRuns)
}
