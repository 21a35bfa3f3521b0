package policies

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// Unused is the time without use after which a key deserves a look.
const Unused = 90 * 24 * time.Hour

// Report returns what violates the policies of projects, and what else deserves a
// look. names are those of the projects; nil: all. NotFound if one does not exist.
func (s *Store) Report(ctx context.Context, names []string) (*core.PolicyReport, error) {
	list, err := s.named(ctx, names)
	if err != nil {
		return nil, err
	}
	report := &core.PolicyReport{Projects: int64(len(list))}
	for _, p := range list {
		r := &reporter{Store: s, project: p, policy: &core.Policy{}, now: time.Now()}
		if p.Spec.Policy != nil {
			r.policy = p.Spec.Policy
		}
		for _, examine := range []func(context.Context) error{r.sandboxes, r.templates, r.previews, r.keys} {
			if err := examine(ctx); err != nil {
				return nil, err
			}
		}
		report.Findings = append(report.Findings, r.findings...)
	}
	for _, f := range report.Findings {
		if f.Rule != "" {
			report.Violations++
		}
	}
	slices.SortStableFunc(report.Findings, func(a, b core.PolicyFinding) int { return cmp.Compare(rank(a), rank(b)) })
	return report, nil
}

// rank sorts violations before what only deserves a look.
func rank(f core.PolicyFinding) int {
	if f.Rule == "" {
		return 1
	}
	return 0
}

// named returns projects in the order of their names.
func (s *Store) named(ctx context.Context, names []string) ([]*core.Project, error) {
	var list []*core.Project
	if names == nil {
		var err error
		if list, _, err = entity.List[core.Project](ctx, s.Store, entity.Query{}); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		pid, err := projects.Find(ctx, s.Store, name)
		if err != nil {
			return nil, err
		}
		p, err := entity.Get[core.Project](ctx, s.Store, pid)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *core.Project) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// reporter examines a project.
type reporter struct {
	*Store
	project  *core.Project
	policy   *core.Policy
	now      time.Time
	findings []core.PolicyFinding
}

// violates adds a finding if there is a violation.
func (r *reporter) violates(o schema.Object, v violation) {
	if v.rule != "" {
		r.add(o, v.rule, v.text)
	}
}

func (r *reporter) add(o schema.Object, rule core.PolicyRule, text string) {
	m := o.GetMeta()
	r.findings = append(r.findings, core.PolicyFinding{
		Project: r.project.Name, Kind: o.EntityKind().Name, ID: string(m.ID), Name: m.Name, Rule: rule, Message: text,
	})
}

// of returns the entities of a kind in the project of r.
func of[T any, P entity.ObjectPtr[T]](ctx context.Context, r *reporter) ([]P, error) {
	list, _, err := entity.List[T, P](ctx, r.Store.Store, entity.Query{Project: r.project.ID})
	return list, err
}

func (r *reporter) sandboxes(ctx context.Context) error {
	list, err := of[sandbox.Sandbox](ctx, r)
	for _, sb := range list {
		if sb.Status.Phase.Ended() || sb.Spec.WarmPool != "" {
			continue
		}
		v, err := r.checkSandbox(ctx, r.policy, sb)
		if err != nil && !errs.Is(err, errs.NotFound) { // its template was deleted a moment ago
			return err
		}
		r.violates(sb, v)
	}
	return err
}

func (r *reporter) templates(ctx context.Context) error {
	list, err := of[sandbox.Template](ctx, r)
	if r.project.Spec.Policy == nil {
		return err
	}
	for _, t := range list {
		r.violates(t, checkName(r.policy, t.Name))
	}
	return err
}

func (r *reporter) previews(ctx context.Context) error {
	list, err := of[sandbox.Preview](ctx, r)
	for _, pv := range list {
		switch end := pv.Spec.ExpiresAt; {
		case !pv.Spec.Public || end != nil && end.Before(r.now):
		case r.policy.PrivatePreviews:
			r.add(pv, core.PolicyRulePrivatePreviews, "a preview is not public, and this one is")
		default:
			r.add(pv, "", "it is public")
		}
	}
	return err
}

func (r *reporter) keys(ctx context.Context) error {
	list, err := of[core.APIKey](ctx, r)
	for _, k := range list {
		end := k.Spec.ExpiresAt
		if end != nil && end.Before(r.now) {
			continue
		}
		v := checkKey(r.policy, k, k.CreatedAt.Add(time.Second)) // clocks differ
		r.violates(k, v)
		if end == nil && v.rule == "" {
			r.add(k, "", "it does not expire")
		}
		if last := k.Status.LastUsed; last == nil && r.now.Sub(k.CreatedAt) > Unused {
			r.add(k, "", "it was never used since "+k.CreatedAt.Format(time.DateOnly))
		} else if last != nil && r.now.Sub(*last) > Unused {
			r.add(k, "", "it was not used since "+last.Format(time.DateOnly))
		}
		for _, bound := range k.Spec.Roles {
			if role, _, _ := rpc.SplitRole(bound); role == rpc.RoleAdmin {
				r.add(k, "", fmt.Sprintf("it has the role %s, and can make keys", role))
			}
		}
	}
	return err
}
