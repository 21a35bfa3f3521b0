package rpcserver_test

import (
	"io"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// detached starts a process that goes on without its caller, and leaves it.
func (e *env) detached(sb id.Sandbox, command ...string) (process string) {
	e.Helper()
	st := e.exec(e.ctx(), &sandbox.ExecRequest{Sandbox: sb, Command: append([]string{"/bin/guest"}, command...), Detached: ptr(true), Tag: "mine"})
	m, err := st.Recv()
	e.must(err)
	if m.Started != sb || m.Process == "" {
		e.Fatalf("%+v", m)
	}
	e.must(st.Close())
	return m.Process
}

// process returns the description of a process; nil if the sandbox has it no more.
func (e *env) process(sb id.Sandbox, process string) *sandbox.Process {
	e.Helper()
	resp, err := e.sandboxes.Processes(e.ctx(), &sandbox.SandboxRequest{Sandbox: sb})
	e.must(err)
	if i := slices.IndexFunc(resp.Processes, func(p sandbox.Process) bool { return p.ID == process }); i >= 0 {
		return &resp.Processes[i]
	}
	return nil
}

func (e *env) attach(sb id.Sandbox, process string) execClient {
	e.Helper()
	st, err := e.sandboxes.Attach(e.ctx(), &sandbox.AttachRequest{Sandbox: sb, Process: process})
	e.must(err)
	e.Cleanup(func() { st.Close() })
	return st
}

func TestAttach(t *testing.T) {
	e := newEnv(t)
	sb := e.run("stub").GetID()
	long := e.detached(sb, "sleep")
	if p := e.process(sb, long); p == nil || p.ExitCode != nil || p.Tag != "mine" || p.Command[1] != "sleep" || p.Detached == nil || !*p.Detached {
		t.Fatalf("listed as %+v", p)
	}
	first := e.attach(sb, long)
	if m, err := first.Recv(); err != nil || m.Process != long || m.PID == nil || *m.PID != e.process(sb, long).PID {
		t.Fatal(m, err)
	}
	// A second caller gets the process, from its first output on.
	second := e.attach(sb, long)
	_, err := e.result(first)
	e.class("the first caller", err, errs.Canceled)
	e.must(second.Send(&sandbox.ExecInput{Signal: ptr(int64(15))}))
	if got, err := e.result(second); err != nil || got.stdout != "sleeping\ntold to stop\n" || got.code != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	wait.For(t, "it is forgotten, since a caller has its exit code", func() bool { return e.process(sb, long) == nil })

	// The end of a process without a caller is kept.
	short := e.detached(sb, "echo", "hi")
	wait.For(t, "it ends", func() bool { p := e.process(sb, short); return p != nil && p.ExitCode != nil })
	if got, err := e.result(e.attach(sb, short)); err != nil || got.stdout != "hi\n" || got.code != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	// One caller reads from an offset on, and leaves the end to others.
	kept := e.detached(sb, "echo", "hello")
	wait.For(t, "it ends", func() bool { p := e.process(sb, kept); return p != nil && p.ExitCode != nil })
	for range 2 {
		st, err := e.sandboxes.Attach(e.ctx(), &sandbox.AttachRequest{Sandbox: sb, Process: kept, StdoutOffset: ptr(int64(2)), Keep: ptr(true)})
		e.must(err)
		var text string
		for m, err := st.Recv(); err == nil; m, err = st.Recv() {
			if text += string(m.Stdout); m.Stdout != nil && (m.Offset == nil || *m.Offset != 2) {
				t.Errorf("%+v", m)
			}
			if m.ExitCode != nil && *m.ExitCode != 0 {
				t.Errorf("%+v", m)
			}
		}
		if text != "llo\n" {
			t.Errorf("%q", text)
		}
	}
	// The input of a process on a terminal stays open for its next caller.
	st := e.exec(e.ctx(), &sandbox.ExecRequest{Sandbox: sb, Command: []string{"/bin/guest", "cat"}, Detached: ptr(true), TTY: ptr(true)})
	m, err := st.Recv()
	e.must(err)
	e.must(st.Close())
	third := e.attach(sb, m.Process)
	e.must(third.Send(&sandbox.ExecInput{Stdin: []byte("typed\n")}))
	e.must(third.Send(&sandbox.ExecInput{CloseStdin: ptr(true)}))
	if got, err := e.result(third); err != nil || got.stdout != "typed\r\n" || got.code != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = e.result(e.attach(sb, "none"))
	e.class("no process", err, errs.NotFound)
	_, err = e.sandboxes.Processes(e.ctx(), &sandbox.SandboxRequest{Sandbox: e.sandbox("stub").GetID()})
	e.class("a sandbox without node", err, errs.FailedPrecondition)
}

func TestDial(t *testing.T) {
	e := newEnv(t)
	sb := e.run("serve", "8082").GetID()
	wait.For(t, "it listens", func() bool {
		resp, err := e.sandboxes.Ports(e.ctx(), &sandbox.SandboxRequest{Sandbox: sb})
		e.must(err)
		return slices.Equal(resp.Ports, []int64{8082})
	})
	st, err := e.sandboxes.Dial(e.ctx(), &sandbox.DialRequest{Sandbox: sb, Port: 8082})
	e.must(err)
	defer st.Close()
	_, err = io.WriteString(st.Writer(), "GET /half HTTP/1.0\r\n\r\n")
	e.must(err)
	e.must(st.CloseSend())
	if b, err := io.ReadAll(st.Reader()); err != nil || !strings.HasSuffix(string(b), "hello /half\n") {
		t.Errorf("%q, %v", b, err)
	}
	st, err = e.sandboxes.Dial(e.ctx(), &sandbox.DialRequest{Sandbox: sb, Port: 8083})
	e.must(err)
	defer st.Close()
	_, err = io.ReadAll(st.Reader())
	e.class("a port on which nothing listens", err, errs.FailedPrecondition)
}
