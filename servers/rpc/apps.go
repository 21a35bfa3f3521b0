package rpcserver

import (
	"context"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/servers/service"
)

// apps serves app.Apps.
type apps struct{ Deps }

func (s *apps) Create(ctx context.Context, req *app.AppRequest) (*app.AppResponse, error) {
	a, err := s.Service.CreateApp(ctx, req.Project, req.App)
	if err != nil {
		return nil, err
	}
	rec, err := record(a)
	return &app.AppResponse{App: rec}, err
}

func (s *apps) Delete(ctx context.Context, req *app.AppRequest) error {
	return s.Service.DeleteApp(ctx, req.Project, req.App)
}

// request is what every rollout has from its caller.
func request(ctx context.Context, message string) service.DeployRequest {
	return service.DeployRequest{Message: message, RequestedBy: rpc.IdentityFrom(ctx).Name}
}

func (s *apps) SetEnv(ctx context.Context, req *app.SetEnvRequest) (*app.DeploymentResponse, error) {
	return respond(s.Service.SetEnv(ctx, req.Project, req.App,
		service.EnvChange{Set: req.Set, SetSecret: req.SetSecret, Unset: req.Unset, Deploy: req.Deploy}, request(ctx, req.Message)))
}

func (s *apps) Rollback(ctx context.Context, req *app.RollbackRequest) (*app.DeploymentResponse, error) {
	return respond(s.Service.Rollback(ctx, req.Project, req.App, req.To, request(ctx, req.Message)))
}

func (s *apps) Restart(ctx context.Context, req *app.RestartRequest) (*app.DeploymentResponse, error) {
	return respond(s.Service.Restart(ctx, req.Project, req.App, request(ctx, req.Message)))
}

func (s *apps) Cancel(ctx context.Context, req *app.AppRequest) (*app.DeploymentResponse, error) {
	return respond(s.Service.Cancel(ctx, req.Project, req.App))
}
