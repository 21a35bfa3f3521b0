package server

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
)

// TestEveryE2BOperationNeedsItsProject calls each operation of E2B's control
// plane without a key, and those on a sandbox with one of another project and
// with one that may only read.
func TestEveryE2BOperationNeedsItsProject(t *testing.T) {
	e := newRestEnv(t)
	own, _ := e.newTenant("own"), e.newTenant("foreign")
	live := sandbox.NewSandbox()
	live.Project, live.Spec.Template.Image, live.Status.Phase = own.projectID, "img", sandbox.SandboxPhaseRunning
	if err := entity.Create(t.Context(), e.c.store, live); err != nil {
		t.Fatal(err)
	}
	public := strings.Replace(string(live.ID), "-", "", 1)
	foreign, viewer := e.key("foreign", "admin"), e.key("own", "viewer")
	for _, name := range e.f.e2b.Operations() {
		method, path, _ := strings.Cut(name, " ")
		path = pathParameters.ReplaceAllString(strings.ReplaceAll(path, "{id}", public), "1")
		if resp, text := e.do(method, path, "", "{}"); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without a key: %d, %s", name, resp.StatusCode, text)
		}
		if !strings.Contains(name, "/sandboxes/{id}") {
			continue
		}
		if resp, text := e.do(method, path, foreign, "{}"); resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusNotFound &&
			!(resp.StatusCode == http.StatusBadRequest && strings.Contains(text, "timeout is missing")) {
			t.Errorf("%s of another project: %d, %s", name, resp.StatusCode, text)
		}
		if _, text := e.do(method, path, viewer, "{}"); strings.Contains(text, "AccessToken") {
			t.Errorf("%s gives a token to a viewer: %s", name, text)
		}
	}
}

// TestE2BPauseWithinAPolicy: a pause takes the time to live away. A policy that bounds
// it keeps it, and the pause succeeds.
func TestE2BPauseWithinAPolicy(t *testing.T) {
	e := newRestEnv(t)
	own := e.newTenant("own")
	agent := e.key("own", "agent")
	begun, ttl := time.Now().UTC(), 10*time.Minute
	pause := func() *sandbox.Sandbox {
		t.Helper()
		sb := sandbox.NewSandbox()
		sb.Project, sb.Spec.Template.Image, sb.Spec.TTL = own.projectID, "img", &ttl
		sb.Status.Phase, sb.Status.StartedAt = sandbox.SandboxPhasePaused, &begun // as its node will report
		if err := entity.Create(t.Context(), e.c.store, sb); err != nil {
			t.Fatal(err)
		}
		path := "/sandboxes/" + strings.Replace(string(sb.ID), "-", "", 1) + "/pause"
		if resp, text := e.do(http.MethodPost, path, agent, "{}"); resp.StatusCode != http.StatusNoContent {
			t.Fatalf("%d, %s", resp.StatusCode, text)
		}
		sb, err := entity.Get[sandbox.Sandbox](t.Context(), e.c.store, sb.ID)
		if err != nil || sb.Spec.Desired != sandbox.DesiredStatePaused {
			t.Fatalf("%+v, %v", sb, err)
		}
		return sb
	}
	if sb := pause(); sb.Spec.TTL != nil {
		t.Errorf("without a policy the time goes on: %v", *sb.Spec.TTL)
	}
	longest := time.Hour
	if _, err := core.NewPoliciesClient(e.root()).Set(t.Context(), &core.SetPolicyRequest{Project: "own", Policy: core.Policy{MaxTTL: &longest}}); err != nil {
		t.Fatal(err)
	}
	if sb := pause(); sb.Spec.TTL == nil {
		t.Error("a sandbox evades the policy by a pause")
	}
}
