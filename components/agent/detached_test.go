package agent_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

func (f *fixture) detach(command ...string) string {
	f.t.Helper()
	p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: command, Detached: true, Tag: "job"})
	if err != nil {
		f.t.Fatal(err)
	}
	p.Detach()
	return p.ID()
}

func (f *fixture) attach(process string, stdout int64) *agent.Process {
	f.t.Helper()
	p, err := f.conn.Attach(f.ctx(), process, stdout, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// listed returns a process of the list.
func (f *fixture) listed(process string) (execution.ProcessInfo, bool) {
	f.t.Helper()
	list, err := f.conn.Processes(f.ctx())
	if err != nil {
		f.t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(p execution.ProcessInfo) bool { return p.ID == process })
	if i < 0 {
		return execution.ProcessInfo{}, false
	}
	return list[i], true
}

// A detached process outlives its caller and the server. Its output can be read from any offset, and its exit code is
// kept.
func TestDetachedProcess(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		short := f.detach("/bin/sh", "-c", "echo one; echo two; echo problem >&2; exit 7")
		long := f.detach(e.tool, "count", "100000", "5")
		wait.For(t, "the short one has ended", func() bool { p, ok := f.listed(short); return ok && p.Exit != nil })
		f.restart()
		if p, ok := f.listed(short); !ok || p.Exit == nil || p.Exit.Code != 7 || !p.Detached || p.Tag != "job" || p.Command[0] != "/bin/sh" || p.PID == 0 {
			t.Errorf("listed as %+v", p)
		}
		if p, ok := f.listed(long); !ok || p.Exit != nil || time.Since(p.StartedAt) > wait.Limit {
			t.Errorf("listed as %+v", p)
		}
		for range 2 { // it can be read again and again
			p := f.attach(short, 4)
			r, err := finish(f.ctx(), p, "")
			if err != nil || r.out != "two\n" || r.err != "problem\n" || r.code != 7 {
				t.Errorf("attached: %+v %v", r, err)
			}
			p.Detach()
		}
		p := f.attach(short, 0)
		p.Close()
		wait.For(t, "a closed one is forgotten", func() bool { _, ok := f.listed(short); return !ok })
		if _, err := f.conn.Attach(f.ctx(), short, 0, 0); !errs.Is(err, errs.NotFound) {
			t.Errorf("a closed one: %v", err)
		}
		first := f.attach(long, 0)
		if l, err := bufio.NewReader(first.Stdout()).ReadString('\n'); l != "line 0\n" || err != nil {
			t.Errorf("%q %v", l, err)
		}
		second := f.attach(long, 7)
		if _, err := first.Wait(f.ctx()); !errs.Is(err, errs.Canceled) {
			t.Errorf("a caller that lost the process: %v", err)
		}
		if l, err := bufio.NewReader(second.Stdout()).ReadString('\n'); l != "line 1\n" || err != nil {
			t.Errorf("%q %v", l, err)
		}
		if err := second.Signal(f.ctx(), 15); err != nil {
			t.Fatal(err)
		}
		go io.Copy(io.Discard, second.Stdout())
		if code, err := second.Wait(f.ctx()); code != 143 || err != nil {
			t.Errorf("code %d, %v", code, err)
		}
	})
}

// A detached process runs on without a reader. The end of its output is kept.
func TestDetachedProcessNeverWaits(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		const lines = 200_000
		script := fmt.Sprintf("i=0; yes 0123456789abcde | head -n %d; echo end", lines)
		id := f.detach("/bin/sh", "-c", script)
		wait.For(t, "it has ended", func() bool { p, ok := f.listed(id); return ok && p.Exit != nil })
		total := int64(lines*16 + 4)
		var p execution.Process
		var at int64
		wait.For(t, "the agent has read all of its output", func() bool {
			p = f.attach(id, 16)
			at, _ = p.Offsets()
			return at >= total-256<<10
		})
		out, err := io.ReadAll(p.Stdout())
		if err != nil || at+int64(len(out)) != total || !strings.HasSuffix(string(out), "abcde\nend\n") {
			t.Errorf("from %d of %d: %d bytes, %v", at, total, len(out), err)
		}
		// A slow reader does not stop the process, and gets output with its right offset.
		id = f.detach("/bin/sh", "-c", fmt.Sprintf("read -r x; yes 0123456789abcde | head -n %d; echo end", lines))
		p = f.attach(id, 0)
		if _, err := io.WriteString(p.Stdin(), "go\n"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 16)
		if _, err := io.ReadFull(p.Stdout(), b); err != nil || string(b) != "0123456789abcde\n" {
			t.Fatalf("%q %v", b, err)
		}
		wait.For(t, "it has ended", func() bool { p, ok := f.listed(id); return ok && p.Exit != nil })
		if at, _ = p.Offsets(); at != 16 {
			t.Errorf("at %d", at)
		}
		n, jumped := int64(16), false
		for {
			m, err := p.Stdout().Read(b)
			after, _ := p.Offsets()
			jumped = jumped || after != n+int64(m)
			n = after
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if total := int64(lines*16 + 4); n != total || !jumped {
			t.Errorf("at %d of %d, jumped: %v", n, total, jumped)
		}
	})
}

func TestSignalReachesGroup(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		mark := fmt.Sprintf("MARK_%d", time.Now().UnixNano())
		p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{"/bin/sh", "-c", "sleep 1000 & echo up; wait"}, Env: []string{mark + "=1"}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if l, err := bufio.NewReader(p.Stdout()).ReadString('\n'); l != "up\n" {
			t.Fatal(l, err)
		}
		if err := p.Signal(f.ctx(), 15); err != nil {
			t.Fatal(err)
		}
		if code, err := p.Wait(f.ctx()); code != 143 || err != nil {
			t.Errorf("code %d, %v", code, err)
		}
		wait.For(t, "its child has ended too", func() bool { return f.marks(mark) == 0 })
	})
}

func TestNoInput(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		r := f.exec(execution.ExecSpec{Command: []string{"/bin/sh", "-c", "cat; ls -l /proc/self/fd/0; sleep 0.1; echo done"}, NoInput: true})
		if !strings.HasSuffix(r.out, "/dev/null\ndone\n") || r.code != 0 {
			t.Errorf("%+v", r)
		}
		p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{e.tool, "sleep"}, NoInput: true}) // returns before any output
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if list, err := f.conn.Processes(f.ctx()); err != nil || len(list) != 1 {
			t.Errorf("%+v %v", list, err)
		}
	})
}

// Processes that the test leaves would be children of init.
func TestHarnessLeavesNoProcess(t *testing.T) {
	e := asProcess
	e.need(t)
	mark := fmt.Sprintf("MARK_%d", time.Now().UnixNano())
	t.Run("sandbox", func(t *testing.T) {
		f := newFixture(t, e, agent.GuestConfig{Command: []string{built.tool, "sleep"}, Env: []string{mark + "=1"}})
		f.detach(built.tool, "sleep")
	})
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if b, err := os.ReadFile("/proc/" + d.Name() + "/environ"); err == nil && strings.Contains(string(b), mark) {
			t.Errorf("process %s is left", d.Name())
		}
	}
}
