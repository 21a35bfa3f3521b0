package quotas

import (
	"context"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/domain/keys"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// Show returns the quota of a project and what the project uses. NotFound if
// there is no such project.
func (s *Store) Show(ctx context.Context, project string) (*core.QuotaResponse, error) {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	p, err := entity.Get[core.Project](ctx, s.Store, pid)
	if err != nil {
		return nil, err
	}
	if err := s.await(ctx, p.Revision); err != nil {
		return nil, err
	}
	s.catchUp(ctx)
	used := s.sum(Scope{Project: pid}, nil)
	q := p.Spec.Quota
	if q == nil {
		q = &core.Quota{}
	}
	resp := &core.QuotaResponse{Project: p.Name}
	for i := range resources {
		resp.Resources = append(resp.Resources, core.QuotaUse{Resource: resources[i].name, Limit: *resources[i].limit(q), Used: used[i]})
	}
	return resp, nil
}

// ShowKey returns an API key of a project, and what is used of what its bounds are for.
// NotFound if there is none of that name.
func (s *Store) ShowKey(ctx context.Context, project, name string) (*core.APIKey, []core.QuotaUse, error) {
	k, err := keys.Find(ctx, s.Store, project, name)
	if err != nil {
		return nil, nil, err
	}
	if err := s.await(ctx, k.Revision); err != nil {
		return nil, nil, err
	}
	s.catchUp(ctx)
	used := s.sum(Scope{k.Project, k.GetID()}, nil)
	return k, []core.QuotaUse{
		{Resource: core.QuotaResourceSandboxes, Limit: k.Spec.MaxSandboxes, Used: used[sandboxes]},
		{Resource: core.QuotaResourceExecutions, Limit: k.Spec.MaxExecutions, Used: used[executions]},
	}, nil
}

// Set changes bounds of a project's quota, and returns the quota as Show does.
// What runs goes on, also if it uses more. Errors: NotFound if there is no such
// project; InvalidArgument for a resource that does not exist, or is named twice.
func (s *Store) Set(ctx context.Context, project string, limits []core.QuotaLimit) (*core.QuotaResponse, error) {
	seen := map[core.QuotaResource]bool{}
	for _, l := range limits {
		if !l.Resource.Valid() || seen[l.Resource] {
			return nil, errs.New(errs.InvalidArgument, "%q is not a resource of a quota, or is named twice", l.Resource)
		}
		seen[l.Resource] = true
	}
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	_, err = entity.ModifySpec(ctx, s.Store, pid, func(p *core.Project) error {
		q := core.Quota{}
		if p.Spec.Quota != nil {
			q = *p.Spec.Quota
		}
		for _, l := range limits {
			for i := range resources {
				if resources[i].name == l.Resource {
					*resources[i].limit(&q) = l.Limit
				}
			}
		}
		p.Spec.Quota = orNil(q)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.Show(ctx, project)
}

// orNil returns nil for a quota that bounds nothing.
func orNil(q core.Quota) *core.Quota {
	if q == (core.Quota{}) {
		return nil
	}
	return &q
}

// Of returns the quota with some limits, of which 0 means unlimited; nil if it
// bounds nothing.
func Of(limits map[core.QuotaResource]int64) *core.Quota {
	var q core.Quota
	for i := range resources {
		if n := limits[resources[i].name]; n > 0 {
			*resources[i].limit(&q) = &n
		}
	}
	return orNil(q)
}
