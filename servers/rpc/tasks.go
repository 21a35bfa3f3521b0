package rpcserver

import (
	"context"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/tasks"
)

// taskHandler serves app.Tasks.
type taskHandler struct{ tasks *tasks.Service }

// Tasks serves the operations on tasks of apps.
func Tasks(s *tasks.Service) app.Tasks { return &taskHandler{s} }

func (h *taskHandler) Run(ctx context.Context, req *app.RunTaskRequest) (*app.TaskRunResponse, error) {
	return taskRun(h.tasks.Run(ctx, req.Project, req.App, req.Task, caller(ctx)))
}

func (h *taskHandler) Cancel(ctx context.Context, req *app.TaskRunRequest) (*app.TaskRunResponse, error) {
	return taskRun(h.tasks.Cancel(ctx, req.TaskRun))
}

func (h *taskHandler) Suspend(ctx context.Context, req *app.SuspendTaskRequest) (*app.TaskScheduleResponse, error) {
	x, err := h.tasks.Suspend(ctx, req.Project, req.App, req.Task, req.Suspended)
	if err != nil {
		return nil, err
	}
	rec, err := record(x)
	return &app.TaskScheduleResponse{Schedule: rec}, err
}

func taskRun(r *app.TaskRun, err error) (*app.TaskRunResponse, error) {
	if err != nil {
		return nil, err
	}
	rec, err := record(r)
	return &app.TaskRunResponse{Run: rec}, err
}
