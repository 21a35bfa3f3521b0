// Package execution has `r execution`: programs that the server runs to their end
// without their caller.
package execution

import (
	"cmp"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/cli/attach"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// batchPrefix begins the ids of batches.
const batchPrefix = "batch-"

// New makes the commands.
func New(e *command.Env) *cobra.Command {
	cmd := command.Group("execution", "Submit programs that run without their caller, and see how they ended",
		newSubmit(e), newList(e), newShow(e), newLogs(e), newResult(e), newWait(e), newCancel(e))
	cmd.Aliases = []string{"ex"}
	return cmd
}

func client(ctx context.Context, e *command.Env) (execution.ExecutionsClient, error) {
	c, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return execution.NewExecutionsClient(c), nil
}

func decode(r *schema.Record) (*execution.Execution, error) {
	return entity.Decode[execution.Execution](r)
}

// exitCode is the exit code for an execution that has ended: that of its program,
// or Failed with the reason.
func exitCode(x *execution.Execution) error {
	if x.Status.ExitCode != nil && x.Status.Outcome != execution.OutcomeCancelled {
		return attach.Code(int(*x.Status.ExitCode), nil)
	}
	return errs.New(errs.FailedPrecondition, "execution %s: %s", x.ID, state(x)).WithHint("`r execution show %s` shows its attempts", x.ID)
}

// state is the phase or outcome of an execution, with the reason.
func state(x *execution.Execution) string {
	s := string(cmp.Or(string(x.Status.Outcome), string(x.Status.Phase)))
	if x.Status.Message != "" {
		s += ": " + x.Status.Message
	}
	return s
}

// follow prints the output of an execution until it has ended, and returns its
// exit code.
func follow(ctx context.Context, e *command.Env, c execution.ExecutionsClient, eid string) error {
	if err := logs(ctx, e, c, eid, true); errs.Is(err, errs.Unavailable) {
		e.Notef("the server was lost: `r execution logs %s` prints the rest\n", eid)
	} else if err != nil {
		return err
	}
	x, err := await(ctx, c, e.Project(), eid)
	if err != nil {
		return err
	}
	if x.Status.Message != "" {
		e.Notef("%s\n", x.Status.Message)
	}
	return exitCode(x)
}

// await waits until an execution has ended.
func await(ctx context.Context, c execution.ExecutionsClient, project, eid string) (*execution.Execution, error) {
	resp, err := c.Wait(ctx, &execution.ExecutionRequest{Project: project, Execution: eid})
	if err != nil {
		return nil, err
	}
	return decode(&resp.Execution)
}

func logs(ctx context.Context, e *command.Env, c execution.ExecutionsClient, eid string, follow bool) error {
	st, err := c.Logs(ctx, &execution.LogsRequest{Project: e.Project(), Execution: eid, Follow: &follow})
	if err != nil {
		return err
	}
	defer st.Close()
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.Note != "" {
			e.Notef("%s\n", m.Note)
		}
		if _, err := e.Out.Write(m.Stdout); err != nil {
			return err
		}
		if _, err := e.Err.Write(m.Stderr); err != nil {
			return err
		}
	}
}

func newLogs(e *command.Env) *cobra.Command {
	var follows bool
	cmd := &cobra.Command{
		Use:   "logs EXECUTION",
		Short: "Print what an execution printed",
		Args:  command.Args(1, 1, "EXECUTION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			return logs(cmd.Context(), e, c, args[0], follows)
		},
	}
	cmd.Flags().BoolVarP(&follows, "follow", "f", false, "go on until it has ended")
	return cmd
}

func newList(e *command.Env) *cobra.Command {
	var batch, phase string
	var limit int
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List executions, newest first",
		Long:    "Lists executions, newest first: those that wait, run, or ended in the last minute, then those of the history.",
		Args:    command.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return list(cmd.Context(), e, &execution.ListRequest{Project: e.Project(), Batch: batch, Phase: execution.Phase(phase)}, limit)
		},
	}
	cmd.Flags().StringVar(&batch, "batch", "", "only those of this batch")
	cmd.Flags().StringVar(&phase, "phase", "", "only those in this phase: waiting, queued, running, ended")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most so many")
	return cmd
}

// pageSize is how many executions are requested at once, at most.
const pageSize = 1000

