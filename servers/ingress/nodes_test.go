package ingress

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/preview"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

// node creates a node of the store: that of a server.
func (c *control) node(name string) id.Node {
	c.Helper()
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = name, "amd64", 1000, 1<<30
	c.create(n)
	return n.GetID()
}

// on creates a ready sandbox that runs on a node at url.
func (c *control) on(node id.Node, v id.AppVersion, url string) *sandbox.Sandbox {
	c.Helper()
	s := c.sandbox(v, url, false)
	if _, err := entity.ModifySpec(c.Context(), c.store, s.GetID(), func(s *sandbox.Sandbox) error {
		s.Spec.Node = node
		return nil
	}); err != nil {
		c.Fatal(err)
	}
	c.ready(s, true)
	return s
}

// follows waits until the table of an ingress has the last change of an app.
func (c *control) follows(in *running, revision schema.Revision) {
	c.Helper()
	wait.For(c.T, "the table follows the store", func() bool { return in.position().Revision >= revision })
}

// foreign is a sandbox of another project, at the address that a sandbox of the app has on another node.
func foreign(t *testing.T) string {
	return upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a sandbox of another project got the request for %s", r.URL)
	}).URL
}

// TestAddressesOfOtherNodesAreNotUsed has two servers of one store whose machines chose the same
// subnet: the address of the app's sandbox on the one is that of another project's on the other.
func TestAddressesOfOtherNodesAreNotUsed(t *testing.T) {
	c := newControl(t)
	here, there := c.node("here"), c.node("there")
	v := c.version()
	c.on(there, v, foreign(t))
	revision := c.activate(v)
	in := start(t, Config{Reader: c.store, Node: here, HoldTimeout: wait.Limit})
	c.follows(in, revision)
	// At once: a load balancer in front may ask another machine.
	if code, body := get(t, client(t), in.url, testHost); code != http.StatusServiceUnavailable || !strings.Contains(body, "run on other machines") {
		t.Errorf("%d %s", code, body)
	}

	// The sandbox that starts here is used, and no other.
	c.on(here, v, upstream(t, says("here")).URL)
	cl := client(t)
	wait.For(t, "the sandbox of this node", func() bool { code, _ := get(t, cl, in.url, testHost); return code == http.StatusOK })
	for range 50 {
		if code, body := get(t, cl, in.url, testHost); code != http.StatusOK || body != "here" {
			t.Fatalf("%d %s", code, body)
		}
	}
}

// TestPreviewsUseNoAddressOfAnotherNode is the same for the ports of sandboxes.
func TestPreviewsUseNoAddressOfAnotherNode(t *testing.T) {
	c := newControl(t)
	here, there := c.node("here"), c.node("there")
	url := foreign(t)
	sb := c.on(there, c.version(), url)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	number, _ := strconv.ParseInt(port, 10, 64)
	p := sandbox.NewPreview()
	p.Project, p.Spec.Sandbox, p.Spec.Port, p.Spec.Public = c.project, sb.GetID(), number, true
	p.Spec.Key = previewKey.Public()
	c.create(p)
	host := preview.Label(string(sb.ID), int(number)) + ".localhost"
	var dialed func() (net.Conn, error) // by the server
	in := start(t, Config{Reader: c.store, Node: here, Dial: func(context.Context, schema.ID, int) (net.Conn, error) { return dialed() }})
	c.follows(in, p.Revision)
	for _, tc := range []struct {
		err  error
		code int
		text string
	}{
		{errs.New(errs.Unavailable, "of another server"), http.StatusServiceUnavailable, "runs on another machine"},
		{errs.New(errs.FailedPrecondition, "no process listens"), http.StatusBadGateway, "Nothing listens"},
	} {
		dialed = func() (net.Conn, error) { return nil, tc.err }
		if code, body := get(t, client(t), in.url, host); code != tc.code || !strings.Contains(body, tc.text) {
			t.Errorf("%v: %d %s", tc.err, code, body)
		}
	}
	// On a runner: through the server.
	through := upstream(t, says("through the server"))
	dialed = func() (net.Conn, error) { return net.Dial("tcp", through.Listener.Addr().String()) }
	if code, body := get(t, client(t), in.url, host); code != http.StatusOK || body != "through the server" {
		t.Errorf("%d %s", code, body)
	}
}

