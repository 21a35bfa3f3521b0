package rpcserver_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// printed waits for a line of an app.
func (e *env) printed(name, line string) {
	e.Helper()
	wait.For(e, line, func() bool {
		got, err := e.logs(&sandbox.LogsRequest{App: name})
		return err == nil && slices.Contains(text(got), line)
	})
}

// What sandboxes printed stays when they, and their own logs, are deleted.
func TestAppLogsOutliveSandboxes(t *testing.T) {
	e := newEnv(t)
	a, v := e.app("shop")
	one := e.appSandbox(a, v, "web", "stub")
	e.printed("shop", "sleeping")
	// A sandbox that is deleted before the first copy is one whose app is not known any more.
	wait.For(t, "its lines are copied", func() bool {
		_, _, ok := e.kept.Find(string(one.ID))
		return ok
	})
	var want []string
	for i := range 3000 {
		line := fmt.Sprintf("request %d of the first one", i)
		e.machine.Print(string(one.ID), line)
		want = append(want, line)
	}
	e.must(entity.Delete(t.Context(), e.store.Store, one))
	wait.For(t, "its own log is deleted", func() bool {
		ids, err := e.machine.Driver().LogIDs(t.Context())
		return err == nil && len(ids) == 0
	})
	two := e.appSandbox(a, v, "web", "stub")
	e.machine.Print(string(two.ID), "the second one")
	want = append(want, "sleeping", "the second one")
	e.printed("shop", "the second one")
	got, err := e.logs(&sandbox.LogsRequest{App: "shop"})
	if lines := text(got); err != nil || !slices.Equal(lines[1:], want) {
		t.Fatalf("%d lines instead of %d: %v", len(lines), len(want)+1, err)
	}
	if l := got[0].Lines[0]; l.Sandbox != one.GetID() || l.Version == nil || *l.Version != 7 || l.Service != "web" || l.Offset == nil {
		t.Errorf("%+v", l)
	}
	for name, tc := range map[string]struct {
		req  sandbox.LogsRequest
		want []string
	}{
		"grep":    {sandbox.LogsRequest{Grep: `request 29[0-9]{2} `}, want[2900:3000]},
		"service": {sandbox.LogsRequest{Service: "worker"}, nil},
		"limit":   {sandbox.LogsRequest{Limit: ptr(int64(5))}, want[len(want)-5:]},
		"both":    {sandbox.LogsRequest{Limit: ptr(int64(2)), Grep: "request"}, want[2998:3000]},
		"since":   {sandbox.LogsRequest{Since: ptr(time.Now().Add(time.Hour))}, nil},
		"until":   {sandbox.LogsRequest{Until: ptr(time.Now().Add(-time.Hour))}, nil},
		"all":     {sandbox.LogsRequest{Since: ptr(time.Now().Add(-time.Hour)), Until: ptr(time.Now().Add(time.Hour)), Level: "info"}, append([]string{"sleeping"}, want...)},
		"errors":  {sandbox.LogsRequest{Level: "error"}, nil},
	} {
		tc.req.App = "shop"
		got, err := e.logs(&tc.req)
		if err != nil || !slices.Equal(text(got), tc.want) {
			t.Errorf("%s: %d lines instead of %d: %v", name, len(text(got)), len(tc.want), err)
		}
	}
	for name, req := range map[string]sandbox.LogsRequest{
		"no regular expression": {App: "shop", Grep: "("},
		"no level":              {App: "shop", Level: "loud"},
		"until and follow":      {App: "shop", Follow: ptr(true), Until: ptr(time.Now())},
		"limit and tail":        {App: "shop", Tail: ptr(int64(1)), Limit: ptr(int64(1))},
		"limit of a sandbox":    {Sandbox: two.GetID(), Limit: ptr(int64(1))},
	} {
		_, err := e.logs(&req)
		e.class(name, err, errs.InvalidArgument)
	}
	// With the app its lines go.
	e.must(entity.Delete(t.Context(), e.store.Store, two))
	deleteApp(e, a)
	wait.For(t, "the log is deleted", func() bool { return len(e.kept.Names()) == 0 })
}

func deleteApp(e *env, a *app.App) {
	e.Helper()
	wait.For(e, "the app is deleted", func() bool {
		now, err := entity.Get[app.App](e.Context(), e.store.Store, a.GetID())
		if err == nil {
			err = entity.Delete(e.Context(), e.store.Store, now)
		}
		return err == nil || errs.Is(err, errs.NotFound)
	})
}

// History goes over into new lines while sandboxes print, are replaced and deleted:
// no line is left out and none comes twice.
func TestHistoryGoesOnWithoutGapOrDuplicate(t *testing.T) {
	e := newEnv(t)
	a, v := e.app("shop")
	sb := e.appSandbox(a, v, "web", "stub")
	e.printed("shop", "sleeping")
	const lines = 4000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range lines {
			e.machine.Print(string(sb.ID), fmt.Sprintf(`{"level":"warn","msg":"n","i":%d}`, i))
			if i%10 == 0 {
				e.machine.Print(string(sb.ID), "noise")
			}
		}
	}()
	for range 5 { // followers begin at whatever time it is
		ctx, cancel := context.WithCancel(e.ctx())
		st, err := e.sandboxes.Logs(ctx, &sandbox.LogsRequest{App: "shop", Since: ptr(time.Now().Add(-time.Hour)), Follow: ptr(true), Grep: `"i":\d+`, Level: "warn"})
		e.must(err)
		for n := 0; n < lines; {
			b, err := st.Recv()
			e.must(err)
			for _, l := range b.Lines {
				if want := fmt.Sprintf(`{"level":"warn","msg":"n","i":%d}`, n); l.Text != want || l.Level != "warn" {
					t.Fatalf("%+v instead of %s", l, want)
				}
				n++
			}
		}
		cancel()
	}
	<-done
	// A sandbox that is deleted while it is followed: its last lines come too.
	ctx, cancel := context.WithCancel(e.ctx())
	defer cancel()
	st, err := e.sandboxes.Logs(ctx, &sandbox.LogsRequest{App: "shop", Limit: ptr(int64(1)), Follow: ptr(true)})
	e.must(err)
	first, err := st.Recv()
	e.must(err)
	if !strings.Contains(first.Lines[0].Text, fmt.Sprint(lines-1)) {
		t.Errorf("the last line is %s", first.Lines[0].Text)
	}
	e.machine.Print(string(sb.ID), "goodbye")
	e.must(entity.Delete(t.Context(), e.store.Store, sb))
	r := &lineReader{st: st, rest: first.Lines[1:]}
	r.want(t, "goodbye")
}