func list(ctx context.Context, e *command.Env, req *execution.ListRequest, limit int) error {
	if limit < 1 {
		return exit.Usagef("--limit %d: want at least 1", limit)
	}
	c, err := client(ctx, e)
	if err != nil {
		return err
	}
	all, seen := []*execution.Execution{}, map[schema.ID]bool{}
	for len(all) < limit {
		req.Limit = int64(min(pageSize, limit-len(all)))
		if err := req.Validate(); err != nil {
			return exit.With(exit.Usage, err)
		}
		resp, err := c.List(ctx, req)
		if err != nil {
			return err
		}
		for i := range resp.Executions {
			x, err := decode(&resp.Executions[i])
			if err != nil {
				return err
			}
			if !seen[x.ID] { // one that moved to the history meanwhile is listed twice
				seen[x.ID] = true
				all = append(all, x)
			}
		}
		if req.Cursor = resp.Cursor; req.Cursor == "" {
			break
		}
	}
	if e.JSON {
		return e.PrintJSON(all)
	}
	var rows [][]string
	for _, x := range all {
		rows = append(rows, []string{string(x.ID), paint(e, x), code(x), strconv.FormatInt(x.Spec.Priority, 10), strconv.FormatInt(x.Status.Attempt, 10),
			x.Spec.Summary, schema.CellAge(x.CreatedAt, time.Now())})
	}
	e.Table([]string{"EXECUTION", "STATE", "EXIT", "PRIORITY", "ATTEMPT", "PROGRAM", "AGE"}, rows)
	return nil
}

func paint(e *command.Env, x *execution.Execution) string {
	switch {
	case x.Status.Outcome == execution.OutcomeSucceeded:
		return e.Paint(console.Green, string(x.Status.Outcome))
	case x.Status.Outcome != "":
		return e.Paint(console.Red, string(x.Status.Outcome))
	}
	return e.Paint(console.Yellow, string(x.Status.Phase))
}

func code(x *execution.Execution) string {
	if x.Status.ExitCode == nil {
		return ""
	}
	return strconv.FormatInt(*x.Status.ExitCode, 10)
}

func newShow(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "show EXECUTION",
		Short: "Show an execution and its attempts",
		Args:  command.Args(1, 1, "EXECUTION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			resp, err := c.Get(cmd.Context(), &execution.ExecutionRequest{Project: e.Project(), Execution: args[0]})
			if err != nil {
				return err
			}
			x, err := decode(&resp.Execution)
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(x)
			}
			show(e, x)
			return nil
		},
	}
}

func show(e *command.Env, x *execution.Execution) {
	rows := [][]string{{"execution", string(x.ID)}, {"state", paint(e, x)}, {"program", x.Spec.Summary}, {"submitted by", x.Spec.Actor},
		{"priority", strconv.FormatInt(x.Spec.Priority, 10)}, {"timeout", x.Spec.Timeout.String()}}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	add("exit code", code(x))
	add("message", x.Status.Message)
	add("template", x.Spec.Template)
	add("sandbox", cmp.Or(x.Spec.Sandbox, x.Status.Sandbox))
	add("batch", x.Spec.Batch)
	add("key", x.Spec.Key)
	if x.Status.Phase == execution.PhaseWaiting {
		add("not before", x.Status.NotBefore.Format(time.RFC3339))
	}
	if m := x.Status.Metrics; m != nil {
		add("time in the queue", m.Queue.Round(time.Millisecond).String())
		add("time of the setup", m.Setup.Round(time.Millisecond).String())
		add("time of the program", m.Wall.Round(time.Millisecond).String())
		if m.CPU != nil {
			add("CPU time", m.CPU.Round(time.Millisecond).String())
		}
		if m.MemoryBytes != nil {
			add("memory", schema.CellBytes(*m.MemoryBytes))
		}
	}
	for _, a := range x.Status.Attempts {
		text := string(a.Outcome)
		if a.ExitCode != nil {
			text += ", exit code " + strconv.FormatInt(*a.ExitCode, 10)
		}
		if a.Message != "" {
			text += ": " + a.Message
		}
		add("attempt "+strconv.FormatInt(a.Number, 10), text)
	}
	e.Table([]string{"", ""}, rows)
}

// result is the result of an execution as JSON.
type result struct {
	Execution       *execution.Execution `json:"execution"`
	ExitCode        *int64               `json:"exit_code"`
	Stdout          string               `json:"stdout"`
	Stderr          string               `json:"stderr"`
	Result          string               `json:"result"`
	StdoutTruncated bool                 `json:"stdout_truncated,omitempty"`
	StderrTruncated bool                 `json:"stderr_truncated,omitempty"`
	ResultTruncated bool                 `json:"result_truncated,omitempty"`
	Metrics         *execution.Metrics   `json:"metrics"`
}

