package runner

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	ctlsandbox "miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/sandboxfs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/executiontest/fake"
	"miren.dev/runtime/testsupport/wait"
)

// TestRunner is the path of a runner: a token, its certificate, a sandbox that is
// placed on its node, and a process that the server starts there through the one
// connection that the runner dialled.
func TestRunner(t *testing.T) {
	e := newEnv(t)
	m := e.join("edge-1")
	sealed, err := e.sealer.Seal("hunter2")
	e.must(err)
	sb := m.sandbox(func(sb *sandbox.Sandbox) {
		sb.Spec.Template.Secrets = map[string]schema.Secret{"PASSWORD": sealed}
	})
	if sb.Status.Address != "" {
		t.Errorf("its address is %q, which the server cannot reach", sb.Status.Address)
	}
	if got := m.image("img@sha256:1"); got != content+" img@sha256:1" {
		t.Errorf("the runner has the image %q", got)
	}
	if out, code, err := e.exec(sb, "through the tunnel", "cat"); err != nil || code != 0 || out != "through the tunnel" {
		t.Fatalf("%q %d %v", out, code, err)
	}
	if spec, _ := m.fake.Spec(string(sb.ID)); len(spec.Env) != 1 || spec.Env[0] != "PASSWORD=hunter2" {
		t.Errorf("its environment is %v", spec.Env)
	}
	if n := e.proxy.made(); n != 3 { // two of Join
		t.Errorf("%d connections", n)
	}
	n, err := entity.Get[core.Node](t.Context(), e.store, m.node)
	if err != nil || n.Name != "edge-1" || !n.Spec.Runner || n.Spec.CPUMillis != 4000 || n.Status.Phase != core.NodePhaseReady {
		t.Errorf("%+v, %v", n, err)
	}
	if hosts := e.hub.Hosts(t.Context()); len(hosts) != 1 || hosts[m.node] == nil || hosts[m.node].MemoryBytes != 42 {
		t.Errorf("machines of runners: %v", hosts)
	}
	e.must(entity.Delete(t.Context(), e.store, sb))
	wait.For(t, "the runner removes a deleted sandbox", func() bool { return len(m.fake.IDs()) == 0 })
}

// TestRunnerConnectsAgain: after the connection was reset, and while the server
// was away, the runner's sandboxes go on and are reached again.
func TestRunnerConnectsAgain(t *testing.T) {
	e := newEnv(t)
	m := e.join("edge")
	sb := m.sandbox()
	p, err := e.nodes.Exec(t.Context(), sb.GetID(), sandboxes.ExecSpec{Command: []string{"/bin/guest", "sleep"}, Detached: true})
	e.must(err)
	defer p.Detach()
	e.proxy.cut(true)
	if _, err := p.Wait(t.Context()); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a process whose connection was cut: %v", err)
	}
	wait.For(t, "the server knows that the runner is gone", func() bool { return !e.hub.Connected(m.node) })
	e.proxy.up()
	wait.For(t, "the runner is connected", func() bool { return e.hub.Connected(m.node) })
	out, code, err := e.exec(sb, "again", "cat")
	if err != nil || code != 0 || out != "again" {
		t.Fatalf("%q %d %v", out, code, err)
	}
	// The detached process was not harmed.
	again, err := e.nodes.Attach(t.Context(), sb.GetID(), p.ID(), 0, 0)
	e.must(err)
	line := make([]byte, len("sleeping\n"))
	if _, err := io.ReadFull(again.Stdout(), line); err != nil || string(line) != "sleeping\n" {
		t.Errorf("%q, %v", line, err)
	}
	e.must(again.Close())
	wait.For(t, "the process has ended", func() bool {
		list, err := e.nodes.Processes(t.Context(), sb.GetID())
		return err == nil && len(list) == 0
	})
}

// TestRunnerStartsAgain: another process of the runner adopts its sandboxes.
func TestRunnerStartsAgain(t *testing.T) {
	e := newEnv(t)
	m := e.join("edge")
	sb := m.sandbox()
	m.stop()
	wait.For(t, "the server knows that the runner is gone", func() bool { return !e.hub.Connected(m.node) })
	m.start()
	wait.For(t, "the runner is connected", func() bool { return e.hub.Connected(m.node) })
	if out, code, err := e.exec(sb, "x", "cat"); err != nil || code != 0 || out != "x" {
		t.Fatalf("%q %d %v", out, code, err)
	}
	if got := e.get(sb); got.Status.Phase != sandbox.SandboxPhaseRunning {
		t.Errorf("%+v", got.Status)
	}
}

