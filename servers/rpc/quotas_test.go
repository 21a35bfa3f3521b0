package rpcserver_test

import (
	"path/filepath"
	"sync"
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

func (e *env) limit(resource core.QuotaResource, n int64) {
	e.Helper()
	_, err := e.quotas.Set(e.ctx(), &core.SetQuotaRequest{Limits: []core.QuotaLimit{{Resource: resource, Limit: &n}}})
	e.must(err)
}

func (e *env) used(resource core.QuotaResource) int64 {
	e.Helper()
	resp, err := e.quotas.Show(e.ctx(), &core.QuotaRequest{})
	e.must(err)
	for _, u := range resp.Resources {
		if u.Resource == resource {
			return u.Used
		}
	}
	e.Fatalf("%s is not shown", resource)
	return 0
}

func (e *env) refused(what string, err error) {
	e.Helper()
	if e.class(what, err, errs.ResourceExhausted); !quotas.Refused(err) || errs.HintOf(err) == "" {
		e.Errorf("%s: %v is no refusal of a quota with a hint", what, err)
	}
}

// Each way to a sandbox meets the bounds of the API key with which it is asked for.
func TestEveryWayToASandboxMeetsTheKey(t *testing.T) {
	e := newEnv(t)
	_, warm := e.pool(2)
	hash, err := schema.NewSealer(filepath.Join(t.TempDir(), "key")).Seal("hash")
	e.must(err)
	k, one := core.NewAPIKey(), int64(1)
	k.Project, k.Name = warm[0].Project, "ci"
	k.Spec = core.APIKeySpec{Hash: hash, Roles: []string{"agent@default"}, MaxSandboxes: &one}
	e.must(entity.Create(e.ctx(), e.store.Store, k))
	cl := e.rpc.Local(rpc.Identity{Name: "key:default/ci", Roles: []string{rpc.RoleAdmin}, How: rpc.HowKey, Key: string(k.ID)})
	t.Cleanup(func() { cl.Close() })
	mine := sandbox.NewSandboxesClient(cl)
	run := func(req sandbox.RunRequest) (*sandbox.Sandbox, error) {
		resp, err := mine.Run(e.ctx(), &req)
		if err != nil {
			return nil, err
		}
		return entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	}
	claimed, err := run(sandbox.RunRequest{Template: "python"})
	e.must(err)
	if claimed.Spec.APIKey != string(k.ID) || claimed.Spec.Claim == "" {
		t.Fatalf("the claimed sandbox has the key %q", claimed.Spec.APIKey)
	}
	_, err = run(sandbox.RunRequest{Template: "python"})
	e.refused("claim", err)
	_, err = run(sandbox.RunRequest{Image: "debian", Command: []string{"/bin/guest", "sleep"}})
	e.refused("create", err)
	_, err = run(sandbox.RunRequest{Template: "python", Agent: "ada"})
	e.refused("sandbox of an agent", err)
	_, err = mine.Fork(e.ctx(), &sandbox.ForkRequest{Sandbox: claimed.GetID()})
	e.refused("fork", err)
	for what, call := range map[string]func() error{
		"run once": func() error {
			st, err := mine.RunOnce(e.ctx(), &sandbox.RunOnceRequest{Sandbox: sandbox.RunRequest{Template: "python", Command: []string{"true"}}})
			if err == nil {
				_, err = st.Recv()
			}
			return err
		},
		"run code": func() error {
			st, err := mine.RunCode(e.ctx(), &sandbox.RunCodeRequest{Sandbox: sandbox.RunRequest{}, Language: "python", Code: []byte("1")})
			if err == nil {
				_, err = st.Recv()
			}
			return err
		},
	} {
		e.refused(what, call())
	}
	other := e.run("sleep") // of somebody without a key
	if other.Spec.APIKey != "" {
		t.Errorf("the key %q", other.Spec.APIKey)
	}
	paused := e.pause(claimed)
	cold, err := run(sandbox.RunRequest{Image: "debian", Command: []string{"/bin/guest", "sleep"}})
	e.must(err)
	_, err = e.sandboxes.Resume(e.ctx(), &sandbox.PauseRequest{Sandbox: paused.GetID()}) // whoever resumes it, it counts for the key
	e.refused("resume", err)
	e.must(mine.Delete(e.ctx(), &sandbox.SandboxRequest{Sandbox: cold.GetID()}))
	_, err = mine.Resume(e.ctx(), &sandbox.PauseRequest{Sandbox: paused.GetID(), Wait: ptr(true)})
	e.must(err)
}

// Each way to a sandbox meets the quota, and tells a client why.
func TestEveryWayToASandboxMeetsTheQuota(t *testing.T) {
	e := newEnv(t)
	_, warm := e.pool(2)
	paused := e.pause(e.run("sleep"))
	running := e.run("sleep")
	snap, err := e.sandboxes.Snapshot(e.ctx(), &sandbox.SnapshotRequest{Sandbox: running.GetID()})
	e.must(err)
	saved, err := entity.Decode[sandbox.Snapshot](&snap.Snapshot)
	e.must(err)
	e.limit(core.QuotaResourceSandboxes, 1)
	if n := e.used(core.QuotaResourceSandboxes); n != 1 {
		t.Fatalf("%d sandboxes count, one runs, one is paused, two are warm", n)
	}
	run := func(req sandbox.RunRequest) error {
		_, err := e.sandboxes.Run(e.ctx(), &req)
		return err
	}
	e.refused("create", run(sandbox.RunRequest{Image: "debian", Command: []string{"/bin/guest", "sleep"}}))
	e.refused("claim", run(sandbox.RunRequest{Template: "python"}))
	e.refused("sandbox of an agent", run(sandbox.RunRequest{Template: "python", Agent: "ada"}))
	_, _, err = e.service.RunOnce(e.ctx(), "", sandboxes.RunOnceRequest{CreateRequest: sandboxes.CreateRequest{Template: "python", Command: []string{"true"}}})
	e.refused("run once", err)
	_, _, err = e.service.RunCode(e.ctx(), "", sandboxes.RunCodeRequest{Language: "python", Code: []byte("1")})
	e.refused("run code", err)
	_, err = e.sandboxes.Resume(e.ctx(), &sandbox.PauseRequest{Sandbox: paused.GetID()})
	e.refused("resume", err)
	_, _, err = e.service.Exec(e.ctx(), sandboxes.ExecRequest{Sandbox: paused.GetID(), Command: []string{"true"}})
	e.refused("wake by exec", err)
	_, err = e.service.Fork(e.ctx(), sandboxes.ForkRequest{Snapshot: saved.GetID(), Count: 2})
	e.refused("fork", err)

	all, _, err := entity.List[sandbox.Sandbox](e.ctx(), e.store.Store, entity.Query{})
	e.must(err)
	if len(all) != 2+len(warm) {
		t.Errorf("%d sandboxes exist after refusals, %d before", len(all), 2+len(warm))
	}
	e.must(e.sandboxes.Delete(e.ctx(), &sandbox.SandboxRequest{Sandbox: running.GetID()}))
	_, err = e.sandboxes.Resume(e.ctx(), &sandbox.PauseRequest{Sandbox: paused.GetID(), Wait: ptr(true)})
	e.must(err)
}

// Claims at once get as many warm sandboxes as the quota permits.
func TestClaimsAtOnceKeepTheQuota(t *testing.T) {
	e := newEnv(t)
	e.pool(6)
	e.limit(core.QuotaResourceSandboxes, 4)
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := 0
	for range 8 {
		wg.Go(func() {
			_, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Template: "python"})
			if err != nil {
				e.refused("claim", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got++
		})
	}
	wg.Wait()
	if n := e.used(core.QuotaResourceSandboxes); got != 4 || n != 4 {
		t.Errorf("%d of 8 claims succeeded, %d sandboxes count, the quota is 4", got, n)
	}
}

// The room of a sandbox that ended by itself is there for the next one.
func TestEndedSandboxFreesItsRoom(t *testing.T) {
	e := newEnv(t)
	e.limit(core.QuotaResourceSandboxes, 1)
	for range 3 {
		resp, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Image: "debian", Command: []string{"/bin/guest", "sleep"}})
		e.must(err)
		sb, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
		e.must(err)
		e.place(sb)
		e.until(sb, sandbox.WaitUntilRunning)
		_, err = e.sandboxes.Stop(e.ctx(), &sandbox.StopRequest{Sandbox: sb.GetID(), Wait: ptr(true)})
		e.must(err)
	}
	wait.For(t, "nothing is in use", func() bool { return e.used(core.QuotaResourceSandboxes) == 0 })
}
