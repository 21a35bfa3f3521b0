package policies

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// knownTimeout bounds the wait until this server has a changed policy in memory.
const knownTimeout = time.Second

// Show returns the policy of a project. NotFound if there is no such project.
func (s *Store) Show(ctx context.Context, project string) (*core.PolicyResponse, error) {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	p, err := entity.Get[core.Project](ctx, s.Store, pid)
	if err != nil {
		return nil, err
	}
	return response(p), nil
}

func response(p *core.Project) *core.PolicyResponse {
	resp := &core.PolicyResponse{Project: p.Name}
	if p.Spec.Policy != nil {
		resp.Policy = *p.Spec.Policy
	}
	return resp
}

// Set sets the rules of a project's policy that change has, and returns the policy.
// What exists stays. NotFound if there is no such project; InvalidArgument for a
// network that is none, and for networks without max_egress listed.
func (s *Store) Set(ctx context.Context, project string, change core.Policy) (*core.PolicyResponse, error) {
	if _, err := parse(change.Networks); err != nil {
		return nil, err
	}
	return s.change(ctx, project, func(p *core.Policy) error {
		to, from := reflect.ValueOf(p).Elem(), reflect.ValueOf(&change).Elem()
		for i := range to.NumField() {
			if !from.Field(i).IsZero() {
				to.Field(i).Set(from.Field(i))
			}
		}
		if len(p.Networks) > 0 && p.MaxEgress != core.PolicyEgressListed {
			return errs.New(errs.InvalidArgument, "networks are what sandboxes may list, and the policy does not limit them to that").
				WithHint("set max_egress to listed (`r policy set --max-egress listed`)")
		}
		return nil
	})
}

// Clear removes rules of a project's policy, all of them without names, and returns
// the policy. NotFound if there is no such project.
func (s *Store) Clear(ctx context.Context, project string, rules []core.PolicyRule) (*core.PolicyResponse, error) {
	return s.change(ctx, project, func(p *core.Policy) error {
		if len(rules) == 0 {
			*p = core.Policy{}
		}
		v := reflect.ValueOf(p).Elem()
		for i := range v.NumField() {
			if slices.Contains(rules, ruleOf(v.Type().Field(i))) {
				v.Field(i).SetZero()
			}
		}
		if p.MaxEgress != core.PolicyEgressListed {
			p.Networks = nil
		}
		return nil
	})
}

// ruleOf returns the rule that a field of a policy is: its name in JSON.
func ruleOf(f reflect.StructField) core.PolicyRule {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return core.PolicyRule(name)
}

// change changes the policy of a project. One without rules is removed.
func (s *Store) change(ctx context.Context, project string, f func(*core.Policy) error) (*core.PolicyResponse, error) {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	p, err := entity.ModifySpec(ctx, s.Store, pid, func(p *core.Project) error {
		policy := core.Policy{}
		if p.Spec.Policy != nil {
			policy = *p.Spec.Policy
		}
		if err := f(&policy); err != nil {
			return err
		}
		p.Spec.Policy = nil
		if !reflect.ValueOf(policy).IsZero() {
			p.Spec.Policy = &policy
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// The caller's next request shall find the new rules here.
	wctx, cancel := context.WithTimeout(ctx, knownTimeout)
	defer cancel()
	_, _ = s.informers.WaitRevision(wctx, p.Revision)
	return response(p), nil
}
