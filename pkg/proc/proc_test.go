package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// helperEnv makes the test binary a server that starts a child and ends.
const helperEnv = "PROC_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperEnv); dir != "" {
		if _, err := Ensure(context.Background(), spec(dir, "exec sleep 1000")); err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// spec runs a shell script that is ready when it has made a file.
func spec(dir, script string) Spec {
	ready := filepath.Join(dir, "ready")
	return Spec{
		Name: "child", Path: "/bin/sh", Args: []string{"-c", ": > " + ready + "; " + script},
		LogFile: filepath.Join(dir, "log", "child.log"), RecordFile: filepath.Join(dir, "run", "child.json"),
		Ready:        func(context.Context) error { _, err := os.Stat(ready); return err },
		ReadyTimeout: wait.Limit,
	}
}

func ensure(t *testing.T, s Spec) *Process {
	t.Helper()
	p, err := Ensure(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(context.Background(), syscall.SIGKILL, wait.Limit); err != nil {
			t.Error(err)
		}
	})
	return p
}

func ended(t *testing.T, p *Process) {
	t.Helper()
	wait.Receive(t, "Done is closed", p.Done())
	if p.record.Alive() {
		t.Fatal("it is alive")
	}
}

func TestStartStop(t *testing.T) {
	s := spec(t.TempDir(), "echo out; echo err >&2; exec sleep 1000")
	s.Env = []string{"PATH=/usr/bin:/bin"}
	p := ensure(t, s)
	if p.Adopted || !p.record.Alive() {
		t.Fatalf("%+v", p)
	}
	if sid, err := sessionOf(p.PID()); err != nil || sid != p.PID() {
		t.Errorf("session %d of process %d: %v", sid, p.PID(), err)
	}
	wait.NoError(t, "the log is whole", func() error {
		b, err := os.ReadFile(s.LogFile)
		if err == nil && string(b) != "out\nerr\n" {
			err = fmt.Errorf("log %q", b)
		}
		return err
	})
	if err := p.Stop(t.Context(), syscall.SIGTERM, wait.Limit); err != nil {
		t.Fatal(err)
	}
	ended(t, p)
	if _, err := os.Stat(s.RecordFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("record after Stop: %v", err)
	}
	if err := p.Stop(t.Context(), syscall.SIGTERM, time.Second); err != nil {
		t.Errorf("second Stop: %v", err)
	}
	if q, err := Find(s.RecordFile); q != nil || err != nil {
		t.Errorf("found %v, %v", q, err)
	}
}

func sessionOf(pid int) (int, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	return strconv.Atoi(f[3])
}

