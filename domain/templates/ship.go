package templates

import (
	"context"
	"reflect"
	"slices"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/languages"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Ship makes the project System and in it the templates that come with the
// system, and more of the server's configuration. A template whose description has changed gets a new version.
func (s *Service) Ship(ctx context.Context, more ...languages.Template) error {
	if err := projects.Ensure(ctx, s.Store, System); err != nil {
		return err
	}
	system, err := projects.Find(ctx, s.Store, System)
	if err != nil {
		return err
	}
	for _, t := range slices.Concat(languages.Templates(), more) {
		err := entity.Retry(ctx, func() error { return s.ship(ctx, system, t) })
		if err != nil {
			return errs.Wrap(err, "template %s", t.Name)
		}
	}
	return nil
}

func (s *Service) ship(ctx context.Context, project schema.ID, d languages.Template) error {
	v := sandbox.NewTemplateVersion()
	v.Project = project
	v.Spec.Base, v.Spec.Workdir, v.Spec.User = d.Image, d.WorkDir, d.User
	v.Spec.Start = d.Start
	var err error
	if v.Spec.Ready, err = (*Ready)(d.Ready).probe(d.Start); err != nil {
		return err
	}
	v.Spec.Resources.CPUMillis, v.Spec.Resources.MemoryBytes, v.Spec.Resources.DiskBytes = d.CPUMillis, d.MemoryMiB<<20, d.DiskMiB<<20
	t, err := entity.ByName[sandbox.Template](ctx, s.Store, project, d.Name)
	if errs.Is(err, errs.NotFound) {
		t = sandbox.NewTemplate()
		t.Project, t.Name = project, d.Name
	} else if err != nil {
		return err
	}
	if t.Status.Version != "" {
		current, err := entity.Get[sandbox.TemplateVersion](ctx, s.Store, t.Status.Version)
		if err != nil {
			return err
		}
		v.Spec.Template, v.Spec.Number = current.Spec.Template, current.Spec.Number
		if reflect.DeepEqual(v.Spec, current.Spec) && t.Spec.Title == d.Doc {
			return nil
		}
	}
	return s.publish(ctx, t, v, d.Doc)
}

// publish makes v the current version of t, which may not exist yet, and deletes old versions, in one transaction.
func (s *Service) publish(ctx context.Context, t *sandbox.Template, v *sandbox.TemplateVersion, title string, old ...*sandbox.TemplateVersion) error {
	exists := t.Revision != 0
	t.Spec.Title = title
	if t.ID == "" {
		t.ID = schema.NewID(sandbox.TemplateKind.Prefix)
	}
	v.ID = schema.NewID(sandbox.TemplateVersionKind.Prefix)
	v.Spec.Template, v.Spec.Number = t.GetID(), t.Status.Number+1
	t.Status.Number, t.Status.Version = v.Spec.Number, v.GetID()
	var ops []entity.Op
	add := func(op entity.Op, err error) error {
		ops = append(ops, op)
		return err
	}
	var err error
	if exists {
		err = add(entity.UpdateSpecOp(t))
		if err == nil {
			err = add(entity.UpdateStatusOp(t))
		}
	} else {
		err = add(entity.CreateOp(t))
	}
	if err == nil {
		err = add(entity.CreateOp(v))
	}
	if err != nil {
		return err
	}
	for _, o := range old {
		if err := add(entity.DeleteOp(o)); err != nil {
			return err
		}
	}
	_, err = s.Store.Txn(ctx, entity.TxnRequest{Ops: ops})
	if errs.Is(err, errs.AlreadyExists) { // another server was quicker
		return errs.New(errs.Conflict, "another writer made template %s", t.Name)
	}
	return entity.AsConflict(err)
}
