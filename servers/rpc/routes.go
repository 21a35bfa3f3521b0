package rpcserver

import (
	"context"
	"slices"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
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

func (h *routeHandler) Configure(ctx context.Context, req *app.ConfigureRouteRequest) (*app.RouteResponse, error) {
	c := routes.ConfigureRequest{Project: req.Project, Host: req.Host, Path: req.Path, Passwords: req.Passwords, OIDCSecret: req.OidcSecret, RemoveUsers: req.RemoveUsers, Reset: req.Reset}
	if req.Settings != nil {
		c.Settings = *req.Settings
	}
	r, err := h.routes.Configure(ctx, c)
	if err != nil {
		return nil, err
	}
	rec, err := record(r)
	return &app.RouteResponse{Route: rec}, err
}

func (h *routeHandler) SetTCP(ctx context.Context, req *app.SetTCPRouteRequest) (*app.RouteResponse, error) {
	r, err := h.routes.SetTCP(ctx, routes.SetTCPRequest{Project: req.Project, Port: req.Port, App: req.App, Service: req.Service, Allow: req.Allow,
		IdleTimeout: req.IdleTimeout, ProxyProtocol: req.ProxyProtocol, TLS: req.TLS, Host: req.Host, Passthrough: req.Passthrough})
	if err != nil {
		return nil, err
	}
	rec, err := record(r)
	return &app.RouteResponse{Route: rec}, err
}

func (h *routeHandler) DeleteTCP(ctx context.Context, req *app.DeleteTCPRouteRequest) error {
	return h.routes.DeleteTCP(ctx, req.Project, req.Port, req.Host)
}

// Passwords answers the process of the ingress alone. Other callers are refused,
// administrators too.
func (h *routeHandler) Passwords(ctx context.Context, req *app.RoutePasswordsRequest) (*app.RoutePasswordsResponse, error) {
	if id := rpc.IdentityFrom(ctx); id.How != "socket" || !slices.Equal(id.Roles, []string{ingressRole}) {
		return nil, errs.New(errs.FailedPrecondition, "the users of routes are given to the ingress process only")
	}
	list, last, err := h.routes.Passwords(ctx, req.After)
	if err != nil {
		return nil, err
	}
	return &app.RoutePasswordsResponse{Passwords: list, Last: last}, nil
}

func (h *routeHandler) Delete(ctx context.Context, req *app.DeleteRouteRequest) error {
	return h.routes.Delete(ctx, req.Project, req.Host, req.Path)
}
