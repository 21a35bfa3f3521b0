package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestLimitsReachTheSpec(t *testing.T) {
	const spec = `{"linux":{"cgroupsPath":"/g/x","future":1,"resources":{"devices":[{"allow":false}],"memory":{"limit":1}}}}`
	got, s := rewrite(t, spec, func(s *ociSpec) {
		if err := s.limit(limits{MemoryBytes: 5, Tasks: 7}); err != nil {
			t.Fatal(err)
		}
	})
	linux := got["linux"].(map[string]any)
	resources := linux["resources"].(map[string]any)
	if !s.changed || linux["future"] != 1.0 || resources["devices"] == nil || s.linux.CgroupsPath != "/g/x" ||
		resources["memory"].(map[string]any)["limit"] != 5.0 || resources["pids"].(map[string]any)["limit"] != 7.0 {
		t.Errorf("got %v", got)
	}
	if _, s := rewrite(t, spec, func(s *ociSpec) { _ = s.limit(limits{DiskBytes: 1}) }); s.changed {
		t.Error("a limit that is not the control group's changed the spec")
	}
}

func TestBrokenLimitIsReadFromTheGroup(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := brokenInGroup(root, "/g/x"); got != "" {
		t.Errorf("no group: %q", got)
	}
	write("memory/g/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
	write("pids/g/x/pids.events", "max 3\n")
	if got := brokenInGroup(root, "/g/x"); got != limitTasks {
		t.Errorf("processes: %q", got)
	}
	write("memory/g/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
	if got := brokenInGroup(root, "/g/x"); got != limitMemory {
		t.Errorf("memory: %q", got)
	}
}

// A process stands for the sandbox: the guard must kill it for what is in its directory.
func TestGuardKillsWhatWritesTooMuch(t *testing.T) {
	for name, tt := range map[string]struct {
		limits limits
		want   string
	}{
		"too much written":  {limits{DiskBytes: 1 << 20}, "runtime: limit disk: killed for writing more than 1 MiB to the disk\n"},
		"the disk is full":  {limits{DiskFreeBytes: 1 << 60}, "runtime: limit disk-free: "},
		"within the limits": {limits{DiskBytes: 1 << 40}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fifo := filepath.Join(t.TempDir(), "stderr")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			g, err := newGuard(tt.limits, "/none", fifo)
			if err != nil {
				t.Fatal(err)
			}
			g.dirs = []string{dir}
			if err := os.WriteFile(filepath.Join(dir, "old"), make([]byte, 4<<20), 0o644); err != nil {
				t.Fatal(err)
			}
			old := time.Now().Add(time.Millisecond)
			g.since = old
			if g.count() != 0 {
				t.Error("what was there before counts")
			}
			g.since = time.Time{}
			reader, err := os.OpenFile(fifo, os.O_RDONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			sleep, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{})
			if err != nil {
				t.Fatal(err)
			}
			sandbox := &process{pid: sleep.Pid, ended: make(chan struct{})}
			go func() {
				_, _ = sleep.Wait()
				close(sandbox.ended)
			}()
			if tt.want == "" {
				_ = sleep.Kill()
			}
			done := make(chan struct{})
			go func() { g.watch(t.Context(), sandbox); close(done) }()
			said, err := io.ReadAll(reader)
			if err != nil || !strings.HasPrefix(string(said), tt.want) || tt.want == "" && len(said) > 0 {
				t.Errorf("said %q, %v", said, err)
			}
			<-done
		})
	}
}
