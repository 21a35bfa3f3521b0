// Package policies has the security policies of projects: what their sandboxes,
// previews, templates and API keys must be like.
//
// [Store] is an entity.Store that refuses what a policy does not permit. What
// users make is written through it, so that no surface needs checks of its own.
// Sandboxes of an app's pool are checked with the pool, when a version is rolled
// out; their replacements are not checked again. Controllers of nodes, retention
// and repair by hand write to the store below it.
//
//	Txn           applies a transaction that the policies permit
//	Check         reports whether Txn would refuse operations
//	Of            the policy of a project
//	Default       gives a sandbox what the policy says when nothing is asked for
//	CheckProgram  refuses processes outside the second layer
//	Show, Set, Clear  the rules of a project
//	Report        what violates them
//
// A policy holds for what is made, claimed or changed from then on. A request that
// is under way while a policy is set may still be admitted without it, at other
// servers a moment longer.
package policies

import (
	"context"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// detailRule is the detail of an error that names the rule that was violated.
const detailRule = "policy"

// Store applies transactions that policies permit. It is safe for concurrent use.
// A nil Store has no policies.
type Store struct {
	entity.Store
	informers *informer.Set
}

// New returns the store s within policies; informers follow s.
func New(s entity.Store, informers *informer.Set) *Store {
	informer.Of[core.Project](informers)
	informer.Of[sandbox.Sandbox](informers)
	informer.Of[sandbox.Template](informers)
	informer.Of[sandbox.TemplateVersion](informers)
	return &Store{Store: s, informers: informers}
}

// Refused reports whether an error is the refusal of a policy.
func Refused(err error) bool { return errs.Detail(err, detailRule) != "" }

// violation says how something violates a rule; the zero violation: it does not.
type violation struct {
	rule core.PolicyRule
	text string
}

func (v violation) err(project string) error {
	if v.rule == "" {
		return nil
	}
	return errs.New(errs.PermissionDenied, "the policy of project %s (%s): %s", project, v.rule, v.text).With(detailRule, string(v.rule)).
		WithHint("`r policy show --project %s` shows the rules; an administrator of the installation changes them with `r policy set`", project)
}

// Txn implements entity.Store. PermissionDenied, for which Refused is true, if a
// policy does not permit the transaction.
func (s *Store) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	if err := s.Check(ctx, req.Ops); err != nil {
		return entity.TxnResult{}, err
	}
	return s.Store.Txn(ctx, req)
}

// Check returns the error with which Txn would refuse operations now, nil if it
// would not.
func (s *Store) Check(ctx context.Context, ops []entity.Op) error {
	for i := range ops {
		op := &ops[i]
		if op.Type != entity.OpCreate && op.Type != entity.OpUpdateSpec {
			continue
		}
		check := checks[op.Record.Kind]
		if check == nil {
			continue
		}
		p, err := s.project(ctx, op.Record.Project)
		if errs.Is(err, errs.NotFound) {
			continue // the store says what is wrong with the operation
		}
		if err != nil {
			return err
		}
		if p.Spec.Policy == nil {
			continue
		}
		v, err := check(ctx, s, p.Spec.Policy, op)
		if err != nil {
			return err
		}
		if err := v.err(p.Name); err != nil {
			return err
		}
	}
	return nil
}

// checks has what is checked, by kind.
var checks = map[string]func(context.Context, *Store, *core.Policy, *entity.Op) (violation, error){
	sandbox.KindSandbox:     checkSandboxOp,
	sandbox.KindSandboxPool: checkPoolOp,
	sandbox.KindPreview:     checkPreviewOp,
	sandbox.KindTemplate:    checkTemplateOp,
	core.KindAPIKey:         checkKeyOp,
}

// project returns a project from the informer, or from the store if it is new. It
// is shared.
func (s *Store) project(ctx context.Context, pid schema.ID) (*core.Project, error) {
	if p := informer.Of[core.Project](s.informers).Get(pid); p != nil {
		return p, nil
	}
	return entity.Get[core.Project](ctx, s.Store, pid)
}

// Of returns the policy of a project, nil if it has none. It is shared.
func (s *Store) Of(ctx context.Context, pid schema.ID) (*core.Policy, error) {
	if s == nil {
		return nil, nil
	}
	p, err := s.project(ctx, pid)
	if err != nil {
		return nil, err
	}
	return p.Spec.Policy, nil
}

// Default gives a new sandbox the time to live and the network of the policy of its
// project, where nothing was asked for.
func (s *Store) Default(ctx context.Context, sb *sandbox.Sandbox) error {
	p, err := s.Of(ctx, sb.Project)
	if err != nil || p == nil {
		return err
	}
	if p.MaxTTL != nil && sb.Spec.TTL == nil {
		ttl := *p.MaxTTL
		sb.Spec.TTL = &ttl
	}
	if t := &sb.Spec.Template; t.Egress == nil && t.Network != sandbox.NetworkModeNone {
		switch {
		case p.MaxEgress == core.PolicyEgressListed && len(p.Networks) > 0:
			t.Egress = &sandbox.Egress{Mode: sandbox.EgressModeList, Allow: p.Networks}
		case p.MaxEgress == core.PolicyEgressListed, p.MaxEgress == core.PolicyEgressNone:
			t.Egress = &sandbox.Egress{Mode: sandbox.EgressModeNone}
		}
	}
	return nil
}

// CheckProgram returns the refusal of a process in a sandbox, or in a new one of
// its project, nil if the policy permits it. confined: it runs in the second layer.
func (s *Store) CheckProgram(ctx context.Context, sb *sandbox.Sandbox, confined bool) error {
	if confined || s == nil || sb.Spec.App != "" {
		return nil
	}
	return s.enforce(ctx, sb, func(p *core.Policy) (violation, error) {
		if !p.Confine {
			return violation{}, nil
		}
		return violation{core.PolicyRuleConfine, "programs run in the second layer only, as with `r run --confine`"}, nil
	})
}

// CheckSource returns the refusal of what a new sandbox is made of, nil if the
// policy permits it.
func (s *Store) CheckSource(ctx context.Context, sb *sandbox.Sandbox) error {
	if s == nil {
		return nil
	}
	return s.enforce(ctx, sb, func(p *core.Policy) (violation, error) { return s.checkTemplate(ctx, p, sb) })
}

// enforce returns what check finds with the policy of the project of a sandbox.
func (s *Store) enforce(ctx context.Context, sb *sandbox.Sandbox, check func(*core.Policy) (violation, error)) error {
	p, err := s.project(ctx, sb.Project)
	if errs.Is(err, errs.NotFound) {
		return nil // it was deleted, and the sandbox is about to be
	}
	if err != nil || p.Spec.Policy == nil {
		return err
	}
	v, err := check(p.Spec.Policy)
	if err != nil {
		return err
	}
	return v.err(p.Name)
}
