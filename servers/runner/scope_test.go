package runner

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/runner"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/identity"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

// hostile is a runner whose every byte its owner decides: its certificate, without
// the code that a runner runs.
type hostile struct {
	*env
	node   id.Node
	client *rpc.Client
	store  *remote.Store
	calls  runner.GatewayClient
	theirs *sandbox.Sandbox // placed on another node, with a secret
	mine   *sandbox.Sandbox
	sealed schema.Secret
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	h := &hostile{env: newEnv(t)}
	dir := t.TempDir()
	h.must(Join(t.Context(), dir, h.address, h.token(), "evil"))
	c, err := Open(dir, h.logger)
	h.must(err)
	t.Cleanup(c.Close)
	h.node, h.client, h.store, h.calls = c.Node, c.rpc, remote.New(c.rpc), c.gateway
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "server", "amd64", 1000, 1<<30
	h.must(entity.Create(t.Context(), h.env.store, n))
	h.sealed, err = h.sealer.Seal("hunter2")
	h.must(err)
	place := func(node id.Node, image string) *sandbox.Sandbox {
		sb := sandbox.NewSandbox()
		sb.Project, sb.Spec.Node, sb.Spec.Template.Image = h.project, node, image
		sb.Spec.Template.Secrets = map[string]schema.Secret{"PASSWORD": h.sealed}
		sb.Status.Phase = sandbox.SandboxPhaseRunning
		h.must(entity.Create(t.Context(), h.env.store, sb))
		return sb
	}
	h.theirs, h.mine = place(n.GetID(), "theirs@sha256:1"), place(h.node, "mine@sha256:1")
	return h
}

// TestHostileRunnerReads: a runner reads its node and what is placed there. Other
// sandboxes do not exist for it, and other kinds are refused.
func TestHostileRunnerReads(t *testing.T) {
	h := newHostile(t)
	ctx := t.Context()
	_, err := h.store.Get(ctx, sandbox.KindSandbox, h.theirs.ID)
	h.class("get a sandbox of another node", err, errs.NotFound)
	_, err = h.store.Get(ctx, core.KindNode, schema.ID(h.theirs.Spec.Node))
	h.class("get another node", err, errs.NotFound)
	for _, k := range api.Kinds() {
		page, err := h.store.List(ctx, entity.Query{Kind: k.Name})
		_, gerr := h.store.Get(ctx, k.Name, "x-1")
		_, werr := h.store.Watch(ctx, entity.WatchQuery{Kinds: []string{k.Name, core.KindNode}})
		switch k.Name {
		case core.KindNode, core.KindNodeLease, sandbox.KindSandbox, sandbox.KindSnapshot:
			if err != nil || werr != nil {
				t.Errorf("%s: %v, %v", k.Name, err, werr)
			}
			for _, r := range page.Records {
				if r.ID != h.mine.ID && r.ID != schema.ID(h.node) {
					t.Errorf("it lists the %s %s", k.Name, r.ID)
				}
			}
		default:
			h.class("list "+k.Name, err, errs.PermissionDenied)
			h.class("get "+k.Name, gerr, errs.PermissionDenied)
			h.class("watch "+k.Name, werr, errs.PermissionDenied)
		}
	}
	_, err = h.store.Watch(ctx, entity.WatchQuery{})
	h.class("watch every kind", err, errs.PermissionDenied)
	_, err = h.store.List(ctx, entity.Query{Kind: sandbox.KindSandbox, Index: entity.Where(sandbox.SandboxAttrNode, h.theirs.Spec.Node).Index})
	h.must(err) // empty, as the test of all kinds shows

	w, err := h.store.Watch(ctx, entity.WatchQuery{Kinds: []string{sandbox.KindSandbox}})
	h.must(err)
	defer w.Close()
	for _, sb := range []*sandbox.Sandbox{h.theirs, h.mine} {
		sb.Status.Message = "changed"
		h.must(entity.UpdateStatus(ctx, h.env.store, sb))
	}
	got := make(chan schema.ID, 16)
	go func() {
		for {
			evs, err := w.Next(ctx)
			if err != nil {
				return
			}
			for _, e := range evs {
				if e.Type != entity.EventBookmark {
					got <- e.Record.ID
				}
			}
		}
	}()
	if first := wait.Receive(t, "a change", got); first != h.mine.ID {
		t.Errorf("it was told of %s", first)
	}
}

