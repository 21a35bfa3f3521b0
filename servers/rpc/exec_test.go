package rpcserver_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/wait"
)

type execClient = rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput]

func (e *env) exec(ctx context.Context, req *sandbox.ExecRequest) execClient {
	e.Helper()
	st, err := e.sandboxes.Exec(ctx, req)
	e.must(err)
	e.Cleanup(func() { st.Close() })
	return st
}

// result is the messages of an exec.
type result struct {
	started      id.Sandbox
	stdout, errs string
	code         int64
}

func (e *env) result(st execClient) (result, error) {
	r := result{code: -1}
	msgs, err := all(st)
	for i, m := range msgs {
		switch {
		case m.Started != "":
			r.started = m.Started
			if i != 0 {
				e.Error("started is not the first message")
			}
		case m.ExitCode != nil:
			r.code = *m.ExitCode
			if i != len(msgs)-1 {
				e.Error("the exit code is not the last message")
			}
		}
		r.stdout += string(m.Stdout)
		r.errs += string(m.Stderr)
	}
	return r, err
}

func TestExec(t *testing.T) {
	e := newEnv(t)
	sb := e.run("stub")
	a, v := e.app("shop")
	ready := e.appSandbox(a, v, "web", "stub")
	for _, tc := range []struct {
		name string
		req  sandbox.ExecRequest
		want result
	}{
		{"output", sandbox.ExecRequest{Command: []string{"/bin/guest", "echo", "hi"}}, result{stdout: "hi\n"}},
		{"error stream", sandbox.ExecRequest{Command: []string{"/bin/guest", "err", "oh"}}, result{errs: "oh\n"}},
		{"code", sandbox.ExecRequest{Command: []string{"/bin/guest", "exit", "42"}}, result{code: 42}},
		{"signal", sandbox.ExecRequest{Command: []string{"/bin/guest", "signal", "15"}}, result{code: 143}},
		{"terminal", sandbox.ExecRequest{Command: []string{"/bin/guest", "echo", "hi"}, TTY: ptr(true)}, result{stdout: "hi\r\n"}},
		{"no input", sandbox.ExecRequest{Command: []string{"/bin/guest", "cat"}}, result{}},
		{"missing", sandbox.ExecRequest{Command: []string{"/none"}}, result{errs: "/none cannot be run\n", code: 127}},
		{"app", sandbox.ExecRequest{App: "shop", Command: []string{"/bin/guest", "echo", "hi"}}, result{started: ready.GetID(), stdout: "hi\n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.req.App == "" {
				tc.req.Sandbox, tc.want.started = sb.GetID(), sb.GetID()
			}
			got, err := e.result(e.exec(e.ctx(), &tc.req))
			if err != nil || got != tc.want {
				t.Errorf("%+v, %v; want %+v", got, err, tc.want)
			}
		})
	}
	// Of two programs that are killed, the first for memory; the sandbox goes on.
	t.Run("out of memory", func(t *testing.T) {
		for command, want := range map[string]string{"mapped": "killed: out of memory: the limit of its sandbox is 512 MiB: raise memory of [services.web] in app.toml", "signal": ""} {
			msgs, err := all(e.exec(e.ctx(), &sandbox.ExecRequest{App: "shop", Command: []string{"/bin/guest", command, "9"}}))
			if err != nil {
				t.Fatal(err)
			}
			said := ""
			for _, m := range msgs {
				said += m.Note
			}
			if last := msgs[len(msgs)-1]; said != want || *last.ExitCode != 137 || (last.Reason == sandbox.EndReasonOOM) != (want != "") {
				t.Errorf("%s: %q, %+v", command, said, last)
			}
		}
	})
	t.Run("environment", func(t *testing.T) {
		got, err := e.result(e.exec(e.ctx(), &sandbox.ExecRequest{
			Sandbox: sb.GetID(), Command: []string{"/bin/guest", "env"}, Env: map[string]string{"A": "1", "B": "x=y"},
		}))
		if err != nil || !strings.Contains(got.stdout, "A=1\nB=x=y\n") {
			t.Errorf("%+v, %v", got, err)
		}
	})
	// The data is much larger than any buffer, in both directions.
	t.Run("input", func(t *testing.T) {
		data := bytes.Repeat([]byte("0123456789abcdef"), 256<<10)
		st := e.exec(e.ctx(), &sandbox.ExecRequest{Sandbox: sb.GetID(), Command: []string{"/bin/guest", "cat"}, Stdin: ptr(true)})
		sent := make(chan error, 1)
		go func() {
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 100_000)
				if err := st.Send(&sandbox.ExecInput{Stdin: rest[:n]}); err != nil {
					sent <- err
					return
				}
				rest = rest[n:]
			}
			sent <- st.CloseSend()
		}()
		got, err := e.result(st)
		if err != nil || got.code != 0 || got.stdout != string(data) {
			t.Errorf("%d bytes of %d, code %d, %v", len(got.stdout), len(data), got.code, err)
		}
		e.must(<-sent)
	})
	t.Run("signals", func(t *testing.T) {
		st := e.exec(e.ctx(), &sandbox.ExecRequest{Sandbox: sb.GetID(), Command: []string{"/bin/guest", "sleep"}, Stdin: ptr(true)})
		for _, m := range []*sandbox.ExecInput{
			{Resize: &sandbox.TerminalSize{Rows: 10, Cols: 20}}, {CloseStdin: ptr(true)}, {Stdin: []byte("too late")}, {Signal: ptr(int64(15))},
		} {
			e.must(st.Send(m))
		}
		if got, err := e.result(st); err != nil || got.code != 0 || got.stdout != "sleeping\ntold to stop\n" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	// A caller that ends without reading leaves nothing behind.
	for name, leave := range map[string]func(execClient, context.CancelFunc){
		"closed":   func(st execClient, _ context.CancelFunc) { st.Close() },
		"canceled": func(_ execClient, cancel context.CancelFunc) { cancel() },
	} {
		for _, command := range []string{"stub", "flood"} {
			t.Run(name+" "+command, func(t *testing.T) {
				ctx, cancel := context.WithCancel(e.ctx())
				defer cancel()
				st := e.exec(ctx, &sandbox.ExecRequest{Sandbox: sb.GetID(), Command: []string{"/bin/guest", command, "100000000"}, Stdin: ptr(true)})
				if m, err := st.Recv(); err != nil || m.Started == "" {
					t.Fatal(m, err)
				}
				if n := e.machine.Processes(string(sb.ID)); n != 1 {
					t.Errorf("%d processes", n)
				}
				leave(st, cancel)
				wait.For(e, "it is killed", func() bool { return e.machine.Processes(string(sb.ID)) == 0 })
			})
		}
	}
	t.Run("sandbox ends", func(t *testing.T) {
		other := e.run("stub")
		st := e.exec(e.ctx(), &sandbox.ExecRequest{Sandbox: other.GetID(), Command: []string{"/bin/guest", "stub"}})
		if _, err := st.Recv(); err != nil {
			t.Fatal(err)
		}
		e.machine.Exit(string(other.ID), 1)
		if got, err := e.result(st); err != nil || got.code != 137 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestExecWaitsForSetUp(t *testing.T) {
	e := newEnv(t)
	sb := e.sandbox("stub")
	st := e.exec(e.ctx(), &sandbox.ExecRequest{Sandbox: sb.GetID(), Command: []string{"/bin/guest", "echo", "hi"}})
	e.place(sb)
	if got, err := e.result(st); err != nil || got.stdout != "hi\n" || got.code != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestTaggedProcessOutlivesTheServer: a process is killed when the server stops, but
// one with a tag goes on, for the next server.
func TestTaggedProcessOutlivesTheServer(t *testing.T) {
	e := newEnv(t)
	sb := e.run("stub")
	for _, tag := range []string{"", "tag"} {
		st := e.exec(e.ctx(), &sandbox.ExecRequest{Sandbox: sb.GetID(), Command: []string{"/bin/guest", "sleep"}, Tag: tag})
		if m, err := st.Recv(); err != nil || m.Process == "" {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	e.must(e.rpc.Shutdown(e.ctx()))
	wait.For(t, "the other one is killed", func() bool {
		list, err := e.machine.Driver().Processes(t.Context(), string(sb.ID))
		return err == nil && len(list) == 1 && list[0].Tag == "tag"
	})
}

func TestExecRefused(t *testing.T) {
	e := newEnv(t)
	ended := e.run("exit", "1")
	e.until(ended, sandbox.WaitUntilEnded)
	e.app("shop")
	hi := []string{"/bin/guest", "echo", "hi"}
	for _, tc := range []struct {
		name string
		req  sandbox.ExecRequest
		want errs.Class
	}{
		{"nowhere", sandbox.ExecRequest{Command: hi}, errs.InvalidArgument},
		{"twice", sandbox.ExecRequest{Command: hi, Sandbox: ended.GetID(), App: "shop"}, errs.InvalidArgument},
		{"nothing", sandbox.ExecRequest{Sandbox: ended.GetID()}, errs.InvalidArgument},
		{"NUL", sandbox.ExecRequest{Sandbox: ended.GetID(), Command: []string{"a\x00b"}}, errs.InvalidArgument},
		{"name", sandbox.ExecRequest{Sandbox: ended.GetID(), Command: hi, Env: map[string]string{"A=B": "1"}}, errs.InvalidArgument},
		{"long", sandbox.ExecRequest{Sandbox: ended.GetID(), Command: []string{strings.Repeat("x", 2<<20)}}, errs.InvalidArgument},
		{"ended", sandbox.ExecRequest{Sandbox: ended.GetID(), Command: hi}, errs.FailedPrecondition},
		{"unknown", sandbox.ExecRequest{Sandbox: id.NewSandbox(), Command: hi}, errs.NotFound},
		{"path", sandbox.ExecRequest{Sandbox: "../../etc", Command: hi}, errs.InvalidArgument},
		{"no app", sandbox.ExecRequest{App: "none", Command: hi}, errs.NotFound},
		{"not ready", sandbox.ExecRequest{App: "shop", Command: hi}, errs.FailedPrecondition},
	} {
		_, err := e.result(e.exec(e.ctx(), &tc.req))
		e.class(tc.name, err, tc.want)
	}
}

// counter counts what is written to it.
type counter struct {
	io.Writer
	n atomic.Int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// TestSignalOvertakesInput: a process that does not read its input is killed
// while the input waits for it.
func TestSignalOvertakesInput(t *testing.T) {
	e := newEnv(t)
	sb := e.run("stub")
	p, err := e.service.Node.Exec(e.ctx(), sb.GetID(), sandboxes.ExecSpec{Command: []string{"/bin/guest", "stub"}})
	e.must(err)
	in, written := &counter{Writer: p.Stdin()}, make(chan struct{})
	defer func() { _ = p.Close(); wait.Receive(t, "the input ends", written) }()
	go func() {
		defer close(written)
		for _, err := in.Write(make([]byte, 32<<10)); err == nil; _, err = in.Write(make([]byte, 32<<10)) {
		}
	}()
	wait.For(t, "the process has more input than it takes", func() bool { return in.n.Load() >= 64<<10 })
	e.must(p.Signal(e.ctx(), int(syscall.SIGKILL)))
	if code, err := p.Wait(e.ctx()); err != nil || code != 137 {
		t.Errorf("%d, %v", code, err)
	}
}
