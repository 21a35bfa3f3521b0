package command

import (
	"context"
	"slices"
	"strings"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/suggest"
)

// ProjectID returns the id of the project of the command.
func (e *Env) ProjectID(ctx context.Context) (schema.ID, error) {
	r, err := e.Store(ctx)
	if err != nil {
		return "", err
	}
	name := e.Project()
	p, err := entity.ByName[core.Project](ctx, r, "", name)
	if errs.Is(err, errs.NotFound) {
		return "", errs.New(errs.NotFound, "project %q does not exist", name).WithHint("`r entity list project` lists the projects")
	}
	if err != nil {
		return "", err
	}
	return p.ID, nil
}

// projectOf returns the project in which to find entities of a kind; empty for
// kinds that belong to no project.
func (e *Env) projectOf(ctx context.Context, k *schema.Kind) (schema.ID, error) {
	if k.Scope == schema.ScopeCluster {
		return "", nil
	}
	return e.ProjectID(ctx)
}

// ListRecords returns every record of a kind in the project of the command, or
// in all projects.
func (e *Env) ListRecords(ctx context.Context, k *schema.Kind, allProjects bool, labels map[string]string) ([]schema.Record, schema.Token, error) {
	r, err := e.Store(ctx)
	if err != nil {
		return nil, schema.Token{}, err
	}
	q := entity.Query{Kind: k.Name, Labels: labels}
	if !allProjects {
		if q.Project, err = e.projectOf(ctx, k); err != nil {
			return nil, schema.Token{}, err
		}
	}
	var all []schema.Record
	for {
		page, err := r.List(ctx, q)
		if err != nil {
			return nil, schema.Token{}, err
		}
		all = append(all, page.Records...)
		if page.Cursor == "" {
			return all, page.Token, nil
		}
		q.Cursor = page.Cursor
	}
}

// minShort is how many characters of an abbreviated id must follow its prefix.
const minShort = 3

// FindRecord returns a record by its id, its name in the project, or a unique
// beginning of its id.
func (e *Env) FindRecord(ctx context.Context, k *schema.Kind, nameOrID string) (schema.Record, error) {
	r, err := e.Store(ctx)
	if err != nil {
		return schema.Record{}, err
	}
	looksLikeID := strings.HasPrefix(nameOrID, k.Prefix+"-")
	if looksLikeID {
		rec, err := r.Get(ctx, k.Name, schema.ID(nameOrID))
		if !errs.Is(err, errs.NotFound) && !errs.Is(err, errs.InvalidArgument) {
			return rec, err
		}
	}
	project, err := e.projectOf(ctx, k)
	if err != nil {
		return schema.Record{}, err
	}
	page, err := r.List(ctx, entity.Query{Kind: k.Name, Project: project, Name: nameOrID, Limit: 1})
	if err != nil {
		return schema.Record{}, err
	}
	if len(page.Records) > 0 {
		return page.Records[0], nil
	}
	all, _, err := e.ListRecords(ctx, k, false, nil)
	if err != nil {
		return schema.Record{}, err
	}
	var found []schema.Record
	var names []string
	short := strings.TrimPrefix(nameOrID, k.Prefix+"-")
	for i := range all {
		if len(short) >= minShort && strings.HasPrefix(strings.TrimPrefix(string(all[i].ID), k.Prefix+"-"), short) {
			found = append(found, all[i])
		}
		if all[i].Name != "" {
			names = append(names, all[i].Name)
		}
	}
	what := strings.ReplaceAll(k.Name, "_", " ")
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return schema.Record{}, errs.New(errs.InvalidArgument, "%d entities of kind %s have an id that begins with %q", len(found), what, nameOrID).
			WithHint("give more of the id: %s, %s, ...", found[0].ID, found[1].ID)
	}
	missing := errs.New(errs.NotFound, "%s %q does not exist in project %s", what, nameOrID, e.Project()).With("kind", k.Name)
	if k.Scope == schema.ScopeCluster {
		missing = errs.New(errs.NotFound, "%s %q does not exist", what, nameOrID).With("kind", k.Name)
	}
	if s := suggest.Nearest(nameOrID, names); s != "" {
		return schema.Record{}, missing.WithHint("did you mean %q?", s)
	}
	list := "r " + what + " list"
	if !slices.Contains(e.lists, list) {
		list = "r entity list " + k.Name
	}
	return schema.Record{}, missing.WithHint("`%s` lists all", list)
}

// Find is FindRecord for a type of entity.
func Find[T any, P entity.ObjectPtr[T]](ctx context.Context, e *Env, nameOrID string) (P, error) {
	rec, err := e.FindRecord(ctx, P(new(T)).EntityKind(), nameOrID)
	if err != nil {
		return nil, err
	}
	return entity.Decode[T, P](&rec)
}

// All lists the entities of a type in the project.
func All[T any, P entity.ObjectPtr[T]](ctx context.Context, e *Env, q entity.Query) ([]P, schema.Token, error) {
	r, err := e.Store(ctx)
	if err != nil {
		return nil, schema.Token{}, err
	}
	if q.Project, err = e.projectOf(ctx, P(new(T)).EntityKind()); err != nil {
		return nil, schema.Token{}, err
	}
	return entity.List[T, P](ctx, r, q)
}

// ShortID returns an id shortened to 8 characters after its prefix.
func ShortID[I ~string](id I) string {
	prefix, rest, ok := strings.Cut(string(id), "-")
	if !ok || len(rest) <= 8 {
		return string(id)
	}
	return prefix + "-" + rest[:8]
}
