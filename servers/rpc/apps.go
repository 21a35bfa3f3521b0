package rpcserver

import (
	"context"
	"strconv"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/rpc"
)

// appHandler serves app.Apps.
type appHandler struct {
	apps     *apps.Service
	software Software
}

func (h *appHandler) Software(ctx context.Context, req *app.SoftwareRequest, st rpc.ServerStream[rpc.None, rpc.Bytes]) error {
	v, err := entity.Get[app.AppVersion](ctx, h.apps.Store, req.AppVersion)
	if err != nil {
		return err
	}
	a, err := entity.Get[app.App](ctx, h.apps.Store, v.Spec.App)
	if err != nil {
		return err
	}
	return h.software(ctx, v.Spec.Image, a.Name, "v"+strconv.FormatInt(v.Spec.Number, 10), st.Writer())
}

func (h *appHandler) Create(ctx context.Context, req *app.AppRequest) (*app.AppResponse, error) {
	a, err := h.apps.Create(ctx, req.Project, req.App)
	if err != nil {
		return nil, err
	}
	rec, err := record(a)
	return &app.AppResponse{App: rec}, err
}

func (h *appHandler) Delete(ctx context.Context, req *app.AppRequest) error {
	return h.apps.Delete(ctx, req.Project, req.App)
}

func (h *appHandler) SetEnv(ctx context.Context, req *app.SetEnvRequest) (*app.DeploymentResponse, error) {
	change := apps.EnvChange{Set: req.Set, SetSecret: req.SetSecret, Unset: req.Unset, Deploy: req.Deploy}
	d, changed, err := h.apps.SetEnv(ctx, req.Project, req.App, change, deployRequest(ctx, req.Message))
	resp, err := deploymentResponse(d, err)
	if err == nil && !changed {
		resp.Unchanged = &[]bool{true}[0]
	}
	return resp, err
}

func (h *appHandler) Scale(ctx context.Context, req *app.ScaleRequest) (*app.ScaleResponse, error) {
	a, deferred, err := h.apps.Scale(ctx, req.Project, req.App, apps.Scaling{Set: req.Set, Bounds: req.Bounds, Reset: req.Reset})
	if err != nil {
		return nil, err
	}
	rec, err := record(a)
	return &app.ScaleResponse{App: rec, Deferred: deferred}, err
}

func (h *appHandler) Maintain(ctx context.Context, req *app.MaintainRequest) (*app.AppResponse, error) {
	a, err := h.apps.Maintain(ctx, req.Project, req.App, req.On, req.Message)
	if err != nil {
		return nil, err
	}
	rec, err := record(a)
	return &app.AppResponse{App: rec}, err
}

func (h *appHandler) Rollback(ctx context.Context, req *app.RollbackRequest) (*app.DeploymentResponse, error) {
	return deploymentResponse(h.apps.Rollback(ctx, req.Project, req.App, req.To, deployRequest(ctx, req.Message)))
}

func (h *appHandler) Promote(ctx context.Context, req *app.PromoteRequest) (*app.DeploymentResponse, error) {
	if req.Preview != "" {
		return deploymentResponse(h.apps.PromotePreview(ctx, req.Project, req.App, req.Preview, deployRequest(ctx, req.Message)))
	}
	return deploymentResponse(h.apps.Promote(ctx, req.Project, req.App, deployRequest(ctx, req.Message)))
}

func (h *appHandler) DeletePreview(ctx context.Context, req *app.AppPreviewRequest) error {
	return h.apps.DeletePreview(ctx, req.Project, req.App, req.Preview)
}

func (h *appHandler) Restart(ctx context.Context, req *app.RestartRequest) (*app.DeploymentResponse, error) {
	return deploymentResponse(h.apps.Restart(ctx, req.Project, req.App, deployRequest(ctx, req.Message)))
}

func (h *appHandler) Cancel(ctx context.Context, req *app.AppRequest) (*app.DeploymentResponse, error) {
	return deploymentResponse(h.apps.Cancel(ctx, req.Project, req.App))
}

// deployRequest holds the fields that every rollout request has.
func deployRequest(ctx context.Context, message string) apps.DeployRequest {
	return apps.DeployRequest{Message: message, RequestedBy: caller(ctx)}
}

// deploymentResponse encodes a deployment; nil means that there is none.
func deploymentResponse(d *app.Deployment, err error) (*app.DeploymentResponse, error) {
	if err != nil || d == nil {
		return &app.DeploymentResponse{}, err
	}
	rec, err := record(d)
	return &app.DeploymentResponse{Deployment: &rec}, err
}
