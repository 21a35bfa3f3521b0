package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
)

// built are the programs that the tests run; checked is the agent with the race
// detector, if the tests have it.
var built struct{ agent, checked, tool, runsc string }

var raceDetector bool

// TestMain gives the tests mounts of their own: runsc makes one, which a killed test would leave on the machine.
func TestMain(m *testing.M) { os.Exit(private.Main(suite{m})) }

// suite builds the programs before it runs the tests.
type suite struct{ *testing.M }

// Run returns the exit code.
func (s suite) Run() int {
	dir, err := os.MkdirTemp("", "agent-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	built.agent, built.tool = filepath.Join(dir, "runtime-agent"), filepath.Join(dir, "tool")
	for out, pkg := range map[string]string{built.agent: "../../cmd/runtime-agent", built.tool: "./testdata/tool"} {
		c := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := c.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", pkg, err, b)
			return 1
		}
	}
	built.checked = built.agent
	if raceDetector {
		built.checked = filepath.Join(dir, "runtime-agent-race")
		if b, err := exec.Command("go", "build", "-race", "-o", built.checked, "../../cmd/runtime-agent").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build agent with race detector: %v\n%s", err, b)
			return 1
		}
	}
	built.runsc, _ = filepath.Abs("../../bin/runsc")
	if _, err := os.Stat(built.runsc); err != nil {
		built.runsc, _ = exec.LookPath("runsc")
	}
	return s.M.Run()
}

// environment is a kind of sandbox that the tests run in.
type environment struct {
	name  string
	start func(t testing.TB, g agent.Guest) *guest
	tool  string // its path inside
}

var asProcess = environment{"process", startProcess, ""}
var inGvisor = environment{"runsc", startGvisor, "/tool"}

// everywhere runs a test in each environment that the machine has.
func everywhere(t *testing.T, test func(t *testing.T, e environment)) {
	for _, e := range []environment{asProcess, inGvisor} {
		t.Run(e.name, func(t *testing.T) {
			e.need(t)
			if e.tool == "" {
				e.tool = built.tool
			}
			test(t, e)
		})
	}
}

func (e *environment) need(t testing.TB) {
	need.Root(t)
	if e.name == "runsc" && built.runsc == "" {
		need.Missing(t, "runsc is neither in bin nor on the PATH: run hack/toolchain.sh")
	}
}

// guest is a running agent.
type guest struct {
	cmd  *exec.Cmd
	done chan struct{}
	log  *bytes.Buffer // complete when done
	// destroy ends a sandbox that is more than cmd, terminate sends SIGTERM to its PID 1.
	destroy, terminate func()
	flags              []string // state directory of runsc
	id                 string   // of the container
}

// term sends SIGTERM to PID 1.
func (g *guest) term(t testing.TB) {
	t.Helper()
	if g.terminate != nil {
		g.terminate()
	} else if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// kill ends the sandbox without a message to the agent.
func (g *guest) kill(t testing.TB) {
	t.Helper()
	if g.destroy != nil {
		g.destroy()
	} else if err := g.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	g.code(t)
}

// code is the exit code of PID 1.
func (g *guest) code(t testing.TB) int {
	wait.Receive(t, "the end of the sandbox", g.done)
	return g.cmd.ProcessState.ExitCode()
}

func run(t testing.TB, cmd *exec.Cmd) *guest {
	g := &guest{cmd: cmd, done: make(chan struct{}), log: &bytes.Buffer{}}
	cmd.Stdout, cmd.Stderr = g.log, g.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // the state has the code
		close(g.done)
	}()
	return g
}

func startProcess(t testing.TB, gs agent.Guest) *guest {
	var dir, logs string
	for _, m := range gs.Mounts {
		switch m.Target {
		case "/run/runtime/agent":
			dir = m.Source
		case "/run/runtime/log":
			logs = m.Source
		}
	}
	cmd := exec.Command(built.checked, dir, logs)
	cmd.Env = gs.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	g := run(t, cmd)
	g.destroy = func() { killTree(cmd.Process.Pid) }
	t.Cleanup(func() {
		g.destroy()
		<-g.done
		if strings.Contains(g.log.String(), "DATA RACE") {
			t.Error("the agent has a data race")
		}
		if t.Failed() {
			t.Logf("agent: %s", g.log)
		}
	})
	return g
}

// killTree kills an agent that is no PID 1, and its processes, which would outlive it.
func killTree(pid int) {
	if syscall.Kill(pid, syscall.SIGSTOP) != nil {
		return // it has ended, and everything with it
	}
	tree := []int{pid}
	for i := 0; i < len(tree); i++ {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", tree[i]))
		for _, l := range lists {
			b, _ := os.ReadFile(l) // of a process that has ended
			for f := range strings.FieldsSeq(string(b)) {
				if child, err := strconv.Atoi(f); err == nil {
					tree = append(tree, child)
				}
			}
		}
	}
	for _, p := range tree {
		_ = syscall.Kill(p, syscall.SIGKILL) // it may have ended
	}
}

var containers atomic.Int64

