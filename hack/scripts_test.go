// Package hack has the developer scripts, which these tests run.
package hack

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/need"
)

// script runs a script of this directory and returns its output and exit code.
func script(t *testing.T, name string, args ...string) (string, int) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "./"+name, args...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		return string(out), exit.ExitCode()
	}
	return string(out), 0
}

func TestMistakesAreExplained(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"it"}, "which package?"},
		{[]string{"it", "-v"}, "the package comes before the flags"},
		{[]string{"it", "pgstor"}, "did you mean: entity/pgstore"},
		{[]string{"it", "componnents/runsc"}, "did you mean: components/runsc"},
		{[]string{"it", "xyzzy"}, "no package xyzzy"},
		{[]string{"it", "rpc"}, "ambiguous: pkg/rpc servers/rpc"},
		{[]string{"it", "cmd/runtime"}, "cmd/runtime has no tests"},
		{[]string{"run"}, "which package and test?"},
		{[]string{"run", "pkg/instance"}, "TestOpenConcurrently"},
		{[]string{"run", "pkg/instance", "-v"}, "the test comes before the flags"},
		{[]string{"run", "instance", "TestOpenConcurently"}, "did you mean: TestOpenConcurrently"},
		{[]string{"run", "instance", "Nothing"}, "no test Nothing in pkg/instance"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			if out, code := script(t, c.args[0], c.args[1:]...); code != 2 || !strings.Contains(out, c.want) {
				t.Errorf("exit code %d, want 2 and %q:\n%s", code, c.want, out)
			}
		})
	}
}

func TestHelpShowsUsage(t *testing.T) {
	for _, name := range []string{"it", "run", "toolchain.sh", "packages.sh"} {
		for _, flag := range []string{"-h", "--help"} {
			if out, code := script(t, name, flag); code != 0 || !strings.Contains(out, "hack/"+name+" ") {
				t.Errorf("%s %s: exit code %d\n%s", name, flag, code, out)
			}
		}
	}
}

func TestPackagesAreFoundByTheEndOfTheirPath(t *testing.T) {
	for arg, want := range map[string]string{
		"runsc": "components/runsc", "./pkg/rpc": "pkg/rpc", "pkg/rpc/": "pkg/rpc", "lsvd": "lsvd",
		"miren.dev/runtime/entity/informer": "entity/informer", "components/shim": "components/shim",
	} {
		if out, code := script(t, "find-package.sh", arg); code != 0 || strings.TrimSpace(out) != want {
			t.Errorf("%s: exit code %d, %q; want %s", arg, code, out, want)
		}
	}
}

func TestItRunsPackageAndPassesFailureOn(t *testing.T) {
	if out, code := script(t, "it", "pkg/instance", "-run", "^$"); code != 0 || !strings.Contains(out, "the host is as it was") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if out, code := script(t, "it", "pkg/instance", "-no-such-flag"); code == 0 {
		t.Errorf("a flag that go test does not know is no failure:\n%s", out)
	}
}

// netns makes a network namespace for the test.
func netns(t *testing.T, name string) {
	t.Helper()
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "delete", name).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}

func TestCleanCheckFindsWhatIsNewAndOfNoOther(t *testing.T) {
	need.Root(t)
	note := filepath.Join(t.TempDir(), "note")
	check := func(when string) (string, int) {
		t.Helper()
		return script(t, "clean-check.sh", when, note)
	}
	netns(t, "rt-checkold-a")
	if out, code := check("before"); code != 0 {
		t.Fatal(out)
	}
	netns(t, "rt-checkold-b") // of an installation that existed before
	netns(t, "rt-checknew-a")
	out, code := check("after")
	if code != 1 || !strings.Contains(out, "rt-checknew-a") || strings.Contains(out, "rt-checkold") {
		t.Errorf("exit code %d, want 1 and rt-checknew-a alone:\n%s", code, out)
	}
}

// TestCleanCheckKnowsProcesses: a process belongs to an installation by any id
// in its arguments, such as a new connection to the database of a demo.
func TestCleanCheckKnowsProcesses(t *testing.T) {
	note := filepath.Join(t.TempDir(), "note")
	run := func(id string) string { return "/run/runtime/" + id }
	process(t, "containerd", "--config", run("checkold")+"/containerd/config.toml")
	if out, code := script(t, "clean-check.sh", "before", note); code != 0 {
		t.Fatal(out)
	}
	for _, id := range []string{"checkold", "checknew"} {
		process(t, "postgres:", "rt-"+id+":", "runtime", "idle")
		process(t, "containerd-shim-runsc-v1", "-namespace", "rt-"+id, "-id", "x.sandbox")
		process(t, "runsc-sandbox", "--root="+run(id)+"/runsc/rt-"+id, "boot")
		process(t, "buildkitd", "--config", run(id)+"/buildkit/buildkitd.toml")
	}
	out, code := script(t, "clean-check.sh", "after", note)
	if code != 1 || strings.Contains(out, "checkold") {
		t.Errorf("exit code %d, want 1 and nothing of checkold:\n%s", code, out)
	}
	for _, want := range []string{"postgres: rt-checknew", "containerd-shim-runsc-v1 -namespace rt-checknew", "runsc-sandbox", "buildkitd --config /run/runtime/checknew"} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is not counted:\n%s", want, out)
		}
	}
}

// process runs a shell that has these words among its arguments until the test ends.
func process(t *testing.T, words ...string) {
	t.Helper()
	c := exec.Command("sh", append([]string{"-c", "read line"}, words...)...)
	if _, err := c.StdinPipe(); err != nil { // open until the end
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
}
