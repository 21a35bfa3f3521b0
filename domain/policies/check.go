package policies

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// checkSandboxOp checks a new or claimed sandbox, and what changes of another one.
func checkSandboxOp(ctx context.Context, s *Store, p *core.Policy, op *entity.Op) (violation, error) {
	sb, err := entity.Decode[sandbox.Sandbox](&op.Record)
	if err != nil || sb.Spec.Pool != "" || sb.Spec.WarmPool != "" {
		return violation{}, err
	}
	if op.Type == entity.OpCreate {
		return s.checkSandbox(ctx, p, sb)
	}
	old := informer.Of[sandbox.Sandbox](s.informers).Get(sb.ID)
	if old == nil || old.SpecRevision != op.If {
		if old, err = entity.Get[sandbox.Sandbox](ctx, s.Store, sb.ID); err != nil {
			return violation{}, ignoreNotFound(err)
		}
	}
	if old.Spec.WarmPool != "" {
		return s.checkSandbox(ctx, p, sb)
	}
	var v violation
	if !reflect.DeepEqual(old.Spec.TTL, sb.Spec.TTL) {
		v = checkTTL(p, sb)
	}
	if v.rule == "" && !reflect.DeepEqual(old.Spec.Template.Egress, sb.Spec.Template.Egress) {
		v, err = checkEgress(p, &sb.Spec.Template)
	}
	return v, err
}

// ignoreNotFound returns nil for what does not exist: the store refuses the
// operation.
func ignoreNotFound(err error) error {
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	return err
}

// checkSandbox returns the first rule that a sandbox violates. That of an app has
// the limits and the network of other sandboxes, and no other rules.
func (s *Store) checkSandbox(ctx context.Context, p *core.Policy, sb *sandbox.Sandbox) (violation, error) {
	t := &sb.Spec.Template
	if v := checkLimits(p, &t.Resources); v.rule != "" {
		return v, nil
	}
	if v, err := checkEgress(p, t); err != nil || v.rule != "" || sb.Spec.App != "" {
		return v, err
	}
	if v := checkTTL(p, sb); v.rule != "" {
		return v, nil
	}
	if p.Confine && !t.Idle {
		return violation{core.PolicyRuleConfine, "a sandbox has no main process, which would run outside the second layer"}, nil
	}
	return s.checkTemplate(ctx, p, sb)
}

// checkTemplate checks what a sandbox is made of.
func (s *Store) checkTemplate(ctx context.Context, p *core.Policy, sb *sandbox.Sandbox) (violation, error) {
	switch {
	case len(p.Templates) == 0:
		return violation{}, nil
	case sb.Spec.TemplateVersion == "":
		return violation{core.PolicyRuleTemplates, fmt.Sprintf("sandboxes are made of %s, not of an image", strings.Join(p.Templates, ", "))}, nil
	}
	v, err := read[sandbox.TemplateVersion](ctx, s, sb.Spec.TemplateVersion)
	if err != nil {
		return violation{}, err
	}
	t, err := read[sandbox.Template](ctx, s, v.Spec.Template)
	if err != nil {
		return violation{}, err
	}
	return checkName(p, t.Name), nil
}

// checkName checks the name of a template. No project has one with the name of a
// template of the system.
func checkName(p *core.Policy, name string) violation {
	if len(p.Templates) == 0 || slices.Contains(p.Templates, name) {
		return violation{}
	}
	return violation{core.PolicyRuleTemplates, fmt.Sprintf("sandboxes are made of %s, not of the template %s", strings.Join(p.Templates, ", "), name)}
}

// read returns an entity from the informer, or from the store if it is new.
func read[T any, P entity.ObjectPtr[T], I ~string](ctx context.Context, s *Store, eid I) (P, error) {
	if o := informer.Of[T, P](s.informers).Get(schema.ID(eid)); o != nil {
		return o, nil
	}
	return entity.Get[T, P](ctx, s.Store, eid)
}

func checkLimits(p *core.Policy, r *sandbox.Resources) violation {
	for _, l := range []struct {
		rule core.PolicyRule
		noun string
		max  *int64
		is   int64
		show func(int64) string
	}{
		{core.PolicyRuleMaxCPUMillis, "CPUs", p.MaxCPUMillis, r.CPUMillis, schema.CellMillis},
		{core.PolicyRuleMaxMemoryBytes, "memory", p.MaxMemoryBytes, r.MemoryBytes, schema.CellBytes},
		{core.PolicyRuleMaxDiskBytes, "disk space", p.MaxDiskBytes, r.DiskBytes, schema.CellBytes},
		{core.PolicyRuleMaxPIDs, "processes", p.MaxPIDs, r.PIDs, func(n int64) string { return fmt.Sprint(n) }},
	} {
		if l.max != nil && l.is > *l.max {
			return violation{l.rule, fmt.Sprintf("a sandbox has at most %s of %s, not %s", l.show(*l.max), l.noun, l.show(l.is))}
		}
	}
	return violation{}
}

