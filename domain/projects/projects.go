// Package projects finds and makes projects, the tenants that apps, sandboxes
// and routes belong to.
//
//	Default  the project of a request that names none
//	Find     the id of a project
//	Of       the name of the project of an entity
//	Ensure   a project that must exist
package projects

import (
	"context"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Default is the project of a request that names none. Every store has it.
const Default = "default"

// Find returns the id of the named project; "" names Default. NotFound if it
// does not exist.
func Find(ctx context.Context, r entity.Reader, name string) (schema.ID, error) {
	if name == "" {
		name = Default
	}
	p, err := entity.ByName[core.Project](ctx, r, "", name)
	if errs.Is(err, errs.NotFound) {
		return "", errs.New(errs.NotFound, "project %q does not exist", name).WithHint("`r entity list project` lists those that do")
	}
	if err != nil {
		return "", err
	}
	return p.ID, nil
}

// Of returns the name of the project that an entity belongs to, "" for an
// entity of cluster scope. NotFound if the entity does not exist.
func Of(ctx context.Context, r entity.Reader, kind string, id schema.ID) (string, error) {
	rec, err := r.Get(ctx, kind, id)
	if err != nil || rec.Project == "" {
		return "", err
	}
	p, err := entity.Get[core.Project](ctx, r, rec.Project)
	if err != nil {
		return "", err
	}
	return p.Name, nil
}

// Ensure creates the named project unless it exists; set completes a new one.
func Ensure(ctx context.Context, s entity.Store, name string, set ...func(*core.Project)) error {
	_, err := Find(ctx, s, name)
	if !errs.Is(err, errs.NotFound) {
		return err
	}
	p := core.NewProject()
	p.Name = name
	for _, f := range set {
		f(p)
	}
	err = entity.Create(ctx, s, p)
	if errs.Is(err, errs.AlreadyExists) {
		return nil
	}
	return err
}
