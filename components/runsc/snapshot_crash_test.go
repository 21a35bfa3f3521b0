package runsc_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/testsupport/checkout"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/runsctest"
	"miren.dev/runtime/testsupport/wait"
)

// actor is the program that is killed in the place of a server.
type actor struct {
	m    machine
	path string
	file string // of package fault
}

func newActor(t *testing.T, m machine) *actor {
	t.Helper()
	a := &actor{m: m, path: filepath.Join(t.TempDir(), "actor"), file: filepath.Join(t.TempDir(), "fault")}
	build := exec.Command("go", "build", "-tags", "faultpoints", "-o", a.path, "./testsupport/runsctest/actor")
	build.Dir = checkout.Root(t)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the actor: %v\n%s", err, out)
	}
	return a
}

// run has the actor do something while there is no server, with content in the file of package fault. It says whether
// the actor was killed.
func (a *actor) run(t *testing.T, content string, args ...string) (killed bool) {
	t.Helper()
	a.m.Stop()
	if err := a.m.Driver.Close(); err != nil {
		t.Error(err)
	}
	defer a.m.Start(t)
	if err := os.WriteFile(a.file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	in := a.m.Instance
	c := exec.Command(a.path, append([]string{in.State(), filepath.Dir(in.RunDir), a.m.Bin}, args...)...)
	c.Env = append(os.Environ(), fault.Env+"="+a.file)
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		st, _ := exit.Sys().(syscall.WaitStatus)
		killed = st.Signaled() && st.Signal() == syscall.SIGKILL
	}
	if err != nil && !killed {
		t.Fatalf("actor: %v\n%s", err, out)
	}
	return killed
}

// points returns the points that an operation reaches.
func (a *actor) points(t *testing.T, args ...string) []string {
	t.Helper()
	if err := os.RemoveAll(a.file + ".seen"); err != nil {
		t.Fatal(err)
	}
	if a.run(t, "trace", args...) {
		t.Fatal("killed while it was traced")
	}
	b, err := os.ReadFile(a.file + ".seen")
	if err != nil {
		t.Fatal(err)
	}
	return slices.Compact(strings.Fields(string(b)))
}

// TestServerKilledInSnapshot kills the server at every point of a pause, of a snapshot that leaves the sandbox running, and
// of a restore. The next server finds a running or a paused sandbox, each whole, and nothing else.
func TestServerKilledInSnapshot(t *testing.T) {
	m := machine{runsctest.New(t)}
	a := newActor(t, m)
	s := m.spec("killed", "count", "/tmp/count")
	s.Mounts = []execution.Mount{{Source: t.TempDir(), Target: "/data"}} // so that a pause stops it
	before := 0
	fresh := func(t *testing.T) {
		t.Helper()
		s.Restore = ""
		m.ensure(t, s)
		m.counts(t, s.ID, 5)
		before, _ = m.counted(t, s.ID)
	}
	// whole checks that the sandbox runs, by a resume if it is paused.
	whole := func(t *testing.T) {
		t.Helper()
		in, err := m.Driver.Get(t.Context(), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if in.Phase == execution.Paused {
			wait.NoError(t, "a paused sandbox has neither processes nor network", func() error {
				pids, err := m.Driver.PIDs(s.ID)
				at, aerr := m.Driver.NetworkIDs()
				if err = errors.Join(err, aerr); err == nil && len(pids)+len(at) > 0 {
					err = fmt.Errorf("%v, %v", pids, at)
				}
				return err
			})
		}
		s.Restore = "image"
		if in.Phase == execution.Running {
			s.Restore = "" // adopted
		}
		in = m.ensure(t, s)
		if now, _ := m.counted(t, s.ID); now < before {
			t.Errorf("the count went from %d to %d", before, now)
		}
		m.counts(t, s.ID, before)
		if all, err := m.Driver.List(t.Context()); err != nil || len(all) != 1 {
			t.Errorf("List = %+v, %v", all, err)
		}
		entries, err := os.ReadDir(m.Instance.State("snapshots"))
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			if e.Name() != "image" {
				t.Errorf("left: %s", e.Name())
			}
		}
	}
	clean := func(t *testing.T) {
		t.Helper()
		m.delete(t, s.ID)
		m.deleteSnapshots(t)
		if all, err := m.Driver.List(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("List = %+v, %v", all, err)
		}
	}
	ensure := func() []string {
		r := s
		r.Restore = "image"
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return []string{"ensure", string(b)}
	}
	for _, c := range []struct {
		name  string
		leave bool
		args  []string
		area  string // of the points at which it is killed
	}{
		{"pause", false, []string{"snapshot", s.ID, "image"}, ""},
		{"snapshot", true, []string{"snapshot", s.ID, "image", "leave"}, ""},
		{"resume", false, ensure(), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin := func(t *testing.T) {
				t.Helper()
				fresh(t)
				if c.name == "resume" {
					m.snapshot(t, s.ID, "image", false)
				}
			}
			begin(t)
			points := a.points(t, c.args...)
			whole(t)
			clean(t)
			if len(points) < 6 {
				t.Fatalf("points: %q", points)
			}
			for _, p := range points {
				t.Run(strings.ReplaceAll(p, "/", "-"), func(t *testing.T) {
					begin(t)
					if !a.run(t, p, c.args...) {
						t.Fatal("not killed")
					}
					whole(t)
					// The same again, by the next server.
					if _, err := m.Driver.Snapshot(t.Context(), s.ID, "image", execution.SnapshotOptions{Leave: c.leave}); err != nil && !errs.Is(err, errs.AlreadyExists) {
						t.Error(err)
					}
					whole(t)
					clean(t)
				})
			}
		})
	}
	t.Run("delete", func(t *testing.T) {
		fresh(t)
		for _, p := range []string{"snapshot/delete/before", "snapshot/delete/after"} {
			m.snapshot(t, s.ID, "image", true)
			if !a.run(t, p, "delete-snapshot", "image") {
				t.Fatal("not killed")
			}
			list, err := m.Driver.ListSnapshots(t.Context())
			if err != nil || (len(list) == 1) != strings.HasSuffix(p, "before") {
				t.Errorf("killed at %s: %+v, %v", p, list, err)
			}
			if err := m.Driver.DeleteSnapshot(t.Context(), "image"); err != nil {
				t.Error(err)
			}
			wait.NoError(t, "nothing is left", func() error {
				if left, err := os.ReadDir(m.Instance.State("snapshots")); err != nil || len(left) > 0 {
					return fmt.Errorf("%v, %v", left, err)
				}
				return nil
			})
		}
		clean(t)
	})
}

