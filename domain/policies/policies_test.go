package policies_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// env is a store with the project default, within policies.
type env struct {
	*testing.T
	raw     entity.Store
	store   *policies.Store
	project schema.ID
}

// eachStore runs a test on each kind of store.
func eachStore(t *testing.T, test func(e *env)) {
	for name, open := range map[string]func(t *testing.T) entity.Store{
		"pgstore": func(t *testing.T) entity.Store { return pgtest.Store(t, api.Kinds()...) },
		"sqlitestore": func(t *testing.T) entity.Store {
			s, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: t.TempDir() + "/store.db", Kinds: api.Kinds(), Logger: slog.New(slog.DiscardHandler), KeepRevisions: 100_000})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := &env{T: t, raw: open(t)}
			e.must(projects.Ensure(t.Context(), e.raw, projects.Default))
			var err error
			e.project, err = projects.Find(t.Context(), e.raw, "")
			e.must(err)
			set := informer.New(informer.Config{Reader: e.raw})
			e.store = policies.New(e.raw, set)
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { _ = set.Run(ctx) })
			t.Cleanup(func() { cancel(); running.Wait() })
			e.must(set.WaitSynced(t.Context()))
			test(e)
		})
	}
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) set(p core.Policy) {
	e.Helper()
	_, err := e.store.Set(e.Context(), "", p)
	e.must(err)
}

func (e *env) refused(what string, err error, rule core.PolicyRule) {
	e.Helper()
	if !policies.Refused(err) || !errs.Is(err, errs.PermissionDenied) || errs.Detail(err, "policy") != string(rule) || errs.HintOf(err) == "" {
		e.Errorf("%s: %v; want a refusal by %s", what, err, rule)
	}
}

func (e *env) key(name string, ttl time.Duration, roles ...string) *core.APIKey {
	e.Helper()
	k := core.NewAPIKey()
	var err error
	k.Spec.Hash, err = schema.NewSealer(e.TempDir() + "/key").Seal(name)
	e.must(err)
	k.Project, k.Name, k.Spec.Roles = e.project, name, roles
	if ttl != 0 {
		end := time.Now().Add(ttl)
		k.Spec.ExpiresAt = &end
	}
	return k
}

func (e *env) sandbox() *sandbox.Sandbox {
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Template.Image, sb.Spec.Template.Idle = e.project, "img", true
	return sb
}

func ptr[T any](v T) *T { return &v }

func TestRulesAreSetAndCleared(t *testing.T) {
	eachStore(t, func(e *env) {
		e.set(core.Policy{MaxTTL: ptr(time.Hour), Confine: true})
		e.set(core.Policy{MaxEgress: core.PolicyEgressListed, Networks: []string{"example.com"}})
		if _, err := e.store.Set(e.Context(), "", core.Policy{Networks: []string{"not a network"}}); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("a network that is none: %v", err)
		}
		if _, err := e.store.Set(e.Context(), "", core.Policy{MaxEgress: core.PolicyEgressNone}); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("networks without listed: %v", err)
		}
		resp, err := e.store.Clear(e.Context(), "", []core.PolicyRule{core.PolicyRuleConfine, core.PolicyRuleMaxEgress})
		e.must(err)
		if p := resp.Policy; p.Confine || p.MaxEgress != "" || p.Networks != nil || p.MaxTTL == nil || *p.MaxTTL != time.Hour || resp.Project != "default" {
			t.Errorf("%+v", resp)
		}
		_, err = e.store.Clear(e.Context(), "", nil)
		e.must(err)
		if p, err := e.store.Of(e.Context(), e.project); p != nil || err != nil {
			t.Errorf("a policy without rules: %+v, %v", p, err)
		}
		for _, err := range []error{
			func() error { _, err := e.store.Show(e.Context(), "none"); return err }(),
			func() error { _, err := e.store.Set(e.Context(), "none", core.Policy{}); return err }(),
			func() error { _, err := e.store.Clear(e.Context(), "none", nil); return err }(),
			func() error { _, err := e.store.Report(e.Context(), []string{"none"}); return err }(),
		} {
			if !errs.Is(err, errs.NotFound) {
				t.Error(err)
			}
		}
	})
}

func TestKeysAndPreviewsMeetThePolicy(t *testing.T) {
	eachStore(t, func(e *env) {
		e.set(core.Policy{MaxKeyTTL: ptr(24 * time.Hour), PrivatePreviews: true})
		e.refused("a key for ever", entity.Create(e.Context(), e.store, e.key("a", 0, "agent@default")), core.PolicyRuleMaxKeyTTL)
		e.refused("a key for long", entity.Create(e.Context(), e.store, e.key("a", 25*time.Hour, "agent@default")), core.PolicyRuleMaxKeyTTL)
		e.must(entity.Create(e.Context(), e.store, e.key("a", 24*time.Hour, "agent@default")))
		sb := e.sandbox()
		e.must(entity.Create(e.Context(), e.store, sb))
		pv := sandbox.NewPreview()
		pv.Project, pv.Spec.Sandbox, pv.Spec.Key = e.project, sb.GetID(), []byte("key")
		e.must(entity.Create(e.Context(), e.store, pv))
		pv.Spec.Public = true
		e.refused("a public preview", entity.UpdateSpec(e.Context(), e.store, pv), core.PolicyRulePrivatePreviews)
	})
}