// TestUnusedImagesOfARunner: a runner removes images beyond its budget that none of its sandboxes uses. It fetches one again
// that a sandbox needs later.
func TestUnusedImagesOfARunner(t *testing.T) {
	const used, unused = "runtime.local/tpl-a@sha256:1", "runtime.local/tpl-b@sha256:2"
	e := newEnv(t)
	m := e.join("edge")
	of := func(image string) *sandbox.Sandbox {
		return m.sandbox(func(sb *sandbox.Sandbox) { sb.Spec.Template.Image = image })
	}
	of(used)
	ended := of(unused)
	e.must(entity.Delete(t.Context(), e.store, ended))
	wait.For(t, "the runner removes a deleted sandbox", func() bool { return len(m.fake.IDs()) == 1 })
	if m.image(unused) == "" {
		t.Error("an image within the budget is gone")
	}
	m.stop()
	m.imageBytes = 0
	m.start()
	wait.For(t, "the unused image is removed", func() bool { return m.image(unused) == "" })
	if m.image(used) == "" {
		t.Error("the image of a sandbox is gone")
	}
	of(unused)
	if m.image(unused) == "" {
		t.Error("it was not fetched again")
	}
}

// TestToken: one works once, until its end, for the server that made it, and a
// repetition of the same machine gets the same node.
func TestToken(t *testing.T) {
	e := newEnv(t)
	token, dir := e.token(), t.TempDir()
	e.must(Join(t.Context(), dir, e.address, token, "edge"))
	e.must(Join(t.Context(), dir, e.address, token, "edge"))
	nodes, _, err := entity.List[core.Node](t.Context(), e.store, entity.Query{})
	if err != nil || len(nodes) != 1 {
		t.Fatalf("%d nodes, %v", len(nodes), err)
	}
	e.class("another machine with a used token", Join(t.Context(), t.TempDir(), e.address, token, "other"), errs.Unauthenticated)
	e.class("a name that a node has", Join(t.Context(), t.TempDir(), e.address, e.token(), "edge"), errs.AlreadyExists)
	e.class("an unknown token", Join(t.Context(), t.TempDir(), e.address, "rrt_00_"+token[len(token)-64:], "x"), errs.Unauthenticated)
	e.class("no token", Join(t.Context(), t.TempDir(), e.address, "x", "x"), errs.InvalidArgument)
	wrong := token[:len(token)-1] + map[bool]string{true: "1", false: "0"}[token[len(token)-1] == '0']
	e.class("another server", Join(t.Context(), t.TempDir(), e.address, wrong, "x"), errs.Unauthenticated)

	late := e.token()
	all, _, err := entity.List[core.RunnerToken](t.Context(), e.store, entity.Query{})
	e.must(err)
	for _, x := range all {
		x.Spec.ExpiresAt = time.Now().Add(-time.Second)
		e.must(entity.UpdateSpec(t.Context(), e.store, x))
	}
	e.class("an expired token", Join(t.Context(), t.TempDir(), e.address, late, "late"), errs.Unauthenticated)
}

// TestDeletedRunner: its certificate is refused at once, on its open connection
// too, and for a new one.
func TestDeletedRunner(t *testing.T) {
	e := newEnv(t)
	m := e.join("edge")
	m.sandbox()
	_, certs, err := e.runners.Delete(t.Context(), "edge", "root")
	e.must(err)
	for _, c := range certs {
		e.revocations.Put(c)
	}
	e.rpc.Recheck()
	wait.For(t, "it is disconnected", func() bool { return !e.hub.Connected(m.node) })
	m.stop()
	c, err := Open(m.dir, e.logger)
	e.must(err)
	defer c.Close()
	_, err = c.gateway.Key(t.Context())
	e.class("a call of a deleted runner", err, errs.Unauthenticated)
	n, err := entity.Get[core.Node](t.Context(), e.store, m.node)
	if err != nil || !n.Spec.Removed || !n.Spec.Cordoned {
		t.Errorf("%+v, %v", n.Spec, err)
	}
}

// hooked is a store that calls a function before its first transaction.
type hooked struct {
	entity.Store
	before func()
}

func (h *hooked) Txn(ctx context.Context, t entity.TxnRequest) (entity.TxnResult, error) {
	if f := h.before; f != nil {
		h.before = nil
		f()
	}
	return h.Store.Txn(ctx, t)
}

// TestRenewalDuringDeletion: a certificate that is issued while the runner is
// deleted, after its others were revoked, does not work either.
func TestRenewalDuringDeletion(t *testing.T) {
	e := newEnv(t)
	m := e.join("edge")
	m.stop()
	c, err := Open(m.dir, e.logger)
	e.must(err)
	defer c.Close()
	e.runners.Store = &hooked{e.store, func() { e.must(c.renew(t.Context())) }}
	_, certs, err := e.runners.Delete(t.Context(), "edge", "root")
	e.must(err)
	if last := c.certificate.Load().Leaf.SerialNumber.Text(16); !slices.ContainsFunc(certs, func(x *core.ClientCertificate) bool {
		return x.Spec.Serial == last && x.Spec.RevokedAt != nil
	}) {
		t.Errorf("the certificate %s works", last)
	}
	e.gateway.Forget(m.node)
	e.class("a renewal after it", c.renew(t.Context()), errs.Unauthenticated)
}

