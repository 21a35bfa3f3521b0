package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

func TestLogRotation(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		script := `i=0; while [ $i -lt 100 ]; do head -c 20000 /dev/zero | tr '\0' x; echo " $i"; i=$((i+1)); done`
		f := newFixture(t, e, agent.GuestConfig{Command: []string{"sh", "-c", script}, LogBytes: 1 << 20, Start: agent.StartOnRequest})
		f.begin()
		<-f.conn.MainExit()
		var total int64
		files, _ := filepath.Glob(filepath.Join(f.config.LogDir, id, "spool", "*.log"))
		for _, f := range files {
			st, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			total += st.Size()
		}
		if total > 1<<20 || total < 1<<19 || len(files) < 2 {
			t.Errorf("%d bytes in %d files", total, len(files))
		}
		lines := f.lines(execution.LogQuery{})
		for i, l := range lines {
			if want := fmt.Sprintf("x %d", 100-len(lines)+i); !strings.HasSuffix(l, want) {
				t.Errorf("line %d of %d ends in %q, want %q", i, len(lines), l[len(l)-10:], want)
				break
			}
		}
		// A read from an offset that is gone begins with the oldest line;
		// another one resumes.
		var offsets []int64
		err := f.hub.Logs(f.ctx(), id, execution.LogQuery{Offset: 1}, func(l execution.LogLine) error {
			// The first line reports the loss, the others do not.
			if first := len(offsets) == 0; (l.Missed > 0) != first || first && l.Missed > l.Offset {
				t.Errorf("line at %d misses %d bytes", l.Offset, l.Missed)
			}
			offsets = append(offsets, l.Offset)
			return nil
		})
		if err != nil || len(offsets) != len(lines) {
			t.Errorf("%d lines, %v", len(offsets), err)
		}
		for i, at := range offsets {
			if rest := f.lines(execution.LogQuery{Offset: at}); len(rest) != len(lines)-i-1 {
				t.Errorf("after line %d of %d are %d", i, len(lines), len(rest))
				break
			}
		}
		for _, n := range []int{1, 7, 20, 1000} {
			if tail := f.lines(execution.LogQuery{Tail: n}); len(tail) != min(n, len(lines)) || tail[len(tail)-1] != lines[len(lines)-1] {
				t.Errorf("tail %d has %d lines", n, len(tail))
			}
		}
	})
}

func TestLongLines(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		script := `head -c 100000 /dev/zero | tr '\0' a; echo; head -c 65536 /dev/zero | tr '\0' b; echo; echo; printf 'no end'; sleep 1.3; echo ' after all'; printf last`
		f := newFixture(t, e, agent.GuestConfig{Command: []string{"sh", "-c", script}, Start: agent.StartOnRequest})
		f.begin()
		<-f.conn.MainExit()
		var got []string
		for _, l := range f.lines(execution.LogQuery{}) {
			got = append(got, fmt.Sprintf("%d%.10s", len(l)-7, l[7:]))
		}
		want := "65536aaaaaaaaaa,34464aaaaaaaaaa,65536bbbbbbbbbb,0,16no end aft,4last"
		if strings.Join(got, ",") != want {
			t.Errorf("got  %s\nwant %s", strings.Join(got, ","), want)
		}
	})
}

func TestFollowSendsLinesAsTheyCome(t *testing.T) {
	everywhere(t, func(t *testing.T, e environment) {
		f := newFixture(t, e, agent.GuestConfig{Command: []string{e.tool, "count", "50", "10"}, Start: agent.StartOnRequest})
		seen := make(chan string, 100)
		done := make(chan error, 1)
		go func() {
			done <- f.hub.Logs(context.Background(), id, execution.LogQuery{Follow: true}, func(l execution.LogLine) error {
				if since := time.Since(l.At); since < 0 || since > wait.Limit {
					t.Errorf("a line of %v", l.At)
				}
				seen <- l.Text
				return nil
			})
		}()
		f.begin()
		for i := range 50 {
			select {
			case l := <-seen:
				if l != fmt.Sprint("line ", i) {
					t.Fatalf("line %d is %q", i, l)
				}
			case <-f.ctx().Done():
				t.Fatal("no line")
			}
		}
		select {
		case err := <-done:
			if err != nil || len(seen) != 0 {
				t.Errorf("%d more, %v", len(seen), err)
			}
		case <-f.ctx().Done():
			t.Fatal("follow does not end")
		}
	})
}

