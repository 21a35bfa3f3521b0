// Package templates has the operations and queries on templates: images with
// defaults, of which sandboxes are made by name.
//
//	Service.Find      the version that "python", "python:tag" or "python:3" selects
//	Service.Image     the image of a version, which the first call makes
//	Service.List      the templates that a project can use
//	Service.Versions  the versions of a template
//	Service.Build     a new version, from a Dockerfile, steps or an image
//	Service.Settle    the end of its build
//	Service.Tag, Untag, Alias, Delete
//	Service.SetPool, DeletePool  the warm pool of a template in a project
//	Service.Ship      the templates that come with the system
//	Service.Renew     their new versions, when base images were made again
//
// A project can use its own templates, and those of the project System. Its own
// one of a name hides that of System.
package templates

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/source"
	"miren.dev/runtime/pkg/suggest"
)

// System is the project of the templates that come with the system.
const System = "system"

// Service is the operations on the templates of one store. It is safe for
// concurrent use. Size, Sources and Keep, for builds, are set before its first
// use.
type Service struct {
	Store     entity.Store
	Informers *informer.Set // informers of Store
	// Resolve resolves a user's name of an image (a base image, a reference) to a
	// reference of the node's image store, and makes the image if necessary.
	Resolve func(ctx context.Context, name string) (string, error)
	// Size returns the size of an image of the node's image store, in bytes; nil:
	// sizes are not recorded.
	Size    func(ctx context.Context, image string) (int64, error)
	Sources *source.Store  // store of uploaded sources
	Sealer  *schema.Sealer // of build secrets
	// Keep is how many versions of a template stay when another was built, besides
	// those with a tag and the selected one; 0: all.
	Keep   int
	Logger *slog.Logger

	mu     sync.Mutex
	making map[id.TemplateVersion]*sync.Mutex // one maker of an image at a time
}

// indexNames is the informer's index of templates by project and name or alias.
const indexNames = "names"

// New returns the service. Its informers are those of templates and versions.
func New(store entity.Store, informers *informer.Set, resolve func(context.Context, string) (string, error), log *slog.Logger) *Service {
	informer.Of[sandbox.Template](informers).AddIndex(indexNames, func(t *sandbox.Template) []string {
		names := []string{nameKey(t.Project, t.Name)}
		for _, a := range t.Spec.Aliases {
			names = append(names, nameKey(t.Project, a))
		}
		return names
	})
	informer.Of[sandbox.TemplateVersion](informers)
	return &Service{Store: store, Informers: informers, Resolve: resolve, Logger: log, making: map[id.TemplateVersion]*sync.Mutex{}}
}

func nameKey(project schema.ID, name string) string { return string(project) + "/" + name }

// Find returns the template and the version that name selects for a project:
// "python", "python:tag" or "python:3". NotFound, with the nearest name, if
// there is none.
func (s *Service) Find(ctx context.Context, project schema.ID, name string) (*sandbox.Template, *sandbox.TemplateVersion, error) {
	base, selector, _ := strings.Cut(name, ":")
	t, err := s.named(ctx, project, base)
	if err != nil {
		return nil, nil, err
	}
	v, err := s.version(ctx, t, selector)
	return t, v, err
}

// Describe returns the template that name selects as it is stored, and the
// version, nil if the name alone selects none yet.
func (s *Service) Describe(ctx context.Context, project schema.ID, name string) (*sandbox.Template, *sandbox.TemplateVersion, error) {
	base, selector, _ := strings.Cut(name, ":")
	t, err := s.named(ctx, project, base)
	if err != nil {
		return nil, nil, err
	}
	if t, err = entity.Get[sandbox.Template](ctx, s.Store, t.ID); err != nil || selector == "" && t.Status.Version == "" {
		return t, nil, err
	}
	v, err := s.version(ctx, t, selector)
	return t, v, err
}

// named returns the template of a name: the project's, or that of System.
func (s *Service) named(ctx context.Context, project schema.ID, name string) (*sandbox.Template, error) {
	system, err := projects.Find(ctx, s.Store, System)
	if err != nil {
		return nil, err
	}
	for _, p := range []schema.ID{project, system} {
		if t := first(informer.Of[sandbox.Template](s.Informers).ByIndex(indexNames, nameKey(p, name)), name); t != nil {
			return t, nil
		}
	}
	// The informer may not have a new one yet.
	all, err := s.List(ctx, project)
	if err != nil {
		return nil, err
	}
	if t := first(all, name); t != nil {
		return t, nil
	}
	var known []string
	for _, t := range all {
		known = append(append(known, t.Name), t.Spec.Aliases...)
	}
	e := errs.New(errs.NotFound, "template %q does not exist", name)
	if near := suggest.Nearest(name, known); near != "" {
		return nil, e.WithHint("did you mean %s? `r template list` lists all", near)
	}
	return nil, e.WithHint("`r template list` lists those that do")
}