func startGvisor(t testing.TB, gs agent.Guest) *guest {
	bundle := t.TempDir()
	root := filepath.Join(bundle, "rootfs")
	for _, d := range []string{"etc", "proc", "dev", "tmp", "usr", "run"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+d, filepath.Join(root, d)); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:1234:1234::/home/app:/bin/sh\n")
	write("etc/group", "root:x:0:\napp:x:1234:\nextra:x:777:app,other\n")
	b, err := os.ReadFile(built.tool)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "tool"), b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	mounts := []object{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
		{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
		{"destination": "/usr", "type": "bind", "source": "/usr", "options": []string{"rbind", "ro"}},
	}
	for _, m := range gs.Mounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		mounts = append(mounts, object{"destination": m.Target, "type": "bind", "source": m.Source, "options": []string{"rbind", mode}})
	}
	spec := object{
		"ociVersion": "1.0.0",
		"process": object{
			"args": gs.Args, "env": gs.Env, "cwd": "/", "user": object{"uid": agentproto.VaultUID, "gid": agentproto.VaultUID}, "noNewPrivileges": true,
			"capabilities": object{"bounding": gs.Capabilities, "effective": gs.Capabilities, "permitted": gs.Capabilities, "inheritable": gs.Capabilities, "ambient": gs.Capabilities},
		},
		"root": object{"path": root}, "hostname": "sandbox", "mounts": mounts,
		"linux": object{"namespaces": []object{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"}}},
	}
	raw, err := json.Marshal(spec)
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	id := fmt.Sprintf("agent-test-%d-%d", os.Getpid(), containers.Add(1))
	flags := []string{"--root=" + state, "--network=none", "--host-uds=open", "--ignore-cgroups", "--in-sandbox-cgroup=v2"}
	if d := os.Getenv("AGENT_TEST_RUNSC_DEBUG"); d != "" {
		flags = append(flags, "--debug", "--debug-log="+d+"/")
	}
	g := run(t, exec.Command(built.runsc, append(flags, "run", "-bundle", bundle, id)...))
	g.flags, g.id = flags, id
	g.destroy = func() {
		_ = exec.Command(built.runsc, append(flags, "kill", id, "KILL")...).Run() // it may have ended
	}
	g.terminate = func() {
		if b, err := exec.Command(built.runsc, append(flags, "kill", id, "TERM")...).CombinedOutput(); err != nil {
			t.Errorf("runsc kill: %v: %s", err, b)
		}
	}
	t.Cleanup(func() {
		g.destroy()
		<-g.done
		_ = exec.Command(built.runsc, append(flags, "delete", "-force", id)...).Run() // run has deleted it
		_ = syscall.Unmount(filepath.Join(state, "null-netns"), syscall.MNT_DETACH)   // or the directory cannot be removed
		if t.Failed() {
			t.Logf("runsc: %s", g.log)
		}
	})
	return g
}

// fixture is a hub and one sandbox.
type fixture struct {
	t      testing.TB
	config agent.HubConfig
	hub    *agent.Hub
	guest  *guest
	conn   *agent.Conn
}

const id = "box-1"

func newFixture(t testing.TB, e environment, c agent.GuestConfig) *fixture {
	f := &fixture{t: t, config: agent.HubConfig{
		Dir: filepath.Join(t.TempDir(), "agents"), LogDir: filepath.Join(t.TempDir(), "logs"), AgentPath: built.agent, AgentDir: filepath.Join(t.TempDir(), "programs"),
		Heartbeat: 500 * time.Millisecond,
	}}
	if testing.Verbose() {
		f.config.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	f.hub = agent.NewHub(f.config)
	t.Cleanup(func() { f.hub.Close() })
	g, err := f.hub.Prepare(id, c)
	if err != nil {
		t.Fatal(err)
	}
	f.guest = e.start(t, g)
	f.connect()
	return f
}

func (f *fixture) connect() {
	f.t.Helper()
	var err error
	if f.conn, err = f.hub.Conn(f.ctx(), id); err != nil {
		f.t.Fatal(err)
	}
}

// begin starts main, which must not end before the agent has connected:
// otherwise no agent would connect any more.
func (f *fixture) begin() {
	f.t.Helper()
	if err := f.conn.StartMain(f.ctx()); err != nil {
		f.t.Fatal(err)
	}
}

// ctx bounds one step of a test.
func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	f.t.Cleanup(cancel)
	return ctx
}

// restart replaces the hub as a restart of the server does.
func (f *fixture) restart() {
	f.t.Helper()
	f.hub.Close()
	f.hub = agent.NewHub(f.config)
	f.t.Cleanup(func() { f.hub.Close() })
	if err := f.hub.Attach(id); err != nil {
		f.t.Fatal(err)
	}
	f.connect()
}

// result is the output and exit code of an exec.
type result struct {
	out, err string
	code     int
}

func (f *fixture) exec(s execution.ExecSpec) result {
	f.t.Helper()
	r, err := execute(f.ctx(), f.conn, s, "")
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

func (f *fixture) sh(script string) result {
	f.t.Helper()
	return f.exec(execution.ExecSpec{Command: []string{"/bin/sh", "-c", script}})
}

func execute(ctx context.Context, c *agent.Conn, s execution.ExecSpec, input string) (result, error) {
	p, err := c.Exec(ctx, s)
	if err != nil {
		return result{}, err
	}
	defer p.Close()
	return finish(ctx, p, input)
}

func finish(ctx context.Context, p execution.Process, input string) (result, error) {
	var out, errOut bytes.Buffer
	var oerr, eerr error
	var wg sync.WaitGroup
	wg.Go(func() { _, oerr = io.Copy(&out, p.Stdout()) })
	wg.Go(func() { _, eerr = io.Copy(&errOut, p.Stderr()) })
	wg.Go(func() {
		_, _ = io.WriteString(p.Stdin(), input) // a process need not read it
		p.Stdin().Close()
	})
	code, err := p.Wait(ctx)
	wg.Wait()
	return result{out.String(), errOut.String(), code}, errors.Join(err, oerr, eerr)
}

// lines reads the log.
func (f *fixture) lines(q execution.LogQuery) []string {
	f.t.Helper()
	var list []string
	err := f.hub.Logs(f.ctx(), id, q, func(l execution.LogLine) error {
		list = append(list, l.Stream+" "+l.Text)
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return list
}
