package cli_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// fakeInterpreter answers with the request, as the code says.
type fakeInterpreter struct{ *fake }

func (f fakeInterpreter) Run(_ context.Context, req *interpreter.RunRequest, st rpc.ServerStream[rpc.None, interpreter.RunEvent]) error {
	yes, outcome := true, interpreter.OutcomeCompleted
	event := &interpreter.RunEvent{Stdout: strings.Join([]string{string(req.Sandbox), req.Language, req.Context, req.Env["A"], req.Code}, "|") + "\n"}
	switch req.Code {
	case "table":
		event = &interpreter.RunEvent{Result: &interpreter.Result{Formats: map[string]string{"text/plain": "a", "text/html": "<b>a</b>"}, Main: &yes}}
	case "raise":
		outcome = interpreter.OutcomeFailed
		event = &interpreter.RunEvent{Error: &interpreter.CodeError{Name: "ValueError", Value: "no", Traceback: "line 1\nValueError: no"}}
	case "loop":
		outcome = interpreter.OutcomeTimeout
		event = &interpreter.RunEvent{Error: &interpreter.CodeError{Name: "Interrupted", Value: "over"}}
	}
	lost := outcome == interpreter.OutcomeTimeout
	for _, e := range []*interpreter.RunEvent{event, {End: &interpreter.RunEnd{Outcome: outcome, Count: 1, StateLost: &lost}}} {
		if err := st.Send(e); err != nil {
			return err
		}
	}
	return nil
}

func (f fakeInterpreter) context(name string) interpreter.CodeContext {
	busy, at := true, time.Now().Add(-90*time.Second)
	return interpreter.CodeContext{ID: name, Language: "python", Workdir: "/home/user", Busy: &busy, Executions: 3, CreatedAt: &at}
}

func (f fakeInterpreter) Create(_ context.Context, req *interpreter.CreateContextRequest) (*interpreter.ContextResponse, error) {
	return &interpreter.ContextResponse{Context: f.context("made-" + req.Language + req.Env["A"])}, nil
}

func (f fakeInterpreter) List(context.Context, *interpreter.ContextsRequest) (*interpreter.ContextsResponse, error) {
	return &interpreter.ContextsResponse{Contexts: []interpreter.CodeContext{f.context("c1")}}, nil
}

func (f fakeInterpreter) Interrupt(_ context.Context, req *interpreter.ContextRequest) (*interpreter.ContextResponse, error) {
	return f.Restart(context.Background(), req)
}

func (f fakeInterpreter) Restart(_ context.Context, req *interpreter.ContextRequest) (*interpreter.ContextResponse, error) {
	return &interpreter.ContextResponse{Context: f.context(req.Context)}, f.Delete(context.Background(), req)
}

func (f fakeInterpreter) Delete(_ context.Context, req *interpreter.ContextRequest) error {
	if req.Context != "c1" {
		return errs.New(errs.NotFound, "context %s does not exist", req.Context)
	}
	return nil
}

func TestCode(t *testing.T) {
	f := newFake(t)
	f.shop()
	const id = "sb-abcdef0123456789"
	file := filepath.Join(t.TempDir(), "code.py")
	if err := os.WriteFile(file, []byte("in a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args     []string
		stdin    string
		code     int
		out, err string // that each contains
	}{
		{args: []string{"-l", "js", "--context", "c1", "-e", "A=1", "x + 1"}, out: id + "|js|c1|1|x + 1\n"},
		{args: []string{"-"}, stdin: "piped", out: "|piped\n"},
		{args: []string{"--file", file}, out: "|in a file\n"},
		{args: []string{"table"}, out: "a\n", err: "also as text/html"},
		{args: []string{"raise"}, code: exit.Failed, err: "line 1\nValueError: no\n"},
		{args: []string{"loop"}, code: 124, err: "Interrupted: over\n"},
		{args: []string{"loop"}, code: 124, err: "variables are gone"},
		{args: []string{"table", "--json"}, out: `{"result":{"formats":{"text/html":"\u003cb\u003ea\u003c/b\u003e","text/plain":"a"},"main":true}}` + "\n"},
		{args: []string{"table", "--json"}, out: `"outcome":"completed"`},
		{args: nil, code: exit.Usage, err: "--file"},
		{args: []string{"1", "--file", "x.py"}, code: exit.Usage, err: "--file"},
		{args: []string{"--file", "no-such-file"}, code: exit.Usage, err: "no-such-file"},
		{args: []string{"-"}, code: exit.Usage, err: "there is no code"},
	} {
		r := run(t, false, c.stdin, append([]string{"sandbox", "code", id}, c.args...)...)
		if r.code != c.code || !strings.Contains(r.out, c.out) || !strings.Contains(r.err, c.err) {
			t.Errorf("%q: exit code %d, want %d\nout %q\nwant %q\nerr %q\nwant %q", c.args, r.code, c.code, r.out, c.out, r.err, c.err)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"list", id}, "c1\tpython\tbusy\t3\t/home/user\t90s\n"},
		{[]string{"list", id, "--json"}, `"executions": 3`},
		{[]string{"create", id, "-l", "js", "-e", "A=1"}, "made-js1\n"},
		{[]string{"create", id, "--json"}, `"id": "made-"`},
		{[]string{"interrupt", id, "c1"}, "interrupted c1\n"},
		{[]string{"restart", id, "c1"}, "restarted c1\n"},
		{[]string{"delete", id, "c1"}, "deleted c1\n"},
		{[]string{"delete", id, "c1", "--json"}, `"event": "deleted"`},
	} {
		if out := ok(t, append([]string{"sandbox", "context"}, c.args...)...); !strings.Contains(out, c.want) {
			t.Errorf("%q: %q, want %q", c.args, out, c.want)
		}
	}
	if r := run(t, false, "", "sandbox", "context", "restart", id, "c2"); r.code != exit.Failed || !strings.Contains(r.err, "c2") {
		t.Errorf("an unknown context: exit code %d, %s", r.code, r.err)
	}
}
