package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// TestRefreshAtIntervals: with the configuration of the guide the server refreshes base images, of which this cache has
// none, and says when it did and when it does next. A restarted server does not do it again.
func TestRefreshAtIntervals(t *testing.T) {
	guide, err := os.ReadFile("../docs/stacks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(guide), "```yaml\nbuild:\n")
	block, _, ok := strings.Cut(block, "```")
	block = strings.Replace(block, "02:00-05:00", `""`, 1) // the test does not wait for the night
	if !ok || !strings.Contains(block, "refresh_every: 168h") || !strings.Contains(block, `refresh_window: ""`) {
		t.Fatalf("the guide has no configuration of a refresh: %q", block)
	}
	file := filepath.Join(t.TempDir(), "runtime.yaml")
	if err := os.WriteFile(file, []byte("build:\n"+block), 0o600); err != nil {
		t.Fatal(err)
	}
	s := own(t, "refresh", "--config", file, "--cache-dir", t.TempDir())
	type refresh struct {
		Started   time.Time  `json:"started_at"`
		Succeeded *time.Time `json:"succeeded_at"`
		Next      *time.Time `json:"next_at"`
	}
	status := func() (r refresh) {
		t.Helper()
		var st struct {
			BaseImages refresh `json:"base_images"`
		}
		s.json(t, &st, "server", "status")
		return st.BaseImages
	}
	wait.For(t, "the server has refreshed the images", func() bool { return status().Succeeded != nil }, wait.Within(converge))
	first := status()
	if first.Next == nil || first.Next.Sub(first.Started) < 168*time.Hour {
		t.Errorf("the next refresh is at %v, after one at %s", first.Next, first.Started)
	}
	contains(t, "server status", s.r(t, "", "server", "status"), "refreshed ", "next at ")
	contains(t, "doctor", s.try(t, "", "doctor").Stdout, "base images", "refreshed at ")
	s.r(t, "", "server", "stop", "--keep-running")
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if again := status(); !again.Started.Equal(first.Started) {
		t.Errorf("the restarted server refreshed at %s, after %s", again.Started, first.Started)
	}
}
