package stack

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"miren.dev/runtime/pkg/appconfig"
)

// TestAppTomlTakesEveryStack: build.stack has the names of the detectors.
func TestAppTomlTakesEveryStack(t *testing.T) {
	var names []string
	seen := map[string]bool{}
	for _, d := range detectors {
		names = append(names, d.name)
		seen[d.name] = true
	}
	if len(names) != len(appconfig.Stacks) {
		t.Errorf("detectors %q, app.toml %q", names, appconfig.Stacks)
	}
	for _, s := range appconfig.Stacks {
		if !seen[s] {
			t.Errorf("no detector has the name %s: %s", s, cmp.Diff(names, appconfig.Stacks))
		}
		if _, err := appconfig.Parse("app.toml", "[build]\nstack = \""+s+"\"\n"); err != nil {
			t.Error(err)
		}
	}
}
