package rpcserver

import (
	"context"
	"slices"
	"strings"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/domain/identities"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// entities serves store.Entities. A caller whose roles are bound to projects
// reads these projects and what belongs to them, and nothing of the installation.
type entities struct {
	store.Entities
	reader entity.Reader
}

// Entities limits inner, which serves the store, to the projects of its
// callers.
func Entities(inner store.Entities, r entity.Reader) store.Entities { return &entities{inner, r} }

// ingressRole is the role of the ingress process, and ingressKinds what it reads:
// the table of the ingress is made of them.
const ingressRole = "ingress"

var ingressKinds = []string{app.KindApp, app.KindRoute, app.KindTCPRoute, certificate.KindCertificate, certificate.KindCertificateOrder, sandbox.KindSandbox, sandbox.KindSandboxPool, sandbox.KindPreview}

// mayRead returns an error of class PermissionDenied if the caller has the role of
// the ingress, and reads other kinds; "": every kind.
func mayRead(ctx context.Context, kinds ...string) error {
	roles := rpc.IdentityFrom(ctx).Roles
	limited := slices.ContainsFunc(roles, func(r string) bool {
		name, _, _ := rpc.SplitRole(r)
		return name == ingressRole
	})
	if !limited || slices.Contains(roles, rpc.RoleAdmin) {
		return nil
	}
	for _, k := range kinds {
		if !slices.Contains(ingressKinds, k) {
			return errs.New(errs.PermissionDenied, "the role %s reads %s only, not %q", ingressRole, strings.Join(ingressKinds, ", "), k)
		}
	}
	return nil
}

// view holds the ids of the projects that a caller may read; nil: everything.
type view map[schema.ID]bool

// view returns the projects whose entities of a kind the caller may read; "":
// every kind.
func (e *entities) view(ctx context.Context, kind string) (view, error) {
	g := rpc.GrantFrom(ctx)
	if g.All {
		return nil, nil
	}
	if k, err := api.Kind(kind); err == nil && k.Scope == schema.ScopeCluster && k.Name != core.KindProject {
		return nil, errs.New(errs.PermissionDenied, "a %s belongs to no project, and the roles of %s hold in projects only", k.Name, rpc.IdentityFrom(ctx).Name).
			WithHint("ask for a certificate with a role for all projects (`r auth generate --role`)")
	}
	v := view{}
	for _, name := range g.Projects {
		id, err := projects.Find(ctx, e.reader, name)
		if errs.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		v[id] = true
	}
	return v, nil
}

// shows reports whether a record is visible.
func (v view) shows(r *schema.Record) bool {
	if v == nil {
		return true
	}
	if r.Kind == core.KindProject {
		return v[r.ID]
	}
	return v[r.Project]
}

// narrow returns the project to which a query can be limited: the one that the
// query names, or the only one in the view.
func (v view) narrow(ctx context.Context, kind, project string) (string, error) {
	switch {
	case v == nil:
		return project, nil
	case project != "" && !v[schema.ID(project)]:
		return "", rpc.DeniedProject(ctx)
	case project != "" || kind == "" || kind == core.KindProject || len(v) != 1:
		return project, nil
	}
	for id := range v {
		project = string(id)
	}
	return project, nil
}

// Get implements store.Entities.
func (e *entities) Get(ctx context.Context, req *store.GetRequest) (*store.GetResponse, error) {
	if err := mayRead(ctx, req.Kind); err != nil {
		return nil, err
	}
	v, err := e.view(ctx, req.Kind)
	if err != nil {
		return nil, err
	}
	resp, err := e.Entities.Get(ctx, req)
	if err == nil && !v.shows(&resp.Record) {
		return nil, rpc.DeniedProject(ctx)
	}
	return resp, err
}

// List implements store.Entities. A page is empty only if it is the last.
func (e *entities) List(ctx context.Context, req *store.ListRequest) (*store.ListResponse, error) {
	if err := mayRead(ctx, req.Kind); err != nil {
		return nil, err
	}
	v, err := e.view(ctx, req.Kind)
	if err != nil {
		return nil, err
	}
	q := *req
	if q.Project, err = v.narrow(ctx, q.Kind, q.Project); err != nil {
		return nil, err
	}
	for {
		resp, err := e.Entities.List(ctx, &q)
		if err != nil || v == nil {
			return resp, err
		}
		var visible []schema.Record
		for i := range resp.Records {
			if v.shows(&resp.Records[i]) {
				visible = append(visible, resp.Records[i])
			}
		}
		resp.Records = visible
		if len(visible) > 0 || resp.Cursor == "" {
			return resp, nil
		}
		q.Cursor = resp.Cursor
	}
}

// Txn implements store.Entities. It refuses what would undo a revocation.
func (e *entities) Txn(ctx context.Context, req *store.TxnRequest) (*store.TxnResponse, error) {
	for i := range req.Ops {
		op := &req.Ops[i]
		if op.Record.Kind != core.KindClientCertificate || op.Type == store.OpTypeCreate || op.Type == store.OpTypeCheck {
			continue
		}
		c, err := entity.Get[core.ClientCertificate](ctx, e.reader, op.Record.ID)
		if errs.Is(err, errs.NotFound) {
			continue // the store refuses it
		}
		if err != nil {
			return nil, err
		}
		// If it is revoked after this, its revision is not the expected one.
		if err := identities.CheckChange(c); err != nil {
			return nil, err
		}
	}
	return e.Entities.Txn(ctx, req)
}

// Watch implements store.Entities.
func (e *entities) Watch(ctx context.Context, req *store.WatchRequest, st rpc.ServerStream[rpc.None, store.EventBatch]) error {
	kinds := slices.Clone(req.Kinds)
	if req.Kind != "" || len(kinds) == 0 {
		kinds = append(kinds, req.Kind)
	}
	if err := mayRead(ctx, kinds...); err != nil {
		return err
	}
	v, err := e.view(ctx, req.Kind)
	if err != nil {
		return err
	}
	q := *req
	if q.Project, err = v.narrow(ctx, q.Kind, q.Project); err != nil {
		return err
	}
	if v != nil {
		st = &visibleEvents{st, v}
	}
	return e.Entities.Watch(ctx, &q, st)
}

// visibleEvents sends the events of visible entities, and bookmarks.
type visibleEvents struct {
	rpc.ServerStream[rpc.None, store.EventBatch]
	view view
}

// Send implements rpc.ServerStream.
func (s *visibleEvents) Send(b *store.EventBatch) error {
	if len(b.Events) == 0 {
		return s.ServerStream.Send(b) // the watch has begun
	}
	var visible []store.Event
	for i := range b.Events {
		if r := b.Events[i].Record; r == nil || s.view.shows(r) {
			visible = append(visible, b.Events[i])
		}
	}
	if len(visible) == 0 {
		return nil // the next bookmark carries the position instead
	}
	return s.ServerStream.Send(&store.EventBatch{Epoch: b.Epoch, Events: visible})
}
