package runner

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"sync"
	"testing"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/appnet"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// network is the private networks of a simulated machine. Each sandbox sends back what it gets, on
// port 80 alone, after its name.
type network struct {
	t *testing.T

	mu    sync.Mutex
	apps  []appnet.App
	began int // connections that were ever made
}

func newNetwork(t *testing.T) *network { return &network{t: t} }

func (n *network) SetApps(_ context.Context, apps []appnet.App) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.apps = apps
	return nil
}

func (n *network) table() []appnet.App {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.apps
}

func (n *network) connections() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.began
}

func (n *network) Connect(_ context.Context, sandbox string, port uint16) (execution.Conn, error) {
	if node, ok := appnet.New(n.table()).Node(sandbox); !ok || node != "" || port != 80 {
		return nil, errs.New(errs.FailedPrecondition, "nothing listens")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	far, err := l.Accept()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.began++
	n.mu.Unlock()
	go func() {
		defer far.Close()
		_, _ = io.WriteString(far, sandbox+" ")
		_, _ = io.Copy(far, far)
	}()
	return c.(*net.TCPConn), nil
}

// spread sets the table of the server: shop is on both runners and here, db permits shop only, quiet
// permits no app, and project q has an app shop, too.
func (e *env) spread(edge, other id.Node) []appnet.App {
	e.Helper()
	member := func(id string, node id.Node) appnet.Member {
		return appnet.Member{Sandbox: id, Service: "web", Ready: true, Node: string(node)}
	}
	web := []string{"web"}
	apps := []appnet.App{
		{Project: "p", Name: "shop", Services: web, Members: []appnet.Member{member("shop-edge", edge), member("shop-other", other), member("shop-here", "")}},
		{Project: "p", Name: "db", Services: web, Restricted: true, From: []string{"shop"}, Members: []appnet.Member{member("db", "")}},
		{Project: "p", Name: "quiet", Services: web, Restricted: true, Members: []appnet.Member{member("quiet", "")}},
		{Project: "p", Name: "blog", Services: web, Members: []appnet.Member{member("blog-other", other)}},
		{Project: "q", Name: "shop", Services: web, Members: []appnet.Member{member("foreign", ""), member("foreign-edge", edge)}},
	}
	e.must(e.peers.SetApps(e.Context(), apps))
	return apps
}

// told waits until a runner has the table that the server has for it.
func (m *machine) told(apps []appnet.App) {
	m.e.Helper()
	want := appnet.New(apps).For(string(m.node), "")
	wait.For(m.e.T, "the runner has the table", func() bool {
		return len(m.network.table()) == len(want) && fmt.Sprint(m.network.table()) == fmt.Sprint(want)
	},
		wait.State(func() any { return m.network.table() }))
}

// answers has the sandbox at the other end of a connection answer, and ends it in order.
func (e *env) answers(c sandboxes.Conn, sandbox string, size int) {
	e.Helper()
	defer c.Close()
	sent := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	done := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		if err == nil {
			err = c.CloseWrite()
		}
		done <- err
	}()
	got, err := io.ReadAll(c)
	if want := append([]byte(sandbox+" "), sent...); err != nil || !bytes.Equal(got, want) {
		e.Errorf("%s: %d bytes of %d, %v", sandbox, len(got), len(want), err)
	}
	e.check(wait.Receive(e.T, "the sender", done))
}

// TestPeersOfARunner: sandboxes of a runner and those elsewhere connect to each other, in each direction.
func TestPeersOfARunner(t *testing.T) {
	e := newEnv(t)
	edge, other := e.join("edge"), e.join("other")
	apps := e.spread(edge.node, other.node)
	edge.told(apps)
	other.told(apps)
	for _, a := range edge.network.table() {
		if a.Name == "quiet" || a.Name == "foreign" {
			t.Errorf("the runner learns of %+v", a)
		}
	}
	if !reflect.DeepEqual(e.network.table(), apps) {
		t.Errorf("the server's machine has %+v", e.network.table())
	}
	for _, to := range []string{"db", "shop-here", "shop-other", "blog-other"} {
		c, err := edge.client.Peer(t.Context(), "shop-edge", to, 80)
		e.must(err)
		e.answers(c, to, 4<<20)
	}
	c, err := e.peers.Connect(t.Context(), "shop-edge", 80)
	e.must(err)
	e.answers(c, "shop-edge", 4<<20)

	_, err = edge.client.Peer(t.Context(), "shop-edge", "db", 81)
	e.class("a port on which nothing listens", err, errs.FailedPrecondition)
	_, err = e.peers.Connect(t.Context(), "shop-edge", 81)
	e.class("a port of the runner on which nothing listens", err, errs.FailedPrecondition)
	wait.For(t, "no connection counts any more", func() bool {
		e.peers.mu.Lock()
		defer e.peers.mu.Unlock()
		return len(e.peers.open) == 0 && len(edge.client.peers) == 0
	})
}

