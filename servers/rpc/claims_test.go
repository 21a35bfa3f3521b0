package rpcserver_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/images"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

// pool makes the warm pool of the shipped template python, with n sandboxes
// that run.
func (e *env) pool(n int) (*sandbox.WarmPool, []*sandbox.Sandbox) {
	e.Helper()
	resp, err := e.templates.SetPool(e.ctx(), &sandbox.SetPoolRequest{Template: "python", Min: ptr(int64(n)), Max: ptr(int64(max(n, 1)))})
	e.must(err)
	p, err := entity.Decode[sandbox.WarmPool](&resp.Pool)
	e.must(err)
	system, err := projects.Find(e.ctx(), e.store.Store, templates.System)
	e.must(err)
	t, err := entity.ByName[sandbox.Template](e.ctx(), e.store.Store, system, "python")
	e.must(err)
	v, err := entity.Get[sandbox.TemplateVersion](e.ctx(), e.store.Store, t.Status.Version)
	e.must(err)
	var warm []*sandbox.Sandbox
	for range n {
		sb := sandbox.NewSandbox()
		sb.Spec.WarmPool, sb.Spec.TemplateVersion, sb.Spec.Template = p.GetID(), v.GetID(), sandboxes.OfVersion(v, v.Spec.Base)
		e.create(sb)
		e.place(sb)
		warm = append(warm, e.until(sb, sandbox.WaitUntilReady))
	}
	return p, warm
}

// claim runs a sandbox of the template python.
func (e *env) claim(req sandbox.RunRequest) *sandbox.Sandbox {
	e.Helper()
	req.Template = "python"
	resp, err := e.sandboxes.Run(e.ctx(), &req)
	e.must(err)
	sb, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	e.must(err)
	return sb
}

func TestClaimTakesAWarmSandbox(t *testing.T) {
	e := newEnv(t)
	_, warm := e.pool(1)
	sb := e.claim(sandbox.RunRequest{
		Name: "mine", Labels: map[string]string{"team": "a"}, Env: map[string]string{"A": "1"}, EnvSecret: map[string]string{"B": "hidden"},
		TTL: ptr(time.Hour), MemoryBytes: ptr(int64(64 << 20)),
	})
	if sb.ID != warm[0].ID || sb.Spec.Origin != sandbox.SandboxOriginPool || sb.Spec.WarmPool != "" || sb.Spec.ClaimedAt == nil ||
		sb.Name != "mine" || sb.Labels["team"] != "a" || *sb.Spec.TTL != time.Hour {
		t.Fatalf("%+v %+v", sb.Meta, sb.Spec)
	}
	c := e.machine.Claim(string(sb.ID))
	if c.Claim != sb.Spec.Claim || !slices.Contains(c.Env, "A=1") || !slices.Contains(c.Env, "B=hidden") || c.MemoryBytes != 64<<20 || c.User != "user" {
		t.Errorf("configured with %+v", c)
	}
	// The pool is empty: the next one is made cold.
	if next := e.claim(sandbox.RunRequest{}); next.Spec.Origin != sandbox.SandboxOriginCold || next.ID == sb.ID {
		t.Errorf("%+v", next.Spec)
	}
}

func TestClaimsAtOnceGetSandboxesOfTheirOwn(t *testing.T) {
	e := newEnv(t)
	_, warm := e.pool(4)
	got := make([]*sandbox.Sandbox, 8)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i] = e.claim(sandbox.RunRequest{}) })
	}
	wg.Wait()
	seen, pooled := map[schema.ID]bool{}, 0
	for _, sb := range got {
		if seen[sb.ID] {
			t.Errorf("%s has two owners", sb.ID)
		}
		seen[sb.ID] = true
		if sb.Spec.Origin == sandbox.SandboxOriginPool {
			pooled++
		}
	}
	if pooled != len(warm) {
		t.Errorf("%d of %d warm sandboxes were claimed", pooled, len(warm))
	}
}

