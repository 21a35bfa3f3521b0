package rpcserver

import (
	"context"
	"slices"

	"miren.dev/runtime/api/history"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
)

// historyHandler serves history.History.
type historyHandler struct{ history entity.History }

// History serves h to its callers, as far as their roles allow.
func History(h entity.History) history.History { return &historyHandler{h} }

// List implements history.History.
func (h *historyHandler) List(ctx context.Context, req *history.ListRequest) (*history.ListResponse, error) {
	projects, err := historyProjects(ctx, req.Project)
	if err != nil {
		return nil, err
	}
	if (req.Subject == "") != (req.SubjectKind == "") {
		return nil, errs.New(errs.InvalidArgument, "a subject needs kind and id, such as app and blog")
	}
	page, err := h.history.Records(ctx, entity.HistoryQuery{
		Stream: entity.Stream(req.Stream), Projects: projects, Actor: req.Actor, SubjectKind: req.SubjectKind, SubjectID: req.Subject,
		Action: req.Action, Since: opt.Value(req.Since), Until: opt.Value(req.Until), Limit: int(req.Limit), Cursor: req.Cursor,
	})
	if err != nil {
		return nil, err
	}
	resp := &history.ListResponse{Cursor: page.Cursor}
	for _, r := range page.Records {
		resp.Records = append(resp.Records, history.Record{
			ID: r.ID, Time: r.Time, Stream: history.Stream(r.Stream), Project: r.Project, Actor: r.Actor, SubjectKind: r.SubjectKind,
			Subject: r.SubjectID, Action: r.Action, Outcome: r.Outcome, RequestID: r.RequestID, Detail: string(r.Detail),
		})
	}
	return resp, nil
}

// historyProjects returns the projects whose records the caller gets; nil: all
// records, which admins get.
func historyProjects(ctx context.Context, project string) ([]string, error) {
	grant := rpc.GrantFrom(ctx)
	switch {
	case project != "" && grant.Allows(project):
		return []string{project}, nil
	case project != "":
		return nil, rpc.DeniedProject(ctx)
	case !grant.All:
		return grant.Projects, nil
	case !slices.Contains(rpc.IdentityFrom(ctx).Roles, rpc.RoleAdmin):
		return nil, errs.New(errs.PermissionDenied, "only admins see the history of all projects and of the installation").
			WithHint("name a project with --project")
	}
	return nil, nil
}
