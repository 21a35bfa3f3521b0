package baseimage

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/buildkit"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// programsOf returns the processes of the machine that make images in a folder.
func programsOf(t *testing.T, dir string) (pids []int) {
	t.Helper()
	for _, file := range must(filepath.Glob("/proc/[0-9]*/environ"))(t) {
		env, err := os.ReadFile(file) // of a process that ended meanwhile: an error
		if err == nil && strings.Contains(string(env), "TMPDIR="+dir) {
			pids = append(pids, must(strconv.Atoi(strings.Split(file, "/")[2]))(t))
		}
	}
	return pids
}

// mountsBelow reports whether a process sees a mount below a folder.
func mountsBelow(pid, dir string) bool {
	b, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	return err == nil && strings.Contains(string(b), " "+dir+"/")
}

func newGroups(t *testing.T, l buildkit.Limits) *buildkit.Groups {
	t.Helper()
	dir := t.TempDir()
	in := must(instance.Open(filepath.Join(dir, "state"), filepath.Join(dir, "run")))(t)
	g := buildkit.NewGroups(in, l)
	t.Cleanup(func() {
		for _, id := range must(g.List())(t) {
			if err := g.Delete(context.WithoutCancel(t.Context()), id); err != nil {
				t.Error(err)
			}
		}
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// TestKilledWhileItMakesAnImage: when a server is killed while it makes an image, the programs that it started end too,
// no mount of theirs stays, and the next start removes their files.
func TestKilledWhileItMakesAnImage(t *testing.T) {
	need.Root(t)
	// As mmdebstrap does, it ignores SIGTERM, and mounts file systems in the image long after its start.
	tools := t.TempDir()
	script := "#!/bin/sh\ntrap '' TERM\nmkdir $TMPDIR/pts\nmount -t devpts devpts $TMPDIR/pts\nsleep 600 &\nwait\n"
	must(0, os.WriteFile(filepath.Join(tools, "mmdebstrap"), []byte(script), 0o755))(t)
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	s := New(Config{Dir: t.TempDir()})
	p := makerProcess(t, s.cfg.Dir)
	p.until(t, "making base image")
	wait.For(t, "the file systems of the image are mounted", func() bool {
		return slices.ContainsFunc(programsOf(t, s.cfg.Dir), func(pid int) bool { return mountsBelow(strconv.Itoa(pid), s.cfg.Dir) })
	})
	if mountsBelow("self", s.cfg.Dir) {
		t.Error("they are mounted for the whole machine")
	}
	p.kill(t)
	wait.For(t, "its programs have ended", func() bool { return len(programsOf(t, s.cfg.Dir)) == 0 })
	if mountsBelow("self", s.cfg.Dir) {
		t.Error("mounts stayed")
	}
	if left := must(filepath.Glob(filepath.Join(s.cfg.Dir, ".tmp-*")))(t); len(left) == 0 {
		t.Error("nothing is there to sweep")
	}
	must(0, s.Sweep(t.Context()))(t)
	if left := must(filepath.Glob(filepath.Join(s.cfg.Dir, ".tmp-*")))(t); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
}

// TestSweep: mounts are removed, and not what is mounted; what another process makes stays.
func TestSweep(t *testing.T) {
	need.Root(t)
	g := newGroups(t, buildkit.Limits{})
	s := New(Config{Dir: t.TempDir(), Groups: g})
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	const killed, busy = "debian-x-0123456789abcdef", "debian-y-0123456789abcdef"
	outside := t.TempDir()
	must(0, os.WriteFile(filepath.Join(outside, "file"), nil, 0o600))(t)
	must(0, os.MkdirAll(filepath.Join(s.cfg.Dir, "locks"), 0o755))(t)
	for _, lock := range []string{killed, busy, refreshName} {
		dir := must(s.scratch(lock))(t)
		must(0, os.Mkdir(filepath.Join(dir, "dev"), 0o755))(t)
		if lock == killed {
			must(0, unix.Mount(outside, filepath.Join(dir, "dev"), "", unix.MS_BIND, ""))(t)
		}
		unlock := must(tryLock(filepath.Join(s.cfg.Dir, "locks", lock)))(t)
		if lock == busy {
			defer unlock()
		} else {
			unlock()
		}
	}
	// The program of a refresh goes on although the server was killed.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- s.run(ctx, refreshName, func(*exec.Cmd) {}, "sleep", "600") }()
	wait.For(t, "it runs in its group", func() bool {
		files, err := g.Create(groupOf(refreshName))
		if err != nil {
			return false
		}
		b, err := os.ReadFile(files[0])
		return err == nil && len(b) > 0
	})

	must(0, s.Sweep(t.Context()))(t)
	if err := <-ended; err == nil {
		t.Error("the program was not killed")
	}
	left := must(filepath.Glob(filepath.Join(s.cfg.Dir, ".tmp-*")))(t)
	if len(left) != 1 || !strings.Contains(left[0], busy) || mountsBelow("self", s.cfg.Dir) {
		t.Errorf("it left %v", left)
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Error("the sweep removed what was mounted:", err)
	}
}

// TestProgramsHaveTheLimitsOfBuilds: one that needs more memory is ended, and the error says which setting bounds it.
func TestProgramsHaveTheLimitsOfBuilds(t *testing.T) {
	need.Root(t)
	g := newGroups(t, buildkit.Limits{MemoryBytes: 32 << 20})
	s := New(Config{Dir: t.TempDir(), Groups: g})
	err := s.run(t.Context(), refreshName, func(*exec.Cmd) {}, "tail", "/dev/zero") // reads all of it into memory
	if !errs.Is(err, errs.ResourceExhausted) || !strings.Contains(err.Error(), "32 MiB") || !strings.Contains(errs.HintOf(err), "build.memory_bytes") {
		t.Errorf("%v, %s", err, errs.HintOf(err))
	}
	var status syscall.WaitStatus
	err = s.run(t.Context(), refreshName, func(cmd *exec.Cmd) { cmd.Stdin = strings.NewReader("7") }, "sh", "-c", "read n; exit $n")
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		status = exit.Sys().(syscall.WaitStatus)
	}
	if status.ExitStatus() != 7 {
		t.Errorf("a program within the limits: %v", err)
	}
	if left := must(g.List())(t); len(left) > 0 {
		t.Errorf("groups %v", left)
	}
}