func TestClaimIsColdWhereAWarmSandboxCannotServe(t *testing.T) {
	e := newEnv(t)
	_, warm := e.pool(1)
	for name, req := range map[string]sandbox.RunRequest{
		"more memory": {MemoryBytes: ptr(int64(8 << 30))},
		"a command":   {Command: []string{"/bin/guest", "sleep"}},
		"no network":  {Network: sandbox.NetworkModeNone},
		"fewer files": {DiskFiles: ptr(int64(2000))},
		"fewer open":  {OpenFiles: ptr(int64(512))},
		"small files": {FileBytes: ptr(int64(32 << 20))},
		"bandwidth":   {BandwidthBytes: ptr(int64(100_000))},
	} {
		if sb := e.claim(req); sb.Spec.Origin != sandbox.SandboxOriginCold {
			t.Errorf("%s: %+v", name, sb.Spec)
		}
	}
	if sb := e.claim(sandbox.RunRequest{}); sb.ID != warm[0].ID {
		t.Errorf("the warm sandbox was not left: %+v", sb.Spec)
	}
}

// TestClaimTakesWhatTheServerReaches: warm sandboxes on a node of another server, or on a runner that is not connected, are
// left as they are. With no other one the claim is cold.
func TestClaimTakesWhatTheServerReaches(t *testing.T) {
	e := newEnv(t)
	_, warm := e.pool(1)
	var elsewhere []*sandbox.Sandbox
	for name, isRunner := range map[string]bool{"another": false, "edge": true} {
		n := core.NewNode()
		n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes, n.Spec.Runner = name, "amd64", 1000_000, 1<<40, isRunner
		e.create(n)
		for range claimTries {
			sb := sandbox.NewSandbox()
			sb.Spec.WarmPool, sb.Spec.TemplateVersion, sb.Spec.Template = warm[0].Spec.WarmPool, warm[0].Spec.TemplateVersion, warm[0].Spec.Template
			sb.Spec.Node, sb.Status.Phase, sb.Status.Ready = n.GetID(), sandbox.SandboxPhaseRunning, true
			e.create(sb)
			elsewhere = append(elsewhere, sb)
		}
	}
	_, err := e.service.Informers.WaitRevision(e.ctx(), elsewhere[len(elsewhere)-1].Revision)
	e.must(err)
	if sb := e.claim(sandbox.RunRequest{}); sb.ID != warm[0].ID {
		t.Errorf("%s of node %s was claimed, want %s", sb.ID, sb.Spec.Node, warm[0].ID)
	}
	if sb := e.claim(sandbox.RunRequest{Name: "mine"}); sb.Spec.Origin != sandbox.SandboxOriginCold {
		t.Errorf("%+v", sb.Spec)
	}
	for _, sb := range elsewhere {
		if got, err := entity.Get[sandbox.Sandbox](e.ctx(), e.store.Store, sb.ID); err != nil || got.Revision != sb.Revision {
			t.Errorf("a warm sandbox of node %s was changed: %+v, %v", sb.Spec.Node, got, err)
		}
	}
}

// claimTries is how many warm sandboxes a claim tries.
const claimTries = 8

// A server that is killed between the transaction and the call to the node
// leaves a claim, which the node's controller completes.
func TestControllerCompletesAClaim(t *testing.T) {
	e := newEnv(t)
	_, warm := e.pool(1)
	sb := warm[0]
	now := time.Now().Add(-time.Minute)
	sb.Spec.WarmPool, sb.Spec.Claim, sb.Spec.ClaimedAt, sb.Spec.Template.Env = "", "claim-1", &now, map[string]string{"A": "1"}
	e.must(entity.UpdateSpec(e.ctx(), e.store.Store, sb))
	wait.For(t, "the sandbox is configured", func() bool { return e.machine.Claim(string(sb.ID)).Claim == "claim-1" })
	if c := e.machine.Claim(string(sb.ID)); !slices.Contains(c.Env, "A=1") {
		t.Errorf("%+v", c)
	}
}

func TestAgentKeepsItsSandbox(t *testing.T) {
	e := newEnv(t)
	e.pool(2)
	var wg sync.WaitGroup
	got := make([]*sandbox.Sandbox, 4)
	for i := range got {
		wg.Go(func() { got[i] = e.claim(sandbox.RunRequest{Agent: "ada"}) })
	}
	wg.Wait()
	for _, sb := range got[1:] {
		if sb.ID != got[0].ID {
			t.Errorf("one agent has the sandboxes %s and %s", got[0].ID, sb.ID)
		}
	}
	if sb := e.claim(sandbox.RunRequest{Agent: "bob"}); sb.ID == got[0].ID || sb.Spec.Origin != sandbox.SandboxOriginPool {
		t.Errorf("another agent: %+v", sb.Spec)
	}
	_, err := e.sandboxes.Stop(e.ctx(), &sandbox.StopRequest{Sandbox: got[0].GetID(), Wait: ptr(true)})
	e.must(err)
	if sb := e.claim(sandbox.RunRequest{Agent: "ada"}); sb.ID == got[0].ID || sb.Spec.Origin != sandbox.SandboxOriginCold {
		t.Errorf("after the end of its sandbox: %+v", sb.Spec)
	}
}