// first returns the template of list that has the name, else the oldest that has
// it as an alias, nil if there is none. Two have the same alias only if requests
// at the same time gave it to both.
func first(list []*sandbox.Template, name string) *sandbox.Template {
	var found *sandbox.Template
	for _, t := range list {
		if t.Name == name {
			return t
		}
		if slices.Contains(t.Spec.Aliases, name) && (found == nil || t.CreatedAt.Before(found.CreatedAt)) {
			found = t
		}
	}
	return found
}

// version returns the version of t that a selector names: a tag, a number, or
// "" for the current one.
func (s *Service) version(ctx context.Context, t *sandbox.Template, selector string) (*sandbox.TemplateVersion, error) {
	if selector == "" {
		if t.Status.Version == "" {
			return nil, errs.New(errs.FailedPrecondition, "template %s has no version yet", t.Name).WithHint("build it: `r template build %s`", t.Name)
		}
		if v := informer.Of[sandbox.TemplateVersion](s.Informers).Get(schema.ID(t.Status.Version)); v != nil {
			return v, nil
		}
		return entity.Get[sandbox.TemplateVersion](ctx, s.Store, t.Status.Version)
	}
	n, ok := t.Spec.Tags[selector]
	if !ok {
		var err error
		if n, err = strconv.ParseInt(strings.TrimPrefix(selector, "v"), 10, 64); err != nil {
			return nil, errs.New(errs.NotFound, "template %s has no tag %q", t.Name, selector).WithHint("`r template show %s` shows its tags and versions", t.Name)
		}
	}
	versions, err := s.Versions(ctx, t)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(versions, func(v *sandbox.TemplateVersion) bool { return v.Spec.Number == n })
	if i < 0 {
		return nil, errs.New(errs.NotFound, "template %s has no version %d", t.Name, n).WithHint("`r template show %s` shows its tags and versions", t.Name)
	}
	return versions[i], nil
}

// Versions lists the versions of a template, newest first.
func (s *Service) Versions(ctx context.Context, t *sandbox.Template) ([]*sandbox.TemplateVersion, error) {
	list, _, err := entity.List[sandbox.TemplateVersion](ctx, s.Store, entity.Where(sandbox.TemplateVersionAttrTemplate, t.ID))
	if err != nil {
		return nil, fmt.Errorf("list the versions of template %s: %w", t.Name, err)
	}
	slices.SortFunc(list, func(a, b *sandbox.TemplateVersion) int { return int(b.Spec.Number - a.Spec.Number) })
	return list, nil
}

// List returns the templates that a project can use, by name.
func (s *Service) List(ctx context.Context, project schema.ID) ([]*sandbox.Template, error) {
	system, err := projects.Find(ctx, s.Store, System)
	if err != nil {
		return nil, err
	}
	all, _, err := entity.List[sandbox.Template](ctx, s.Store, entity.Query{Project: project})
	if err != nil || project == system {
		return sorted(all), err
	}
	own := map[string]bool{}
	for _, t := range all {
		own[t.Name] = true
	}
	shipped, _, err := entity.List[sandbox.Template](ctx, s.Store, entity.Query{Project: system})
	for _, t := range shipped {
		if !own[t.Name] {
			all = append(all, t)
		}
	}
	return sorted(all), err
}

func sorted(list []*sandbox.Template) []*sandbox.Template {
	slices.SortFunc(list, func(a, b *sandbox.Template) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Image returns the reference of a version's image. The first call of a version
// of a base image makes it, which may take minutes. FailedPrecondition for a
// version that is not built.
func (s *Service) Image(ctx context.Context, v *sandbox.TemplateVersion) (string, error) {
	if v.Status.Image != "" {
		return v.Status.Image, nil
	}
	if !usable(v) {
		return "", unusable(v)
	}
	s.mu.Lock()
	making := s.making[v.GetID()]
	if making == nil {
		making = &sync.Mutex{}
		s.making[v.GetID()] = making
	}
	s.mu.Unlock()
	making.Lock()
	defer making.Unlock()
	v, err := entity.Get[sandbox.TemplateVersion](ctx, s.Store, v.ID)
	if err != nil {
		return "", err
	}
	if v.Status.Image != "" {
		return v.Status.Image, nil
	}
	image, err := s.Resolve(ctx, v.Spec.Base)
	var size int64
	if err == nil {
		size, err = s.size(ctx, image)
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	_, serr := entity.ModifyStatus(ctx, s.Store, v.ID, func(v *sandbox.TemplateVersion) error {
		v.Status.Phase, v.Status.Image, v.Status.Bytes, v.Status.Message = sandbox.TemplatePhaseReady, image, size, ""
		if err != nil {
			v.Status.Phase, v.Status.Message = sandbox.TemplatePhaseFailed, err.Error()
		}
		return nil
	})
	if err != nil {
		return "", errs.Wrap(err, "make the image of the template")
	}
	return image, serr
}

func (s *Service) size(ctx context.Context, image string) (int64, error) {
	if s.Size == nil {
		return 0, nil
	}
	return s.Size(ctx, image)
}
