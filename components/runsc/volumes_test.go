package runsc_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/runsc"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/runsctest"
	"miren.dev/runtime/testsupport/wait"
)

// disk makes a file system in a file and mounts it where those of disks are.
func (m machine) disk(t *testing.T, name string) (image, mnt string) {
	t.Helper()
	image, mnt = filepath.Join(t.TempDir(), "image"), filepath.Join(m.Instance.DiskMounts(), name)
	if err := os.MkdirAll(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, "truncate", "-s", "16M", image)
	command(t, "mkfs.ext4", "-q", "-F", image)
	command(t, "mount", "-o", "loop", image, mnt)
	t.Cleanup(func() {
		if err := unix.Unmount(mnt, 0); err != nil && err != unix.EINVAL {
			t.Error(err)
		}
	})
	if err := os.Chmod(mnt, 0o777); err != nil {
		t.Fatal(err)
	}
	return image, mnt
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// TestMounts: what a sandbox wrote to a mounted disk, the next one reads. A
// read-only mount cannot be written, and other mounts below the directory of
// disks are not to be seen.
func TestMounts(t *testing.T) {
	eachBackend(t, func(t *testing.T, m machine) {
		_, mnt := m.disk(t, "d1")
		e := m.Env()
		writer := m.spec("writer", "sleep")
		writer.User = "app"
		writer.Mounts = []execution.Mount{{Source: mnt, Target: "/data"}}
		m.ensure(t, writer)
		e.Output(t, "writer", execution.ExecSpec{Command: []string{"/bin/guest", "put", "/data/file", "of the writer"}})
		m.Restart(t)
		e = m.Env()
		e.Output(t, "writer", execution.ExecSpec{Command: []string{"/bin/guest", "put", "/data/later", "after a restart"}})

		reader := m.spec("reader", "sleep")
		reader.Mounts = []execution.Mount{{Source: mnt, Target: "/mnt/deep/data", ReadOnly: true}}
		m.ensure(t, reader)
		m.delete(t, "writer")
		for file, want := range map[string]string{"file": "of the writer", "later": "after a restart"} {
			if got := e.Output(t, "reader", execution.ExecSpec{Command: []string{"/bin/guest", "read", "/mnt/deep/data/" + file}}); got != want {
				t.Errorf("%s has %q, not %q", file, got, want)
			}
		}
		p, err := m.Driver.Exec(t.Context(), "reader", execution.ExecSpec{Command: []string{"/bin/guest", "put", "/mnt/deep/data/file", "x"}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if code, err := p.Wait(t.Context()); err != nil || code == 0 {
			t.Errorf("write to a read-only mount: %d, %v", code, err)
		}
		m.delete(t, "reader")
		if b, err := os.ReadFile(filepath.Join(mnt, "file")); err != nil || string(b) != "of the writer" {
			t.Errorf("the host reads %q, %v", b, err)
		}
	})
}

// TestSandboxKeepsOnlyItsDisks starts two sandboxes while two disks are mounted
// below the directory of disks. A disk is free when the sandbox that has it ended.
func TestSandboxKeepsOnlyItsDisks(t *testing.T) {
	if !private.Run(t) { // sandboxes of other tests would keep them
		return
	}
	m := machine{runsctest.New(t)}
	image1, mnt1 := m.disk(t, "d1")
	image2, mnt2 := m.disk(t, "d2")
	one, none := m.spec("one", "sleep"), m.spec("none", "sleep")
	one.Mounts = []execution.Mount{{Source: mnt1, Target: "/data"}}
	m.ensure(t, none)
	m.ensure(t, one)
	free := func(image string) bool { return command(t, "losetup", "-j", image) == "" } // it detaches itself when nothing uses it
	for _, mnt := range []string{mnt1, mnt2} {
		if err := unix.Unmount(mnt, 0); err != nil {
			t.Fatal(err)
		}
	}
	wait.For(t, "the disk that no sandbox has is free", func() bool { return free(image2) })
	if free(image1) {
		t.Error("the disk of a sandbox that runs is free")
	}
	m.Env().Output(t, "one", execution.ExecSpec{Command: []string{"/bin/guest", "put", "/data/file", "x"}})
	m.delete(t, "one")
	wait.For(t, "the disk of an ended sandbox is free", func() bool { return free(image1) })
	m.delete(t, "none")
}

// TestMountsRefused: a mount that would hide another one is refused before
// anything is made.
func TestMountsRefused(t *testing.T) {
	m := machine{runsctest.New(t)}
	for _, mounts := range [][]execution.Mount{
		{{Source: "relative", Target: "/data"}},
		{{Source: "/tmp", Target: "data"}},
		{{Source: "/tmp", Target: "/"}},
		{{Source: "/tmp", Target: "/data/../etc"}},
		{{Source: "/tmp", Target: "/proc/sys"}},
		{{Source: "/tmp", Target: "/run/runtime/agent"}},
		{{Source: "/tmp", Target: "/run"}},
		{{Source: "/tmp", Target: "/data"}, {Source: "/tmp", Target: "/data/in"}},
	} {
		s := m.spec("refused", "sleep")
		s.Mounts = mounts
		if _, err := m.Driver.Ensure(t.Context(), s); !errs.Is(err, errs.InvalidArgument) || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%+v: %v", mounts, err)
		}
	}
}

// TestVolumesOfAClaim: a sandbox that runs gets volumes with its claim, which it keeps over a
// restart of the server and a pause, and which are free when it is deleted. What the host
// mounts for one sandbox is not in another.
func TestVolumesOfAClaim(t *testing.T) {
	eachBackend(t, func(t *testing.T, m machine) {
		_, mnt1 := m.disk(t, "d1")
		_, mnt2 := m.disk(t, "d2")
		if err := os.WriteFile(filepath.Join(mnt2, "given"), []byte("by the host"), 0o644); err != nil {
			t.Fatal(err)
		}
		warm, other := m.spec("warm"), m.spec("other")
		for _, s := range []*execution.Spec{&warm, &other} {
			s.Idle, s.PIDs, s.User = true, 64, "app"
			m.ensure(t, *s)
		}
		i := execution.Identity{Claim: "c", Mounts: []execution.Mount{
			{Source: mnt1, Target: "/data/deep"}, {Source: mnt2, Target: "/given", ReadOnly: true},
		}}
		later := m.spec("later")
		later.Idle = true
		for range 2 { // a repetition after an answer that was lost
			if err := m.Driver.Configure(t.Context(), "warm", i); err != nil {
				t.Fatal(err)
			}
		}
		m.ensure(t, later)
		run := func(id string, args ...string) (string, int) {
			t.Helper()
			p, err := m.Driver.Exec(t.Context(), id, execution.ExecSpec{Command: append([]string{"/bin/guest"}, args...), NoInput: true})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			out, err := io.ReadAll(io.MultiReader(p.Stdout(), p.Stderr()))
			if err != nil {
				t.Fatal(err)
			}
			code, err := p.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return string(out), code
		}
		check := func(when string) {
			t.Helper()
			if out, code := run("warm", "put", "/data/deep/file", when); code != 0 {
				t.Errorf("%s: write: %d, %q", when, code, out)
			}
			if b, err := os.ReadFile(filepath.Join(mnt1, "file")); err != nil || string(b) != when {
				t.Errorf("%s: the host reads %q, %v", when, b, err)
			}
			if out, code := run("warm", "read", "/given/given"); code != 0 || out != "by the host" {
				t.Errorf("%s: read: %d, %q", when, code, out)
			}
			if _, code := run("warm", "put", "/given/file", "x"); code == 0 {
				t.Errorf("%s: a read-only volume was written to", when)
			}
			for _, id := range []string{"other", "later"} {
				if out, code := run(id, "read", "/run/runtime/volumes/1/given"); code == 0 {
					t.Errorf("%s: sandbox %s reads %q", when, id, out)
				}
				if _, code := run(id, "put", "/run/runtime/volumes/file", "x"); code == 0 {
					t.Errorf("%s: sandbox %s writes to the host", when, id)
				}
			}
		}
		check("at once")
		m.Restart(t)
		if err := m.Driver.Configure(t.Context(), "warm", i); err != nil {
			t.Fatal(err)
		}
		check("after a restart of the server")
		o := i
		o.Claim = "other"
		if err := m.Driver.Configure(t.Context(), "warm", o); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("another claim: %v", err)
		}
		if m.Backend == runsc.BackendDirect {
			info, err := m.Driver.Snapshot(t.Context(), "warm", "pause", execution.SnapshotOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(info.Spec.Mounts) != 2 {
				t.Errorf("the snapshot has mounts %v", info.Spec.Mounts)
			}
			resumed := warm
			resumed.Restore, resumed.Mounts, resumed.User = "pause", i.Mounts, ""
			m.ensure(t, resumed)
			check("after a pause")
		}
		for _, id := range []string{"warm", "other", "later"} {
			m.delete(t, id)
		}
		for _, mnt := range []string{mnt1, mnt2} {
			if err := unix.Unmount(mnt, 0); err != nil {
				t.Errorf("unmount the disk of a deleted sandbox: %v", err)
			}
		}
	})
}
