package rpcserver

import (
	"context"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// templateHandler serves sandbox.Templates.
type templateHandler struct{ templates *templates.Service }

func (h *templateHandler) List(ctx context.Context, req *sandbox.TemplatesRequest) (*sandbox.TemplatesResponse, error) {
	pid, err := projects.Find(ctx, h.templates.Store, req.Project)
	if err != nil {
		return nil, err
	}
	list, err := h.templates.List(ctx, pid)
	if err != nil {
		return nil, err
	}
	records, err := recordsOf(list)
	return &sandbox.TemplatesResponse{Templates: records}, err
}

func (h *templateHandler) Show(ctx context.Context, req *sandbox.TemplateRequest) (*sandbox.TemplateResponse, error) {
	pid, err := projects.Find(ctx, h.templates.Store, req.Project)
	if err != nil {
		return nil, err
	}
	t, v, err := h.templates.Find(ctx, pid, req.Template)
	if err != nil {
		return nil, err
	}
	versions, err := h.templates.Versions(ctx, t)
	if err != nil {
		return nil, err
	}
	resp := &sandbox.TemplateResponse{}
	if resp.Template, err = record(t); err != nil {
		return nil, err
	}
	if resp.Selected, err = record(v); err != nil {
		return nil, err
	}
	resp.Versions, err = recordsOf(versions)
	return resp, err
}

func (h *templateHandler) SetPool(ctx context.Context, req *sandbox.SetPoolRequest) (*sandbox.PoolResponse, error) {
	p, err := h.templates.SetPool(ctx, req.Project, req.Template, templates.PoolSettings{Min: req.Min, Max: req.Max, Idle: req.Idle})
	if err != nil {
		return nil, err
	}
	rpc.SetSubjects(ctx, rpc.Subject{Kind: sandbox.KindWarmPool, ID: string(p.ID)})
	rec, err := record(p)
	return &sandbox.PoolResponse{Pool: rec}, err
}

func (h *templateHandler) DeletePool(ctx context.Context, req *sandbox.PoolRequest) error {
	return h.templates.DeletePool(ctx, req.Project, req.Template)
}

// recordsOf encodes entities for the wire.
func recordsOf[O schema.Object](list []O) ([]schema.Record, error) {
	var out []schema.Record
	for _, o := range list {
		rec, err := record(o)
		if err != nil {
			return nil, err
		}
		out = append(out, rec)
	}
	return out, nil
}