// TestPausedSandboxOutlivesPowerLoss: a paused sandbox stays paused and is whole when the machine stops at the moment at
// which the pause is reported, and of its disk only what was synced is left. The machine's own restart is not shown: the
// disk is a file that is copied then, and the boot id another one.
func TestPausedSandboxOutlivesPowerLoss(t *testing.T) {
	if !private.Run(t) { // it changes the boot id
		return
	}
	m := machine{runsctest.New(t)}
	dir, mnt := t.TempDir(), t.TempDir()
	disk, synced, boot := filepath.Join(dir, "disk"), filepath.Join(dir, "synced"), filepath.Join(dir, "boot")
	command(t, "truncate", "-s", "512M", disk)
	command(t, "mkfs.ext4", "-q", "-F", disk)
	attach := func(image string) {
		t.Helper()
		command(t, "mount", "-o", "loop,commit=300", image, mnt)
		for _, name := range []string{"snapshots", "paused"} {
			if err := os.MkdirAll(filepath.Join(mnt, name), 0o700); err != nil {
				t.Fatal(err)
			}
			command(t, "mount", "--bind", filepath.Join(mnt, name), m.Instance.State(name))
		}
	}
	detach := func() { command(t, "umount", m.Instance.State("snapshots"), m.Instance.State("paused"), mnt) }
	attach(disk)
	s := m.spec("paused", "count", "/tmp/count")
	m.ensure(t, s)
	m.counts(t, s.ID, 3)
	before, _ := m.counted(t, s.ID)
	m.ensure(t, m.spec("running", "sleep"))
	command(t, "sync", "-f", mnt) // of the file system, so that only the snapshot is at stake
	m.snapshot(t, s.ID, "image", false)
	command(t, "cp", "--sparse=always", disk, synced)

	wait.NoError(t, "the processes of the paused sandbox end", func() error {
		if pids, err := m.Driver.PIDs(s.ID); err != nil || len(pids) > 0 {
			return fmt.Errorf("%v, %v", pids, err)
		}
		return nil
	})
	m.Stop()
	if err := m.Driver.Close(); err != nil {
		t.Error(err)
	}
	kill(t, m.sentryPID(t, "running"))
	detach()
	attach(synced)
	defer detach()
	if err := os.WriteFile(boot, []byte("11111111-2222-3333-4444-555555555555\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, "mount", "--bind", boot, "/proc/sys/kernel/random/boot_id")
	defer func() { command(t, "umount", "/proc/sys/kernel/random/boot_id") }() // containerd was started in the earlier boot
	m.Start(t)

	in, err := m.Driver.Get(t.Context(), s.ID)
	if err != nil || in.Phase != execution.Paused || in.Snapshot != "image" {
		t.Fatalf("Get of the paused sandbox = %+v, %v", in, err)
	}
	if in, err := m.Driver.Get(t.Context(), "running"); err != nil || in.Phase != execution.Exited || in.Exit == nil || in.Exit.Cause != execution.CauseCrash {
		t.Errorf("Get of the one that ran = %+v, %v", in, err)
	}
	s.Restore = "image"
	m.ensure(t, s)
	m.counts(t, s.ID, before)
	m.delete(t, s.ID)
	m.delete(t, "running")
	m.deleteSnapshots(t)
}
