package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// TestRunCode runs programs by `r run`: the first makes a sandbox of the
// template python, later ones claim a warm one.
func TestRunCode(t *testing.T) {
	t.Parallel()
	// The first run of a template makes its image.
	if out := shared.r(t, "", "run", "--wait", "10m", "-l", "python", "print(6*7)"); out != "42\n" {
		t.Errorf("print: %q", out)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "main.py"), "import sys, os\nprint(sys.argv[1:], open('data/a.txt').read(), sys.stdin.read(), os.environ['SECRET'], os.getuid())\nsys.exit(3)\n")
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "data", "a.txt"), "text")
	cmd := shared.command(t.Context(), dir, "run", "--file", "data", "--secret", "SECRET=hush", "main.py", "one", "-two")
	cmd.Stdin = strings.NewReader("input")
	out, err := cmd.Output()
	if code := cmd.ProcessState.ExitCode(); code != 3 || string(out) != "['one', '-two'] text input hush 1000\n" {
		t.Errorf("file: exit code %d, %v, %q", code, err, out)
	}
	cmd = shared.command(t.Context(), "", "run", "-l", "py", "--timeout", "1s", "while True: pass")
	if _, err := cmd.Output(); cmd.ProcessState.ExitCode() != 124 {
		t.Errorf("timeout: exit code %d, %v", cmd.ProcessState.ExitCode(), err)
	}
	cmd = shared.command(t.Context(), "", "run", "-l", "cpp", "int main() { return not_there; }")
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "not_there") {
		t.Errorf("a program that does not compile: exit code %d, %v, %s", cmd.ProcessState.ExitCode(), err, out)
	}
	contains(t, "template list", shared.r(t, "", "template", "list"), "python", "code-interpreter-v1")
	contains(t, "template show", shared.r(t, "", "template", "show", "python"), "/home/user")
	contains(t, "pool set", shared.r(t, "", "pool", "set", "python", "--min", "1", "--max", "2"), "1 to 2")
	var sb struct {
		ID   string `json:"id"`
		Spec struct {
			Origin string `json:"origin"`
		} `json:"spec"`
	}
	claim := func(args ...string) {
		t.Helper()
		args = append([]string{"sandbox", "run", "--template", "python", "--detach", "--json", "--ttl", "10m"}, args...)
		if err := json.Unmarshal([]byte(shared.r(t, "", args...)), &sb); err != nil {
			t.Fatal(err)
		}
	}
	wait.NoError(t, "a warm sandbox is claimed", func() error {
		claim()
		shared.r(t, "", "sandbox", "delete", sb.ID)
		if sb.Spec.Origin != "pool" {
			return fmt.Errorf("it was made by way of %s; %s", sb.Spec.Origin, shared.r(t, "", "pool", "list"))
		}
		return nil
	}, wait.Within(converge), wait.Every(time.Second))
	claim("--agent", "ada")
	first := sb.ID
	claim("--agent", "ada")
	if sb.ID != first || sb.Spec.Origin != "session" {
		t.Errorf("the agent of %s got %+v", first, sb)
	}
	shared.r(t, "", "sandbox", "delete", first)
	contains(t, "pool delete", shared.r(t, "", "pool", "delete", "python"), "deleted")
}

// TestConfinedCode: code in a second layer does less than other code in a sandbox.
func TestConfinedCode(t *testing.T) {
	t.Parallel()
	const code = `
import ctypes, os
def can(f, *a):
    try: f(*a); return True
    except OSError: return False
print(open("/proc/1/comm").read().strip(), can(os.listdir, "/run/runtime/bin"), can(open, "/var/tmp/x", "w"), can(open, "x", "w"), can(open, "/tmp/x", "w"), ctypes.CDLL(None).unshare(0x10000000) == 0)`
	if out := shared.r(t, "", "run", "-l", "python", code); out != "agent True True True True True\n" {
		t.Errorf("without the layer: %q", out)
	}
	if out := shared.r(t, "", "run", "--confine", "-l", "python", code); out != "bwrap False False True True False\n" {
		t.Errorf("in the layer: %q", out)
	}
	if res := shared.try(t, "", "run", "--confine", "-l", "go", "package main\nimport \"os\"\nfunc main() { os.Exit(3) }"); res.Code != 3 {
		t.Errorf("a program that is compiled: %s", res)
	}
	if res := shared.try(t, "", "run", "--confine", "-l", "py", "--timeout", "2s", "while True: pass"); res.Code != 124 {
		t.Errorf("timeout: %s", res)
	}
}

