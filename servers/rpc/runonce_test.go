package rpcserver_test

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// once starts a command in a new sandbox.
func (e *env) once(ctx context.Context, change func(*sandbox.RunOnceRequest), command ...string) execClient {
	e.Helper()
	req := &sandbox.RunOnceRequest{Sandbox: sandbox.RunRequest{Image: "image", Command: append([]string{"/bin/guest"}, command...)}}
	if change != nil {
		change(req)
	}
	st, err := e.sandboxes.RunOnce(ctx, req)
	e.must(err)
	e.Cleanup(func() { st.Close() })
	return st
}

// only waits for the single sandbox.
func (e *env) only() *sandbox.Sandbox {
	e.Helper()
	var list []*sandbox.Sandbox
	wait.For(e, "there is one sandbox", func() bool {
		var err error
		list, _, err = entity.List[sandbox.Sandbox](e.Context(), e.store.Store, entity.Query{})
		e.must(err)
		return len(list) == 1
	})
	return list[0]
}

// none waits until no entity and nothing on the machine is left.
func (e *env) none() {
	e.Helper()
	wait.For(e, "no sandbox is left", func() bool {
		list, _, err := entity.List[sandbox.Sandbox](e.Context(), e.store.Store, entity.Query{})
		e.must(err)
		return len(list) == 0 && len(e.machine.IDs()) == 0
	})
}

func TestRunOnce(t *testing.T) {
	e := newEnv(t)
	for _, tc := range []struct {
		name   string
		change func(*sandbox.RunOnceRequest)
		args   []string
		want   result
	}{
		{"output", nil, []string{"echo", "hi"}, result{stdout: "hi\n"}},
		{"code", nil, []string{"exit", "42"}, result{code: 42}},
		{"terminal", func(r *sandbox.RunOnceRequest) { r.TTY = ptr(true) }, []string{"echo", "hi"}, result{stdout: "hi\r\n"}},
		{"environment", func(r *sandbox.RunOnceRequest) { r.Sandbox.EnvSecret = map[string]string{"A": "1"} }, []string{"env"}, result{stdout: "A=1\nFROM=image\nPATH=/bin\n"}},
		{"missing", func(r *sandbox.RunOnceRequest) { r.Sandbox.Command = []string{"/none"} }, nil, result{errs: "/none cannot be run\n", code: 127}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := e.once(e.ctx(), tc.change, tc.args...)
			sb := e.only()
			if sb.Lease == "" || len(sb.Spec.Template.Command) > 0 || !sb.Spec.Template.Idle {
				t.Errorf("%+v", sb)
			}
			e.place(sb)
			tc.want.started = sb.GetID()
			if got, err := e.result(st); err != nil || got != tc.want {
				t.Errorf("%+v, %v; want %+v", got, err, tc.want)
			}
			e.none()
		})
	}
}

func TestRunOnceKeepsTheSandbox(t *testing.T) {
	e := newEnv(t)
	st := e.once(e.ctx(), func(r *sandbox.RunOnceRequest) { r.Keep = ptr(true) }, "echo", "hi")
	e.place(e.only())
	if got, err := e.result(st); err != nil || got.stdout != "hi\n" {
		t.Errorf("%+v, %v", got, err)
	}
	sb := e.only()
	if got, err := e.result(e.exec(e.ctx(), &sandbox.ExecRequest{Sandbox: sb.GetID(), Command: []string{"/bin/guest", "echo", "again"}})); err != nil || got.stdout != "again\n" {
		t.Errorf("%+v, %v", got, err)
	}
}

