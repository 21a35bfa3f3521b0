package rpcserver_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/wait"
)

func (e *env) logs(req *sandbox.LogsRequest) ([]*sandbox.LogBatch, error) {
	e.Helper()
	st, err := e.sandboxes.Logs(e.ctx(), req)
	e.must(err)
	defer st.Close()
	return all(st)
}

func TestLogs(t *testing.T) {
	e := newEnv(t)
	sb := e.run("lines", "6")
	e.until(sb, sandbox.WaitUntilEnded)
	for _, tc := range []struct {
		req  sandbox.LogsRequest
		want string
	}{
		{sandbox.LogsRequest{}, "line 0,line 1,line 2,line 3,line 4,line 5"},
		{sandbox.LogsRequest{Tail: ptr(int64(2))}, "line 4,line 5"},
		{sandbox.LogsRequest{Tail: ptr(int64(0))}, ""},
		{sandbox.LogsRequest{Follow: ptr(true), Tail: ptr(int64(0))}, ""},
		{sandbox.LogsRequest{Offset: ptr(int64(4 * len("line 0\n")))}, "line 4,line 5"},
		{sandbox.LogsRequest{Follow: ptr(true), Tail: ptr(int64(1))}, "line 5"},
	} {
		tc.req.Sandbox = sb.GetID()
		got, err := e.logs(&tc.req)
		if err != nil || joined(text(got)) != tc.want {
			t.Errorf("%+v: %q, %v", tc.req, text(got), err)
		}
		for _, b := range got {
			for _, l := range b.Lines {
				if l.Sandbox != sb.GetID() || l.Offset == nil || l.At.IsZero() || (l.Stderr != nil) != (l.Text[5]%2 == 1) {
					t.Errorf("%+v", l)
				}
			}
		}
	}
	// A sandbox that printed nothing has no lines, which is no error.
	if got, err := e.logs(&sandbox.LogsRequest{Sandbox: e.sandbox("sleep").GetID()}); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	_, err := e.logs(&sandbox.LogsRequest{})
	e.class("no sandbox, no app", err, errs.InvalidArgument)
	_, err = e.logs(&sandbox.LogsRequest{Sandbox: id.NewSandbox()})
	e.class("unknown sandbox", err, errs.NotFound)
	_, err = e.logs(&sandbox.LogsRequest{App: "none"})
	e.class("unknown app", err, errs.NotFound)
}

