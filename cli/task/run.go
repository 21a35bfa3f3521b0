package task

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/logview"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

func newRun(e *command.Env) *cobra.Command {
	var name string
	var detach bool
	cmd := &cobra.Command{
		Use:   "run TASK",
		Short: "Run a task now",
		Long: `Runs a task of the version that serves now, besides its times, and prints its output. The exit code is that of the task's
command. With --detach, prints the id of the run at once. Ctrl-C ends the output, and not the run: ` + "`r task cancel`" + ` does.`,
		Example: "  r task run cleanup\n  r task run cleanup -a shop --detach",
		Args:    command.Args(1, 1, "TASK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return start(cmd.Context(), e, name, args[0], detach)
		},
	}
	appFlag(cmd, &name)
	cmd.Flags().BoolVar(&detach, "detach", false, "print the id of the run, and do not wait for its end")
	return cmd
}

func start(ctx context.Context, e *command.Env, name, task string, detach bool) error {
	name, err := command.AppArg(nil, name)
	if err != nil {
		return err
	}
	c, err := client(ctx, e)
	if err != nil {
		return err
	}
	resp, err := c.Run(ctx, &app.RunTaskRequest{Project: e.Project(), App: name, Task: task})
	if err != nil {
		return err
	}
	r, err := entity.Decode[app.TaskRun](&resp.Run)
	if err != nil {
		return err
	}
	if detach {
		if e.JSON {
			return e.PrintJSON(r)
		}
		e.Printf("%s\n", r.ID)
		return nil
	}
	e.Notef("run %s of task %s\n", r.ID, task)
	if !e.JSON {
		follow := true
		if err := (&logview.View{Env: e}).Print(ctx, &sandbox.LogsRequest{Sandbox: r.Spec.Sandbox, Follow: &follow}); err != nil {
			return err
		}
	}
	if r, err = waitFor(ctx, e, r.GetID()); err != nil {
		return err
	}
	if e.JSON {
		if err := e.PrintJSON(r); err != nil {
			return err
		}
	}
	return result(r)
}

// endPoll is how often the end of a run is asked for, once its output has ended.
const endPoll = 100 * time.Millisecond

