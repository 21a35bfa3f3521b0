package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestRedeployOnASmallNode deploys five times an app that fits only once, on a node of the size of a machine with 2 GB.
// No request fails: the ingress holds requests that come between two versions.
func TestRedeployOnASmallNode(t *testing.T) {
	t.Parallel()
	s := own(t, "small", "--node-memory-bytes", fmt.Sprint(1365<<20))
	name, dir := "large", copyExample(t, "static-site")
	write(t, filepath.Join(dir, ".runtime", "app.toml"), "[services.web]\nmemory = \"900MB\"\n")
	page := filepath.Join(dir, "index.html")
	write(t, page, "version 0")
	s.r(t, dir, "app", "deploy", "--app", name)
	s.answers(t, name, "/", "version 0")
	stop := s.watchApp(name)
	for n := 1; n <= 5; n++ {
		write(t, page, fmt.Sprint("version ", n))
		res := s.try(t, dir, "app", "deploy", "--app", name)
		if res.Code != 0 || !strings.Contains(res.Stdout+res.Stderr, "replaced one at a time") {
			t.Fatalf("deployment %d: %s", n, res)
		}
		s.answers(t, name, "/", fmt.Sprint("version ", n))
	}
	if failed, all := stop(); failed > 0 || all == 0 {
		t.Errorf("%d of %d requests failed", failed, all)
	}
	if out := s.r(t, "", "node", "list"); !strings.Contains(out, "920 MiB of 1.33 GiB") && !strings.Contains(out, "920 MiB of 1.3 GiB") {
		t.Errorf("reserved: %s", out)
	}
}
