package cli_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/machine"
)

// asClient, set in the environment, makes the test binary the program r.
const asClient = "RUNTIME_TEST_AS_CLIENT"

func TestMain(m *testing.M) {
	if os.Getenv(asClient) != "" {
		os.Exit(cli.Main(os.Args[1:], console.Std(), nil))
	}
	os.Exit(m.Run())
}

// install makes a directory with the program r, which is this test, and
// returns the path of r.
func install(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := filepath.Join(t.TempDir(), "r")
	if os.Link(exe, r) == nil {
		return r
	}
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return r
}

// installRuntime writes a program runtime that prints its arguments and its
// process, copies its input to its error output, and exits with 7.
func installRuntime(t *testing.T, dir string) {
	t.Helper()
	script := "#!/bin/sh\necho $$\nprintf '<%s>' \"$@\"\n/bin/cat >&2\nexit 7\n"
	if err := os.WriteFile(filepath.Join(dir, "runtime"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

func clientCommand(t *testing.T, r, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), r, args...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "PATH=") }), asClient+"=1", "PATH="+path, "NO_COLOR=1")
	return cmd
}

func TestMachineCommandsAreHandedOver(t *testing.T) {
	r := install(t)
	installRuntime(t, filepath.Dir(r))
	for _, args := range [][]string{
		{"server", "start"},
		{"server", "start", "--ingress-http-address", "127.0.0.1:80", "--no-such-flag"},
		{"--json", "server", "stop"},
		{"--state-dir", "/a b", "lsvd", "create", "vol", "--size", "1G"},
		{"lsvd", "--", "-x", "", "two words", "*"},
		{"lsvd", "--help"},
		{"server", "run"},
		{"ingress", "run"},
		{"doctor"},
		{"help", "lsvd"},
		{"help", "server", "start"},
		{"--json", "help", "lsvd", "create"},
		{"__complete", "lsvd", "create", ""},
		{"__complete", "server", "start", "--ingr"},
		{"__completeNoDesc", "lsvd", ""},
	} {
		cmd := clientCommand(t, r, "", args...)
		cmd.Stdin = strings.NewReader("typed\x00input")
		var out, errw bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errw
		err := cmd.Run()
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.ExitCode() != 7 {
			t.Errorf("%q: %v, want the exit code of runtime\n%s%s", args, err, &out, &errw)
			continue
		}
		want := fmt.Sprintf("%d\n", cmd.Process.Pid) // exec, so signals need no forwarding
		for _, a := range args {
			want += "<" + a + ">"
		}
		if out.String() != want || errw.String() != "typed\x00input" {
			t.Errorf("%q: runtime printed %q and %q, want %q and its input", args, &out, &errw, want)
		}
	}
}

