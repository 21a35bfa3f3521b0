package templates

import (
	"context"
	"maps"
	"slices"
	"strings"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// own returns a template of a project by its name or alias, and the rest of
// name after ":". FailedPrecondition for one that comes with the system.
func (s *Service) own(ctx context.Context, project, name string) (t *sandbox.Template, selector string, err error) {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, "", err
	}
	base, selector, selects := strings.Cut(name, ":")
	if selects && selector == "" {
		return nil, "", errs.New(errs.InvalidArgument, "%q names no version", name).WithHint("NAME:NUMBER or NAME:TAG does")
	}
	found, err := s.named(ctx, pid, base)
	if err != nil {
		return nil, "", err
	}
	system, err := projects.Find(ctx, s.Store, System)
	if err != nil {
		return nil, "", err
	}
	if found.Project == system {
		return nil, "", errs.New(errs.FailedPrecondition, "template %s comes with the system, which alone changes it", found.Name).
			WithHint("build one of your own that begins from it: `r template build`")
	}
	t, err = entity.Get[sandbox.Template](ctx, s.Store, found.ID) // the informer's may be old
	return t, selector, err
}

// change changes a template of a project, and which version its name selects.
func (s *Service) change(ctx context.Context, project, name string, f func(t *sandbox.Template, selector string, versions []*sandbox.TemplateVersion) error) (*sandbox.Template, error) {
	var t *sandbox.Template
	err := entity.Retry(ctx, func() error {
		var selector string
		var err error
		if t, selector, err = s.own(ctx, project, name); err != nil {
			return err
		}
		versions, err := s.Versions(ctx, t)
		if err != nil {
			return err
		}
		if err := f(t, selector, versions); err != nil {
			return entity.Final(err)
		}
		choose(t, versions)
		var ops operations
		ops.add(entity.UpdateSpecOp(t))
		ops.add(entity.UpdateStatusOp(t))
		return ops.write(ctx, s.Store)
	})
	return t, err
}

// Tag gives a tag to the version that name, NAME:NUMBER or NAME:TAG, selects.
// With TagLatest the name alone selects it from then on. FailedPrecondition if
// the version is not ready.
func (s *Service) Tag(ctx context.Context, project, name, tag string) (*sandbox.Template, error) {
	if err := checkName("tag", tag); err != nil {
		return nil, err
	}
	if !strings.Contains(name, ":") {
		return nil, errs.New(errs.InvalidArgument, "%q does not say which version the tag is for", name).WithHint("NAME:NUMBER or NAME:TAG does")
	}
	return s.change(ctx, project, name, func(t *sandbox.Template, selector string, versions []*sandbox.TemplateVersion) error {
		v, err := s.version(ctx, t, selector)
		if err != nil {
			return err
		}
		if !usable(v) {
			return unusable(v)
		}
		return setTag(t, tag, v.Spec.Number)
	})
}

// Untag removes a tag of a template. NotFound if it has none of that name.
func (s *Service) Untag(ctx context.Context, project, name, tag string) (*sandbox.Template, error) {
	return s.change(ctx, project, name, func(t *sandbox.Template, _ string, _ []*sandbox.TemplateVersion) error {
		if _, ok := t.Spec.Tags[tag]; !ok {
			return errs.New(errs.NotFound, "template %s has no tag %q", t.Name, tag)
		}
		t.Spec.Tags = maps.Clone(t.Spec.Tags)
		delete(t.Spec.Tags, tag)
		return nil
	})
}

// Alias adds or removes another name of a template. AlreadyExists if the name
// belongs to another template.
func (s *Service) Alias(ctx context.Context, project, name, alias string, remove bool) (*sandbox.Template, error) {
	if err := checkName("alias", alias); err != nil {
		return nil, err
	}
	return s.change(ctx, project, name, func(t *sandbox.Template, _ string, _ []*sandbox.TemplateVersion) error {
		if !remove {
			return s.addAlias(ctx, t, alias)
		}
		i := slices.Index(t.Spec.Aliases, alias)
		if i < 0 {
			return errs.New(errs.NotFound, "template %s has no alias %q", t.Name, alias)
		}
		t.Spec.Aliases = slices.Delete(slices.Clone(t.Spec.Aliases), i, i+1)
		return nil
	})
}

// addAlias adds another name to t.
func (s *Service) addAlias(ctx context.Context, t *sandbox.Template, alias string) error {
	if slices.Contains(t.Spec.Aliases, alias) {
		return nil
	}
	if len(t.Spec.Aliases) >= sandbox.MaxTemplateTags {
		return errs.New(errs.ResourceExhausted, "template %s has %d aliases already", t.Name, len(t.Spec.Aliases))
	}
	if alias == t.Name {
		return errs.New(errs.InvalidArgument, "alias %s is the name of the template", alias)
	}
	if err := s.checkFree(ctx, t.Project, alias); err != nil {
		return err
	}
	t.Spec.Aliases = append(slices.Clone(t.Spec.Aliases), alias)
	return nil
}

// Delete deletes a template with its versions and warm pools, or, with a
// selector, one version of it: then its tags go, and the name alone selects
// another. Builds under way end. Sandboxes that were claimed or made go on.
func (s *Service) Delete(ctx context.Context, project, name string) error {
	if !strings.Contains(name, ":") {
		t, _, err := s.own(ctx, project, name)
		if err != nil {
			return err
		}
		return entity.Remove[sandbox.Template](ctx, s.Store, schema.ID(t.ID))
	}
	return entity.Retry(ctx, func() error {
		t, selector, err := s.own(ctx, project, name)
		if err != nil {
			return err
		}
		v, err := s.version(ctx, t, selector)
		if err != nil {
			return err
		}
		versions, err := s.Versions(ctx, t)
		if err != nil {
			return err
		}
		tags := maps.Clone(t.Spec.Tags)
		maps.DeleteFunc(tags, func(_ string, n int64) bool { return n == v.Spec.Number })
		t.Spec.Tags = tags
		choose(t, slices.DeleteFunc(versions, func(o *sandbox.TemplateVersion) bool { return o.ID == v.ID }))
		var ops operations
		ops.add(entity.UpdateSpecOp(t))
		ops.add(entity.UpdateStatusOp(t))
		ops.add(entity.DeleteOp(v))
		return ops.write(ctx, s.Store)
	})
}
