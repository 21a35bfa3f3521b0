package agent_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

func TestMainNotFound(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{Command: []string{"no-such-program"}, Start: agent.StartOnRequest})
		err := f.conn.StartMain(f.ctx())
		if errs.Detail(err, "exit_code") != "127" {
			t.Errorf("start: %v", err)
		}
		if code := f.guest.code(t); code != 127 {
			t.Errorf("PID 1 exited with %d", code)
		}
		if x, err := f.hub.Exit(id); err != nil || x.Code != 127 || !strings.Contains(x.Message, "command not found") {
			t.Errorf("recorded %+v %v", x, err)
		}
	})
}

// The end of a sandbox must be known even if no hub listened.
func TestMainEndsAlone(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{Command: []string{"sh", "-c", "sleep 1; echo last words; exit 6"}, Start: agent.StartOnRequest})
		f.begin()
		f.hub.Close()
		if code := f.guest.code(t); code != 6 {
			t.Errorf("PID 1 exited with %d", code)
		}
		f.hub = agent.NewHub(f.config)
		defer f.hub.Close()
		if err := f.hub.Attach(id); err != nil {
			t.Fatal(err)
		}
		if x, err := f.hub.Exit(id); err != nil || x.Code != 6 {
			t.Errorf("recorded %+v %v", x, err)
		}
		if l := f.lines(execution.LogQuery{}); len(l) != 1 || l[0] != "stdout last words" {
			t.Errorf("log %q", l)
		}
	})
}

func TestForwardsSignals(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{Command: []string{e.tool, "trap"}})
		wait.For(t, "main is ready", func() bool { return len(f.lines(execution.LogQuery{})) == 1 })
		f.guest.term(t)
		if code := f.guest.code(t); code != 7 {
			t.Errorf("PID 1 exited with %d", code)
		}
		if got := strings.Join(f.lines(execution.LogQuery{}), ","); got != "stdout ready,stdout got terminated" {
			t.Errorf("log %q", got)
		}
	})
}

func TestSignalMain(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{Command: []string{e.tool, "sleep"}})
		p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{"cat"}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		began := time.Now()
		if err := f.conn.Signal(f.ctx(), 9); err != nil {
			t.Fatal(err)
		}
		if code, err := p.Wait(f.ctx()); err != nil || code != 143 && code != 137 {
			t.Errorf("the exec ended with %d, %v", code, err)
		}
		if code := f.guest.code(t); code != 137 {
			t.Errorf("PID 1 exited with %d", code)
		}
		t.Logf("ended after %v", time.Since(began))
		if x, err := f.hub.Exit(id); err != nil || x.Code != 137 || x.Message != "ended by signal 9" {
			t.Errorf("recorded %+v %v", x, err)
		}
		if err := f.conn.Signal(f.ctx(), 9); !errs.Is(err, errs.Unavailable) {
			t.Errorf("signal after the end: %v", err)
		}
	})
}

func TestWithoutMain(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		if s := f.conn.Main(); s.State != agent.MainNone {
			t.Errorf("main is %+v", s)
		}
		if err := f.conn.StartMain(f.ctx()); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("start: %v", err)
		}
		for _, sig := range []int{1, 15} { // the first mode is for a main process only
			if err := f.conn.Signal(f.ctx(), sig); err != nil {
				t.Error(err)
			}
		}
		if code := f.guest.code(t); code != 143 {
			t.Errorf("PID 1 exited with %d", code)
		}
		if x, err := f.hub.Exit(id); err != nil || x.Code != 143 {
			t.Errorf("recorded %+v %v", x, err)
		}
	})
}

func TestAgentKilled(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{Command: []string{e.tool, "sleep"}})
		p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{"cat"}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		f.guest.kill(t)
		wait.For(t, "the loss is noticed", func() bool { return !f.conn.Connected() })
		if _, err := f.hub.Exit(id); !errs.Is(err, errs.NotFound) {
			t.Errorf("an exit is recorded: %v", err)
		}
		if err := f.hub.End(id, execution.Exit{Cause: execution.CauseCrash, Code: 137, Message: "gone"}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(f.ctx()); !errs.Is(err, errs.Unavailable) {
			t.Errorf("exec: %v", err)
		}
		if x, err := f.hub.Exit(id); err != nil || x.Cause != execution.CauseCrash || x.Message != "gone" {
			t.Errorf("recorded %+v %v", x, err)
		}
		f.lines(execution.LogQuery{Follow: true}) // returns
		if _, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{"true"}}); !errs.Is(err, errs.Unavailable) {
			t.Errorf("exec after the end: %v", err)
		}
	})
}

