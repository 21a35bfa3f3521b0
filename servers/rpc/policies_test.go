package rpcserver_test

import (
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

func (e *env) rules(p core.Policy) {
	e.Helper()
	_, err := e.policies.Set(e.ctx(), &core.SetPolicyRequest{Policy: p})
	e.must(err)
}

// forbidden fails unless err is the refusal by a rule, and says so to people and
// programs.
func (e *env) forbidden(what string, err error, rule core.PolicyRule) {
	e.Helper()
	e.class(what, err, errs.PermissionDenied)
	if !policies.Refused(err) || errs.Detail(err, "policy") != string(rule) || !strings.Contains(err.Error(), string(rule)) || !strings.Contains(errs.HintOf(err), "r policy show") {
		e.Errorf("%s: %v, hint %q; want a refusal by %s", what, err, errs.HintOf(err), rule)
	}
}

// Each way to a sandbox, and each change of one, meets the policy.
func TestEveryWayToASandboxMeetsThePolicy(t *testing.T) {
	e := newEnv(t)
	_, warm := e.pool(1)
	older := e.run("sleep")
	snap, err := e.sandboxes.Snapshot(e.ctx(), &sandbox.SnapshotRequest{Sandbox: older.GetID()})
	e.must(err)
	saved, err := entity.Decode[sandbox.Snapshot](&snap.Snapshot)
	e.must(err)
	ttl := time.Hour
	e.rules(core.Policy{Templates: []string{"base"}, MaxEgress: core.PolicyEgressListed, Networks: []string{"*.example.com", "203.0.113.0/24"}, MaxTTL: &ttl, MaxMemoryBytes: ptr(int64(1 << 30))})
	run := func(req sandbox.RunRequest) error {
		_, err := e.sandboxes.Run(e.ctx(), &req)
		return err
	}
	e.forbidden("image", run(sandbox.RunRequest{Image: "debian", Command: []string{"/bin/guest", "sleep"}}), core.PolicyRuleTemplates)
	e.forbidden("claim", run(sandbox.RunRequest{Template: "python"}), core.PolicyRuleTemplates)
	e.forbidden("sandbox of an agent", run(sandbox.RunRequest{Template: "python", Agent: "ada"}), core.PolicyRuleTemplates)
	_, _, err = e.service.RunOnce(e.ctx(), "", sandboxes.RunOnceRequest{CreateRequest: sandboxes.CreateRequest{Template: "python", Command: []string{"true"}}})
	e.forbidden("run once", err, core.PolicyRuleTemplates)
	_, _, err = e.service.RunCode(e.ctx(), "", sandboxes.RunCodeRequest{Language: "python", Code: []byte("1")})
	e.forbidden("run code", err, core.PolicyRuleTemplates)
	_, err = e.service.Fork(e.ctx(), sandboxes.ForkRequest{Snapshot: saved.GetID()})
	e.forbidden("fork of what is made of an image", err, core.PolicyRuleTemplates)
	_, err = e.templates.Build(e.ctx(), &sandbox.BuildTemplateRequest{Name: "mine", Image: "debian"})
	e.forbidden("build", err, core.PolicyRuleTemplates)

	e.forbidden("memory", run(sandbox.RunRequest{Template: "base", MemoryBytes: ptr(int64(2 << 30))}), core.PolicyRuleMaxMemoryBytes)
	e.forbidden("ttl", run(sandbox.RunRequest{Template: "base", TTL: ptr(2 * time.Hour)}), core.PolicyRuleMaxTTL)
	list := func(rules ...string) *sandbox.Egress {
		return &sandbox.Egress{Mode: sandbox.EgressModeList, Allow: rules}
	}
	e.forbidden("all", run(sandbox.RunRequest{Template: "base", Egress: &sandbox.Egress{Mode: sandbox.EgressModeAll}}), core.PolicyRuleMaxEgress)
	e.forbidden("name", run(sandbox.RunRequest{Template: "base", Egress: list("api.example.com", "example.org")}), core.PolicyRuleNetworks)
	e.forbidden("network", run(sandbox.RunRequest{Template: "base", Egress: list("203.0.112.0/23")}), core.PolicyRuleNetworks)
	all, _, err := entity.List[sandbox.Sandbox](e.ctx(), e.store.Store, entity.Query{})
	e.must(err)
	if len(all) != 1+len(warm) {
		t.Errorf("%d sandboxes exist after refusals, %d before", len(all), 1+len(warm))
	}

	// What is not asked for is what the policy permits at most.
	resp, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Template: "base"})
	e.must(err)
	sb, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	e.must(err)
	if sb.Spec.TTL == nil || *sb.Spec.TTL != ttl || sb.Spec.Template.Egress == nil || sb.Spec.Template.Egress.Mode != sandbox.EgressModeList || len(sb.Spec.Template.Egress.Allow) != 2 {
		t.Errorf("a sandbox for which nothing is asked: %v, %+v", sb.Spec.TTL, sb.Spec.Template.Egress)
	}
	e.must(run(sandbox.RunRequest{Template: "base", TTL: ptr(time.Minute), Egress: list("203.0.113.7", "a.b.example.com", "*.c.example.com")}))
	e.must(run(sandbox.RunRequest{Template: "base", Network: sandbox.NetworkModeNone}))

	// What runs is changed within the policy only, and goes on.
	_, err = e.sandboxes.Extend(e.ctx(), &sandbox.ExtendRequest{Sandbox: older.GetID(), TTL: ptr(2 * time.Hour)})
	e.forbidden("extend", err, core.PolicyRuleMaxTTL)
	_, err = e.sandboxes.Extend(e.ctx(), &sandbox.ExtendRequest{Sandbox: sb.GetID()})
	e.forbidden("extend without end", err, core.PolicyRuleMaxTTL)
	_, err = e.sandboxes.SetEgress(e.ctx(), &sandbox.EgressRequest{Sandbox: older.GetID(), Egress: *list("example.org")})
	e.forbidden("set egress", err, core.PolicyRuleNetworks)
	older = e.pause(older)
	_, err = e.sandboxes.Resume(e.ctx(), &sandbox.PauseRequest{Sandbox: older.GetID(), Wait: ptr(true)})
	e.must(err)

	_, err = e.policies.Clear(e.ctx(), &core.ClearPolicyRequest{Rules: []core.PolicyRule{core.PolicyRuleTemplates}})
	e.must(err)
	e.must(run(sandbox.RunRequest{Template: "python"}))
}

