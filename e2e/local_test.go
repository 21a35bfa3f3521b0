package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/wait"
)

// onDemand is an installation that commands start and that ends by itself. The
// server in it has the commands that look into it.
type onDemand struct {
	*server
	env []string // of commands that start it
	run string   // run directory
}

// localInstallation returns an installation that does not run yet, and removes it
// at the end of the test. With a run directory of its own, it is where no server
// of the machine is found.
func localInstallation(t *testing.T, name string) *onDemand {
	t.Helper()
	s := &server{name: name, state: filepath.Join(stateRoot, name)}
	run, err := os.MkdirTemp("/run", "rt-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	s.env = []string{"RUNTIME_RUN_DIR=" + run}
	t.Cleanup(func() {
		if t.Failed() {
			s.dump(t)
		}
		if err := errors.Join(s.remove(), os.RemoveAll(run)); err != nil {
			t.Error(err)
		}
	})
	return &onDemand{s, []string{"RUNTIME_STATE_DIR=", "RUNTIME_LOCAL_DIR=" + s.state, "RUNTIME_LOCAL_IDLE_END=5s"}, run}
}

// command is a program of bin in an environment without a server.
func (l *onDemand) command(t *testing.T, dir, program string, args ...string) *exec.Cmd {
	cmd := l.server.command(t.Context(), dir, args...)
	cmd.Path, cmd.Args[0] = filepath.Join(bin, program), program
	cmd.Env = append(cmd.Env, l.env...)
	return cmd
}

// awaitEnd waits until the installation has ended since nobody used it.
func (l *onDemand) awaitEnd(t *testing.T) {
	t.Helper()
	l.awaitNothing(t)
	if b, err := os.ReadFile(filepath.Join(l.state, "logs", "server.log")); err != nil || !strings.Contains(string(b), "reason=idle") {
		t.Errorf("the log does not say why it ended: %v", err)
	}
}

// awaitNothing waits until nothing of the installation is left on the machine.
func (l *onDemand) awaitNothing(t *testing.T) {
	t.Helper()
	wait.NoError(t, "nothing runs", func() error {
		in, err := instance.Find(l.state, config.DefaultRunDir())
		if err != nil {
			return err
		}
		left, err := leakcheck.List(in)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left: %v", left)
		}
		return err
	}, wait.Within(5*time.Minute))
}

const localHandler = `
import sys, threading
def handler(event, context):
    if event.get("hang"):
        print("begun", flush=True)
        threading.Event().wait()
    return "hello " + event["name"]
`

// testGuide runs the commands of "Without a server" in docs/sandbox-run.md, the last
// of which ends the installation.
func (l *onDemand) testGuide(t *testing.T) {
	g := newGuide(t, l.server, "sandbox-run")
	g.env = l.env
	g.words["/var/lib/runtime-local"] = l.state
	g.file("handler.py", localHandler)
	for _, begin := range []string{"r sandbox-run handler.py", "r sandbox-run index.mjs", "r sandbox-run main.go", "sandbox-run handler.py --json"} {
		g.elsewhere(begin, "TestGuides")
	}
	g.run("sandbox-run --local", "hello Ada")
	g.run("r sandbox list")
	g.run("r server stop")
	l.awaitNothing(t)
}

// TestSandboxRunWithoutServer: without a server, sandbox-run starts what it needs,
// once for all commands. It survives a kill of the server, and ends by itself.
func TestSandboxRunWithoutServer(t *testing.T) {
	t.Parallel()
	l, dir := localInstallation(t, "local"), t.TempDir()
	write(t, filepath.Join(dir, "app.py"), localHandler)
	run := func(args ...string) result {
		cmd := l.command(t, dir, "sandbox-run", append([]string{"app.py"}, args...)...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	}
	greet := func(args ...string) {
		if res := run(append(args, "--event", `{"name": "Ada"}`)...); res.Code != 0 || res.Stdout != "hello Ada\n" {
			t.Errorf("%s", res)
		}
	}
	if res := run("--state-dir", dir); res.Code != 5 || !strings.Contains(res.Stderr, "no server is running") {
		t.Errorf("a server that is named and does not run: %s", res)
	}
	if res := run("--local", "--state-dir", dir); res.Code != 2 {
		t.Errorf("a server is named beside --local: %s", res)
	}
	cmd := l.command(t, "/", "sandbox-run", filepath.Join(bin, "..", "e2e", "testdata", "local", "handler.py"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 5 || !strings.Contains(string(out), "only root can run sandboxes") {
		t.Errorf("not as root: %v\n%s", err, out)
	}

	broken := l.command(t, dir, "sandbox-run", "app.py")
	broken.Env = append(broken.Env, "RUNTIME_NETWORK_CONFLIST=/nowhere")
	if out, err := broken.CombinedOutput(); broken.ProcessState.ExitCode() != 5 || !strings.Contains(string(out), "/nowhere") {
		t.Errorf("the installation cannot start: %v\n%s", err, out)
	}
	l.awaitNothing(t)

	var first sync.WaitGroup
	for range 2 {
		first.Go(func() { greet() })
	}
	first.Wait()
	if t.Failed() {
		return
	}
	for range 2 {
		began := time.Now()
		greet("--local")
		t.Logf("a call while the installation runs took %s", time.Since(began).Round(time.Millisecond))
	}

	// The server is killed during a call.
	hung := l.command(t, dir, "sandbox-run", "app.py", "--event", `{"hang": true}`)
	stderr, err := hung.StderrPipe()
	if err == nil {
		err = hung.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	begun := make(chan string, 1)
	go func() {
		b := make([]byte, 5)
		for text := ""; ; {
			n, err := stderr.Read(b)
			if text += string(b[:n]); err != nil || strings.Contains(text, "begun\n") {
				begun <- text
				return
			}
		}
	}()
	if text := wait.Receive(t, "the handler runs", begun, wait.Within(converge)); !strings.Contains(text, "begun") {
		t.Fatalf("the handler: %s", text)
	}
	kill(t, l.pid(t, "server"))
	began := time.Now()
	greet()
	t.Logf("the call after the kill took %s", time.Since(began).Round(time.Millisecond))
	ended := make(chan struct{})
	go func() {
		_ = hung.Wait()
		close(ended)
	}()
	if wait.Receive(t, "the call of the killed server ends", ended, wait.Within(converge)); hung.ProcessState.ExitCode() != 5 {
		t.Errorf("the call of the killed server: %s", hung.ProcessState)
	}

	l.awaitEnd(t)
	l.env = append(l.env, "RUNTIME_LOCAL_IDLE_END=10m") // a command ends it
	began = time.Now()
	greet()
	t.Logf("the call that starts the installation took %s", time.Since(began).Round(time.Millisecond))
	l.testGuide(t)
	if b, err := os.ReadFile(filepath.Join(l.state, "logs", "server.log")); err != nil || strings.Count(string(b), `msg="server runs"`) != 3 {
		t.Errorf("servers were started, not three times: %v\n%s", err, b)
	}
}
