package deployment_test

import (
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

func (e *env) limit(sandboxes int64) {
	e.Helper()
	if _, err := e.quotas.Set(e.Context(), "", []core.QuotaLimit{{Resource: core.QuotaResourceSandboxes, Limit: &sandboxes}}); err != nil {
		e.Fatal(err)
	}
}

// A rollout for which the quota has no room beside the version that serves fails
// before it starts anything, and that version goes on.
func TestRolloutBeyondTheQuotaFailsBeforeItStarts(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	first := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	e.limit(6)
	d := e.phase(e.deploy("shop", e.source("ok", "release=ok", "web=ok", "many=ok")), app.DeploymentPhaseFailed)
	f := d.Status.Failure
	if f == nil || f.Reason != app.FailureReasonCapacity || !strings.Contains(f.Message, "1 of 6 in use, 6 more asked for") || !strings.Contains(f.Hint, "r quota") {
		t.Fatalf("failure %+v", f)
	}
	a := e.settled("shop")
	if all := list(e, func(*sandbox.Sandbox) bool { return true }); a.Status.ActiveVersion != first.Status.Version || e.live("shop") != 1 || len(all) != 1 {
		t.Errorf("%+v, %d live, %d sandboxes", a.Status, e.live("shop"), len(all))
	}
	e.limit(7)
	d = e.succeed(e.deploy("shop", e.source("ok", "web=ok", "many=ok")))
	if a := e.settled("shop"); a.Status.ActiveVersion != d.Status.Version || e.live("shop") != 6 {
		t.Errorf("%+v, %d live", a.Status, e.live("shop"))
	}
}

// The quota may shrink while the release command runs: it is asked again before
// the pools are made.
func TestQuotaThatShrinksDuringARelease(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	first := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	d := e.deploy("shop", e.source("ok", "release=gate", "web=ok"))
	e.eventually("the release command runs", func() bool {
		return len(list(e, func(sb *sandbox.Sandbox) bool { return sb.Spec.Service == "release" && sb.Spec.Node != "" })) == 1
	})
	e.limit(1)
	e.gate.Store(true)
	d = e.phase(d, app.DeploymentPhaseFailed)
	if f := d.Status.Failure; f == nil || f.Reason != app.FailureReasonCapacity {
		t.Fatalf("failure %+v", f)
	}
	pools, _, err := entity.List[sandbox.SandboxPool](t.Context(), e.store, entity.Query{})
	if a := e.settled("shop"); err != nil || a.Status.ActiveVersion != first.Status.Version || e.live("shop") != 1 || len(pools) != 1 {
		t.Errorf("%+v, %d live, %d pools, %v", a.Status, e.live("shop"), len(pools), err)
	}
}

// A service that writes to a disk needs no room beside the sandbox that it replaces.
func TestWriterReplacesItsSandboxWithinTheQuota(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	e.limit(1)
	e.succeed(e.deploy("shop", e.source("ok", "web@data=ok")))
	d := e.succeed(e.deploy("shop", e.source("ok", "web@data=ok")))
	e.served(schema.ID(d.Status.Version))
}

// A version that the policy does not permit fails before it starts anything, and the
// one that serves goes on; its sandboxes are replaced.
func TestRolloutBeyondThePolicyFailsBeforeItStarts(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	first := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	if _, err := e.policies.Set(t.Context(), "", core.Policy{MaxEgress: core.PolicyEgressNone}); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{e.source("ok", "web=ok", "network=all"), e.source("ok", "release=ok", "web=ok", "network=all")} {
		d := e.phase(e.deploy("shop", source), app.DeploymentPhaseFailed)
		if f := d.Status.Failure; f == nil || f.Reason != app.FailureReasonPolicy || !strings.Contains(f.Message, "max_egress") || !strings.Contains(f.Hint, "r policy") {
			t.Fatalf("failure %+v", f)
		}
	}
	if a := e.settled("shop"); a.Status.ActiveVersion != first.Status.Version || e.live("shop") != 1 {
		t.Errorf("%+v, %d live", a.Status, e.live("shop"))
	}
	for _, sb := range list(e, func(*sandbox.Sandbox) bool { return true }) {
		if err := entity.Remove[sandbox.Sandbox](t.Context(), e.store, sb.GetID()); err != nil {
			t.Fatal(err)
		}
	}
	e.eventually("its sandbox is replaced", func() bool { return e.live("shop") == 1 })
}

// A version whose source does not say what it reaches gets what the policy permits at
// most; what it says about other apps stays.
func TestVersionHasTheNetworkOfThePolicy(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	network := func(services ...string) *app.Network {
		t.Helper()
		d := e.succeed(e.deploy("shop", e.source("ok", services...)))
		ver, err := entity.Get[app.AppVersion](t.Context(), e.store, schema.ID(d.Status.Version))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list(e, func(p *sandbox.SandboxPool) bool { return p.Spec.AppVersion == ver.GetID() }) {
			if n, have := ver.Spec.Network, p.Spec.Template.Egress; (n == nil) != (have == nil) || n != nil && (string(have.Mode) != n.Egress || !slices.Equal(have.Allow, n.Allow)) {
				t.Errorf("pool %s has %+v, its version %+v", p.Name, have, n)
			}
		}
		return ver.Spec.Network
	}
	if n := network("web=ok"); n != nil {
		t.Errorf("without a policy: %+v", n)
	}
	if n := network("web=ok", "network=none"); n == nil || n.Egress != "none" {
		t.Errorf("without a policy, of the source: %+v", n)
	}
	if _, err := e.policies.Set(t.Context(), "", core.Policy{MaxEgress: core.PolicyEgressListed, Networks: []string{"example.com"}}); err != nil {
		t.Fatal(err)
	}
	if n := network("web=ok"); n == nil || n.Egress != "list" || !slices.Equal(n.Allow, []string{"example.com"}) {
		t.Errorf("with a list: %+v", n)
	}
	if n := network("web=ok", "network=none"); n == nil || n.Egress != "none" || n.Allow != nil {
		t.Errorf("narrower than the policy: %+v", n)
	}
}
