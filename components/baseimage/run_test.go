package baseimage

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Variables of the process of refreshProcess.
const (
	envRefresh = "BASEIMAGE_TEST_REFRESH" // the directory of the images
	envMirror  = "BASEIMAGE_TEST_MIRROR"  // the directory of the mirror; empty: it stops before it looks for packages
	envMake    = "BASEIMAGE_TEST_MAKE"    // instead of a refresh it makes an image
)

// process is a refresh in a process of its own, which prints its progress.
type process struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func refreshProcess(t *testing.T, dir, mirror string) *process {
	t.Helper()
	return startProcess(t, envRefresh+"="+dir, envMirror+"="+mirror)
}

// makerProcess is a process that makes an image in a directory.
func makerProcess(t *testing.T, dir string) *process {
	t.Helper()
	return startProcess(t, envRefresh+"="+dir, envMake+"=yes")
}

func startProcess(t *testing.T, env ...string) *process {
	t.Helper()
	p := &process{cmd: exec.CommandContext(t.Context(), os.Args[0])}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = os.Stderr
	out := must(p.cmd.StdoutPipe())(t)
	must(0, p.cmd.Start())(t)
	t.Cleanup(func() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) })
	p.lines = bufio.NewScanner(out)
	return p
}

// until waits for a line of the progress.
func (p *process) until(t *testing.T, line string) {
	t.Helper()
	for p.lines.Scan() {
		if strings.Contains(p.lines.Text(), line) {
			return
		}
	}
	t.Fatalf("the process ended without %q", line)
}

func (p *process) kill(t *testing.T) {
	t.Helper()
	must(0, syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL))(t)
	for p.lines.Scan() { // until the last of its processes has ended
	}
	_ = p.cmd.Wait()
}

// TestMain is also the program of refreshProcess.
func TestMain(m *testing.M) {
	dir := os.Getenv(envRefresh)
	if dir == "" {
		os.Exit(m.Run())
	}
	if err := refreshIn(context.Background(), dir, os.Getenv(envMirror)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// refreshIn refreshes the images in a directory from a mirror; without one it begins a refresh that lasts until the process
// is killed.
func refreshIn(ctx context.Context, dir, from string) error {
	s := New(Config{Dir: dir})
	progress := func(l string) { fmt.Println(l) }
	if os.Getenv(envMake) != "" {
		_, err := s.Ensure(ctx, Ref{Name: "debian"}, progress)
		return err
	}
	if from != "" {
		h, err := readHost()
		if err == nil {
			mirror{from}.use(h)
			_, err = s.Refresh(ctx, false, progress)
		}
		return err
	}
	unlock, err := s.lockRefresh(ctx, progress)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := s.beginRun(); err != nil {
		return err
	}
	progress("begun")
	select {} // until it is killed
}

// TestOneRefreshOfAMachine: of several servers with a due refresh one does it.
func TestOneRefreshOfAMachine(t *testing.T) {
	dir := t.TempDir()
	var ran atomic.Int32
	var all sync.WaitGroup
	begin := make(chan struct{})
	for range 8 {
		all.Go(func() {
			<-begin
			ok, err := New(Config{Dir: dir}).RefreshDue(t.Context(), Schedule{Every: time.Hour}, func(string) {})
			if err != nil {
				t.Error(err)
			}
			if ok {
				ran.Add(1)
			}
		})
	}
	close(begin)
	all.Wait()
	if ran.Load() != 1 {
		t.Errorf("%d refreshes, want 1", ran.Load())
	}
	s := New(Config{Dir: dir})
	if r := must(s.LastRun())(t); r.SucceededAt == nil || r.Failures != 0 || r.Running {
		t.Errorf("%+v", r)
	}
	if ok, err := s.RefreshDue(t.Context(), Schedule{}, func(string) {}); ok || err != nil {
		t.Errorf("without an interval: %v, %v", ok, err)
	}
}

// TestRefreshWaitsForAnother: a refresh is seen while it runs. When it is killed, a server that waits for it does its own
// once that is due.
func TestRefreshWaitsForAnother(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	other := refreshProcess(t, s.cfg.Dir, "")
	other.until(t, "begun")
	if r := must(s.LastRun())(t); !r.Running || r.EndedAt != nil || r.Error != "" {
		t.Errorf("while it runs: %+v", r)
	}
	waits, done := make(chan struct{}), make(chan error)
	go func() {
		_, err := s.Refresh(t.Context(), false, func(string) { close(waits) })
		done <- err
	}()
	<-waits
	other.kill(t)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if r := must(s.LastRun())(t); r.Failures != 0 || r.SucceededAt == nil {
		t.Errorf("after it: %+v", r)
	}

	// The record of one that was killed: the next one is not at once, so that a server that it brings down comes up.
	other = refreshProcess(t, s.cfg.Dir, "")
	other.until(t, "begun")
	other.kill(t)
	r := must(s.LastRun())(t)
	if r.Running || r.Failures != 1 || r.SucceededAt == nil || r.Error == "" {
		t.Errorf("after a kill: %+v", r)
	}
	if ok, err := s.RefreshDue(t.Context(), Schedule{Every: time.Hour}, func(string) {}); ok || err != nil {
		t.Errorf("at once after a kill: %v, %v", ok, err)
	}
	r.StartedAt = r.StartedAt.Add(-firstRetry)
	must(0, s.writeRun(r))(t)
	if ok, err := s.RefreshDue(t.Context(), Schedule{Every: time.Hour}, func(string) {}); !ok || err != nil {
		t.Errorf("when it is due: %v, %v", ok, err)
	}
}

// TestRecordOfARefresh: a canceled refresh is one that was ended in the middle, and a record that cannot be read stops
// none.
func TestRecordOfARefresh(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	if r, err := s.LastRun(); r != nil || err != nil {
		t.Errorf("%+v, %v", r, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := must(s.beginRun())(t)
	if err := s.endRun(ctx, r, nil, ctx.Err()); err == nil || must(s.LastRun())(t).EndedAt != nil {
		t.Errorf("a canceled one has an end: %v", err)
	}
	must(0, os.WriteFile(filepath.Join(s.cfg.Dir, "refresh.json"), []byte("{"), 0o644))(t)
	if _, err := s.LastRun(); !errs.Is(err, errs.Corrupt) {
		t.Error(err)
	}
	if ok, err := s.RefreshDue(t.Context(), Schedule{Every: time.Hour}, func(string) {}); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	if r := must(s.LastRun())(t); r.SucceededAt == nil {
		t.Errorf("%+v", r)
	}
}
