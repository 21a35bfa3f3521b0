package workspace

import (
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// TestSettingsOfTheEnvironment: the defaults, and what the variables state.
func TestSettingsOfTheEnvironment(t *testing.T) {
	load := func(env map[string]string) (Settings, error) {
		return Load(func(name string) string { return env[name] })
	}
	got, err := load(nil)
	if want := (Settings{2000, 128 << 20, true, 5 * time.Minute, 2}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = load(map[string]string{
		"SANDBOX_CPU_QUOTA": "0.5", "SANDBOX_MEMORY_LIMIT": "65537", "SANDBOX_ALLOW_NETWORK": "false", "SANDBOX_TIMEOUT_SECONDS": "10",
		"SANDBOX_POOL_SIZE": "0",
	})
	if want := (Settings{500, 65537 << 10, false, 10 * time.Second, 0}); err != nil || got != want || got.Shipped().MemoryMiB != 65 {
		t.Errorf("%+v, %v", got, err)
	}
	for variable, values := range map[string][]string{
		"SANDBOX_CPU_QUOTA": {"two", "0", "-1", "NaN", "2000"}, "SANDBOX_MEMORY_LIMIT": {"128MB", "1024", "1.5"},
		"SANDBOX_ALLOW_NETWORK": {"maybe"}, "SANDBOX_TIMEOUT_SECONDS": {"0", "3601", "5m"}, "SANDBOX_POOL_SIZE": {"-1", "1001"},
	} {
		for _, v := range values {
			if _, err := load(map[string]string{variable: v}); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), variable) {
				t.Errorf("%s=%s: %v", variable, v, err)
			}
		}
	}
}

// TestNamesOfSessions: two ids never have the same sandbox.
func TestNamesOfSessions(t *testing.T) {
	seen := map[string]string{}
	for _, id := range []string{"a", "A", "a-1", "a_1", "a.1", "x-1", "8d7f3c1e-9a54-4f0b-b1a2-0c3d4e5f6a7b", strings.Repeat("a", 52), strings.Repeat("a", 53), strings.Repeat("a", 128)} {
		name, err := sandboxName(id)
		if err != nil || len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || strings.HasSuffix(name, "-") {
			t.Errorf("%s: %q, %v", id, name, err)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%s and %s have the sandbox %s", id, other, name)
		}
		seen[name] = id
	}
	for _, id := range []string{"", "-a", "a b", "a/b", "..", "é", strings.Repeat("a", 129)} {
		if _, err := sandboxName(id); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q: %v", id, err)
		}
	}
}
