package rpcserver

import (
	"context"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/routes"
)

// routeHandler serves app.Routes.
type routeHandler struct{ routes *routes.Service }

func (h *routeHandler) Set(ctx context.Context, req *app.SetRouteRequest) (*app.RouteResponse, error) {
	r, err := h.routes.Set(ctx, routes.SetRequest{Project: req.Project, Host: req.Host, Path: req.Path, App: req.App, Service: req.Service})
	if err != nil {
		return nil, err
	}
	rec, err := record(r)
	return &app.RouteResponse{Route: rec}, err
}

func (h *routeHandler) Delete(ctx context.Context, req *app.DeleteRouteRequest) error {
	return h.routes.Delete(ctx, req.Project, req.Host, req.Path)
}