// TestWarmSandboxIsCheckedWhenItIsClaimed: it belongs to nobody before.
func TestWarmSandboxIsCheckedWhenItIsClaimed(t *testing.T) {
	eachStore(t, func(e *env) {
		tpl := sandbox.NewTemplate()
		tpl.Project, tpl.Name = e.project, "base"
		e.must(entity.Create(e.Context(), e.raw, tpl))
		pool := sandbox.NewWarmPool()
		pool.Project, pool.Name, pool.Spec.Template = e.project, "base", tpl.GetID()
		e.must(entity.Create(e.Context(), e.raw, pool))
		warm := e.sandbox()
		warm.Spec.WarmPool = pool.GetID()
		e.set(core.Policy{MaxEgress: core.PolicyEgressNone})
		e.must(entity.Create(e.Context(), e.store, warm))
		claimed := schema.Copy(warm)
		claimed.Spec.WarmPool = ""
		e.refused("claim", entity.UpdateSpec(e.Context(), e.store, claimed), core.PolicyRuleMaxEgress)
		e.must(e.store.Default(e.Context(), claimed))
		e.must(entity.UpdateSpec(e.Context(), e.store, claimed))
	})
}

func TestReport(t *testing.T) {
	eachStore(t, func(e *env) {
		for _, k := range []*core.APIKey{e.key("forever", 0, "agent@default"), e.key("boss", time.Hour, "admin@default"), e.key("old", time.Hour, "agent@default")} {
			e.must(entity.Create(e.Context(), e.raw, k))
			if k.Name == "old" {
				k.Status.LastUsed = ptr(time.Now().Add(-policies.Unused - time.Hour))
				e.must(entity.UpdateStatus(e.Context(), e.raw, k))
			}
		}
		sb, ended := e.sandbox(), e.sandbox()
		e.must(entity.Create(e.Context(), e.raw, sb))
		ended.Status.Phase = sandbox.SandboxPhaseStopped
		e.must(entity.Create(e.Context(), e.raw, ended))
		tpl := sandbox.NewTemplate()
		tpl.Project, tpl.Name = e.project, "mine"
		e.must(entity.Create(e.Context(), e.raw, tpl))
		pv := sandbox.NewPreview()
		pv.Project, pv.Spec.Sandbox, pv.Spec.Key, pv.Spec.Public = e.project, sb.GetID(), []byte("key"), true
		e.must(entity.Create(e.Context(), e.raw, pv))
		e.must(projects.Ensure(e.Context(), e.raw, "other"))

		e.reports([]string{"default"}, 0, "api_key boss - admin", "api_key forever - does not expire", "api_key old - not used since", "preview  - public")
		e.set(core.Policy{Templates: []string{"base"}, MaxTTL: ptr(time.Hour), MaxKeyTTL: ptr(24 * time.Hour), PrivatePreviews: true})
		e.reports(nil, 4, "api_key boss - admin", "api_key forever max_key_ttl never", "api_key old - not used since", "preview  private_previews public",
			"sandbox  max_ttl never", "template mine templates base")
		e.reports([]string{"other"}, 0)
	})
}

// reports fails unless the report about projects has the findings: kind, name, rule
// and a part of the message.
func (e *env) reports(names []string, violations int64, findings ...string) {
	e.Helper()
	report, err := e.store.Report(e.Context(), names)
	e.must(err)
	if report.Violations != violations || len(report.Findings) != len(findings) {
		e.Errorf("%d violations: %+v", report.Violations, report.Findings)
	}
	for i, f := range report.Findings {
		if (f.Rule != "") != (int64(i) < violations) {
			e.Errorf("finding %d is %+v, and violations come first", i, f)
		}
	}
	for _, want := range findings {
		parts := strings.SplitN(want, " ", 4)
		found := false
		for _, f := range report.Findings {
			rule := string(f.Rule)
			if rule == "" {
				rule = "-"
			}
			found = found || f.Kind == parts[0] && f.Name == parts[1] && rule == parts[2] && strings.Contains(f.Message, parts[3]) && f.ID != "" && f.Project == "default"
		}
		if !found {
			e.Errorf("no finding %q in %+v", want, report.Findings)
		}
	}
}
