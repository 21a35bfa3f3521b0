package agent_test

import (
	"strings"
	"testing"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
)

func TestExecReturnsOutputAndCode(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{Env: []string{"A=1", "B=2"}, WorkDir: "/usr"})
		r := f.exec(execution.ExecSpec{
			Command: []string{"sh", "-c", "echo $A $B $C; pwd; echo oops >&2; exit 3"}, Env: []string{"B=3", "C=4"},
		})
		if r != (result{"1 3 4\n/usr\n", "oops\n", 3}) {
			t.Errorf("got %+v", r)
		}
		r, err := execute(f.ctx(), f.conn, execution.ExecSpec{Command: []string{e.tool, "cat"}}, "hello")
		if err != nil || r.out != "hello" || r.code != 0 {
			t.Errorf("cat: %+v %v", r, err)
		}
		if r = f.sh("kill -9 $$"); r.code != 137 {
			t.Errorf("killed by itself: %+v", r)
		}
	})
}

func TestMainProcess(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{Command: []string{"sh", "-c", "echo out; echo err >&2; exit 5"}, Start: agent.StartOnRequest})
		if s := f.conn.Main(); s.State != agent.MainPending {
			t.Fatalf("state %+v", s)
		}
		if err := f.conn.StartMain(f.ctx()); err != nil {
			t.Fatal(err)
		}
		<-f.conn.MainExit()
		if s := f.conn.Main(); s.Exit.Code != 5 || s.Exit.Cause != execution.CauseExit {
			t.Errorf("exit %+v", s.Exit)
		}
		if code := f.guest.code(t); code != 5 {
			t.Errorf("PID 1 exited with %d", code)
		}
		x, err := f.hub.Exit(id)
		if err != nil || x.Code != 5 || x.At.IsZero() {
			t.Errorf("recorded %+v %v", x, err)
		}
		got := strings.Join(f.lines(execution.LogQuery{Follow: true}), ",")
		if got != "stdout out,stderr err" && got != "stderr err,stdout out" {
			t.Errorf("log %q", got)
		}
	})
}