func TestExecRunsAsUser(t *testing.T) {
	e := inGvisor
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{User: "app"})
	for _, c := range []struct{ user, want string }{
		{"", "uid 1234 gid 1234;groups [1234 777]"},
		{"app", "uid 1234 gid 1234;groups [1234 777]"},
		{"1234", "uid 1234 gid 1234;groups [1234 777]"},
		{"app:extra", "uid 1234 gid 777;groups [777]"},
		{"4321:8765", "uid 4321 gid 8765;groups [8765]"},
		{"4321", "uid 4321 gid 0;groups [0]"},
		{"root", "uid 0 gid 0;groups [0]"},
	} {
		r := f.exec(execution.ExecSpec{Command: []string{e.tool, "status"}, User: c.user})
		lines := strings.Split(strings.TrimSpace(r.out), "\n")
		if got := strings.Join(lines[len(lines)-2:], ";"); got != c.want {
			t.Errorf("%q: %s, want %s", c.user, got, c.want)
		}
		for _, l := range lines[:len(lines)-2] {
			if strings.HasPrefix(l, "Cap") && !strings.HasSuffix(l, " 0000000000000000") {
				t.Errorf("%q has %s", c.user, l)
			}
			if strings.HasPrefix(l, "NoNewPrivs") && l != "NoNewPrivs: 1" {
				t.Errorf("%q has %s", c.user, l)
			}
		}
		if len(lines) < 7 {
			t.Errorf("%q: %q", c.user, lines)
		}
		// The sandbox's processes can read neither the token nor the log.
		paths := []string{"/run/runtime/agent/config", "/run/runtime/log/0000000000000000.log", "/run/runtime/log", "/proc/1/mem", "/proc/1/environ"}
		r = f.exec(execution.ExecSpec{Command: append([]string{e.tool, "open"}, paths...), User: c.user})
		for _, p := range paths {
			if !strings.Contains(r.out, p+" false\n") {
				t.Errorf("%q can read: %s", c.user, r.out)
				break
			}
		}
		if r = f.exec(execution.ExecSpec{Command: []string{"sh", "-c", "echo x >/run/runtime/log/x"}, User: c.user}); r.code == 0 {
			t.Errorf("%q can write a log: %+v", c.user, r)
		}
		if r = f.exec(execution.ExecSpec{Command: []string{"sh", "-c", "kill -9 1"}, User: c.user}); r.code == 0 {
			t.Errorf("%q can kill the agent", c.user)
		}
	}
	r := f.exec(execution.ExecSpec{Command: []string{"sh", "-c", "echo $HOME; tty; touch $(tty) && echo mine"}, TTY: true})
	if !strings.Contains(r.out, "/home/app") || !strings.Contains(r.out, "mine") {
		t.Errorf("terminal: %q", r.out)
	}
}

func TestListeningFindsPorts(t *testing.T) {
	e := inGvisor
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{Command: []string{e.tool, "listen", "127.0.0.1:8001", "0.0.0.0:8002", ":8003", "[::1]:8004"}})
	var got string
	wait.For(t, "all listen", func() bool { return len(f.lines(execution.LogQuery{})) > 0 })
	list, err := f.conn.Listening(f.ctx())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		got += fmt.Sprintf("%d %v;", l.Port, l.Loopback())
	}
	if want := "8001 true;8002 false;8003 false;8004 true;"; got != want {
		t.Errorf("got %s want %s", got, want)
	}
}

func TestLimitPIDs(t *testing.T) {
	e := inGvisor
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{PIDs: 60})
	p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{e.tool, "fork", "100"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if l, err := bufio.NewReader(p.Stdout()).ReadString('\n'); !strings.HasPrefix(l, "failed after") {
		t.Errorf("%q %v", l, err)
	}
	// The agent lives, and returns the reason why no further process can be
	// started.
	if _, err = f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{e.tool, "status"}}); err != nil && !strings.Contains(err.Error(), "limit of processes") {
		t.Error(err)
	}
	if _, err := f.conn.Listening(f.ctx()); err != nil {
		t.Error(err)
	}
	p.Close()
	r := result{code: -1}
	wait.For(t, "there is room again", func() bool {
		r, err = execute(f.ctx(), f.conn, execution.ExecSpec{Command: []string{e.tool, "status"}}, "")
		return err == nil && r.code == 0
	})
	if strings.Contains(r.out, "CapEff: 0000000000200000") {
		t.Errorf("a process may mount: %s", r.out)
	}
	if r = f.sh("cat /proc/1/status | grep CapPrm; grep cgroup /proc/mounts"); r.out != "CapPrm:\t00000000000001e3\n" {
		t.Errorf("the agent may mount, or the limit is visible: %s", r.out)
	}
}

func TestRemovedSandboxIsUnknown(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{Command: []string{"echo", "hello"}, Start: agent.StartOnRequest})
		f.begin()
		f.guest.code(t)
		if ids, err := f.hub.IDs(); err != nil || len(ids) != 1 || ids[0] != id {
			t.Errorf("ids %q %v", ids, err)
		}
		for range 2 {
			if err := f.hub.Remove(id); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.hub.Conn(f.ctx(), id); !errs.Is(err, errs.NotFound) {
			t.Errorf("connection: %v", err)
		}
		if err := f.hub.Attach(id); !errs.Is(err, errs.NotFound) {
			t.Errorf("attach: %v", err)
		}
		if l := f.lines(execution.LogQuery{Follow: true}); len(l) != 1 {
			t.Errorf("log %q", l)
		}
		for range 2 {
			if err := f.hub.RemoveLogs(id); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.hub.Logs(f.ctx(), id, execution.LogQuery{}, nil); !errs.Is(err, errs.NotFound) {
			t.Errorf("logs: %v", err)
		}
		for _, dir := range []string{f.config.Dir, f.config.LogDir} {
			if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		}
	})
}

// TestMainThatEndsBeforeTheAnswer: the end of a main process may take the answer to its start with it. The agent's
// record says that it was started.
func TestMainThatEndsBeforeTheAnswer(t *testing.T) {
	for _, recorded := range []bool{true, false} {
		p := newPeer(t)
		conn, err := p.hub.Conn(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		started := make(chan error, 1)
		go func() { started <- conn.StartMain(t.Context()) }()
		if _, ok := p.await(agentproto.TStartMain); !ok {
			t.Fatal("the connection ended before the main process was started")
		}
		if recorded {
			record := agentproto.AppendExitFile(nil, agentproto.Exit{Code: 3, At: 1})
			if err := os.WriteFile(filepath.Join(p.spool, agentproto.ExitName), record, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p.c.Close()
		err = wait.Receive(t, "the start returns", started)
		if recorded != (err == nil) {
			t.Errorf("recorded: %v, the start: %v", recorded, err)
		}
	}
}
