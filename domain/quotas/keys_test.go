package quotas_test

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// key makes an API key with bounds; a negative one is none.
func (e *env) key(name string, sandboxes, executions int64) *core.APIKey {
	e.Helper()
	hash, err := schema.NewSealer(filepath.Join(e.TempDir(), "key")).Seal("hash")
	e.must(err)
	k := core.NewAPIKey()
	k.Project, k.Name, k.Spec.Hash, k.Spec.Roles = e.project, name, hash, []string{"agent@default"}
	if sandboxes >= 0 {
		k.Spec.MaxSandboxes = &sandboxes
	}
	if executions >= 0 {
		k.Spec.MaxExecutions = &executions
	}
	e.must(entity.Create(e.Context(), e.raw, k))
	return k
}

// by returns a sandbox that was asked for with a key.
func (e *env) by(k *core.APIKey) *sandbox.Sandbox {
	sb := e.sandbox()
	sb.Spec.APIKey = string(k.ID)
	return sb
}

func (e *env) refusedFor(k *core.APIKey, what string, err error, resource core.QuotaResource) {
	e.Helper()
	e.refused(what, err, resource)
	if err != nil && (!strings.Contains(err.Error(), "API key "+k.Name) || !strings.Contains(errs.HintOf(err), "r key show "+k.Name)) {
		e.Errorf("%s: %v, hint %q", what, err, errs.HintOf(err))
	}
}

// usedBy returns the sandboxes and executions of a key.
func (e *env) usedBy(q *quotas.Store, k *core.APIKey) [2]int64 {
	e.Helper()
	got, used, err := q.ShowKey(e.Context(), "", k.Name)
	e.must(err)
	if got.ID != k.ID || len(used) != 2 || used[0].Resource != core.QuotaResourceSandboxes || used[1].Resource != core.QuotaResourceExecutions {
		e.Fatalf("%+v, %+v", got, used)
	}
	return [2]int64{used[0].Used, used[1].Used}
}

// A key keeps its bounds in a project without a quota; other keys, and callers without
// one, do not count.
func TestKeyHasBoundsOfItsOwn(t *testing.T) {
	e := newEnv(t)
	q := e.server(e.raw)
	ci, free, none := e.key("ci", 2, 1), e.key("free", -1, -1), e.key("none", 0, 0)
	a, b := e.by(ci), e.by(ci)
	e.must(entity.Create(t.Context(), q, a))
	e.must(entity.Create(t.Context(), q, b))
	e.refusedFor(ci, "a third one", entity.Create(t.Context(), q, e.by(ci)), core.QuotaResourceSandboxes)
	e.must(entity.Create(t.Context(), q, e.sandbox()))
	e.must(entity.Create(t.Context(), q, e.by(free)))
	e.refusedFor(none, "a key that may have none", entity.Create(t.Context(), q, e.by(none)), core.QuotaResourceSandboxes)

	// What ends or is paused is free, and a resume counts again.
	e.phase(e.raw, a, sandbox.SandboxPhaseStopped)
	c := e.by(ci)
	e.must(entity.Create(t.Context(), q, c))
	b.Spec.Desired = sandbox.DesiredStatePaused
	e.must(entity.UpdateSpec(t.Context(), q, b))
	e.phase(e.raw, b, sandbox.SandboxPhasePaused)
	d := e.by(ci)
	e.must(entity.Create(t.Context(), q, d))
	b.Spec.Desired = sandbox.DesiredStateRunning
	e.refusedFor(ci, "a resume", entity.UpdateSpec(t.Context(), q, b), core.QuotaResourceSandboxes)
	e.must(entity.Remove[sandbox.Sandbox](t.Context(), e.raw, d.GetID()))
	e.must(entity.UpdateSpec(t.Context(), q, b))

	// Executions are a bound of their own.
	submit := func(k *core.APIKey) (*execution.Execution, error) {
		x := newExecution(e.project)
		x.Spec.APIKey = string(k.ID)
		return x, entity.Create(t.Context(), q, x)
	}
	x, err := submit(ci)
	e.must(err)
	_, err = submit(ci)
	e.refusedFor(ci, "a second execution", err, core.QuotaResourceExecutions)
	_, err = submit(free)
	e.must(err)
	if got := e.usedBy(q, ci); got != [2]int64{2, 1} {
		t.Errorf("used: %v", got)
	}
	x.Status.Phase = execution.PhaseEnded
	e.must(entity.UpdateStatus(t.Context(), e.raw, x))
	_, err = submit(ci)
	e.must(err)
	if _, _, err := q.ShowKey(t.Context(), "", "unknown"); !errs.Is(err, errs.NotFound) {
		t.Error(err)
	}

	// The bounds of a key go with it.
	e.must(entity.Remove[core.APIKey](t.Context(), e.raw, ci.GetID()))
	_, err = q.Show(t.Context(), "") // the server knows
	e.must(err)
	e.must(entity.Create(t.Context(), q, e.by(ci)))
}