func TestFollowStops(t *testing.T) {
	e := asProcess
	e.need(t)
	f := newFixture(t, e, agent.GuestConfig{Command: []string{built.tool, "count", "100000", "1"}})
	mine := errors.New("enough")
	if err := f.hub.Logs(f.ctx(), id, execution.LogQuery{Follow: true}, func(execution.LogLine) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(f.ctx())
	err := f.hub.Logs(ctx, id, execution.LogQuery{Follow: true}, func(execution.LogLine) error { cancel(); return nil })
	if !errs.Is(err, errs.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A log directory may hold arbitrary files: its writer is not trusted.
func TestHostileLogs(t *testing.T) {
	c := agent.HubConfig{Dir: filepath.Join(t.TempDir(), "agents"), LogDir: filepath.Join(t.TempDir(), "logs"), AgentPath: built.agent, AgentDir: t.TempDir()}
	need.Root(t)
	hub := agent.NewHub(c)
	defer hub.Close()
	if _, err := hub.Prepare(id, agent.GuestConfig{LogBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	spool := filepath.Join(c.LogDir, id, "spool")
	secret := filepath.Join(t.TempDir(), "secret")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(q execution.LogQuery) (string, error) {
		var b strings.Builder
		ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
		defer cancel()
		err := hub.Logs(ctx, id, q, func(l execution.LogLine) error { b.WriteString(l.Text + ";"); return nil })
		return b.String(), err
	}
	must(os.WriteFile(secret, []byte("1 o. secret\n"), 0o600))
	first := filepath.Join(spool, agentproto.SegmentName(0))
	for _, bad := range []struct {
		what string
		make func(path string) error
	}{
		{"link", func(p string) error { return os.Symlink(secret, p) }},
		{"pipe", func(p string) error { return syscall.Mkfifo(p, 0o600) }},
		{"directory", func(p string) error { return os.Mkdir(p, 0o700) }},
	} {
		must(bad.make(first))
		for _, q := range []execution.LogQuery{{}, {Tail: 3}} {
			if got, err := read(q); got != "" || !errs.Is(err, errs.Corrupt) {
				t.Errorf("%s: %q %v", bad.what, got, err)
			}
		}
		must(os.Rename(first, filepath.Join(spool, "exit")))
		if x, err := hub.Exit(id); err != nil || x.Cause != execution.CauseCrash || time.Since(x.At).Abs() > time.Minute {
			t.Errorf("%s as exit record: %+v %v", bad.what, x, err)
		}
		must(os.RemoveAll(filepath.Join(spool, "exit")))
	}
	long := strings.Repeat("x", 3*agentproto.MaxRecord)
	text := "1 o. one\ngarbage\n\n99999999999999999999999 o. big\n2 x. stream\n3 o. " + long + "\n4 e. two\n-5 o. three\n" + long
	must(os.WriteFile(first, []byte(text), 0o600))
	second := filepath.Join(spool, agentproto.SegmentName(int64(len(text))+1000)) // with a gap
	must(os.WriteFile(second, []byte("6 o. four\n7 o+ half"), 0o600))
	if got, err := read(execution.LogQuery{}); got != "one;two;three;four;" || err != nil {
		t.Errorf("garbage: %q %v", got, err)
	}
	if got, err := read(execution.LogQuery{Offset: 1 << 60}); got != "" || err != nil {
		t.Errorf("offset behind the end: %q %v", got, err)
	}
	must(os.WriteFile(filepath.Join(spool, "exit"), []byte("exit 1000 signal 0 at 0 message \"\"\n"), 0o600))
	if x, err := hub.Exit(id); err != nil || x.Cause != execution.CauseCrash {
		t.Errorf("exit record: %+v %v", x, err)
	}
}

// Names and sizes of segments are their writer's: a log ends all the same, and is read in a time that its bound sets.
func TestHostileSegments(t *testing.T) {
	need.Root(t)
	for _, c := range []struct {
		name     string
		segments map[int64]string
		sparse   int64 // size of the last segment
		want     string
		class    errs.Class
	}{
		{"an offset beyond all others", map[int64]string{0: "1 o. one\n", math.MaxInt64 - 3: "2 o. two\n"}, 0, "one;", ""},
		{"a large hole", map[int64]string{0: "1 o. one\n", 9: ""}, 1 << 42, "one;", errs.Corrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := agent.HubConfig{Dir: filepath.Join(t.TempDir(), "agents"), LogDir: filepath.Join(t.TempDir(), "logs"), AgentPath: built.agent, AgentDir: t.TempDir()}
			hub := agent.NewHub(h)
			defer hub.Close()
			if _, err := hub.Prepare(id, agent.GuestConfig{}); err != nil {
				t.Fatal(err)
			}
			for at, text := range c.segments {
				path := filepath.Join(h.LogDir, id, "spool", agentproto.SegmentName(at))
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				if text == "" {
					if err := os.Truncate(path, c.sparse); err != nil {
						t.Fatal(err)
					}
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var got strings.Builder
			err := hub.Logs(ctx, id, execution.LogQuery{}, func(l execution.LogLine) error {
				if got.WriteString(l.Text + ";"); got.Len() > 100 {
					return io.ErrShortBuffer
				}
				return nil
			})
			if got.String() != c.want || c.class == "" && err != nil || c.class != "" && !errs.Is(err, c.class) {
				t.Errorf("%q, %v; want %q", got.String(), err, c.want)
			}
			done := make(chan error, 1)
			go func() {
				done <- hub.Logs(ctx, id, execution.LogQuery{Tail: 3}, func(execution.LogLine) error { return nil })
			}()
			if err := wait.Receive(t, "the end of the log", done, wait.Within(20*time.Second)); c.class == "" && err != nil || c.class != "" && !errs.Is(err, c.class) {
				t.Errorf("the last lines: %v", err)
			}
		})
	}
}
