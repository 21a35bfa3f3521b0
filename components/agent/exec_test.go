package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

func TestExecErrors(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		f.sh("echo text >/tmp/agent-test-text")
		t.Cleanup(func() { os.Remove("/tmp/agent-test-text") })
		for _, c := range []struct {
			spec execution.ExecSpec
			code string
			text string
		}{
			{execution.ExecSpec{Command: []string{"no-such-program"}}, "127", "no-such-program: command not found"},
			{execution.ExecSpec{Command: []string{"/no/such/program"}}, "127", "no such file"},
			{execution.ExecSpec{Command: []string{"/tmp/agent-test-text"}}, "126", "not executable"},
			{execution.ExecSpec{Command: []string{"/usr"}}, "126", "is a directory"},
			{execution.ExecSpec{Command: []string{"true"}, WorkDir: "/nowhere"}, "126", "working directory /nowhere"},
			{execution.ExecSpec{Command: []string{"true"}, User: "nobody-knows"}, "126", "no user"},
			{execution.ExecSpec{Command: []string{"true"}, User: "2147483000"}, "126", "reserved"},
			{execution.ExecSpec{Command: []string{"true"}, Env: []string{"X=" + strings.Repeat("x", 2<<20)}}, "", "more than"},
			{execution.ExecSpec{}, "", "no command"},
		} {
			_, err := f.conn.Exec(f.ctx(), c.spec)
			if !errs.Is(err, errs.InvalidArgument) || errs.Detail(err, "exit_code") != c.code || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%q: %v (%s, exit code %q)", c.spec.Command, err, errs.ClassOf(err), errs.Detail(err, "exit_code"))
			}
		}
		if _, err := f.conn.Attach(f.ctx(), "12345", 0, 0); !errs.Is(err, errs.NotFound) {
			t.Errorf("reattach to nothing: %v", err)
		}
	})
}

func TestParallelExecs(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				in := strings.Repeat(fmt.Sprintf("%d ", i), 1000)
				r, err := execute(f.ctx(), f.conn, execution.ExecSpec{Command: []string{e.tool, "cat"}}, in)
				if err != nil || r.out != in || r.code != 0 {
					t.Errorf("exec %d: %d bytes, code %d, %v", i, len(r.out), r.code, err)
				}
			})
		}
		wg.Wait()
		t.Logf("100 execs took %v", time.Since(began))
	})
}

func TestLargeOutput(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		const size = 100 << 20
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{e.tool, "spam", fmt.Sprint(size)}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		began := time.Now()
		n, err := io.Copy(io.Discard, p.Stdout())
		code, werr := p.Wait(f.ctx())
		if n != size || err != nil || code != 0 || werr != nil {
			t.Fatalf("%d bytes, code %d, %v %v", n, code, err, werr)
		}
		t.Logf("%.0f MB/s", size/1e6/time.Since(began).Seconds())
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 32<<20 {
			t.Errorf("the host's heap grew by %d bytes", grown)
		}
		rss := f.sh("grep VmRSS /proc/1/status").out
		if e.name == "process" {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.guest.cmd.Process.Pid))
			_, rss, _ = strings.Cut(string(b), "VmRSS:")
			rss, _, _ = strings.Cut(rss, "\n")
		}
		t.Logf("agent: %s", strings.TrimSpace(rss))
	})
}

// A reader that stops must block the process, not fill memory.
func TestSlowReaderStopsProcess(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{e.tool, "spam", "50000000"}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		short, cancel := context.WithTimeout(f.ctx(), 300*time.Millisecond)
		defer cancel()
		if _, err := p.Wait(short); !errs.Is(err, errs.DeadlineExceeded) {
			t.Errorf("the process ended without a reader: %v", err)
		}
		if r := f.sh("echo hi"); r.out != "hi\n" {
			t.Errorf("another exec is stopped: %+v", r)
		}
	})
}

func TestTerminalHasSizeAndSignals(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{"/bin/sh"}, Env: []string{"PS1="}, TTY: true, Rows: 24, Cols: 80})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		defer time.AfterFunc(wait.Limit, func() { p.Close() }).Stop()
		out := bufio.NewReader(p.Stdout())
		expect := func(want string) {
			t.Helper()
			for {
				l, err := out.ReadString('\n')
				if strings.TrimSpace(l) == want {
					return
				}
				if err != nil {
					t.Fatalf("no %q: %v", want, err)
				}
			}
		}
		io.WriteString(p.Stdin(), "stty -echo; stty size; test -t 0 && echo is-a-terminal; echo $TERM; tty >/dev/tty\n")
		expect("24 80")
		expect("is-a-terminal")
		expect("xterm-256color")
		if err := p.Resize(f.ctx(), 50, 132); err != nil {
			t.Fatal(err)
		}
		io.WriteString(p.Stdin(), "stty size; sh -c 'echo started; exec sleep 1000'\n")
		expect("50 132")
		expect("started")
		io.WriteString(p.Stdin(), "\x03") // interrupts sleep
		io.WriteString(p.Stdin(), "echo back; exit 9\n")
		expect("back")
		if code, err := p.Wait(f.ctx()); code != 9 || err != nil {
			t.Errorf("code %d, %v", code, err)
		}
	})
}

func TestTerminalEndOfInput(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		r, err := execute(f.ctx(), f.conn, execution.ExecSpec{Command: []string{"/bin/cat"}, TTY: true}, "one\n")
		if err != nil || r.code != 0 || !strings.Contains(r.out, "one") {
			t.Errorf("%+v %v", r, err)
		}
	})
}

