package e2e

import (
	"strings"
	"testing"
)

// TestPolicy meets the rules of policies by several faces. Then it runs the commands
// of docs/policies.md.
func TestPolicy(t *testing.T) {
	t.Parallel()
	s := own(t, "policy")
	older := strings.TrimSpace(s.r(t, "", "sandbox", "create", "--template", "base"))
	refused := func(rule string, args ...string) {
		t.Helper()
		if res := s.try(t, "", args...); res.Code == 0 || !strings.Contains(res.Stderr, "("+rule+")") || !strings.Contains(res.Stderr, "r policy show") {
			t.Errorf("%q, want a refusal by %s: %s", args, rule, res)
		}
	}
	s.r(t, "", "policy", "set", "--template", "python", "--template", "base", "--max-egress", "none", "--max-ttl", "1h", "--max-cpu", "2", "--max-memory", "4G", "--max-disk", "20G",
		"--max-pids", "2000", "--private-previews", "--max-key-ttl", "720h")
	refused("templates", "sandbox", "create", "--image", "debian")
	refused("max_ttl", "sandbox", "create", "--template", "base", "--ttl", "2h")
	refused("max_memory_bytes", "sandbox", "create", "--template", "base", "--memory", "5G")
	refused("max_key_ttl", "key", "create", "ci")
	refused("private_previews", "sandbox", "preview", older, "8080", "--public")
	box := strings.TrimSpace(s.r(t, "", "sandbox", "create", "--template", "base"))
	if out := s.r(t, "", "sandbox", "show", box, "--json"); !strings.Contains(out, `"ttl": "1h0m0s"`) || !strings.Contains(out, `"mode": "none"`) {
		t.Errorf("a sandbox for which nothing is asked: %s", out)
	}
	report := func(want ...string) {
		t.Helper()
		res := s.try(t, "", "audit", "policy", "--json")
		if (res.Code == 1) != (len(want) > 0) {
			t.Errorf("%d violations are expected: %s", len(want), res)
		}
		for _, w := range want {
			if !strings.Contains(res.Stdout, w) {
				t.Errorf("the report lacks %s: %s", w, res)
			}
		}
	}
	report(older, `"rule": "max_egress"`)
	s.r(t, "", "sandbox", "delete", older)
	report()

	s.r(t, "", "policy", "set", "--confine")
	refused("confine", "sandbox", "exec", box, "--", "true")
	refused("confine", "run", "-l", "python", "print(1)")
	if out := s.r(t, "", "run", "--confine", "-l", "python", "print(1)"); out != "1\n" {
		t.Errorf("in the second layer: %q", out)
	}
	s.r(t, "", "policy", "clear", "confine", "max-pids")
	s.r(t, "", "sandbox", "exec", box, "--", "true")
	if out := s.r(t, "", "policy", "show"); !strings.Contains(out, "confine\t-") || !strings.Contains(out, "max-ttl\t1h0m0s") {
		t.Errorf("the policy: %s", out)
	}
	s.r(t, "", "policy", "clear")
	s.r(t, "", "sandbox", "create", "--template", "base", "--ttl", "2h")

	g := newGuide(t, s, "policies")
	g.file("research.yaml", "kind: project\nname: research\n")
	s.r(t, g.dir, "entity", "put", "research.yaml")
	g.run("r policy set --project research --template python")
	g.run("r policy set --project research --confine")
	g.run("r policy set --project research --private-previews")
	g.run("r policy show", "python", "720h")
	if res := s.try(t, "", "key", "create", "long", "--project", "research"); res.Code == 0 {
		t.Error("a key is valid for ever, against the policy")
	}
	g.run("r policy clear --project research confine")
	g.run("r policy clear --project research")
	s.r(t, "", "key", "create", "long", "--project", "research")
	g.run("r audit policy")
	g.run("r audit policy --project research --json", "research")
}
