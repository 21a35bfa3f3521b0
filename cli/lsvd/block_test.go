package lsvd_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/lsvd/frontend/holder"
	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/testsupport/attachtest"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// blockMachine is a machine that may attach block devices.
func blockMachine(t *testing.T) string {
	t.Helper()
	attachtest.Need(t)
	owner := attachtest.Owner(t)
	dir := newState(t)
	state := filepath.Join(dir, "state", "lsvd")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, "id"), []byte(owner+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		run(t, "detach", "--all", "--force")
		if r := run(t, "daemon", "--stop"); r.code != 0 {
			t.Errorf("stop the daemon: %+v", r)
		}
		if left, err := loop.List(owner); err != nil || len(left) > 0 {
			t.Errorf("left on the host: %+v %v", left, err)
		}
	})
	return dir
}

func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// mount mounts a device until the returned unmount.
func mount(t *testing.T, device, dir string) (unmount func()) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	tool(t, "mount", device, dir)
	mounted := true
	unmount = func() {
		if mounted {
			mounted = false
			tool(t, "umount", dir)
		}
	}
	t.Cleanup(func() {
		if mounted {
			_ = exec.Command("umount", "-l", dir).Run()
		}
	})
	return unmount
}

func write(t *testing.T, file string, b []byte) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// TestJourney follows a user's first disk from its creation to its deletion,
// with a file system on it.
func TestJourney(t *testing.T) {
	need.Tools(t, "mkfs.ext4")
	dir := blockMachine(t)
	ok(t, "create", "data", "--size", "256M")
	device := strings.TrimSpace(ok(t, "attach", "data"))
	if !strings.HasPrefix(device, "/dev/") || strings.TrimSpace(ok(t, "attach", "data")) != device {
		t.Fatalf("attached at %q, and again elsewhere", device)
	}
	tool(t, "mkfs.ext4", "-q", device)
	mnt, other := filepath.Join(dir, "mnt"), filepath.Join(dir, "other")
	unmount := mount(t, device, mnt)
	one, two := random(t, filepath.Join(dir, "one"), 10<<20), random(t, filepath.Join(dir, "two"), 5<<20)
	write(t, filepath.Join(mnt, "one"), one)
	ok(t, "snapshot", "create", "data@first")
	write(t, filepath.Join(mnt, "two"), two)

	// A clone of the snapshot has only the first file, and changes
	// independently.
	ok(t, "clone", "data@first", "copy")
	copied := strings.TrimSpace(ok(t, "attach", "copy"))
	unmountCopy := mount(t, copied, other)
	same(t, filepath.Join(other, "one"), one)
	if _, err := os.Stat(filepath.Join(other, "two")); err == nil {
		t.Error("the clone has a file that was written after the snapshot")
	}
	write(t, filepath.Join(other, "three"), two)

	// A device in use is not detached.
	fails(t, exit.Failed, []string{"detach", "data"}, "in use", "unmount")
	fails(t, exit.Failed, []string{"daemon", "--stop"}, "data at "+device, "--restart")
	write(t, filepath.Join(mnt, "still"), two)

	// A new daemon, and the successor of a killed one, continue to serve it.
	ok(t, "daemon", "--restart")
	write(t, filepath.Join(mnt, "upgraded"), two)
	kill(t)
	write(t, filepath.Join(mnt, "killed"), one) // waits for the daemon that the holder starts
	for _, f := range []string{"one", "two", "still", "upgraded", "killed"} {
		got, err := os.ReadFile(filepath.Join(mnt, f))
		if err != nil || !bytes.Equal(got, one) && !bytes.Equal(got, two) {
			t.Errorf("%s: %d bytes, %v", f, len(got), err)
		}
	}

	// The device grows while it is mounted.
	ok(t, "resize", "data", "512M")
	if size := strings.TrimSpace(tool(t, "blockdev", "--getsize64", device)); size != "536870912" {
		t.Errorf("the device has %s bytes", size)
	}
	a := decode[attached](t, ok(t, "info", "data", "--json"))
	if a.State != "attached" || a.Attached.SizeBytes != 512<<20 || a.Attached.Frontends[0].Address != device {
		t.Errorf("%+v %+v", a, a.Attached)
	}
	unmount()
	unmountCopy()
	tool(t, "e2fsck", "-fn", device)
	// A process of another test that starts in a mount namespace of its own has a
	// copy of the mount for a moment.
	wait.NoError(t, "the file system is in no mount namespace", func() error {
		out, err := exec.Command("e2fsck", "-fp", device).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "is in use") {
			t.Fatalf("e2fsck: %v\n%s", err, out)
		}
		return err
	})
	tool(t, "resize2fs", device) // while mounted it may need CAP_SYS_RESOURCE
	tool(t, "e2fsck", "-fn", device)
	ok(t, "detach", "data")
	ok(t, "detach", "copy")
	id, err := os.ReadFile(filepath.Join(dir, "state", "lsvd", "id"))
	if err != nil {
		t.Fatal(err)
	}
	if left, err := loop.List(strings.TrimSpace(string(id))); err != nil || len(left) > 0 {
		t.Errorf("after detach: %+v %v", left, err)
	}

	// Out of the store, and into another.
	ok(t, "check", "data")
	ok(t, "export", "data", filepath.Join(dir, "data.img"))
	ok(t, "import", filepath.Join(dir, "data.img"), "data", "--store", filepath.Join(dir, "elsewhere"))
	t.Setenv("RUNTIME_LSVD_STORE", filepath.Join(dir, "elsewhere"))
	unmount = mount(t, strings.TrimSpace(ok(t, "attach", "data")), mnt)
	same(t, filepath.Join(mnt, "killed"), one)
	unmount()
	ok(t, "detach", "data")
	ok(t, "delete", "data", "--yes")
	t.Setenv("RUNTIME_LSVD_STORE", "")
	ok(t, "snapshot", "delete", "data@first", "--yes")
	ok(t, "delete", "data", "--yes")
	ok(t, "delete", "copy", "--yes")
	objects(t, filepath.Join(dir, "state", "lsvd", "store"), false)
}