// waitFor returns a run when it has ended.
func waitFor(ctx context.Context, e *command.Env, rid id.TaskRun) (*app.TaskRun, error) {
	store, err := e.Store(ctx)
	if err != nil {
		return nil, err
	}
	for {
		r, err := entity.Get[app.TaskRun](ctx, store, rid)
		if err != nil && !errs.Is(err, errs.Unavailable) || err == nil && ended(r) {
			return r, err
		}
		select {
		case <-time.After(endPoll):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// result returns nil for a run that succeeded, or else an error with the exit code
// of its command.
func result(r *app.TaskRun) error {
	switch {
	case r.Status.Phase == app.TaskRunPhaseSucceeded:
		return nil
	case r.Status.Phase == app.TaskRunPhaseCanceled:
		return errs.New(errs.Canceled, "run %s was cancelled", r.ID)
	}
	err := errs.New(errs.FailedPrecondition, "task %s failed: %s", r.Spec.Task, r.Status.Message).WithHint("%s", r.Status.Hint)
	if code := r.Status.ExitCode; code != nil && *code > 0 {
		return exit.With(int(*code), err)
	}
	return err
}

func newHistory(e *command.Env) *cobra.Command {
	var name string
	var watch bool
	cmd := &cobra.Command{
		Use:     "history [TASK]",
		Short:   "List the runs of the tasks of an app, newest first",
		Long:    fmt.Sprintf("Lists the runs of one task of an app, or of all, newest first: those under way, and of those that have ended the last %d of each task.", app.KeptRuns),
		Example: "  r task history cleanup\n  r task history -a shop --watch",
		Args:    command.Args(0, 1, "TASK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			task := append(args, "")[0]
			return command.Show(cmd.Context(), e, watch, []string{app.KindTaskRun}, func(ctx context.Context) ([]*app.TaskRun, error) {
				return history(ctx, e, name, task)
			}, func(_ context.Context, all []*app.TaskRun) error {
				drawRuns(e, all)
				return nil
			})
		},
	}
	appFlag(cmd, &name)
	command.WatchFlag(cmd, &watch)
	return cmd
}

func history(ctx context.Context, e *command.Env, name, task string) ([]*app.TaskRun, error) {
	a, err := find(ctx, e, name)
	if err != nil {
		return nil, err
	}
	runs, err := runsOf(ctx, e, a)
	out := []*app.TaskRun{}
	for _, r := range runs {
		if task == "" || r.Spec.Task == task {
			out = append(out, r)
		}
	}
	return out, err
}

func drawRuns(e *command.Env, all []*app.TaskRun) {
	now := time.Now()
	var rows [][]string
	for _, r := range all {
		by, took, note := string(r.Spec.Trigger), "-", r.Status.Message
		if r.Spec.RequestedBy != "" {
			by = r.Spec.RequestedBy
		}
		if r.Status.StartedAt != nil {
			end := now
			if r.Status.EndedAt != nil {
				end = *r.Status.EndedAt
			}
			took = schema.CellAge(*r.Status.StartedAt, end)
		}
		rows = append(rows, []string{string(r.ID), r.Spec.Task, paint(e, r.Status.Phase), by, schema.CellAge(r.CreatedAt, now), took, note})
	}
	e.Table([]string{"RUN", "TASK", "STATE", "BY", "AGE", "TOOK", "MESSAGE"}, rows)
}

func newLogs(e *command.Env) *cobra.Command {
	var follow, timestamps bool
	cmd := &cobra.Command{
		Use:               "logs RUN",
		Short:             "Print the output of a run",
		Example:           "  r task logs trun-4k2j7q8n1m5p3r9t\n  r task logs trun-4k2j7q8n1m5p3r9t -f",
		Args:              command.Args(1, 1, "RUN"),
		ValidArgsFunction: command.CompleteFirst(e, app.TaskRunKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := command.Find[app.TaskRun](cmd.Context(), e, args[0])
			if errs.Is(err, errs.NotFound) {
				return unknown(args[0])
			}
			if err != nil {
				return err
			}
			switch {
			case r.Spec.Sandbox != "":
				v := &logview.View{Env: e, Timestamps: timestamps}
				return v.Print(cmd.Context(), &sandbox.LogsRequest{Sandbox: r.Spec.Sandbox, Follow: &follow})
			case r.Status.Phase == app.TaskRunPhaseSkipped:
				return errs.New(errs.FailedPrecondition, "run %s did not take place: %s", r.ID, r.Status.Message)
			}
			return errs.New(errs.NotFound, "the output of run %s is gone: its sandbox was deleted", r.ID).
				WithHint("ended sandboxes are kept for retention.ended of the server")
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing new lines until the run has ended")
	cmd.Flags().BoolVarP(&timestamps, "timestamps", "t", false, "print the time of each line")
	return cmd
}

func newCancel(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "cancel RUN",
		Short:             "Stop a run that is under way",
		Example:           "  r task cancel trun-4k2j7q8n1m5p3r9t",
		Args:              command.Args(1, 1, "RUN"),
		ValidArgsFunction: command.CompleteFirst(e, app.TaskRunKind),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Cancel(cmd.Context(), &app.TaskRunRequest{TaskRun: id.TaskRun(args[0])})
			if errs.Is(err, errs.NotFound) {
				return unknown(args[0])
			}
			if err != nil {
				return err
			}
			r, err := entity.Decode[app.TaskRun](&resp.Run)
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(r)
			}
			if ended(r) {
				e.Printf("%s run %s has ended already: %s\n", e.Paint(console.Yellow, "!"), r.ID, r.Status.Phase)
				return nil
			}
			e.Printf("%s run %s is stopped\n", e.Paint(console.Green, "✓"), r.ID)
			return nil
		},
	}
}