func TestRunningProcessIsAdopted(t *testing.T) {
	s := spec(t.TempDir(), "exec sleep 1000")
	first := ensure(t, s)
	second := ensure(t, s)
	if !second.Adopted || second.PID() != first.PID() {
		t.Fatalf("started a second one: %d beside %d", second.PID(), first.PID())
	}
	found, err := Find(s.RecordFile)
	if err != nil || found == nil || found.PID() != first.PID() {
		t.Fatalf("found %v, %v", found, err)
	}
	// The adopted process ends by itself.
	if err := syscall.Kill(first.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Process{first, second, found} {
		ended(t, p)
	}
	third := ensure(t, s)
	if third.Adopted || third.PID() == first.PID() {
		t.Fatalf("adopted a dead process: %+v", third)
	}
	// Stopping through a stale handle leaves the successor and its record.
	if err := second.Stop(t.Context(), syscall.SIGTERM, time.Second); err != nil {
		t.Fatal(err)
	}
	if found, err := Find(s.RecordFile); err != nil || found == nil || found.PID() != third.PID() {
		t.Errorf("after a stale Stop: %v, %v", found, err)
	}
	if err := third.Stop(t.Context(), syscall.SIGTERM, wait.Limit); err != nil {
		t.Fatal(err)
	}
}

func TestOutlivesItsParent(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p := ensure(t, spec(dir, "false"))
	if !p.Adopted {
		t.Fatal("the child ended with its parent")
	}
	// It is no child of ours: only its pidfd reports its end.
	if err := p.Stop(t.Context(), syscall.SIGTERM, wait.Limit); err != nil {
		t.Fatal(err)
	}
	ended(t, p)
}

func TestKillAfterGrace(t *testing.T) {
	dir := t.TempDir()
	trapped := filepath.Join(dir, "trapped")
	s := spec(dir, "trap '' TERM; : > "+trapped+"; while :; do sleep 0.1; done")
	s.Ready = func(context.Context) error { _, err := os.Stat(trapped); return err }
	p := ensure(t, s)
	if err := p.Stop(t.Context(), syscall.SIGTERM, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	ended(t, p)
}

func TestStopGivesUpWithContext(t *testing.T) {
	dir := t.TempDir()
	trapped := filepath.Join(dir, "trapped")
	s := spec(dir, "trap '' TERM; : > "+trapped+"; while :; do sleep 0.1; done")
	s.Ready = func(context.Context) error { _, err := os.Stat(trapped); return err }
	p := ensure(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Stop(ctx, syscall.SIGTERM, time.Minute); !errs.Is(err, errs.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	if found, err := Find(s.RecordFile); err != nil || found == nil {
		t.Errorf("the record of a running process is gone: %v, %v", found, err)
	}
}

func TestNotReady(t *testing.T) {
	for name, c := range map[string]struct {
		script  string
		timeout time.Duration
		class   errs.Class
		text    string
	}{
		"ends":  {"echo it is broken; exit 3", wait.Limit, errs.Unavailable, "exit status 3"},
		"hangs": {"echo it is broken; exec sleep 1000", 3 * time.Second, errs.DeadlineExceeded, "not yet"},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(t.TempDir(), c.script)
			s.ReadyTimeout = c.timeout
			s.Ready = func(context.Context) error { return errors.New("not yet") }
			_, err := Ensure(t.Context(), s)
			if !errs.Is(err, c.class) || !strings.Contains(err.Error(), c.text) || !strings.Contains(errs.HintOf(err), "it is broken") {
				t.Errorf("got %v (%s), hint %q", err, errs.ClassOf(err), errs.HintOf(err))
			}
			if _, err := os.Stat(s.RecordFile); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("record is left: %v", err)
			}
		})
	}
}

// TestAdoptedNotReady: a running process is left alone.
func TestAdoptedNotReady(t *testing.T) {
	s := spec(t.TempDir(), "exec sleep 1000")
	p := ensure(t, s)
	s.Ready = func(context.Context) error { return errors.New("not yet") }
	s.ReadyTimeout = 50 * time.Millisecond
	if _, err := Ensure(t.Context(), s); !errs.Is(err, errs.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if !p.record.Alive() {
		t.Error("the adopted process was ended")
	}
}

func TestMissingExecutable(t *testing.T) {
	s := spec(t.TempDir(), "")
	s.Path = "/nonexistent"
	if _, err := Ensure(t.Context(), s); !errs.Is(err, errs.Unavailable) {
		t.Errorf("got %v", err)
	}
}

func TestStaleRecordsNameNoProcess(t *testing.T) {
	self, err := Identify(os.Getpid())
	if err != nil || !self.Alive() {
		t.Fatalf("%+v, %v", self, err)
	}
	recycled, rebooted := self, self
	recycled.StartTime++
	rebooted.BootID = "another"
	for name, c := range map[string]struct {
		content any
		class   errs.Class // text of the error; empty: no process and no error
	}{
		"recycled pid":   {recycled, ""},
		"another boot":   {rebooted, ""},
		"power loss":     {"", ""}, // renamed, but the contents did not reach the disk
		"not a record":   {"nonsense", errs.Corrupt},
		"no such number": {Record{PID: 1 << 30}, ""},
	} {
		path := filepath.Join(t.TempDir(), "r.json")
		b, isText := c.content.(string)
		if !isText {
			j, err := json.Marshal(c.content)
			if err != nil {
				t.Fatal(err)
			}
			b = string(j)
		}
		if err := os.WriteFile(path, []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := Find(path)
		if p != nil || errs.ClassOf(err) != c.class {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
}

func TestZombieIsNotAlive(t *testing.T) {
	cmd := exec.Command("/bin/true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rec, err := Identify(cmd.Process.Pid)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	wait.For(t, "a zombie does not count as alive", func() bool { return !rec.Alive() })
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestTailIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 5000)+"\nlast line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tail(path, 20); !strings.HasSuffix(got, "last line") || len(got) > 20 {
		t.Errorf("got %q", got)
	}
}
