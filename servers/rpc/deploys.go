package rpcserver

import (
	"context"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/gitpush"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/source"
)

// deployHandler serves app.Deploys.
type deployHandler struct {
	apps   *apps.Service
	pushes *gitpush.Service
}

func (h *deployHandler) PlanUpload(_ context.Context, req *app.PlanUploadRequest) (*app.PlanUploadResponse, error) {
	digest, missing, err := h.apps.Sources.Missing(req.Manifest)
	if err != nil {
		return nil, err
	}
	resp := &app.PlanUploadResponse{Source: string(digest)}
	for _, m := range missing {
		resp.Missing = append(resp.Missing, string(m))
	}
	return resp, nil
}

func (h *deployHandler) Upload(ctx context.Context, req *app.UploadRequest, st rpc.ServerStream[rpc.Bytes, app.UploadResult]) error {
	digest, err := source.ParseDigest(req.Source)
	if err != nil {
		return err
	}
	n, err := h.apps.Sources.ReadPack(ctx, digest, st.Reader())
	if err != nil {
		return err
	}
	return st.Send(&app.UploadResult{Contents: int64(n)})
}

func (h *deployHandler) Deploy(ctx context.Context, req *app.DeployRequest) (*app.DeploymentResponse, error) {
	digest, err := source.ParseDigest(req.Source)
	if err != nil {
		return nil, err
	}
	r := deployRequest(ctx, req.Message)
	r.Source, r.Git, r.NoCache, r.Stack, r.Folder = digest, req.Git, opt.Value(req.NoCache), req.Stack, req.Folder
	r.Canary, r.Preview = opt.Value(req.Canary), req.Preview
	return deploymentResponse(h.apps.DeploySource(ctx, req.Project, req.App, req.Create, r))
}

func (h *deployHandler) Push(ctx context.Context, req *app.AppRequest, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	if h.pushes == nil {
		return errs.New(errs.FailedPrecondition, "this server receives no pushes")
	}
	return h.pushes.Receive(ctx, gitpush.Request{Project: req.Project, App: req.App, By: caller(ctx)}, st.Reader(), st.Writer())
}

func (h *deployHandler) Cancel(ctx context.Context, req *app.DeploymentRequest) (*app.DeploymentResponse, error) {
	return deploymentResponse(h.apps.CancelDeployment(ctx, req.Deployment))
}

func (h *deployHandler) Follow(ctx context.Context, req *app.FollowRequest, st rpc.ServerStream[rpc.None, app.DeployEvent]) error {
	return h.apps.Follow(ctx, req.Deployment, opt.Value(req.BuildOffset), func(p apps.Progress) error {
		if p.Build != nil {
			e := apps.BuildEvent(p.Build)
			return st.Send(&app.DeployEvent{Build: &e, BuildOffset: &p.Offset})
		}
		rec, err := record(p.Deployment)
		if err != nil {
			return err
		}
		return st.Send(&app.DeployEvent{Deployment: &rec})
	})
}

// buildHandler serves app.Builds.
type buildHandler struct{ apps *apps.Service }

func (h *buildHandler) Logs(ctx context.Context, req *app.BuildLogsRequest, st rpc.ServerStream[rpc.None, app.BuildLog]) error {
	return h.apps.BuildLog(ctx, req.Build, opt.Value(req.Offset), opt.Value(req.Follow), func(e buildlog.Event, next int64) error {
		return st.Send(&app.BuildLog{Event: apps.BuildEvent(&e), Offset: next})
	})
}