func TestClientCommandsAreNotHandedOver(t *testing.T) {
	r := install(t)
	installRuntime(t, filepath.Dir(r))
	for _, args := range [][]string{
		{"version", "--client"}, {"help"}, {"help", "server"}, {"--help"}, {"server"}, {"server", "--help"}, {"app", "--help"}, {"help", "app", "list"},
		{"__complete", "lsv"}, {"__complete", "server", "st"}, {"completion", "bash"}, {"cluster", "list"},
		{"config", "generate"}, {"server", "status", "--help"},
	} {
		if out, err := clientCommand(t, r, "", args...).CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
}

func TestSignalsReachTheProgramRuntime(t *testing.T) {
	r := install(t)
	script := "#!/bin/sh\ntrap 'echo got TERM; exit 3' TERM\necho ready\nwhile :; do /bin/sleep 0.05; done\n"
	if err := os.WriteFile(filepath.Join(filepath.Dir(r), "runtime"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := clientCommand(t, r, "", "server", "run")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(out, line); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	if err != nil || string(rest) != "got TERM\n" {
		t.Errorf("runtime printed %q, %v", rest, err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("%v, want the exit code of runtime", err)
	}
}

func TestRuntimeIsFoundBesideOrInPath(t *testing.T) {
	r := install(t)
	inPath := t.TempDir()
	installRuntime(t, inPath)
	// r may be linked into a directory of PATH; runtime is beside the real one.
	linked := filepath.Join(t.TempDir(), "r")
	if err := os.Symlink(r, linked); err != nil {
		t.Fatal(err)
	}
	run := func(path string) (string, int) {
		cmd := clientCommand(t, linked, path, "server", "start")
		out, _ := cmd.CombinedOutput() // the exit code shows which ran
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := run(inPath); code != 7 {
		t.Errorf("in PATH: exit code %d\n%s", code, out)
	}
	// A directory, a link to r itself and a file without the right mode are not the program.
	beside := filepath.Join(filepath.Dir(r), "runtime")
	for name, place := range map[string]func() error{
		"a directory":                  func() error { return os.Mkdir(beside, 0o755) },
		"r itself":                     func() error { return os.Symlink("r", beside) },
		"a file that is no executable": func() error { return os.WriteFile(beside, nil, 0o644) },
	} {
		if err := place(); err != nil {
			t.Fatal(err)
		}
		if out, code := run(""); code != exit.NoRuntime {
			t.Errorf("%s: exit code %d\n%s", name, code, out)
		}
		if out, code := run(inPath); code != 7 {
			t.Errorf("%s beside, and one in PATH: exit code %d\n%s", name, code, out)
		}
		if err := os.Remove(beside); err != nil {
			t.Fatal(err)
		}
	}
	installRuntime(t, filepath.Dir(r))
	if out, code := run(t.TempDir()); code != 7 {
		t.Errorf("beside: exit code %d\n%s", code, out)
	}
}

func TestMissingRuntimeIsExplained(t *testing.T) {
	r := install(t)
	cmd := clientCommand(t, r, "", "server", "start", "--foreground")
	out, _ := cmd.CombinedOutput() // the exit code shows which ran
	if code := cmd.ProcessState.ExitCode(); code != exit.NoRuntime {
		t.Errorf("exit code %d, want %d", code, exit.NoRuntime)
	}
	contains(t, string(out), "`r server start` needs the program runtime", filepath.Join(filepath.Dir(r), "runtime"), "PATH", "install runtime beside r")

	out, _ = clientCommand(t, r, "", "lsvd", "list", "--json").CombinedOutput()
	var doc exit.Document
	if err := json.Unmarshal(out, &doc); err != nil || doc.Error.Details["program"] != "runtime" || doc.Error.Hint == "" {
		t.Errorf("as JSON: %v %s", err, out)
	}
	// Completion has no suggestions then, and no error.
	out, err := clientCommand(t, r, "", "__complete", "lsvd", "").Output()
	if err != nil || string(out) != ":4\n" {
		t.Errorf("completion: %v %q", err, out)
	}
	// The client checks the server, and reports that it does not check the
	// machine.
	cmd = clientCommand(t, r, "", "doctor", "--state-dir", t.TempDir())
	out, _ = cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != exit.Failed {
		t.Errorf("doctor: exit code %d", code)
	}
	contains(t, string(out), "not checked", "no server is running")
}

// The client lists the commands that it hands over, with runtime's help.
func TestClientListsTheCommandsOfRuntime(t *testing.T) {
	newEnv := func() *command.Env {
		return command.New(&console.Console{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
	}
	client, full := cli.Root(newEnv(), nil), cli.Root(newEnv(), machine.Commands)
	var compare func(c, f *cobra.Command)
	compare = func(c, f *cobra.Command) {
		if c.Name() != f.Name() || c.Short != f.Short || c.Short == "" || c.Hidden != f.Hidden || c.GroupID != f.GroupID {
			t.Errorf("%s: the client has %q (%q, hidden %v), runtime %q (%q, hidden %v)", f.CommandPath(), c.Name(), c.Short, c.Hidden, f.Name(), f.Short, f.Hidden)
		}
		if cli.NeedsMachine(f) {
			if !cli.NeedsMachine(c) {
				t.Errorf("the client does not hand %s over", f.CommandPath())
			}
			return // commands below it belong to runtime
		}
		if len(c.Commands()) != len(f.Commands()) {
			t.Fatalf("%s has %d commands in the client and %d in runtime", f.CommandPath(), len(c.Commands()), len(f.Commands()))
		}
		for i, sub := range f.Commands() {
			compare(c.Commands()[i], sub)
		}
	}
	compare(client, full)
	var help bytes.Buffer
	client.SetOut(&help)
	if err := client.Help(); err != nil {
		t.Fatal(err)
	}
	contains(t, help.String(), "lsvd", "doctor", "Servers and machines:")
	if strings.Contains(help.String(), "ingress") {
		t.Error("a hidden command is in the help")
	}
}

func TestCompletionScriptsCallTheClient(t *testing.T) {
	for shell, want := range map[string]string{"bash": "__complete", "zsh": "#compdef r", "fish": "complete -c r"} {
		contains(t, ok(t, "completion", shell), want)
	}
}