// TestTerminalClosed: a process that closes the terminal before it exits, as
// cat does, does not get a hang-up meanwhile.
func TestTerminalClosed(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		r, err := execute(f.ctx(), f.conn, execution.ExecSpec{Command: []string{"/bin/sh", "-c", "echo one; exec <&- >&- 2>&-; sleep 0.3; exit 7"}, TTY: true}, "")
		if err != nil || r.code != 7 || r.out != "one\r\n" {
			t.Errorf("%+v %v", r, err)
		}
	})
}

func TestLargeInput(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		in := strings.Repeat("0123456789abcde\n", 1<<18)
		r, err := execute(f.ctx(), f.conn, execution.ExecSpec{Command: []string{"sha256sum"}}, in)
		want := fmt.Sprintf("%x  -\n", sha256.Sum256([]byte(in)))
		if err != nil || r.out != want {
			t.Errorf("%+v %v", r, err)
		}
		r, err = execute(f.ctx(), f.conn, execution.ExecSpec{Command: []string{"cat"}}, in)
		if err != nil || r.out != in {
			t.Errorf("cat: %d bytes of %d, %v", len(r.out), len(in), err)
		}
		// A process that reads nothing.
		r, err = execute(f.ctx(), f.conn, execution.ExecSpec{Command: []string{e.tool, "true"}}, in)
		if err != nil || r.code != 0 {
			t.Errorf("%+v %v", r, err)
		}
	})
}

func TestSignalExec(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{e.tool, "trap"}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		out := bufio.NewReader(p.Stdout())
		if l, err := out.ReadString('\n'); l != "ready\n" {
			t.Fatal(l, err)
		}
		if err := p.Signal(f.ctx(), 15); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(out)
		if code, err := p.Wait(f.ctx()); code != 7 || err != nil || string(rest) != "got terminated\n" {
			t.Errorf("code %d, %q, %v", code, rest, err)
		}
	})
}

// marks returns how many processes of the test exist.
func (f *fixture) marks(mark string) int {
	f.t.Helper()
	r := f.sh("grep -al " + mark + " /proc/[0-9]*/environ 2>/dev/null | grep -v /proc/$$/ | wc -l")
	var n int
	fmt.Sscan(r.out, &n)
	return n
}

func TestCloseKillsTree(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		mark := fmt.Sprintf("MARK_%d", time.Now().UnixNano())
		script := "trap '' TERM HUP; sleep 1001 & (sleep 1002 & sleep 1003) & setsid sleep 1004 & echo up; cat"
		p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{"bash", "-c", script}, Env: []string{mark + "=1"}})
		if err != nil {
			t.Fatal(err)
		}
		if l, err := bufio.NewReader(p.Stdout()).ReadString('\n'); l != "up\n" {
			t.Fatal(l, err)
		}
		wait.For(t, "the tree stands", func() bool { return f.marks(mark) >= 5 })
		p.Close()
		wait.For(t, "the tree is gone", func() bool { return f.marks(mark) == 0 })
		if _, err := p.Stdout().Read(make([]byte, 1)); err == nil {
			t.Error("output after Close")
		}
	})
}

// Processes that an exec leaves behind must neither keep it from ending nor be
// killed.
func TestBackgroundProcessOutlivesExec(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		mark := fmt.Sprintf("MARK_%d", time.Now().UnixNano())
		began := time.Now()
		r := f.exec(execution.ExecSpec{Command: []string{"sh", "-c", "sleep 1000 & echo done"}, Env: []string{mark + "=1"}})
		if r.out != "done\n" || time.Since(began) > 5*time.Second {
			t.Errorf("%+v after %v", r, time.Since(began))
		}
		if n := f.marks(mark); n != 1 {
			t.Errorf("%d processes are left in the background", n)
		}
	})
}

func TestOrphansAreReaped(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{})
		// Orphans whose parent is gone when they end.
		f.sh("for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.1 &) ; done")
		count := "ls -d /proc/[0-9]* | while read d; do grep -l 'State:.*Z' $d/status 2>/dev/null; done | wc -l"
		if e.name == "process" {
			count = fmt.Sprintf("ps --ppid %d -o stat= | grep -c Z", f.guest.cmd.Process.Pid)
		}
		wait.For(t, "no zombies", func() bool { return f.sh(count).out == "0\n" })
	})
}

func TestOutputContinuesAfterReconnect(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{Command: []string{e.tool, "count", "100000", "5"}})
		p, err := f.conn.Exec(f.ctx(), execution.ExecSpec{Command: []string{e.tool, "count", "300", "2"}, Detached: true, Tag: "counter"})
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if _, err := io.CopyN(&got, p.Stdout(), 100); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			f.restart()
			if p, err = f.conn.Attach(f.ctx(), p.ID(), int64(got.Len()), 0); err != nil {
				t.Fatal(err)
			}
			if _, err := io.CopyN(&got, p.Stdout(), 300); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.Copy(&got, p.Stdout()); err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		for i := range 300 {
			fmt.Fprintln(&want, "line", i)
		}
		if code, err := p.Wait(f.ctx()); code != 0 || err != nil || got.String() != want.String() {
			t.Errorf("code %d, %v, %d bytes of %d", code, err, got.Len(), want.Len())
		}
		p.Close()
		if s := f.conn.Main(); s.State != agent.MainRunning {
			t.Errorf("main is %+v", s)
		}
		if _, err := f.conn.Attach(f.ctx(), p.ID(), 0, 0); !errs.Is(err, errs.NotFound) {
			t.Errorf("closed exec: %v", err)
		}
	})
}