// TestRenewal: a runner gets its next certificate with the one that it has.
func TestRenewal(t *testing.T) {
	e := newEnv(t)
	m := e.join("edge")
	m.stop()
	c, err := Open(m.dir, e.logger)
	e.must(err)
	defer c.Close()
	before := c.certificate.Load().Leaf.SerialNumber
	e.must(c.renew(t.Context()))
	e.class("another at once", c.renew(t.Context()), errs.ResourceExhausted)
	if after := c.certificate.Load().Leaf; after.SerialNumber.Cmp(before) == 0 || after.Subject.CommonName != string(m.node) {
		t.Errorf("%v", after.Subject)
	}
	again, err := Open(m.dir, e.logger)
	e.must(err)
	defer again.Close()
	if _, err := again.gateway.Key(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestServerThatHasJustBegun: a call for a sandbox of a runner waits until the
// server knows where that is.
func TestServerThatHasJustBegun(t *testing.T) {
	e := newEnv(t)
	m := e.join("edge")
	sb := m.sandbox()
	wait.For(t, "the runner is connected", func() bool { return e.hub.Connected(m.node) })
	informers := informer.New(informer.Config{Reader: e.store})
	nodes := NewNodes(ctlsandbox.LocalNode{Driver: fake.NewMachine().Driver()}, e.hub, informers)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got, followed := make(chan string, 2), make(chan error, 1)
	go func() {
		err := nodes.Logs(ctx, sb.GetID(), sandboxes.LogQuery{Follow: true}, func(l sandboxes.LogLine) error { got <- l.Text; return nil })
		got <- fmt.Sprint("the end of the log: ", err)
	}()
	go func() { followed <- informers.Run(ctx) }()
	if first := wait.Receive(t, "a line", got); first != "sleeping" {
		t.Errorf("%q", first)
	}
	cancel()
	e.must(wait.Receive(t, "the end of the informers", followed))
}

// TestRunnerThatServesNothing: a call for a connection on which the runner does not
// answer ends.
func TestRunnerThatServesNothing(t *testing.T) {
	h := newHostile(t)
	st, err := h.calls.Connect(t.Context())
	h.must(err)
	defer st.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := st.Recv()
		for err == nil { // the greeting of the server
			_, err = st.Recv()
		}
		ended <- err
	}()
	h.class("the call", wait.Receive(t, "its end", ended), errs.Unavailable)
}

// TestLaterConnectionEndsTheEarlier: although that one does not notice by itself
// that it has ended.
func TestLaterConnectionEndsTheEarlier(t *testing.T) {
	h := newHostile(t)
	srv, err := rpc.NewServer(rpc.ServerOptions{Limits: rpc.Limits{KeepAlive: time.Hour}})
	h.must(err)
	defer srv.Close()
	connect := func() (ended chan error) {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		st, err := h.calls.Connect(ctx)
		h.must(err)
		ended = make(chan error, 1)
		go func() {
			ended <- srv.ServeConn(rpc.NewTunnel(st.Reader(), st.Writer(), cancel), rpc.Identity{Name: "server", How: "tunnel"})
		}()
		return ended
	}
	first := connect()
	wait.For(t, "the first is there", func() bool { return h.hub.Connected(h.node) })
	second := connect()
	h.must(wait.Receive(t, "the end of the first", first))
	if !h.hub.Connected(h.node) || len(second) > 0 {
		t.Error("the second has ended too")
	}
}

// TestSandboxOfAnotherServer: a call for it says so, and not that the sandbox does not exist.
func TestSandboxOfAnotherServer(t *testing.T) {
	e := newEnv(t)
	mine, other := core.NewNode(), core.NewNode()
	for n, name := range map[*core.Node]string{mine: "mine", other: "other"} {
		n.Name, n.Spec.Hostname, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = name, name, "amd64", 1000, 1<<30
		e.must(entity.Create(t.Context(), e.store, n))
	}
	on := func(n *core.Node) *sandbox.Sandbox {
		sb := sandbox.NewSandbox()
		sb.Project, sb.Spec.Node, sb.Spec.Template.Image = e.project, n.GetID(), "img@sha256:1"
		sb.Status.Phase = sandbox.SandboxPhaseRunning
		e.must(entity.Create(t.Context(), e.store, sb))
		return e.until(sb, sandbox.SandboxPhaseRunning)
	}
	here, there := on(mine), on(other)
	e.hub.SetNode(mine.GetID())
	_, err := e.nodes.Dial(t.Context(), here.GetID(), 80)
	e.class("a sandbox that is not on its machine", err, errs.NotFound)
	calls := map[string]func() error{
		"dial":  func() error { _, err := e.nodes.Dial(t.Context(), there.GetID(), 80); return err },
		"exec":  func() error { _, _, err := e.exec(there, "", "stub"); return err },
		"stats": func() error { _, err := e.nodes.Stats(t.Context(), there.GetID()); return err },
		"files": func() error {
			_, err := e.nodes.Files(there.GetID(), sandboxfs.View{}).Stat(t.Context(), "/")
			return err
		},
	}
	for what, call := range calls {
		err := call()
		e.class(what, err, errs.Unavailable)
		if err == nil || !strings.Contains(err.Error(), "on node other of another server") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