// A follower of a sandbox without a node waits for its output.
func TestFollowBeforeItBegins(t *testing.T) {
	e := newEnv(t)
	sb := e.sandbox("lines", "5", "5")
	st, err := e.sandboxes.Logs(e.ctx(), &sandbox.LogsRequest{Sandbox: sb.GetID(), Follow: ptr(true)})
	e.must(err)
	never, err := e.sandboxes.Logs(e.ctx(), &sandbox.LogsRequest{Sandbox: e.sandbox("sleep").GetID(), Follow: ptr(true)})
	e.must(err)
	e.place(sb)
	got, err := all(st)
	if err != nil || joined(text(got)) != "line 0,line 1,line 2,line 3,line 4" {
		t.Errorf("%q, %v", text(got), err)
	}
	never.Close()
	// A sandbox that could not be set up ends the wait.
	bad := e.sandbox("sleep")
	bad.Spec.Template.Image = "none"
	st, err = e.sandboxes.Logs(e.ctx(), &sandbox.LogsRequest{Sandbox: bad.GetID(), Follow: ptr(true)})
	e.must(err)
	e.place(bad)
	if got, err := all(st); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestLogBatches(t *testing.T) {
	e := newEnv(t)
	const n = 20000
	sb := e.run("flood", fmt.Sprint(n))
	e.until(sb, sandbox.WaitUntilEnded)
	got, err := e.logs(&sandbox.LogsRequest{Sandbox: sb.GetID()})
	e.must(err)
	lines := text(got)
	if len(lines) != n || len(got) > n/20 {
		t.Errorf("%d lines in %d messages", len(lines), len(got))
	}
	for i, l := range lines {
		if l != fmt.Sprint("line ", i) {
			t.Fatalf("line %d is %q", i, l)
		}
	}
	for _, b := range got {
		if len(b.Lines) > 512 {
			t.Errorf("%d lines in a message", len(b.Lines))
		}
	}
}

// appSandbox creates a running sandbox of an app.
func (e *env) appSandbox(a *app.App, ver *app.AppVersion, service string, command ...string) *sandbox.Sandbox {
	e.Helper()
	sb := sandbox.NewSandbox()
	sb.Spec.Template.Image, sb.Spec.Template.Command = "image", append([]string{"/bin/guest"}, command...)
	sb.Spec.App, sb.Spec.AppVersion, sb.Spec.Service, sb.Spec.Node = a.GetID(), ver.GetID(), service, e.node
	sb.Status.Phase = sandbox.SandboxPhaseScheduled
	e.create(sb)
	return e.until(sb, sandbox.WaitUntilRunning)
}

func (e *env) app(name string) (*app.App, *app.AppVersion) {
	e.Helper()
	a := app.NewApp()
	a.Name = name
	e.create(a)
	v := app.NewAppVersion()
	v.Spec.App, v.Spec.Number, v.Spec.Image = a.GetID(), 7, "image"
	svc := app.Service{Name: "web"}
	svc.SetDefaults()
	v.Spec.Services = []app.Service{svc}
	e.create(v)
	a.Status.Activate(v.GetID())
	e.must(entity.UpdateStatus(e.Context(), e.store.Store, a))
	return a, v
}

func TestAppLogs(t *testing.T) {
	e := newEnv(t)
	a, v := e.app("shop")
	one, two := e.appSandbox(a, v, "web", "stub"), e.appSandbox(a, v, "web", "stub")
	worker := e.appSandbox(a, v, "worker", "stub")
	for _, sb := range []*sandbox.Sandbox{one, two, worker} {
		wait.For(e, "it began to print", func() bool {
			got, err := e.logs(&sandbox.LogsRequest{Sandbox: sb.GetID()})
			return err == nil && len(text(got)) == 1
		})
	}
	var want []string
	for i := range 10 { // alternately
		line := fmt.Sprint("line ", i)
		e.machine.Print(string([]*sandbox.Sandbox{one, two}[i%2].ID), line)
		want = append(want, line)
	}
	e.machine.Print(string(worker.ID), "work")
	got, err := e.logs(&sandbox.LogsRequest{App: "shop", Service: "web", Tail: ptr(int64(5))})
	if err != nil || !slices.Equal(text(got), want) {
		t.Errorf("%q, %v", text(got), err)
	}
	if n := got[0].Lines[0].Version; n == nil || *n != 7 {
		t.Errorf("version %v", n)
	}

	ctx, cancel := context.WithCancel(e.ctx())
	defer cancel()
	st, err := e.sandboxes.Logs(ctx, &sandbox.LogsRequest{App: "shop", Service: "web", Tail: ptr(int64(5)), Follow: ptr(true)})
	e.must(err)
	r := &lineReader{st: st}
	for _, l := range want {
		r.want(t, l)
	}
	e.machine.Print(string(one.ID), "more")
	r.want(t, "more")
	third := e.appSandbox(a, v, "web", "stub")
	r.want(t, "sleeping")
	for i := range 100 {
		e.machine.Print(string(third.ID), fmt.Sprint("third ", i))
	}
	for i := range 100 {
		r.want(t, fmt.Sprint("third ", i))
	}
	e.machine.Exit(string(one.ID), 0)
	e.until(one, sandbox.WaitUntilEnded)
	e.machine.Print(string(two.ID), "goes on")
	r.want(t, "goes on")
	cancel()
	if _, err := st.Recv(); !errs.Is(err, errs.Canceled) {
		t.Error(err)
	}
}

// lineReader reads line by line.
type lineReader struct {
	st   rpc.ClientStream[rpc.None, sandbox.LogBatch]
	rest []sandbox.LogLine
}

func (r *lineReader) want(t *testing.T, line string) {
	t.Helper()
	for len(r.rest) == 0 {
		b, err := r.st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		r.rest = b.Lines
	}
	if r.rest[0].Text != line {
		t.Fatalf("line %q, want %q", r.rest[0].Text, line)
	}
	r.rest = r.rest[1:]
}