// TestForce takes a device away from a mounted file system.
func TestForce(t *testing.T) {
	dir := blockMachine(t)
	ok(t, "create", "data", "--size", "64M")
	device := strings.TrimSpace(ok(t, "attach", "data"))
	tool(t, "mkfs.ext4", "-q", device)
	unmount := mount(t, device, filepath.Join(dir, "mnt"))
	began := time.Now()
	ok(t, "detach", "data", "--force")
	if err := os.WriteFile(filepath.Join(dir, "mnt", "x"), make([]byte, 1<<20), 0o600); err == nil {
		f, err := os.Open(filepath.Join(dir, "mnt"))
		if err == nil {
			err = f.Sync()
			f.Close()
		}
		if err == nil {
			t.Error("writing goes on after the device was taken away")
		}
	}
	unmount()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("that took %s", took)
	}
	ok(t, "check", "data")
}

// TestServingEnds ends the connection of a mounted block device to the kernel, as an administrator
// can: the daemon logs that with the name of the disk, its status has it, and the disk can be
// detached and attached again with every acknowledged write.
func TestServingEnds(t *testing.T) {
	need.Tools(t, "mkfs.ext4")
	dir := blockMachine(t)
	ok(t, "create", "data", "--size", "64M")
	device := strings.TrimSpace(ok(t, "attach", "data"))
	tool(t, "mkfs.ext4", "-q", device)
	unmount := mount(t, device, filepath.Join(dir, "mnt"))
	want := random(t, filepath.Join(dir, "mnt", "before"), 1<<20)
	tool(t, "sync", "-f", filepath.Join(dir, "mnt"))
	in, err := instance.Find(filepath.Join(dir, "state"), filepath.Join(dir, "run"))
	if err != nil {
		t.Fatal(err)
	}
	served, err := filepath.Glob(in.Socket("lsvd", "block", "*", "*"))
	if err != nil || len(served) != 1 {
		t.Fatalf("%q, %v", served, err)
	}
	if err := syscall.Unmount(served[0], syscall.MNT_FORCE); err != nil && !errors.Is(err, syscall.EBUSY) {
		t.Fatal(err)
	}
	wait.For(t, "the disk has failed", func() bool {
		out := ok(t, "list", "--attached", "--json")
		return strings.Contains(out, `"failed"`) && strings.Contains(out, device+" is no longer served")
	})
	log, err := os.ReadFile(in.State("logs", "lsvd.log"))
	if err != nil || !strings.Contains(string(log), "block device of a disk is no longer served") || !strings.Contains(string(log), "volume=data") {
		t.Errorf("%v, the log:\n%s", err, log)
	}
	unmount()
	ok(t, "detach", "data")
	device = strings.TrimSpace(ok(t, "attach", "data"))
	unmount = mount(t, device, filepath.Join(dir, "mnt"))
	same(t, filepath.Join(dir, "mnt", "before"), want)
	unmount()
}

// TestKilledHolder kills the holder under a mounted file system: a new one gets the device, so that I/O waits for the
// successor of a daemon that is killed later.
func TestKilledHolder(t *testing.T) {
	need.Tools(t, "mkfs.ext4")
	dir := blockMachine(t)
	ok(t, "create", "data", "--size", "64M")
	device := strings.TrimSpace(ok(t, "attach", "data"))
	tool(t, "mkfs.ext4", "-q", device)
	unmount := mount(t, device, filepath.Join(dir, "mnt"))
	defer unmount()
	in, err := instance.Find(filepath.Join(dir, "state"), filepath.Join(dir, "run"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		old, err := proc.Find(in.Socket("lsvd", "holder.json"))
		if err != nil || old == nil {
			t.Fatalf("the holder: %v, %v", old, err)
		}
		if err := syscall.Kill(old.PID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wait.Receive(t, "the holder is gone", old.Done())
		wait.NoError(t, "a new holder has the device", func() error {
			c, err := holder.Dial(t.Context(), holder.Socket(in.Socket("lsvd")))
			if err != nil {
				return err
			}
			defer c.Close()
			list, err := c.List(t.Context())
			if err == nil && (len(list) != 1 || !list[0].Owned) {
				err = fmt.Errorf("it has %+v", list)
			}
			return err
		})
		want := random(t, filepath.Join(dir, "mnt", "before"), 1<<20)
		kill(t)
		write(t, filepath.Join(dir, "mnt", "after"), want) // waits for the daemon that the holder starts
		same(t, filepath.Join(dir, "mnt", "before"), want)
	}
}