// TestHostileRunnerHasNoKeyOfTheServer: secrets of its sandboxes are sealed with
// its own key; what the store has it cannot open.
func TestHostileRunnerHasNoKeyOfTheServer(t *testing.T) {
	h := newHostile(t)
	resp, err := h.calls.Key(t.Context())
	h.must(err)
	if len(resp.Key) != schema.SealKeyLen {
		t.Fatalf("a key of %d bytes", len(resp.Key))
	}
	own, err := schema.NewKeySealer(resp.Key)
	h.must(err)
	got, err := entity.Get[sandbox.Sandbox](t.Context(), h.store, h.mine.GetID())
	h.must(err)
	if v, err := own.Open(got.Spec.Template.Secrets["PASSWORD"]); err != nil || v != "hunter2" {
		t.Errorf("%q, %v", v, err)
	}
	if _, err := own.Open(h.sealed); err == nil {
		t.Error("its key opens what the store has")
	}
	if bytes.Equal(resp.Key, h.gateway.key("node-other")) {
		t.Error("two runners have one key")
	}
}

// TestHostileRunnerWrites: a runner writes the status of what is its own, and
// nothing else; what it sends beside that is not stored.
func TestHostileRunnerWrites(t *testing.T) {
	h := newHostile(t)
	ctx := t.Context()
	stolen := *h.theirs
	stolen.Status.Phase = sandbox.SandboxPhaseStopped
	h.class("the status of a sandbox of another node", entity.UpdateStatus(ctx, h.store, &stolen), errs.NotFound)
	stolen.Spec.Node = h.node
	h.class("take a sandbox over", entity.UpdateSpec(ctx, h.store, &stolen), errs.NotFound)
	h.class("delete a sandbox of another node", entity.Delete(ctx, h.store, h.theirs), errs.NotFound)
	h.class("delete its own sandbox", entity.Delete(ctx, h.store, h.mine), errs.PermissionDenied)
	fresh := sandbox.NewSandbox()
	fresh.Project, fresh.Spec.Node, fresh.Spec.Template.Image = h.project, h.node, "any"
	h.class("make a sandbox", entity.Create(ctx, h.store, fresh), errs.PermissionDenied)
	cert := core.NewClientCertificate()
	cert.Spec.Identity = "evil"
	h.class("make a certificate", entity.Create(ctx, h.store, cert), errs.PermissionDenied)
	check, err := entity.CheckOp(h.theirs)
	h.must(err)
	_, err = h.store.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{check}})
	h.class("check a sandbox of another node", err, errs.NotFound)

	mine := h.get(h.mine)
	mine.Spec.Desired, mine.Name, mine.Labels = sandbox.DesiredStatePaused, "stolen-name", map[string]string{"a": "b"}
	mine.Spec.Template.Image, mine.Spec.Template.Secrets = "theirs@sha256:1", nil
	h.must(entity.UpdateSpec(ctx, h.store, mine))
	got := h.get(h.mine)
	if got.Spec.Desired != sandbox.DesiredStatePaused || got.Name != "" || len(got.Labels) != 0 || got.Spec.Template.Image != "mine@sha256:1" ||
		!got.Spec.Template.Secrets["PASSWORD"].Equal(h.sealed) {
		t.Errorf("it changed more than the wish to pause: %+v", got)
	}
	got.Spec.Desired = sandbox.DesiredStateRunning
	h.class("resume a sandbox", entity.UpdateSpec(ctx, h.store, got), errs.PermissionDenied)

	got = h.get(h.mine)
	got.Status.Address, got.Status.Message = "127.0.0.1", "hello"
	h.must(entity.UpdateStatus(ctx, h.store, got))
	if got = h.get(h.mine); got.Status.Address != "" || got.Status.Message != "hello" {
		t.Errorf("%+v", got.Status)
	}
	got.Status.Message = string(bytes.Repeat([]byte("x"), maxStatus))
	h.class("a status without bound", entity.UpdateStatus(ctx, h.store, got), errs.InvalidArgument)

	n, err := entity.Get[core.Node](ctx, h.env.store, h.node)
	h.must(err)
	n.Spec.Runner, n.Spec.Cordoned, n.Name, n.Spec.CPUMillis = false, true, "server2", 8000
	h.must(entity.UpdateSpec(ctx, h.store, n))
	n, err = entity.Get[core.Node](ctx, h.env.store, h.node)
	if err != nil || !n.Spec.Runner || n.Spec.Cordoned || n.Name != "evil" || n.Spec.CPUMillis != 8000 {
		t.Errorf("%+v, %v", n, err)
	}
}