// TestPauseSnapshotFork: a counter continues after a pause and in forks, each with
// files of its own, and nothing is left of the snapshots.
func TestPauseSnapshotFork(t *testing.T) {
	t.Parallel()
	id := shared.run(t, "--name", "counter", "--", "sh", "-c", "i=0; while :; do i=$((i+1)); echo $i > /tmp/n; sleep 0.05; done")
	count := func(sid string) int {
		t.Helper()
		n := 0
		wait.NoError(t, "the counter of "+sid, func() error {
			res := shared.try(t, "", "sandbox", "exec", sid, "--", "cat", "/tmp/n") // it may not be written yet
			if _, err := fmt.Sscan(res.Stdout, &n); err != nil {
				return fmt.Errorf("%w: %s", err, res)
			}
			return nil
		}, wait.Within(converge))
		return n
	}
	before := count(id)
	for range 2 {
		contains(t, "pause", shared.r(t, "", "sandbox", "pause", id), "paused")
		contains(t, "list", shared.r(t, "", "sandbox", "list"), "paused")
		contains(t, "resume", shared.r(t, "", "sandbox", "resume", id), "resumed")
		if n := count(id); n < before {
			t.Errorf("it counts %d after a pause at %d", n, before)
		}
	}
	shared.r(t, "", "sandbox", "pause", id)
	if n := count(id); n < before { // the exec wakes it
		t.Errorf("it counts %d after a pause at %d", n, before)
	}
	before = count(id)
	snap := strings.TrimSpace(shared.r(t, "", "sandbox", "snapshot", id, "--name", "counted"))
	contains(t, "snapshot list", shared.r(t, "", "snapshot", "list"), snap, "ready")
	forks := strings.Fields(shared.r(t, "", "sandbox", "fork", "counted", "--count", "2", "-e", "SEED=2"))
	forks = append(forks, strings.Fields(shared.r(t, "", "sandbox", "fork", id))...)
	if len(forks) != 3 {
		t.Fatalf("forks %q", forks)
	}
	generations := map[string]bool{}
	for _, f := range forks {
		if n := count(f); n < before {
			t.Errorf("fork %s counts %d, its origin %d", f, n, before)
		}
		if name := strings.TrimSpace(shared.r(t, "", "sandbox", "exec", f, "--", "hostname")); name != f {
			t.Errorf("fork %s has the host name %s", f, name)
		}
		generations[shared.r(t, "", "sandbox", "exec", f, "--", "cat", "/dev/runtime/generation")] = true
	}
	if len(generations) != 3 {
		t.Errorf("generations %v", generations)
	}
	contains(t, "env of a fork", shared.r(t, "", "sandbox", "exec", forks[0], "--", "sh", "-c", "echo $SEED"), "2")
	contains(t, "snapshot delete", shared.r(t, "", "snapshot", "delete", "counted"), "deleted")
	contains(t, "extend", shared.r(t, "", "sandbox", "extend", id, "--ttl", "1s"), "extended")
	contains(t, "the end", shared.ended(t, id), `"ttl"`)
	for _, f := range forks {
		contains(t, "a fork after the end of its origin", shared.r(t, "", "sandbox", "exec", f, "--", "echo", "here"), "here")
		shared.r(t, "", "sandbox", "delete", f)
	}
}