// TestServersOfOneStore: each ingress serves the sandboxes of its node, and a client that is sent to
// another machine after a refusal is served while any of them has one.
func TestServersOfOneStore(t *testing.T) {
	c := newControl(t)
	v := c.version()
	var nodes [2]*running
	var boxes [2]*sandbox.Sandbox
	for i, name := range []string{"first", "second"} {
		node := c.node(name)
		boxes[i] = c.on(node, v, upstream(t, says(name)).URL)
		nodes[i] = start(t, Config{Reader: c.store, Node: node, HoldTimeout: wait.Limit})
	}
	revision := c.activate(v)
	cl := client(t)
	for i, name := range []string{"first", "second"} {
		c.follows(nodes[i], revision)
		for range 20 {
			if code, body := get(t, cl, nodes[i].url, testHost); code != http.StatusOK || body != name {
				t.Fatalf("%s: %d %s", name, code, body)
			}
		}
	}
	// The first loses its sandbox: its requests are refused, those of the second are not.
	c.ready(boxes[0], false)
	wait.For(t, "the first refuses", func() bool {
		code, body := get(t, cl, nodes[0].url, testHost)
		return code == http.StatusServiceUnavailable && strings.Contains(body, "run on other machines")
	})
	if code, body := get(t, cl, nodes[1].url, testHost); code != http.StatusOK || body != "second" {
		t.Errorf("%d %s", code, body)
	}
	// With none anywhere, requests wait for the next sandbox that starts.
	c.ready(boxes[1], false)
	answer := make(chan string, 1)
	wait.For(t, "the first knows of no sandbox", func() bool { return !nodes[0].table.Load().local["shop"][0].target.remote() })
	go func() { _, body := get(t, client(t), nodes[0].url, testHost); answer <- body }()
	wait.For(t, "the request waits", func() bool { return nodes[0].status().Held == 1 })
	c.ready(boxes[0], true)
	if body := wait.Receive(t, "the answer", answer); body != "first" {
		t.Error(body)
	}
}

// TestTCPIsNotSentToAnotherNode: a connection is ended at once.
func TestTCPIsNotSentToAnotherNode(t *testing.T) {
	cfg, addr := tcpConfig(t, lineEcho(t, false), TCPRoute{})
	cfg.HoldTimeout = 2 * wait.Limit
	in := start(t, cfg)
	if _, say := dialTCP(t, addr); say("here") != "here -" {
		t.Fatal("the sandbox of this node does not answer")
	}
	s, err := loadState(cfg.TableFile)
	if err != nil {
		t.Fatal(err)
	}
	s.Sandboxes[0].Address, s.Sandboxes[0].Remote = "", true
	in.install(s)
	if _, say := dialTCP(t, addr); say("") != io.EOF.Error() {
		t.Error("a connection for an app of another node is not ended")
	}
}

// TestTableOfAnotherNodeIsNotUsed starts an ingress with a file that the ingress of another node, or
// of a version that used the addresses of all nodes, has written.
func TestTableOfAnotherNodeIsNotUsed(t *testing.T) {
	for _, node := range []id.Node{"", "node-there"} {
		file := filepath.Join(t.TempDir(), "table")
		s := oneApp(foreign(t))
		s.Node = node
		if err := saveState(file, s); err != nil {
			t.Fatal(err)
		}
		in := start(t, Config{TableFile: file, Node: "node-here", HoldTimeout: -1})
		if code, body := get(t, client(t), in.url, testHost); code != http.StatusServiceUnavailable {
			t.Errorf("file of %q: %d %s", node, code, body)
		}
	}
}
