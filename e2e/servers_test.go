package e2e

import (
	"net/http"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/etcdtest"
	"miren.dev/runtime/testsupport/wait"
)

// TestServersOfOneStore: of two servers with one store, each reaches the sandboxes of its own node, and
// says of the others that they are on another one.
func TestServersOfOneStore(t *testing.T) {
	t.Parallel()
	url := etcdtest.Start(t).URL(t)
	nodes := func(s *server) (names []string) {
		var list []struct{ Name string }
		s.json(t, &list, "node", "list")
		for _, n := range list {
			names = append(names, n.Name)
		}
		return names
	}
	first := own(t, "store-first", "--store-url", url)
	mine := nodes(first)
	second := own(t, "store-second", "--store-url", url)
	all := nodes(first)
	if len(mine) != 1 || len(all) != 2 {
		t.Fatalf("nodes %q, then %q", mine, all)
	}
	other := all[0]
	if other == mine[0] {
		other = all[1]
	}
	first.r(t, "", "node", "cordon", other)
	p := newPreviewed(t, first, "box", "0.0.0.0")
	p.r(t, "", "sandbox", "preview", p.box, "3000", "--public")
	p.up(t)
	wait.For(t, "the refusal of the second", func() bool {
		code, body, err := second.getHost(p.host, "/")
		if err == nil && code == http.StatusOK {
			t.Fatalf("the second reaches a sandbox of the first: %s", body)
		}
		return err == nil && code == http.StatusServiceUnavailable && strings.Contains(body, "runs on another machine")
	})
	if res := second.try(t, "", "sandbox", "exec", p.box, "--", "true"); res.Code == 0 || !strings.Contains(res.Stderr, "of another server") {
		t.Errorf("exec at the second: %s", res)
	}
	first.r(t, "", "sandbox", "exec", p.box, "--", "true")
	// The second runs sandboxes of its own, of images that it has.
	first.r(t, "", "node", "cordon", mine[0])
	first.r(t, "", "node", "uncordon", other)
	if out := second.r(t, "", "sandbox", "run", "--image", "debian", "--", "echo", "of the second"); out != "of the second\n" {
		t.Errorf("run at the second: %q", out)
	}
	p.up(t)
}