// A policy that requires the second layer refuses every other process.
func TestPolicyRequiresTheSecondLayer(t *testing.T) {
	e := newEnv(t)
	older := e.run("sleep")
	e.rules(core.Policy{Confine: true})
	exec := func(sid id.Sandbox) error {
		_, _, err := e.service.Exec(e.ctx(), sandboxes.ExecRequest{Sandbox: sid, Command: []string{"true"}})
		return err
	}
	e.forbidden("exec", exec(older.GetID()), core.PolicyRuleConfine)
	_, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Image: "debian", Command: []string{"/bin/guest", "sleep"}})
	e.forbidden("main process", err, core.PolicyRuleConfine)
	_, err = e.service.RunningUnconfined(e.ctx(), older.GetID())
	e.forbidden("interpreter", err, core.PolicyRuleConfine)
	_, _, err = e.service.RunOnce(e.ctx(), "", sandboxes.RunOnceRequest{CreateRequest: sandboxes.CreateRequest{Template: "python", Command: []string{"true"}}})
	e.forbidden("run once", err, core.PolicyRuleConfine)
	code := sandboxes.RunCodeRequest{Language: "sh", Code: []byte("1"), Sandbox: older.GetID()}
	_, _, err = e.service.RunCode(e.ctx(), "", code)
	e.forbidden("run code", err, core.PolicyRuleConfine)
	stream, err := e.sandboxes.RunCode(e.ctx(), &sandbox.RunCodeRequest{Language: "python", Code: []byte("1"), Sandbox: sandbox.RunRequest{Template: "python"}})
	e.must(err)
	_, err = stream.Recv()
	e.forbidden("run code by RPC", err, core.PolicyRuleConfine)
	stream.Close()
	code.Confine = true
	if _, _, err = e.service.RunCode(e.ctx(), "", code); policies.Refused(err) {
		t.Errorf("confined code: %v", err)
	}
}

// A rollout of an app meets limits and network of the policy; sandboxes that
// replace those of a pool do not.
func TestPoolsOfAppsMeetThePolicy(t *testing.T) {
	e := newEnv(t)
	e.rules(core.Policy{Templates: []string{"base"}, Confine: true, MaxTTL: ptr(time.Hour), MaxCPUMillis: ptr(int64(2000))})
	s := e.service.Store
	pool := sandbox.NewSandboxPool()
	pool.Project, pool.Spec.Template.Image, pool.Spec.Template.Resources.CPUMillis = e.project, "img", 4000
	e.forbidden("pool", policies.New(e.store, e.service.Informers).Check(e.ctx(), []entity.Op{e.op(pool)}), core.PolicyRuleMaxCPUMillis)
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Template, sb.Spec.Pool = e.project, pool.Spec.Template, "pool-x"
	if err := entity.Create(e.ctx(), s, sb); policies.Refused(err) {
		t.Errorf("a replacement: %v", err)
	}
}

func (e *env) op(o *sandbox.SandboxPool) entity.Op {
	e.Helper()
	o.Spec.App = "app-x"
	op, err := entity.CreateOp(o)
	e.must(err)
	return op
}
