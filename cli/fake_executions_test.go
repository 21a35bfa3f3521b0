package cli_test

import (
	"context"
	"fmt"
	"time"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// fakeExecutions keeps what is submitted. The code of a program is its exit code,
// and its first argument what it prints.
type fakeExecutions struct {
	*fake
	all map[string]*execution.SubmitRequest
}

func newFakeExecutions(f *fake) *fakeExecutions {
	return &fakeExecutions{f, map[string]*execution.SubmitRequest{}}
}

func (f *fakeExecutions) find(eid string) (*execution.Execution, *execution.SubmitRequest, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	req := f.all[eid]
	if req == nil {
		return nil, nil, errs.New(errs.NotFound, "there is no execution %s", eid)
	}
	e := execution.NewExecution()
	e.ID, e.Project, e.CreatedAt, e.Spec.Summary, e.Spec.Objects = schema.ID(eid), f.project, time.Now(), "python main.py", "x"
	e.Status.Phase, e.Status.Outcome, e.Status.NotBefore, e.Status.Attempt = execution.PhaseEnded, execution.OutcomeSetup, time.Now(), 1
	e.Status.Message = "no room"
	var code int64
	if n, _ := fmt.Sscan(string(req.Code), &code); n == 1 {
		e.Status.ExitCode, e.Status.Outcome, e.Status.Message = &code, execution.OutcomeFailed, ""
		if code == 0 {
			e.Status.Outcome = execution.OutcomeSucceeded
		}
	}
	return e, req, nil
}

func (f *fakeExecutions) response(eid string) (*execution.ExecutionResponse, error) {
	e, _, err := f.find(eid)
	if err != nil {
		return nil, err
	}
	return &execution.ExecutionResponse{Execution: *record(e)}, nil
}

func (f *fakeExecutions) Submit(_ context.Context, req *execution.SubmitRequest) (*execution.ExecutionResponse, error) {
	f.mu.Lock()
	eid := fmt.Sprintf("exec-%d", len(f.all)+1)
	f.all[eid] = req
	f.mu.Unlock()
	return f.response(eid)
}

func (f *fakeExecutions) SubmitBatch(ctx context.Context, req *execution.SubmitBatchRequest) (*execution.BatchResponse, error) {
	resp := &execution.BatchResponse{Batch: "batch-1"}
	for i := range req.Executions {
		one, err := f.Submit(ctx, &req.Executions[i])
		if err != nil {
			return nil, err
		}
		resp.Executions = append(resp.Executions, one.Execution)
	}
	return resp, nil
}

func (f *fakeExecutions) Get(_ context.Context, req *execution.ExecutionRequest) (*execution.ExecutionResponse, error) {
	return f.response(req.Execution)
}

func (f *fakeExecutions) Wait(_ context.Context, req *execution.ExecutionRequest) (*execution.ExecutionResponse, error) {
	return f.response(req.Execution)
}

func (f *fakeExecutions) Cancel(_ context.Context, req *execution.CancelRequest) (*execution.ExecutionResponse, error) {
	return f.response(req.Execution)
}

// List returns a page of one.
func (f *fakeExecutions) List(_ context.Context, req *execution.ListRequest) (*execution.ListResponse, error) {
	next := 1
	if req.Cursor != "" {
		_, _ = fmt.Sscan(req.Cursor, &next)
	}
	resp := &execution.ListResponse{}
	if e, _, err := f.find(fmt.Sprintf("exec-%d", next)); err == nil {
		resp.Executions, resp.Cursor = []schema.Record{*record(e)}, fmt.Sprint(next+1)
	}
	return resp, nil
}

func (f *fakeExecutions) Result(_ context.Context, req *execution.ResultRequest) (*execution.ResultResponse, error) {
	e, r, err := f.find(req.Execution)
	if err != nil {
		return nil, err
	}
	result := "{}"
	if req.Attempt != nil {
		result = fmt.Sprintf("attempt %d", *req.Attempt)
	}
	return &execution.ResultResponse{Execution: *record(e), Stdout: []byte(r.Args[0]), Result: []byte(result)}, nil
}

func (f *fakeExecutions) Logs(_ context.Context, req *execution.LogsRequest, st rpc.ServerStream[rpc.None, execution.Output]) error {
	_, r, err := f.find(req.Execution)
	if err != nil || len(r.Args) == 0 {
		return err
	}
	if err := st.Send(&execution.Output{Stdout: []byte(r.Args[0])}); err != nil {
		return err
	}
	return st.Send(&execution.Output{Stderr: []byte("wrong")})
}