func checkTTL(p *core.Policy, sb *sandbox.Sandbox) violation {
	switch ttl := sb.Spec.TTL; {
	case p.MaxTTL == nil || ttl != nil && *ttl <= *p.MaxTTL:
		return violation{}
	case ttl == nil:
		return violation{core.PolicyRuleMaxTTL, fmt.Sprintf("a sandbox ends at most %v after its start, and not never", *p.MaxTTL)}
	default:
		return violation{core.PolicyRuleMaxTTL, fmt.Sprintf("a sandbox ends at most %v after its start, not %v", *p.MaxTTL, ttl.Round(time.Second))}
	}
}

// checkEgress checks what a sandbox may reach.
func checkEgress(p *core.Policy, t *sandbox.SandboxTemplate) (violation, error) {
	if p.MaxEgress == "" || p.MaxEgress == core.PolicyEgressAll || t.Network == sandbox.NetworkModeNone {
		return violation{}, nil
	}
	mode := sandbox.EgressModeAll
	if t.Egress != nil {
		mode = t.Egress.Mode
	}
	switch {
	case mode == sandbox.EgressModeNone:
		return violation{}, nil
	case p.MaxEgress == core.PolicyEgressNone:
		return violation{core.PolicyRuleMaxEgress, "a sandbox has no network, and this one would have the mode " + string(mode)}, nil
	case mode == sandbox.EgressModeAll:
		return violation{core.PolicyRuleMaxEgress, "a sandbox reaches what it lists, and this one would reach all"}, nil
	case len(p.Networks) == 0:
		return violation{}, nil
	}
	listed := slices.Clone(t.Egress.Allow)
	for _, i := range t.Egress.Inject {
		listed = append(listed, i.Host)
	}
	permitted, err := parse(p.Networks)
	if err != nil {
		return violation{}, errs.Wrap(err, "networks of the policy")
	}
	for _, text := range listed {
		rule, err := egress.ParseRule(text)
		if err != nil {
			return violation{}, err
		}
		if !slices.ContainsFunc(permitted, func(r egress.Rule) bool { return r.Includes(rule) }) {
			return violation{core.PolicyRuleNetworks, fmt.Sprintf("a sandbox may list %s, not %s", strings.Join(p.Networks, ", "), text)}, nil
		}
	}
	return violation{}, nil
}

func parse(list []string) ([]egress.Rule, error) {
	rules := make([]egress.Rule, len(list))
	for i, text := range list {
		var err error
		if rules[i], err = egress.ParseRule(text); err != nil {
			return nil, err
		}
	}
	return rules, nil
}

// checkPoolOp checks the sandboxes of a new pool of an app.
func checkPoolOp(ctx context.Context, s *Store, p *core.Policy, op *entity.Op) (violation, error) {
	pool, err := entity.Decode[sandbox.SandboxPool](&op.Record)
	if err != nil || op.Type != entity.OpCreate {
		return violation{}, err
	}
	sb := sandbox.NewSandbox()
	sb.Spec.App, sb.Spec.Template = pool.Spec.App, pool.Spec.Template
	return s.checkSandbox(ctx, p, sb)
}

func checkPreviewOp(_ context.Context, _ *Store, p *core.Policy, op *entity.Op) (violation, error) {
	pv, err := entity.Decode[sandbox.Preview](&op.Record)
	if err != nil || !p.PrivatePreviews || !pv.Spec.Public {
		return violation{}, err
	}
	return violation{core.PolicyRulePrivatePreviews, "a preview is not public"}, nil
}

// checkTemplateOp checks the name of a new template.
func checkTemplateOp(_ context.Context, _ *Store, p *core.Policy, op *entity.Op) (violation, error) {
	if op.Type != entity.OpCreate {
		return violation{}, nil
	}
	return checkName(p, op.Record.Name), nil
}

func checkKeyOp(_ context.Context, _ *Store, p *core.Policy, op *entity.Op) (violation, error) {
	k, err := entity.Decode[core.APIKey](&op.Record)
	if err != nil || op.Type != entity.OpCreate {
		return violation{}, err
	}
	return checkKey(p, k, time.Now()), nil
}

// checkKey checks the validity of a key that is made at a time.
func checkKey(p *core.Policy, k *core.APIKey, made time.Time) violation {
	switch end := k.Spec.ExpiresAt; {
	case p.MaxKeyTTL == nil || end != nil && end.Sub(made) <= *p.MaxKeyTTL:
		return violation{}
	case end == nil:
		return violation{core.PolicyRuleMaxKeyTTL, fmt.Sprintf("a key expires at most %v after it was made, and not never", *p.MaxKeyTTL)}
	default:
		return violation{core.PolicyRuleMaxKeyTTL, fmt.Sprintf("a key expires at most %v after it was made, not %v", *p.MaxKeyTTL, end.Sub(made).Round(time.Second))}
	}
}