// TestRunnerMayNotConnect: what a compromised runner asks for.
func TestRunnerMayNotConnect(t *testing.T) {
	e := newEnv(t)
	edge, other := e.join("edge"), e.join("other")
	edge.told(e.spread(edge.node, other.node))
	made := e.network.connections()
	for _, c := range []struct{ what, from, to string }{
		{"an app that permits none", "shop-edge", "quiet"},
		{"an app of another project", "shop-edge", "foreign"},
		{"from a project to another", "foreign-edge", "db"},
		{"from a sandbox of another runner", "shop-other", "db"},
		{"from a sandbox of the server", "shop-here", "db"},
		{"from an app that is not permitted, on another runner", "blog-other", "db"},
		{"from a sandbox that is none", "agent", "db"},
		{"to a sandbox that is none", "shop-edge", "agent"},
	} {
		_, err := edge.client.Peer(t.Context(), c.from, c.to, 80)
		e.class(c.what, err, errs.PermissionDenied)
	}
	if n := e.network.connections(); n != made {
		t.Errorf("%d connections were made", n-made)
	}
}

// TestPeersOfARunnerEnd: open connections end with the permission, and with the runner's connection.
func TestPeersOfARunnerEnd(t *testing.T) {
	e := newEnv(t)
	edge, other := e.join("edge"), e.join("other")
	apps := e.spread(edge.node, other.node)
	edge.told(apps)
	open := func(to string) sandboxes.Conn {
		t.Helper()
		c, err := edge.client.Peer(t.Context(), "shop-edge", to, 80)
		e.must(err)
		t.Cleanup(func() { c.Close() })
		_, err = io.ReadFull(c, make([]byte, len(to)+1))
		e.must(err)
		return c
	}
	ended := func(what string, c sandboxes.Conn) {
		t.Helper()
		done := make(chan error, 1)
		go func() {
			_, err := c.Read(make([]byte, 1))
			done <- err
		}()
		if err := wait.Receive(t, what, done); err == nil || err == io.EOF {
			t.Errorf("%s: %v, want an error", what, err)
		}
	}
	db, here := open("db"), open("shop-here")
	apps = slices.Clone(apps)
	apps[1].From = nil
	e.must(e.peers.SetApps(t.Context(), apps))
	ended("shop is not permitted any more", db)
	if _, err := here.Write([]byte("x")); err != nil {
		t.Errorf("another connection: %v", err)
	}
	if b := make([]byte, 1); true {
		_, err := io.ReadFull(here, b)
		e.must(err)
	}
	back, err := e.peers.Connect(t.Context(), "shop-edge", 80)
	e.must(err)
	defer back.Close()
	_, err = io.ReadFull(back, make([]byte, len("shop-edge ")))
	e.must(err)
	e.proxy.cut(true)
	ended("the connection of the runner was cut", here)
	ended("the connection to the runner was cut", back)
	e.proxy.up()

	// What was said meanwhile reaches the runner, and connections are made again: by its next process, too.
	apps = slices.Clone(apps)
	apps[1].From = []string{"shop"}
	e.must(e.peers.SetApps(t.Context(), apps))
	edge.told(apps)
	again := func() {
		t.Helper()
		c, err := edge.client.Peer(t.Context(), "shop-edge", "db", 80)
		e.must(err)
		e.answers(c, "db", 16)
		wait.For(t, "the runner is connected", func() bool { return e.hub.Connected(edge.node) })
		c, err = e.peers.Connect(t.Context(), "shop-edge", 80)
		e.must(err)
		e.answers(c, "shop-edge", 16)
	}
	again()
	edge.stop()
	edge.network.SetApps(t.Context(), nil)
	edge.start()
	edge.told(apps)
	again()
}

// TestPeersAreCounted: a runner has a bounded number of connections to sandboxes elsewhere, from and to it.
func TestPeersAreCounted(t *testing.T) {
	e := newEnv(t)
	edge, other := e.join("edge"), e.join("other")
	edge.told(e.spread(edge.node, other.node))
	c, err := edge.client.Peer(t.Context(), "shop-edge", "db", 80)
	e.must(err)
	var ends []func()
	for range maxPeers - 1 {
		end, err := e.peers.take(edge.node)
		e.must(err)
		ends = append(ends, end)
	}
	_, err = edge.client.Peer(t.Context(), "shop-edge", "db", 80)
	e.class("one more from the runner", err, errs.ResourceExhausted)
	_, err = e.peers.Connect(t.Context(), "shop-edge", 80)
	e.class("one more to the runner", err, errs.ResourceExhausted)
	if c, err := other.client.Peer(t.Context(), "shop-other", "db", 80); err != nil {
		t.Errorf("another runner: %v", err)
	} else {
		e.answers(c, "db", 16)
	}
	e.answers(c, "db", 16)
	for _, end := range ends {
		end()
	}
	wait.NoError(t, "connections are made again", func() error {
		c, err := edge.client.Peer(t.Context(), "shop-edge", "db", 80)
		if err == nil {
			e.answers(c, "db", 16)
		}
		return err
	})
}

// TestServerReadsTheTableFirst: a server that has just begun connects a runner once it knows the table.
func TestServerReadsTheTableFirst(t *testing.T) {
	e := newEnv(t)
	edge := e.join("edge")
	wait.For(t, "the runner is connected", func() bool { return e.hub.Connected(edge.node) })
	made := make(chan error, 1)
	go func() {
		c, err := edge.client.Peer(t.Context(), "shop-edge", "db", 80)
		if err == nil {
			c.Close()
		}
		made <- err
	}()
	select {
	case err := <-made:
		t.Fatalf("before the server knows the table: %v", err)
	default:
	}
	e.spread(edge.node, "")
	e.check(wait.Receive(t, "the connection", made))
}
