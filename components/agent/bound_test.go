package agent_test

import (
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// TestLogExceedsItsBound: a program in place of the agent may write where the
// agent does; its sandbox is ended when it writes more than the agent would.
func TestLogExceedsItsBound(t *testing.T) {
	need.Root(t)
	var searched atomic.Int64 // when the hub last looked for deleted files
	const bytes = 1 << 20     // of the log; the bound is 3 MiB
	write := func(t *testing.T, f *os.File, megabytes int) {
		t.Helper()
		if _, err := f.Write(make([]byte, megabytes<<20)); err != nil {
			t.Fatal(err)
		}
	}
	create := func(t *testing.T, path string) *os.File {
		t.Helper()
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	for _, c := range []struct {
		name  string
		ended bool
		write func(t *testing.T, spool string)
	}{
		{"as the agent does", false, func(t *testing.T, spool string) {
			write(t, create(t, filepath.Join(spool, agentproto.SegmentName(0))), 1)
			old := create(t, filepath.Join(spool, agentproto.SegmentName(1<<20)))
			write(t, old, 1)
			if err := os.Remove(old.Name()); err != nil {
				t.Fatal(err)
			}
		}},
		{"one large file", true, func(t *testing.T, spool string) {
			write(t, create(t, filepath.Join(spool, agentproto.SegmentName(0))), 4)
		}},
		{"one sparse file", true, func(t *testing.T, spool string) {
			if err := create(t, filepath.Join(spool, agentproto.SegmentName(0))).Truncate(1 << 42); err != nil {
				t.Fatal(err)
			}
		}},
		{"another name", true, func(t *testing.T, spool string) { write(t, create(t, filepath.Join(spool, "x")), 4) }},
		{"many files", true, func(t *testing.T, spool string) {
			for i := range 300 {
				create(t, filepath.Join(spool, strconv.Itoa(i)))
			}
		}},
		{"directory", true, func(t *testing.T, spool string) {
			if err := os.Mkdir(filepath.Join(spool, "d"), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, create(t, filepath.Join(spool, "d", "x")), 4)
		}},
		{"deleted", true, func(t *testing.T, spool string) {
			f := create(t, filepath.Join(spool, "x"))
			if err := os.Remove(f.Name()); err != nil {
				t.Fatal(err)
			}
			// The directory does not change any more, but the hub continues to
			// look for it.
			deleted := time.Now()
			wait.For(t, "a look for deleted files", func() bool { return time.Unix(0, searched.Load()).Sub(deleted) > 1500*time.Millisecond })
			write(t, f, 4)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			exceeded := make(chan string, 100)
			config := agent.HubConfig{
				Dir: filepath.Join(t.TempDir(), "agents"), LogDir: filepath.Join(t.TempDir(), "logs"), LogCheck: 20 * time.Millisecond,
				AgentPath: built.agent, AgentDir: t.TempDir(),
				PIDs: func(string) ([]int, error) {
					searched.Store(time.Now().UnixNano())
					return []int{os.Getpid()}, nil
				},
				Exceeded: func(id string) { exceeded <- id },
			}
			hub := agent.NewHub(config)
			defer hub.Close()
			if _, err := hub.Prepare(id, agent.GuestConfig{LogBytes: bytes}); err != nil {
				t.Fatal(err)
			}
			spool := filepath.Join(config.LogDir, id, "spool")
			c.write(t, spool)
			if !c.ended {
				select {
				case <-exceeded:
					t.Error("the sandbox was ended")
				case <-time.After(200 * time.Millisecond):
				}
				return
			}
			select {
			case got := <-exceeded:
				if got != id {
					t.Errorf("ended %q", got)
				}
			case <-time.After(wait.Limit):
				t.Fatal("the sandbox goes on")
			}
			hub.Close()
			var left int64
			entries, err := os.ReadDir(spool)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if st, err := e.Info(); err == nil {
					left += st.Size()
				}
			}
			if left > 3<<20 || len(entries) >= 256 {
				t.Errorf("%d bytes in %d files are left", left, len(entries))
			}
		})
	}
}
