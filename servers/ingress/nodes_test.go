package ingress

import (
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
	in := start(t, Config{Reader: c.store, Node: here, HoldTimeout: -1})
	c.follows(in, revision)
	if code, body := get(t, client(t), in.url, testHost); code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", code, body)
	}

	// The one that comes up here is used, and no other.
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
	in := start(t, Config{Reader: c.store, Node: here, HoldTimeout: -1})
	c.follows(in, p.Revision)
	if code, body := get(t, client(t), in.url, preview.Label(string(sb.ID), int(number))+".localhost"); code == http.StatusOK {
		t.Errorf("%d %s", code, body)
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
