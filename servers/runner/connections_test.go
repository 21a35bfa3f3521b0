package runner

import (
	"context"
	"net"
	"testing"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	ctlsandbox "miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/executiontest/fake"
	"miren.dev/runtime/testsupport/wait"
)

// server is a server of the store, as far as runners concern it.
type server struct {
	e    *env
	node *core.Node
	hub  *Hub
	*Nodes
	stop func()
}

// server starts a server whose machine has a name, with the connections of hub.
func (e *env) server(name string, hub *Hub) *server {
	e.Helper()
	n := core.NewNode()
	n.Name, n.Spec.Hostname, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = name, name, "amd64", 1000, 1<<30
	n.Status.Phase = core.NodePhaseReady
	e.must(entity.Create(e.Context(), e.store, n))
	s := &server{e: e, node: n}
	s.start(hub)
	return s
}

// start begins a process of the server.
func (s *server) start(hub *Hub) {
	s.e.Helper()
	s.hub = hub
	hub.SetNode(s.node.GetID())
	set := informer.New(informer.Config{Reader: s.e.store})
	s.Nodes = NewNodes(ctlsandbox.LocalNode{Driver: fake.NewMachine().Driver()}, hub, set)
	c := &Connections{Hub: hub, Node: s.node.GetID()}
	c.Store = kittest.Hold(s.e.T, s.e.store, c.Controller())
	_, stop := kittest.Run(s.e.T, set, kit.Config{StopGrace: time.Millisecond, Logger: s.e.logger}, c.Controller())
	s.stop = stop
}

// recorded waits until the store has the server of a runner.
func (e *env) recorded(runner id.Node, server id.Node) {
	e.Helper()
	wait.For(e.T, "the server of the runner is "+string(server), func() bool {
		n, err := entity.Get[core.Node](e.Context(), e.store, runner)
		e.must(err)
		return n.Spec.Server == server
	})
}

// TestRunnerOfAnotherServer: calls for a sandbox on a runner that is connected to another server fail at once, and say where
// it is. If it is connected nowhere, they say that.
func TestRunnerOfAnotherServer(t *testing.T) {
	e := newEnv(t)
	mine, other := e.server("mine", e.hub), e.server("other", NewHub(e.logger))
	m := e.join("edge")
	sb := m.sandbox()
	e.recorded(m.node, mine.node.GetID())
	unreached := func(s *server, want string) func() error {
		return func() error {
			err := s.Reach(m.node)
			_, derr := s.Dial(t.Context(), sb.GetID(), 80)
			for _, err := range []error{err, derr} {
				if got := errs.Detail(err, sandboxes.OnOtherServer); !errs.Is(err, errs.Unavailable) || got != want {
					return errs.New(errs.Internal, "%q, %w", got, err)
				}
			}
			return nil
		}
	}
	wait.NoError(t, "the other server knows where it is", unreached(other, string(mine.node.ID)))
	e.must(mine.Reach(m.node))
	e.class("the node of another server", other.Reach(mine.node.GetID()), errs.Unavailable)
	e.must(other.Reach(other.node.GetID()))

	e.proxy.cut(true) // the runner is connected nowhere
	e.recorded(m.node, "")
	wait.NoError(t, "the other server knows that it is away", unreached(other, ""))
	e.proxy.up()
	e.recorded(m.node, mine.node.GetID())

	// The server is killed, and the runner with it: the record stays until the server is back.
	mine.stop()
	m.stop()
	wait.For(t, "the runner is gone", func() bool { return !e.hub.Connected(m.node) })
	wait.NoError(t, "nothing says that it is away", unreached(other, string(mine.node.ID)))
	_, err := entity.ModifyStatus(t.Context(), e.store, mine.node.GetID(), func(n *core.Node) error { n.Status.Phase = core.NodePhaseDown; return nil })
	e.must(err)
	wait.NoError(t, "the node of the server is down", unreached(other, ""))
	_, err = entity.ModifyStatus(t.Context(), e.store, mine.node.GetID(), func(n *core.Node) error { n.Status.Phase = core.NodePhaseReady; return nil })
	e.must(err)
	mine.start(NewHub(e.logger))
	e.recorded(m.node, "")
}

// TestRunnerMovesToAnotherServer: while its former server does not know yet that the connection has ended, the two do not
// write in turns.
func TestRunnerMovesToAnotherServer(t *testing.T) {
	e := newEnv(t)
	first, second := e.server("first", NewHub(e.logger)), e.server("second", NewHub(e.logger))
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes, n.Spec.Runner = "edge", "amd64", 1000, 1<<30, true
	e.must(entity.Create(t.Context(), e.store, n))
	connect := func(s *server) (end func()) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		e.must(err)
		defer l.Close()
		near, err := net.Dial("tcp", l.Addr().String())
		e.must(err)
		far, err := l.Accept()
		e.must(err)
		srv, err := rpc.NewServer(rpc.ServerOptions{})
		e.must(err)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = srv.ServeConn(far, rpc.Identity{Name: "server", How: "tunnel"}) // the end of the connection is its error
		}()
		cl, err := rpc.NewConnClient(near, rpc.ClientOptions{})
		e.must(err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); s.hub.serve(ctx, n.GetID(), cl, nil) }()
		end = func() {
			cancel()
			<-done
			srv.Close()
			<-served
		}
		t.Cleanup(end)
		return end
	}
	leave := connect(first)
	e.recorded(n.GetID(), first.node.GetID())
	end := connect(second)
	e.recorded(n.GetID(), second.node.GetID())
	// Any change of the node wakes both.
	for range 3 {
		_, err := entity.ModifySpec(t.Context(), e.store, n.GetID(), func(n *core.Node) error { n.Spec.Cordoned = !n.Spec.Cordoned; return nil })
		e.must(err)
	}
	leave()
	wait.For(t, "both have seen the last change", func() bool {
		now, err := entity.Get[core.Node](t.Context(), e.store, n.ID)
		e.must(err)
		for _, s := range []*server{first, second} {
			if got := s.nodes.Get(n.ID); got == nil || got.Revision != now.Revision {
				return false
			}
		}
		return true
	})
	now, err := entity.Get[core.Node](t.Context(), e.store, n.ID)
	e.must(err)
	if now.Spec.Server != second.node.GetID() {
		t.Errorf("the record has %q", now.Spec.Server)
	}
	end()
	e.recorded(n.GetID(), "")
}
