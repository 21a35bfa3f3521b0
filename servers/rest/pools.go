package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
)

// Pool keeps sandboxes of a template that run already, so that sessions of it
// begin at once.
type Pool struct {
	Template    string    `json:"template" doc:"Name of the template." example:"python"`
	Min         int64     `json:"min" doc:"Warm sandboxes that are always kept."`
	Max         int64     `json:"max" doc:"Most warm sandboxes; 0: none is kept."`
	IdleSeconds int64     `json:"idle_seconds" doc:"Time without a session from it after which only min are kept."`
	Target      int64     `json:"target" doc:"Warm sandboxes that are wanted now."`
	Warm        int64     `json:"warm" doc:"Sandboxes that wait."`
	Starting    int64     `json:"starting" doc:"Sandboxes that are being made."`
	Message     string    `json:"message,omitempty" doc:"Reason why it has fewer than wanted."`
	CreatedAt   time.Time `json:"created_at" doc:"Time of its creation."`
}

func poolOf(p *sandbox.WarmPool) Pool {
	return Pool{
		Template: p.Name, Min: p.Spec.Min, Max: p.Spec.Max, IdleSeconds: int64(p.Spec.Idle / time.Second), Target: p.Status.Target, Warm: p.Status.Warm,
		Starting: p.Status.Starting, Message: p.Status.Message, CreatedAt: p.CreatedAt,
	}
}

// PoolInput names a pool by its template.
type PoolInput struct {
	Template string `path:"template" maxLength:"63" pattern:"^[a-z0-9][a-z0-9._-]*$" doc:"Name of the template." example:"python"`
}

func registerPools(a huma.API) {
	const tag = "pools"
	register(a, op(http.MethodGet, "/pools", "list-pools", tag, "List the pools of warm sandboxes"), listPools)
	register(a, op(http.MethodGet, "/pools/{template}", "get-pool", tag, "Get the pool of a template"), getPool)
	register(a, op(http.MethodPut, "/pools/{template}", "set-pool", tag, "Make or change the pool of a template"), setPool)
	register(a, op(http.MethodDelete, "/pools/{template}", "delete-pool", tag, "Delete the pool of a template with the sandboxes that wait in it", status(http.StatusNoContent)), deletePool)
}

// ListInput selects a page of a list.
type ListInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"Most elements of a page."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"next_cursor of the page before."`
}

// PoolPage is a page of a list.
type PoolPage struct {
	Pools      []Pool `json:"pools" doc:"Pools, in the order of their ids."`
	NextCursor string `json:"next_cursor,omitempty" doc:"For the next page; absent on the last."`
}

// listPage returns a page of the entities of a kind in the project.
func listPage[T any, P entity.ObjectPtr[T]](ctx context.Context, kind string, in *ListInput) (all []P, cursor string, err error) {
	page, err := remote.New(callerFrom(ctx).Client).List(ctx, entity.Query{Kind: kind, Limit: in.Limit, Cursor: in.Cursor})
	if err != nil {
		return nil, "", err
	}
	all, err = decodeAll[T, P](page.Records)
	return all, page.Cursor, err
}

func listPools(ctx context.Context, in *ListInput) (*body[PoolPage], error) {
	all, cursor, err := listPage[sandbox.WarmPool](ctx, sandbox.KindWarmPool, in)
	if err != nil {
		return nil, err
	}
	out := PoolPage{Pools: []Pool{}, NextCursor: cursor}
	for _, p := range all {
		out.Pools = append(out.Pools, poolOf(p))
	}
	return &body[PoolPage]{out}, nil
}

func getPool(ctx context.Context, in *PoolInput) (*body[Pool], error) {
	p, err := byName[sandbox.WarmPool](ctx, in.Template)
	if err != nil {
		return nil, err
	}
	return &body[Pool]{poolOf(p)}, nil
}

type setPoolInput struct {
	PoolInput
	Body struct {
		Min         *int64 `json:"min,omitempty" minimum:"0" maximum:"1000" doc:"Warm sandboxes that are always kept; absent: as it is."`
		Max         *int64 `json:"max,omitempty" minimum:"0" maximum:"1000" doc:"Most warm sandboxes; absent: as it is."`
		IdleSeconds *int64 `json:"idle_seconds,omitempty" minimum:"1" maximum:"31536000" doc:"Time without a session from it after which only min are kept; absent: as it is."`
	}
}

func setPool(ctx context.Context, in *setPoolInput) (*body[Pool], error) {
	resp, err := templates(ctx).SetPool(ctx, &sandbox.SetPoolRequest{
		Project: callerFrom(ctx).Project(), Template: in.Template, Min: in.Body.Min, Max: in.Body.Max, Idle: seconds(in.Body.IdleSeconds),
	})
	if err != nil {
		return nil, err
	}
	p, err := entity.Decode[sandbox.WarmPool](&resp.Pool)
	if err != nil {
		return nil, err
	}
	return &body[Pool]{poolOf(p)}, nil
}

func deletePool(ctx context.Context, in *PoolInput) (*struct{}, error) {
	return nil, templates(ctx).DeletePool(ctx, &sandbox.PoolRequest{Project: callerFrom(ctx).Project(), Template: in.Template})
}
