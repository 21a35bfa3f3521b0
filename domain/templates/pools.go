package templates

import (
	"context"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// PoolSettings are the settings of a warm pool; nil changes nothing.
type PoolSettings struct {
	Min, Max *int64
	Idle     *time.Duration
}

// SetPool makes or changes the warm pool of a template in a project.
// InvalidArgument if it would keep more than it may have.
func (s *Service) SetPool(ctx context.Context, project, template string, set PoolSettings) (*sandbox.WarmPool, error) {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	t, _, err := s.Find(ctx, pid, template)
	if err != nil {
		return nil, err
	}
	var p *sandbox.WarmPool
	err = entity.Retry(ctx, func() error {
		if p, err = s.pool(ctx, t, pid); err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
		exists := err == nil
		if !exists {
			p = sandbox.NewWarmPool()
			p.Project, p.Name, p.Spec.Template = pid, t.Name, t.GetID()
		}
		if err := apply(p, set); err != nil {
			return err
		}
		if exists {
			return entity.UpdateSpec(ctx, s.Store, p)
		}
		return entity.Create(ctx, s.Store, p)
	})
	return p, err
}

func apply(p *sandbox.WarmPool, set PoolSettings) error {
	if set.Min != nil {
		p.Spec.Min = *set.Min
		p.Spec.Max = max(p.Spec.Max, p.Spec.Min)
	}
	if set.Max != nil {
		p.Spec.Max = *set.Max
	}
	if set.Idle != nil {
		p.Spec.Idle = *set.Idle
	}
	if p.Spec.Min > p.Spec.Max {
		return errs.New(errs.InvalidArgument, "a pool cannot keep at least %d sandboxes and at most %d", p.Spec.Min, p.Spec.Max).
			WithHint("raise --max or lower --min")
	}
	return nil
}

// DeletePool deletes the warm pool of a template in a project, with the
// sandboxes that wait in it. NotFound if there is none.
func (s *Service) DeletePool(ctx context.Context, project, template string) error {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return err
	}
	t, _, err := s.Find(ctx, pid, template)
	if err != nil {
		return err
	}
	p, err := s.pool(ctx, t, pid)
	if err != nil {
		return err
	}
	return entity.Remove[sandbox.WarmPool](ctx, s.Store, p.ID)
}

// pool returns the warm pool of a template in a project.
func (s *Service) pool(ctx context.Context, t *sandbox.Template, project schema.ID) (*sandbox.WarmPool, error) {
	list, _, err := entity.List[sandbox.WarmPool](ctx, s.Store, entity.Where(sandbox.WarmPoolAttrTemplate, t.ID))
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		if p.Project == project {
			return p, nil
		}
	}
	return nil, errs.New(errs.NotFound, "template %s has no warm pool in this project", t.Name).WithHint("`r pool list` lists those that exist")
}