// TestRunnerPausesAtTheEnd: a runner removes the time to live of a sandbox whose
// time is over and that is paused then, not of another one.
func TestRunnerPausesAtTheEnd(t *testing.T) {
	h := newHostile(t)
	for _, resumes := range []bool{false, true} {
		_, err := entity.ModifySpec(t.Context(), h.env.store, h.mine.GetID(), func(sb *sandbox.Sandbox) error {
			sb.Spec.Desired, sb.Spec.TTL, sb.Spec.ResumeTTL = sandbox.DesiredStateRunning, new(time.Minute), nil
			if resumes {
				sb.Spec.ResumeTTL = new(time.Hour)
			}
			return nil
		})
		h.must(err)
		mine := h.get(h.mine)
		mine.Spec.Desired, mine.Spec.TTL = sandbox.DesiredStatePaused, nil
		h.must(entity.UpdateSpec(t.Context(), h.store, mine))
		if got := h.get(h.mine); got.Spec.Desired != sandbox.DesiredStatePaused || (got.Spec.TTL == nil) != resumes {
			t.Errorf("resumes %t: %+v", resumes, got.Spec)
		}
	}
}

// TestHostileRunnerLeases: it renews and ends its own leases only, and cannot be
// alive for another node, nor for long.
func TestHostileRunnerLeases(t *testing.T) {
	h := newHostile(t)
	ctx := t.Context()
	other, err := h.env.store.Grant(ctx, time.Minute)
	h.must(err)
	_, err = h.store.KeepAlive(ctx, other.ID)
	h.class("renew another lease", err, errs.NotFound)
	h.class("end another lease", h.store.Revoke(ctx, other.ID), errs.NotFound)
	_, err = h.store.Grant(ctx, time.Hour)
	h.class("a long lease", err, errs.InvalidArgument)
	own, err := h.store.Grant(ctx, time.Minute)
	h.must(err)
	alive := func(node id.Node, lease schema.LeaseID) error {
		l := core.NewNodeLease()
		l.Name, l.Lease, l.Spec.Node = nodes.LeaseName(node), lease, node
		return entity.Create(ctx, h.store, l)
	}
	h.class("the lease of another node", alive(h.theirs.Spec.Node, own.ID), errs.PermissionDenied)
	h.class("a node lease for ever", alive(h.node, ""), errs.PermissionDenied)
	h.class("a node lease on another lease", alive(h.node, other.ID), errs.PermissionDenied)
	h.must(alive(h.node, own.ID))
	h.gateway.Forget(h.node) // as another server, which did not grant it
	if _, err := h.store.KeepAlive(ctx, own.ID); err != nil {
		t.Error(err)
	}
}

// TestHostileRunnerImages: it gets the images of its sandboxes only.
func TestHostileRunnerImages(t *testing.T) {
	h := newHostile(t)
	fetch := func(ref string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		st, err := h.calls.Image(ctx, &runner.ImageRequest{Image: ref})
		if err != nil {
			return "", err
		}
		b, err := io.ReadAll(st.Reader())
		return string(b), err
	}
	if got, err := fetch("mine@sha256:1"); err != nil || got != content+" mine@sha256:1" {
		t.Errorf("%q, %v", got, err)
	}
	_, err := fetch("theirs@sha256:1")
	h.class("the image of a sandbox of another node", err, errs.PermissionDenied)
}

// TestOnlyRunnersCallTheGateway: every method of it, without a certificate and with
// one of an administrator.
func TestOnlyRunnersCallTheGateway(t *testing.T) {
	h := newHostile(t)
	pair, err := h.ca.IssueClient("root", []string{rpc.RoleAdmin}, 0)
	h.must(err)
	dial := func(p *identity.Pair) *rpc.Client {
		conf, err := identity.ClientTLS(h.ca.CA(), p.Certificate, p.Key, "")
		h.must(err)
		cl, err := rpc.NewClient(h.address, rpc.ClientOptions{TLS: conf})
		h.must(err)
		t.Cleanup(cl.Close)
		return cl
	}
	admin, nobody := dial(pair), dial(&identity.Pair{})
	public := map[string]bool{"runner.Gateway/Authority": true, "runner.Gateway/Join": true}
	for _, m := range h.rpc.Methods() {
		if public[m.Full] != (m.Permission == rpc.Public) {
			t.Errorf("%s is %s", m.Full, m.Permission)
		}
		if public[m.Full] {
			continue
		}
		for cl, want := range map[*rpc.Client]errs.Class{admin: errs.PermissionDenied, nobody: errs.Unauthenticated} {
			err := cl.Call(t.Context(), &m, &rpc.None{}, &rpc.None{})
			if m.Stream != rpc.StreamNone {
				st, oerr := cl.Open(t.Context(), &m, &rpc.None{})
				h.must(oerr)
				err = st.RecvMsg(&rpc.None{})
				st.Close()
			}
			h.class(m.Full, err, want)
		}
	}
	if _, err := store.NewEntitiesClient(admin).List(t.Context(), &store.ListRequest{Kind: sandbox.KindSandbox}); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("an administrator lists: %v", err)
	}
}