// A caller that disconnects, at whatever moment, leaves nothing behind.
func TestRunOnceEndsWithItsCaller(t *testing.T) {
	e := newEnv(t)
	for name, until := range map[string]func(execClient){
		"at once":            func(execClient) {},
		"waiting for a node": func(execClient) { e.only() },
		"running": func(st execClient) {
			e.place(e.only())
			if m, err := st.Recv(); err != nil || m.Started == "" {
				t.Error(m, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(e.ctx())
			defer cancel()
			st := e.once(ctx, nil, "stub")
			until(st)
			cancel()
			e.none()
		})
	}
}

// The sandbox of an execution belongs to the execution, not to this server, and
// knows nothing of the variables of the process.
func TestRunOnceOfAnExecution(t *testing.T) {
	e := newEnv(t)
	x := execution.NewExecution()
	x.Project, x.Spec.Objects, x.Spec.InputBytes, x.Status.NotBefore = e.project, "x", 1, time.Now()
	e.must(entity.Create(e.ctx(), e.store.Store, x))
	var said []byte
	var wg sync.WaitGroup
	wg.Go(func() {
		_, p, err := e.service.RunOnce(e.ctx(), "", sandboxes.RunOnceRequest{
			CreateRequest: sandboxes.CreateRequest{Image: "image", Command: []string{"/bin/guest", "env"}, Execution: x.GetID()},
			ProcessEnv:    map[string]string{"A": "1"},
		})
		if err != nil {
			t.Error(err)
			return
		}
		defer p.Close()
		if said, err = io.ReadAll(p.Stdout()); err != nil {
			t.Error(err)
		}
	})
	sb := e.only()
	if sb.Lease != "" || sb.Spec.Execution != x.GetID() || len(sb.Spec.Template.Env) > 0 {
		t.Errorf("%+v", sb)
	}
	e.place(sb)
	wg.Wait()
	if string(said) != "A=1\nFROM=image\nPATH=/bin\n" {
		t.Errorf("variables %q", said)
	}
	e.none()

	ctx, cancel := context.WithCancel(e.ctx())
	wg.Go(func() {
		_, _, err := e.service.RunOnce(ctx, "", sandboxes.RunOnceRequest{
			CreateRequest: sandboxes.CreateRequest{Image: "image", Command: []string{"/bin/guest", "env"}, Execution: x.GetID()},
		})
		if err == nil {
			t.Error("it started without a node")
		}
	})
	e.only()
	cancel() // while it waits for a node
	wg.Wait()
	e.none()
}

// notes returns the messages until the end.
func notes(st execClient) (said []string, code int64, err error) {
	code = -1
	msgs, err := all(st)
	for _, m := range msgs {
		if m.Note != "" {
			said = append(said, m.Note)
		}
		if m.ExitCode != nil {
			code = *m.ExitCode
		}
	}
	return said, code, err
}

func TestRunOnceSaysWhyItWaits(t *testing.T) {
	e := newEnv(t)
	st := e.once(e.ctx(), func(r *sandbox.RunOnceRequest) { r.StartTimeout = ptr(2 * time.Second) }, "echo")
	_, err := entity.ModifyStatus(e.ctx(), e.store.Store, e.only().GetID(), func(s *sandbox.Sandbox) error {
		s.Status.Message = "no node has room"
		return nil
	})
	e.must(err)
	m, err := st.Recv()
	if err != nil || m.Note != "waiting: no node has room" {
		t.Errorf("%+v, %v", m, err)
	}
	_, _, err = notes(st)
	e.class("the deadline", err, errs.ResourceExhausted)
	if err == nil || !strings.Contains(err.Error(), "no node has room") {
		t.Errorf("%v", err)
	}
	e.none()
}

func TestRunOnceSaysWhyItEnded(t *testing.T) {
	e := newEnv(t)
	for name, tc := range map[string]struct {
		change func(*sandbox.RunOnceRequest)
		args   []string
		want   string
	}{
		"out of memory": {func(r *sandbox.RunOnceRequest) { r.Sandbox.MemoryBytes = ptr(int64(64 << 20)) }, []string{"memory", "100"}, "killed: out of memory: the limit of its sandbox is 64 MiB: make it with a larger --memory"},
		// The kernel ends the program alone, and the sandbox goes on.
		"program out of memory": {nil, []string{"mapped"}, "killed: out of memory: the limit of its sandbox is 512 MiB"},
		"ttl":                   {func(r *sandbox.RunOnceRequest) { r.Sandbox.TTL = ptr(time.Second) }, []string{"stub"}, "time to live of 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			st := e.once(e.ctx(), tc.change, tc.args...)
			e.place(e.only())
			said, code, err := notes(st)
			if err != nil || code < 128 || len(said) != 1 || !strings.Contains(said[0], tc.want) {
				t.Errorf("%q, %d, %v", said, code, err)
			}
			e.none()
		})
	}
}

func TestRunOnceRefused(t *testing.T) {
	e := newEnv(t)
	for name, change := range map[string]func(*sandbox.RunOnceRequest){
		"no command": func(r *sandbox.RunOnceRequest) { r.Sandbox.Command = nil },
		"no image":   func(r *sandbox.RunOnceRequest) { r.Sandbox.Image = "" },
		"NUL":        func(r *sandbox.RunOnceRequest) { r.Sandbox.Command = []string{"a\x00"} },
	} {
		_, err := e.result(e.once(e.ctx(), change, "echo"))
		e.class(name, err, errs.InvalidArgument)
	}
	e.none()
}

// TestRunOnceThatCannotBeCreated: its lease is revoked, and the caller gets the reason.
func TestRunOnceThatCannotBeCreated(t *testing.T) {
	e := newEnv(t)
	e.store.readOnly.Store(true)
	st, err := e.sandboxes.RunOnce(e.ctx(), &sandbox.RunOnceRequest{Sandbox: sandbox.RunRequest{Image: "guest", Command: []string{"/bin/guest", "echo"}}})
	if err == nil {
		_, err = all(st)
	}
	e.class("without a store that can be written", err, errs.Unavailable)
}
