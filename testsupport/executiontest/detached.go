package executiontest

import (
	"io"
	"slices"
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

func testDetached(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		s := e.spec("detached")
		s.Idle = true
		e.Start(t, s)
		start := func(command ...string) string {
			t.Helper()
			x := guest(command...)
			x.Detached, x.Tag, x.NoInput = true, "tag", true
			p, err := e.Driver.Exec(t.Context(), s.ID, x)
			if err != nil {
				t.Fatal(err)
			}
			p.Detach()
			return p.ID()
		}
		listed := func(id string) *execution.ProcessInfo {
			t.Helper()
			list, err := e.Driver.Processes(t.Context(), s.ID)
			if err != nil {
				t.Fatal(err)
			}
			if i := slices.IndexFunc(list, func(p execution.ProcessInfo) bool { return p.ID == id }); i >= 0 {
				return &list[i]
			}
			return nil
		}
		short, long := start("echo", "some words"), start("sleep")
		wait.For(t, "the short one ends", func() bool { p := listed(short); return p != nil && p.Exit != nil })
		e.Driver = e.Renew(t)
		if p := listed(short); p == nil || p.Exit == nil || p.Exit.Code != 0 || p.Tag != "tag" || !p.Detached || p.Command[1] != "echo" {
			t.Errorf("listed as %+v", p)
		}
		p, err := e.Driver.Attach(t.Context(), s.ID, short, 5, 0)
		if err != nil {
			t.Fatal(err)
		}
		out, err := io.ReadAll(p.Stdout())
		if string(out) != "words\n" || err != nil {
			t.Errorf("from the fifth byte: %q, %v", out, err)
		}
		if code, err := p.Wait(t.Context()); code != 0 || err != nil {
			t.Errorf("code %d, %v", code, err)
		}
		if n, _ := p.Offsets(); n != 11 {
			t.Errorf("at %d", n)
		}
		p.Close()
		wait.For(t, "the short one is forgotten", func() bool { return listed(short) == nil })
		if _, err := e.Driver.Attach(t.Context(), s.ID, short, 0, 0); !errs.Is(err, errs.NotFound) {
			t.Errorf("a closed process: %v", err)
		}
		if p := listed(long); p == nil || p.Exit != nil || p.PID <= 0 {
			t.Fatalf("listed as %+v", p)
		}
		first, err := e.Driver.Attach(t.Context(), s.ID, long, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if first.PID() != listed(long).PID {
			t.Errorf("number %d, listed as %d", first.PID(), listed(long).PID)
		}
		second, err := e.Driver.Attach(t.Context(), s.ID, long, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := first.Wait(t.Context()); !errs.Is(err, errs.Canceled) {
			t.Errorf("the first caller: %v", err)
		}
		if err := second.Signal(t.Context(), 15); err != nil {
			t.Fatal(err)
		}
		out, err = io.ReadAll(second.Stdout())
		if string(out) != "sleeping\ntold to stop\n" || err != nil {
			t.Errorf("%q, %v", out, err)
		}
		if p := listed(long); p == nil || p.Exit == nil || p.Exit.Code != 0 {
			t.Errorf("listed as %+v", p)
		}
	})
}