func newResult(e *command.Env) *cobra.Command {
	var attempt int64
	cmd := &cobra.Command{
		Use:   "result EXECUTION",
		Short: "Print what an execution left in the file of EXECUTION_RESULT",
		Long:  "Prints what the program wrote to the file that the variable EXECUTION_RESULT names; with --json also exit code, output and metrics.",
		Args:  command.Args(1, 1, "EXECUTION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &execution.ResultRequest{Project: e.Project(), Execution: args[0]}
			if cmd.Flags().Changed("attempt") {
				req.Attempt = &attempt
			}
			if err := req.Validate(); err != nil {
				return exit.With(exit.Usage, err)
			}
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			r, err := c.Result(cmd.Context(), req)
			if err != nil {
				return err
			}
			x, err := decode(&r.Execution)
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(result{
					Execution: x, ExitCode: x.Status.ExitCode, Stdout: string(r.Stdout), Stderr: string(r.Stderr), Result: string(r.Result),
					StdoutTruncated: isSet(r.StdoutTruncated), StderrTruncated: isSet(r.StderrTruncated), ResultTruncated: isSet(r.ResultTruncated),
					Metrics: x.Status.Metrics,
				})
			}
			_, err = e.Out.Write(r.Result)
			return err
		},
	}
	cmd.Flags().Int64Var(&attempt, "attempt", 0, "number of an attempt; default: the last one")
	return cmd
}

func isSet(b *bool) bool { return b != nil && *b }

func newWait(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "wait EXECUTION|BATCH...",
		Short: "Wait until executions have ended",
		Long: `Waits until executions, or all of a batch, have ended, and prints how. Of a single one it returns the exit code of the
program; of several 0 if all succeeded, else 1.`,
		Args: command.Args(1, -1, "EXECUTION"),
		RunE: func(cmd *cobra.Command, args []string) error { return wait(cmd.Context(), e, args) },
	}
}

// members returns the names of executions, with those of a batch for its name.
func members(ctx context.Context, e *command.Env, c execution.ExecutionsClient, names []string) ([]string, error) {
	var all []string
	for _, name := range names {
		if !strings.HasPrefix(name, batchPrefix) {
			all = append(all, name)
			continue
		}
		resp, err := c.List(ctx, &execution.ListRequest{Project: e.Project(), Batch: name, Limit: pageSize})
		if err != nil {
			return nil, err
		}
		for _, r := range resp.Executions {
			all = append(all, string(r.ID))
		}
	}
	return all, nil
}

func wait(ctx context.Context, e *command.Env, names []string) error {
	c, err := client(ctx, e)
	if err != nil {
		return err
	}
	all, err := members(ctx, e, c, names)
	if err != nil {
		return err
	}
	ended, failed := []*execution.Execution{}, 0
	for _, eid := range all {
		x, err := await(ctx, c, e.Project(), eid)
		if err != nil {
			return err
		}
		ended = append(ended, x)
		if x.Status.Outcome != execution.OutcomeSucceeded {
			failed++
		}
		if !e.JSON {
			e.Printf("%s %s\n", x.ID, state(x))
		}
	}
	if e.JSON {
		if err := e.PrintJSON(ended); err != nil {
			return err
		}
	}
	switch {
	case len(ended) == 1:
		return exitCode(ended[0])
	case failed > 0:
		return exit.With(exit.Failed, nil)
	}
	return nil
}

func newCancel(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel EXECUTION|BATCH...",
		Short: "Cancel executions, or all of a batch, and wait until they have ended",
		Args:  command.Args(1, -1, "EXECUTION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := client(cmd.Context(), e)
			if err != nil {
				return err
			}
			all, err := members(cmd.Context(), e, c, args)
			if err != nil {
				return err
			}
			for _, eid := range all { // first all, so that none of a batch gets its turn meanwhile
				if _, err := c.Cancel(cmd.Context(), &execution.CancelRequest{Project: e.Project(), Execution: eid}); err != nil {
					return err
				}
			}
			ended := []*execution.Execution{}
			for _, eid := range all {
				x, err := await(cmd.Context(), c, e.Project(), eid)
				if err != nil {
					return err
				}
				ended = append(ended, x)
				if !e.JSON {
					e.Printf("%s %s\n", x.ID, state(x))
				}
			}
			if e.JSON {
				return e.PrintJSON(ended)
			}
			return nil
		},
	}
}
