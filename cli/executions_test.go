package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/cli/exit"
)

func TestExecutions(t *testing.T) {
	newFake(t)
	if out := ok(t, "execution", "submit", "-l", "python", "7", "printed"); out != "exec-1\n" {
		t.Errorf("submit: %q", out)
	}
	if r := run(t, false, "", "execution", "submit", "--wait", "-l", "python", "3", "out"); r.code != 3 || r.out != "out" || !strings.Contains(r.err, "wrong") {
		t.Errorf("submit --wait: %+v", r)
	}
	if r := run(t, false, "", "ex", "wait", "exec-2"); r.code != 3 || !strings.Contains(r.out, "exec-2 failed") {
		t.Errorf("wait: %+v", r)
	}
	ok(t, "execution", "submit", "-l", "python", "0", "x")
	if r := run(t, false, "", "execution", "wait", "exec-1", "exec-3"); r.code != exit.Failed {
		t.Errorf("wait for several: %+v", r)
	}
	ok(t, "execution", "wait", "exec-3")
	if r := run(t, false, "", "execution", "submit", "--wait", "--template", "base", "--", "true"); r.code != exit.Failed || !strings.Contains(r.err, "no room") {
		t.Errorf("one that could not start: %+v", r)
	}
	contains(t, ok(t, "execution", "list"), "exec-1", "exec-4", "failed", "succeeded", "setup")
	if out := ok(t, "execution", "list", "--limit", "2"); strings.Contains(out, "exec-3") {
		t.Errorf("list of two: %s", out)
	}
	contains(t, ok(t, "execution", "show", "exec-1"), "python main.py", "exit code", "7")
	contains(t, ok(t, "execution", "result", "exec-1", "--json"), `"stdout": "printed"`, `"exit_code": 7`, `"result": "{}"`)
	contains(t, ok(t, "execution", "result", "exec-1", "--attempt", "2"), "attempt 2")
	if out := ok(t, "execution", "logs", "exec-1"); out != "printed" {
		t.Errorf("logs: %q", out)
	}
	contains(t, ok(t, "execution", "cancel", "exec-1"), "exec-1")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "lines"), []byte("a\nb b\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := ok(t, "execution", "submit", "--each", filepath.Join(dir, "lines"), "-l", "python", "0", "-x"); out != "batch-1\n" {
		t.Errorf("batch: %q", out)
	}
	contains(t, ok(t, "execution", "submit", "--each", filepath.Join(dir, "lines"), "--json", "-l", "python", "0"), "batch-1", "exec-7", "exec-8")
	for _, args := range [][]string{
		{"submit"}, {"submit", "-l", "python", "--timeout", "2h", "0"}, {"submit", "-l", "python", "--priority", "1000", "0"},
		{"submit", "--retry-on", "nothing", "-l", "python", "0"}, {"submit", "none.py"}, {"list", "--limit", "0"}, {"result", "exec-1", "--attempt", "0"}, {"list", "--phase", "x"}, {"wait"},
	} {
		if r := run(t, false, "", append([]string{"execution"}, args...)...); r.code != exit.Usage {
			t.Errorf("%v: %+v", args, r)
		}
	}
}
