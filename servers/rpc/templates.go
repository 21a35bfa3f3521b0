package rpcserver

import (
	"context"
	"strconv"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/source"
)

// templateHandler serves sandbox.Templates.
type templateHandler struct {
	templates *templates.Service
	software  Software
}

func (h *templateHandler) Software(ctx context.Context, req *sandbox.TemplateRequest, st rpc.ServerStream[rpc.None, rpc.Bytes]) error {
	pid, err := projects.Find(ctx, h.templates.Store, req.Project)
	if err != nil {
		return err
	}
	t, v, err := h.templates.Find(ctx, pid, req.Template)
	if err != nil {
		return err
	}
	image, err := h.templates.Image(ctx, v)
	if err != nil {
		return err
	}
	return h.software(ctx, image, t.Name, strconv.FormatInt(v.Spec.Number, 10), st.Writer())
}

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
	return h.show(ctx, req.Project, req.Template)
}

func (h *templateHandler) show(ctx context.Context, project, name string) (*sandbox.TemplateResponse, error) {
	pid, err := projects.Find(ctx, h.templates.Store, project)
	if err != nil {
		return nil, err
	}
	t, v, err := h.templates.Describe(ctx, pid, name)
	if err != nil {
		return nil, err
	}
	versions, err := h.templates.Versions(ctx, t)
	if err != nil {
		return nil, err
	}
	var builds []*app.Build
	for _, v := range versions {
		of, err := templates.Builds(ctx, h.templates.Store, v)
		if err != nil {
			return nil, err
		}
		builds = append(builds, of...)
	}
	resp := &sandbox.TemplateResponse{}
	if resp.Template, err = record(t); err != nil {
		return nil, err
	}
	if v != nil {
		rec, err := record(v)
		if err != nil {
			return nil, err
		}
		resp.Selected = &rec
	}
	if resp.Versions, err = recordsOf(versions); err != nil {
		return nil, err
	}
	resp.Builds, err = recordsOf(builds)
	return resp, err
}

func (h *templateHandler) Build(ctx context.Context, req *sandbox.BuildTemplateRequest) (*sandbox.BuildTemplateResponse, error) {
	r := templates.BuildRequest{
		New: opt.Value(req.New), Labels: req.Labels, Title: req.Title, Dockerfile: req.Dockerfile, Steps: req.Steps, Image: req.Image, NoCache: opt.Value(req.NoCache), Secrets: req.Secrets, Tags: req.Tags, Aliases: req.Aliases,
		Start: req.Start, Env: req.Env, User: req.User, Workdir: req.Workdir, Capabilities: req.Capabilities,
		CPUMillis: opt.Value(req.CPUMillis), MemoryBytes: opt.Value(req.MemoryBytes), DiskBytes: opt.Value(req.DiskBytes),
	}
	if req.Ready != nil {
		r.Ready = &templates.Ready{Port: opt.Value(req.Ready.Port), Path: req.Ready.Path, Command: req.Ready.Command, Timeout: opt.Value(req.Ready.Timeout)}
	}
	if req.Source != "" {
		var err error
		if r.Source, err = source.ParseDigest(req.Source); err != nil {
			return nil, err
		}
	}
	b, err := h.templates.Build(ctx, req.Project, req.Name, r)
	if err != nil {
		return nil, err
	}
	rpc.SetSubjects(ctx, rpc.Subject{Kind: sandbox.KindTemplate, ID: string(b.Template.ID)})
	resp := &sandbox.BuildTemplateResponse{}
	if resp.Template, err = record(b.Template); err != nil {
		return nil, err
	}
	if resp.Version, err = record(b.Version); err != nil {
		return nil, err
	}
	resp.Build, err = record(b.Build)
	return resp, err
}

func (h *templateHandler) Wait(ctx context.Context, req *sandbox.TemplateRequest) (*sandbox.TemplateResponse, error) {
	if err := h.templates.Wait(ctx, req.Project, req.Template); err != nil {
		return nil, err
	}
	return h.show(ctx, req.Project, req.Template)
}

func (h *templateHandler) Tag(ctx context.Context, req *sandbox.TagTemplateRequest) (*sandbox.TemplateResponse, error) {
	set := h.templates.Tag
	if opt.Value(req.Remove) {
		set = h.templates.Untag
	}
	t, err := set(ctx, req.Project, req.Template, req.Tag)
	if err != nil {
		return nil, err
	}
	return h.show(ctx, req.Project, t.Name)
}

func (h *templateHandler) Alias(ctx context.Context, req *sandbox.AliasTemplateRequest) (*sandbox.TemplateResponse, error) {
	t, err := h.templates.Alias(ctx, req.Project, req.Template, req.Alias, opt.Value(req.Remove))
	if err != nil {
		return nil, err
	}
	return h.show(ctx, req.Project, t.Name)
}

func (h *templateHandler) Delete(ctx context.Context, req *sandbox.TemplateRequest) error {
	return h.templates.Delete(ctx, req.Project, req.Template)
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
