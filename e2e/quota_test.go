package e2e

import (
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/wait"
)

// TestQuota: a project keeps its quota, and what waits for it runs when there is room.
func TestQuota(t *testing.T) {
	t.Parallel()
	s := own(t, "quota")
	box := strings.TrimSpace(s.r(t, "", "sandbox", "create", "--template", "base"))
	s.r(t, "", "quota", "set", "--sandboxes", "1")
	refused := func(args ...string) {
		t.Helper()
		if res := s.try(t, "", args...); res.Code == 0 || !strings.Contains(res.Stderr, "1 of 1 in use") || !strings.Contains(res.Stderr, "r quota show") {
			t.Errorf("%q: %s", args, res)
		}
	}
	refused("sandbox", "create", "--template", "base")
	refused("run", "-l", "sh", "echo hello")
	refused("sandbox", "fork", box)
	x := strings.TrimSpace(s.r(t, "", "execution", "submit", "--template", "base", "--", "echo", "hello"))
	wait.For(t, "the execution waits for the quota", func() bool { return strings.Contains(s.r(t, "", "execution", "show", x), "in use") })
	s.r(t, "", "sandbox", "pause", box)
	if res := s.try(t, "", "execution", "wait", x); res.Code != 0 {
		t.Errorf("the execution: %s", res)
	}
	if out := s.r(t, "", "run", "-l", "sh", "echo hello"); out != "hello\n" {
		t.Errorf("with the room of the paused sandbox: %q", out)
	}
	wait.For(t, "the sandbox of the program counts no more", func() bool { return strings.Contains(s.r(t, "", "quota", "show"), "sandboxes\t0\t1\t0%") })
	s.r(t, "", "sandbox", "resume", box)
	refused("run", "-l", "sh", "echo hello")
}