func TestTemplates(t *testing.T) {
	e := newEnv(t)
	resp, err := e.templates.List(e.ctx(), &sandbox.TemplatesRequest{})
	e.must(err)
	var names []string
	for i := range resp.Templates {
		tpl, err := entity.Decode[sandbox.Template](&resp.Templates[i])
		e.must(err)
		names = append(names, tpl.Name)
	}
	if !slices.Contains(names, "python") || !slices.Contains(names, "code-interpreter-v1") || !slices.IsSorted(names) {
		t.Errorf("%q", names)
	}
	for _, name := range []string{"python", "python:1"} {
		show, err := e.templates.Show(e.ctx(), &sandbox.TemplateRequest{Template: name})
		e.must(err)
		if v, err := entity.Decode[sandbox.TemplateVersion](show.Selected); err != nil || v.Spec.Number != 1 || len(show.Versions) != 1 {
			t.Errorf("%s: %+v, %d versions, %v", name, v, len(show.Versions), err)
		}
	}
	_, err = e.templates.Show(e.ctx(), &sandbox.TemplateRequest{Template: "pyhton"})
	e.class("a typing mistake", err, errs.NotFound)
	if !strings.Contains(errs.HintOf(err), "did you mean python?") {
		t.Errorf("hint %q", errs.HintOf(err))
	}
	for _, name := range []string{"python:7", "python:beta", "none"} {
		_, err = e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Template: name})
		e.class(name, err, errs.NotFound)
	}
	_, err = e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Template: "python", Image: "debian"})
	e.class("image too", err, errs.InvalidArgument)
	_, err = e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Image: "debian", Agent: "ada"})
	e.class("agent without template", err, errs.InvalidArgument)
	_, err = e.templates.SetPool(e.ctx(), &sandbox.SetPoolRequest{Template: "python", Min: ptr(int64(3)), Max: ptr(int64(2))})
	e.class("pool bounds", err, errs.InvalidArgument)
	e.class("no pool", e.templates.DeletePool(e.ctx(), &sandbox.PoolRequest{Template: "python"}), errs.NotFound)
}

func TestPoolIsMadeByTheFirstRequest(t *testing.T) {
	e := newEnv(t)
	e.claim(sandbox.RunRequest{})
	pools, _, err := entity.List[sandbox.WarmPool](e.ctx(), e.store.Store, entity.Query{})
	if err != nil || len(pools) != 1 || pools[0].Name != "python" || pools[0].Spec.Min != 0 {
		t.Fatalf("%+v, %v", pools, err)
	}
	_, err = e.templates.SetPool(e.ctx(), &sandbox.SetPoolRequest{Template: "python", Max: ptr(int64(0))})
	e.must(err)
	e.must(e.templates.DeletePool(e.ctx(), &sandbox.PoolRequest{Template: "python"}))
}

// A digest names an image of the store, whose builds are of all projects.
func TestImagesOfOtherProjects(t *testing.T) {
	e := newEnv(t)
	other := core.NewProject()
	other.Name = "other"
	e.create(other)
	theirs, own := app.NewApp(), app.NewApp()
	theirs.Project, theirs.Name, own.Name = other.ID, "shop", "shop"
	e.must(entity.Create(e.Context(), e.store.Store, theirs))
	e.create(own)
	digest := "@sha256:" + strings.Repeat("1", 64)
	for _, image := range []string{
		images.Name(theirs.ID) + digest, images.Name(theirs.ID), images.Name("app-unknown") + digest, "debian" + digest, "runtime.local/base/debian:13" + digest,
		"runtime.local/snapshot-" + string(theirs.ID) + digest,
	} {
		_, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Image: image})
		e.class(image, err, errs.NotFound)
	}
	_, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Image: images.Name(own.ID) + digest})
	e.must(err)
}
