package rpcserver

import (
	"context"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/domain/executions"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
)

// executionHandler serves execution.Executions.
type executionHandler struct{ executions *executions.Service }

func submitter(ctx context.Context) executions.Submitter {
	return executions.Submitter{Name: caller(ctx), Key: callerKey(ctx)}
}

func (h *executionHandler) Submit(ctx context.Context, req *execution.SubmitRequest) (*execution.ExecutionResponse, error) {
	e, err := h.executions.Submit(ctx, req, submitter(ctx))
	if err == nil {
		rpc.SetSubjects(ctx, rpc.Subject{Kind: execution.KindExecution, ID: string(e.ID)})
	}
	return executionResponse(e, err)
}

func (h *executionHandler) SubmitBatch(ctx context.Context, req *execution.SubmitBatchRequest) (*execution.BatchResponse, error) {
	batch, list, err := h.executions.SubmitBatch(ctx, req, submitter(ctx))
	if err != nil {
		return nil, err
	}
	rpc.SetSubjects(ctx, rpc.Subject{Kind: "batch", ID: batch})
	records, err := recordsOf(list)
	return &execution.BatchResponse{Batch: batch, Executions: records}, err
}

func (h *executionHandler) Get(ctx context.Context, req *execution.ExecutionRequest) (*execution.ExecutionResponse, error) {
	return executionResponse(h.executions.Get(ctx, req.Project, id.Execution(req.Execution)))
}

func (h *executionHandler) List(ctx context.Context, req *execution.ListRequest) (*execution.ListResponse, error) {
	list, cursor, err := h.executions.List(ctx, req.Project, executions.ListQuery{
		Batch: req.Batch, Phase: req.Phase, Limit: int(req.Limit), Cursor: req.Cursor,
	})
	if err != nil {
		return nil, err
	}
	records, err := recordsOf(list)
	return &execution.ListResponse{Executions: records, Cursor: cursor}, err
}

func (h *executionHandler) Wait(ctx context.Context, req *execution.ExecutionRequest) (*execution.ExecutionResponse, error) {
	return executionResponse(h.executions.Wait(ctx, req.Project, id.Execution(req.Execution)))
}

func (h *executionHandler) Result(ctx context.Context, req *execution.ResultRequest) (*execution.ResultResponse, error) {
	e, out, err := h.executions.Result(ctx, req.Project, id.Execution(req.Execution), opt.Value(req.Attempt))
	if err != nil {
		return nil, err
	}
	rec, err := record(e)
	return &execution.ResultResponse{
		Execution: rec, Stdout: out.Stdout, Stderr: out.Stderr, Result: out.Result, StdoutTruncated: opt.Of(out.StdoutTruncated),
		StderrTruncated: opt.Of(out.StderrTruncated), ResultTruncated: opt.Of(out.ResultTruncated),
	}, err
}

// Logs sends the output of an execution.
func (h *executionHandler) Logs(ctx context.Context, req *execution.LogsRequest, st rpc.ServerStream[rpc.None, execution.Output]) error {
	return h.executions.Logs(ctx, req.Project, id.Execution(req.Execution), opt.Value(req.Follow), st.Send)
}

func (h *executionHandler) Cancel(ctx context.Context, req *execution.CancelRequest) (*execution.ExecutionResponse, error) {
	e, err := h.executions.Cancel(ctx, req.Project, id.Execution(req.Execution))
	if err != nil || !opt.Value(req.Wait) {
		return executionResponse(e, err)
	}
	return executionResponse(h.executions.Wait(ctx, req.Project, e.GetID()))
}

func executionResponse(e *execution.Execution, err error) (*execution.ExecutionResponse, error) {
	if err != nil {
		return nil, err
	}
	rec, err := record(e)
	return &execution.ExecutionResponse{Execution: rec}, err
}
