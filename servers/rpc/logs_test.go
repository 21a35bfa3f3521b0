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

func (w *world) logs(req *sandbox.LogsRequest) ([]*sandbox.LogBatch, error) {
	w.Helper()
	st, err := w.sandboxes.Logs(w.ctx(), req)
	w.must(err)
	defer st.Close()
	return all(st)
}

func TestLogs(t *testing.T) {
	w := newWorld(t)
	sb := w.run("lines", "6")
	w.until(sb, sandbox.WaitUntilEnded)
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
		got, err := w.logs(&tc.req)
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
	// One that printed nothing has no lines; that is no error.
	if got, err := w.logs(&sandbox.LogsRequest{Sandbox: w.sandbox("sleep").GetID()}); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	_, err := w.logs(&sandbox.LogsRequest{})
	w.class("no sandbox, no app", err, errs.InvalidArgument)
	_, err = w.logs(&sandbox.LogsRequest{Sandbox: id.NewSandbox()})
	w.class("unknown sandbox", err, errs.NotFound)
	_, err = w.logs(&sandbox.LogsRequest{App: "none"})
	w.class("unknown app", err, errs.NotFound)
}

// Following a sandbox that has no node yet waits for what it will print.
func TestFollowBeforeItBegins(t *testing.T) {
	w := newWorld(t)
	sb := w.sandbox("lines", "5", "5")
	st, err := w.sandboxes.Logs(w.ctx(), &sandbox.LogsRequest{Sandbox: sb.GetID(), Follow: ptr(true)})
	w.must(err)
	never, err := w.sandboxes.Logs(w.ctx(), &sandbox.LogsRequest{Sandbox: w.sandbox("sleep").GetID(), Follow: ptr(true)})
	w.must(err)
	w.place(sb)
	got, err := all(st)
	if err != nil || joined(text(got)) != "line 0,line 1,line 2,line 3,line 4" {
		t.Errorf("%q, %v", text(got), err)
	}
	never.Close()
	// One that could not be set up ends the wait.
	bad := w.sandbox("sleep")
	bad.Spec.Template.Image = "none"
	st, err = w.sandboxes.Logs(w.ctx(), &sandbox.LogsRequest{Sandbox: bad.GetID(), Follow: ptr(true)})
	w.must(err)
	w.place(bad)
	if got, err := all(st); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestLogBatches(t *testing.T) {
	w := newWorld(t)
	const n = 20000
	sb := w.run("flood", fmt.Sprint(n))
	w.until(sb, sandbox.WaitUntilEnded)
	got, err := w.logs(&sandbox.LogsRequest{Sandbox: sb.GetID()})
	w.must(err)
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

// appSandbox makes a sandbox of an app that runs.
func (w *world) appSandbox(a *app.App, ver *app.AppVersion, service string, command ...string) *sandbox.Sandbox {
	w.Helper()
	sb := sandbox.NewSandbox()
	sb.Spec.Template.Image, sb.Spec.Template.Command = "image", append([]string{"/bin/guest"}, command...)
	sb.Spec.App, sb.Spec.AppVersion, sb.Spec.Service, sb.Spec.Node = a.GetID(), ver.GetID(), service, w.node
	sb.Status.Phase = sandbox.SandboxPhaseScheduled
	w.create(sb)
	return w.until(sb, sandbox.WaitUntilRunning)
}

func (w *world) app(name string) (*app.App, *app.AppVersion) {
	w.Helper()
	a := app.NewApp()
	a.Name = name
	w.create(a)
	v := app.NewAppVersion()
	v.Spec.App, v.Spec.Number, v.Spec.Image = a.GetID(), 7, "image"
	svc := app.Service{Name: "web"}
	svc.SetDefaults()
	v.Spec.Services = []app.Service{svc}
	w.create(v)
	a.Status.ActiveVersion = v.GetID()
	w.must(entity.UpdateStatus(w.Context(), w.store.Store, a))
	return a, v
}

func TestAppLogs(t *testing.T) {
	w := newWorld(t)
	a, v := w.app("shop")
	one, two := w.appSandbox(a, v, "web", "stub"), w.appSandbox(a, v, "web", "stub")
	worker := w.appSandbox(a, v, "worker", "stub")
	for _, sb := range []*sandbox.Sandbox{one, two, worker} {
		wait.For(w, "it began to print", func() bool {
			got, err := w.logs(&sandbox.LogsRequest{Sandbox: sb.GetID()})
			return err == nil && len(text(got)) == 1
		})
	}
	var want []string
	for i := range 10 { // alternately
		line := fmt.Sprint("line ", i)
		w.machine.Print(string([]*sandbox.Sandbox{one, two}[i%2].ID), line)
		want = append(want, line)
	}
	w.machine.Print(string(worker.ID), "work")
	got, err := w.logs(&sandbox.LogsRequest{App: "shop", Service: "web", Tail: ptr(int64(5))})
	if err != nil || !slices.Equal(text(got), want) {
		t.Errorf("%q, %v", text(got), err)
	}
	if n := got[0].Lines[0].Version; n == nil || *n != 7 {
		t.Errorf("version %v", n)
	}

	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	st, err := w.sandboxes.Logs(ctx, &sandbox.LogsRequest{App: "shop", Service: "web", Tail: ptr(int64(5)), Follow: ptr(true)})
	w.must(err)
	r := &lineReader{st: st}
	for _, l := range want {
		r.want(t, l)
	}
	w.machine.Print(string(one.ID), "more")
	r.want(t, "more")
	third := w.appSandbox(a, v, "web", "stub")
	r.want(t, "sleeping")
	for i := range 100 {
		w.machine.Print(string(third.ID), fmt.Sprint("third ", i))
	}
	for i := range 100 {
		r.want(t, fmt.Sprint("third ", i))
	}
	w.machine.Exit(string(one.ID), 0)
	w.until(one, sandbox.WaitUntilEnded)
	w.machine.Print(string(two.ID), "goes on")
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