// Both the bound of the project and that of the key hold.
func TestKeyDoesNotExceedItsProject(t *testing.T) {
	e := newEnv(t)
	q := e.server(e.raw)
	wide, narrow := e.key("wide", 5, -1), e.key("narrow", 1, -1)
	e.set(q, map[core.QuotaResource]int64{core.QuotaResourceSandboxes: 2})
	e.must(entity.Create(t.Context(), q, e.by(narrow)))
	e.refusedFor(narrow, "a second one", entity.Create(t.Context(), q, e.by(narrow)), core.QuotaResourceSandboxes)
	e.must(entity.Create(t.Context(), q, e.by(wide)))
	err := entity.Create(t.Context(), q, e.by(wide))
	e.refused("a third one in the project", err, core.QuotaResourceSandboxes)
	if !strings.Contains(err.Error(), "project default") {
		t.Error(err)
	}
}

// A warm sandbox counts for the key that claims it.
func TestKeyClaimsAWarmSandbox(t *testing.T) {
	e := newEnv(t)
	q := e.server(e.raw)
	k := e.key("ci", 1, -1)
	tpl := sandbox.NewTemplate()
	tpl.Project, tpl.Name = e.project, "python"
	e.must(entity.Create(t.Context(), e.raw, tpl))
	pool := sandbox.NewWarmPool()
	pool.Project, pool.Name, pool.Spec.Template = e.project, "python", tpl.GetID()
	e.must(entity.Create(t.Context(), e.raw, pool))
	for i := range 2 {
		sb := e.sandbox()
		sb.Spec.WarmPool = pool.GetID()
		e.must(entity.Create(t.Context(), q, sb))
		sb.Spec.WarmPool, sb.Spec.APIKey = "", string(k.ID)
		if err := entity.UpdateSpec(t.Context(), q, sb); i == 0 {
			e.must(err)
		} else {
			e.refusedFor(k, "a second claim", err, core.QuotaResourceSandboxes)
		}
	}
}

// Requests at once with one key, at two servers, never pass its bound, and use all of it.
func TestRequestsAtOnceKeepTheBoundOfAKey(t *testing.T) {
	e := newEnv(t)
	servers := []*quotas.Store{e.server(e.raw), e.server(e.raw)}
	const limit, requests = 5, 24
	k := e.key("ci", limit, -1)
	start, err := e.raw.List(t.Context(), entity.Query{Kind: sandbox.KindSandbox, Limit: 1})
	e.must(err)
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			sb := e.by(k)
			if err := entity.Create(t.Context(), servers[i%2], sb); err != nil {
				e.refusedFor(k, "a request", err, core.QuotaResourceSandboxes)
			} else if i%3 == 0 { // it ends, so that others follow
				e.phase(e.raw, sb, sandbox.SandboxPhaseStopped)
			}
		})
	}
	wg.Wait()
	for range limit - e.mostLive(start.Token, limit) {
		e.must(entity.Create(t.Context(), servers[0], e.by(k)))
	}
	for _, s := range servers {
		e.refusedFor(k, "one more", entity.Create(t.Context(), s, e.by(k)), core.QuotaResourceSandboxes)
	}
}

// A server that dies before or after the write of an admission leaves a key neither use
// that does not exist, nor sandboxes that do not count.
func TestInterruptedAdmissionsOfAKey(t *testing.T) {
	e := newEnv(t)
	c := &cut{Store: e.raw}
	q := e.server(c)
	k := e.key("ci", 2, -1)
	for i, cut := range []func(bool){c.before.Store, c.after.Store} {
		cut(true)
		if err := entity.Create(t.Context(), q, e.by(k)); !errs.Is(err, errs.Unavailable) {
			t.Fatal(i, err)
		}
		cut(false)
	}
	e.must(entity.Create(t.Context(), q, e.by(k)))
	for _, s := range []*quotas.Store{q, e.server(e.raw)} { // the next server sees the same
		e.refusedFor(k, "a third one", entity.Create(t.Context(), s, e.by(k)), core.QuotaResourceSandboxes)
		if got := e.usedBy(s, k); got[0] != 2 {
			t.Errorf("%d sandboxes in use", got[0])
		}
	}
}
