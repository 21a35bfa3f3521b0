package workspace

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

const (
	// waitGrace is how long an execution may take beside its program.
	waitGrace = time.Minute
	// cancelTimeout bounds the cancellation for a caller that has gone.
	cancelTimeout = 10 * time.Second
)

// codeRequest is the body of execute_code.
type codeRequest struct {
	Code     string            `json:"code"`
	Language string            `json:"language"` // "": python
	Timeout  float64           `json:"timeout"`  // seconds, at most those of the settings; 0: those
	Env      map[string]string `json:"env"`
}

// commandRequest is the body of execute.
type commandRequest struct {
	Command json.RawMessage   `json:"command"` // text for the shell, or a list
	Timeout float64           `json:"timeout"`
	Env     map[string]string `json:"env"`
}

// result is what a command or program left.
type result struct {
	Session  string  `json:"session_id"`
	ExitCode int64   `json:"exit_code"`
	Stdout   string  `json:"stdout"`
	Stderr   string  `json:"stderr"`
	Result   *string `json:"result"` // content of the file that EXECUTION_RESULT names
	Metrics  metrics `json:"metrics"`
	Outcome  string  `json:"outcome"`
}

// metrics is what it took.
type metrics struct {
	QueueMillis int64  `json:"queue_ms"`
	SetupMillis int64  `json:"setup_ms"`
	WallMillis  int64  `json:"wall_ms"`
	CPUMillis   *int64 `json:"cpu_ms"`
	MemoryBytes *int64 `json:"memory_bytes"`
}

func executeCode(c *call, w http.ResponseWriter, r *http.Request) error {
	var in codeRequest
	if err := decode(w, r, &in); err != nil {
		return err
	}
	if in.Code == "" {
		return errs.New(errs.InvalidArgument, "code is missing")
	}
	if in.Language == "" {
		in.Language = "python"
	}
	return c.execute(w, r, &execution.SubmitRequest{Language: in.Language, Code: []byte(in.Code), Env: in.Env}, in.Timeout)
}

func executeCommand(c *call, w http.ResponseWriter, r *http.Request) error {
	var in commandRequest
	if err := decode(w, r, &in); err != nil {
		return err
	}
	req := &execution.SubmitRequest{Env: in.Env}
	var line string
	switch {
	case json.Unmarshal(in.Command, &line) == nil && line != "":
		req.Command = []string{"/bin/sh", "-c", line}
	case json.Unmarshal(in.Command, &req.Command) == nil && len(req.Command) > 0:
	default:
		return errs.New(errs.InvalidArgument, "command is missing: text for the shell, or a list of the program and its arguments")
	}
	return c.execute(w, r, req, in.Timeout)
}

// execute submits an execution in a session, waits for its end and answers with
// what it left. It cancels the execution if the caller goes.
func (c *call) execute(w http.ResponseWriter, r *http.Request, req *execution.SubmitRequest, seconds float64) error {
	id := r.PathValue("id")
	sb, err := c.find(id)
	if err != nil {
		return err
	}
	timeout := c.settings.Timeout
	if seconds != 0 {
		limit := timeout.Seconds()
		if !(seconds > 0 && seconds <= limit) {
			return errs.New(errs.InvalidArgument, "timeout is %v, not a number of seconds up to %v", seconds, limit)
		}
		timeout = max(time.Duration(seconds*float64(time.Second)), execution.MinTimeout)
	}
	// A caller that repeats the request itself must not have it run more often.
	req.Project, req.Sandbox, req.Timeout, req.Retry = c.project, sb.GetID(), &timeout, &execution.Retry{Attempts: 1}
	resp, err := c.executions.Submit(c.ctx, req)
	if err != nil {
		return err
	}
	e, err := entity.Decode[execution.Execution](&resp.Execution)
	if err != nil {
		return err
	}
	wctx, cancel := context.WithTimeout(c.ctx, timeout+waitGrace)
	defer cancel()
	if _, err := c.executions.Wait(wctx, &execution.ExecutionRequest{Project: c.project, Execution: string(e.ID)}); err != nil {
		end, stop := context.WithTimeout(context.WithoutCancel(c.ctx), cancelTimeout)
		defer stop()
		if _, cerr := c.executions.Cancel(end, &execution.CancelRequest{Project: c.project, Execution: string(e.ID)}); cerr != nil {
			c.logger.Warn("the execution of a caller that has gone goes on", "execution", string(e.ID), "error", cerr)
		}
		return err
	}
	out, err := c.executions.Result(c.ctx, &execution.ResultRequest{Project: c.project, Execution: string(e.ID)})
	if err != nil {
		return err
	}
	if e, err = entity.Decode[execution.Execution](&out.Execution); err != nil {
		return err
	}
	if e.Status.ExitCode == nil {
		return errs.New(errs.FailedPrecondition, "it did not run to its end (%s): %s", e.Status.Outcome, e.Status.Message)
	}
	res := result{
		Session: id, ExitCode: *e.Status.ExitCode, Stdout: text(out.Stdout), Stderr: text(out.Stderr), Outcome: string(e.Status.Outcome),
	}
	if out.Result != nil {
		t := text(bytes.TrimSuffix(out.Result, []byte("\n")))
		res.Result = &t
	}
	if m := e.Status.Metrics; m != nil {
		res.Metrics = metrics{
			QueueMillis: m.Queue.Milliseconds(), SetupMillis: m.Setup.Milliseconds(), WallMillis: m.Wall.Milliseconds(), MemoryBytes: m.MemoryBytes,
		}
		if m.CPU != nil {
			n := m.CPU.Milliseconds()
			res.Metrics.CPUMillis = &n
		}
	}
	return answer(w, http.StatusOK, res)
}

func text(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
