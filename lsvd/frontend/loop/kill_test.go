package loop_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/frontend/holder"
	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/testsupport/attachtest"
	"miren.dev/runtime/testsupport/wait"
)

// TestKilledDaemonWithoutHolderEndsIO kills the daemon under a mounted file system that is written to,
// without a holder: errors, no process that waits for ever, and everything
// can be taken away.
func TestKilledDaemonWithoutHolderEndsIO(t *testing.T) {
	attachtest.Need(t, "mkfs.ext4", "mount", "losetup")
	dir := t.TempDir()
	name, run := owner(t)
	env := []string{daemonEnv + "=" + dir, ownerEnv + "=" + name, runEnv + "=" + run}
	p := start(t, env...)
	command(t, "mkfs.ext4", "-q", "-F", p.device)
	mnt := mount(t, p.device)
	failed := make(chan time.Time, 1)
	began := make(chan struct{})
	go func() {
		f, err := os.OpenFile(filepath.Join(mnt, "f"), os.O_CREATE|os.O_RDWR, 0o600)
		for i := 0; err == nil; i++ {
			if _, err = f.WriteAt(bytes.Repeat([]byte{byte(i)}, 64<<10), int64(i%100)*64<<10); err == nil {
				err = f.Sync()
			}
			if i == 20 {
				close(began)
			}
		}
		f.Close()
		failed <- time.Now()
	}()
	<-began
	begin := time.Now()
	within := func(what string) {
		t.Helper()
		if d := time.Since(begin); d > time.Second {
			t.Errorf("%s took %v", what, d)
		}
		begin = time.Now()
	}
	p.end(t, syscall.SIGKILL)
	wait.Receive(t, "an error of the writer", failed)
	within("an error of the writer")
	command(t, "umount", mnt)
	within("umount")
	unused(t, p.device)
	begin = time.Now()
	command(t, "losetup", "-d", p.device)
	within("losetup -d")
	if _, err := loop.Sweep(t.Context(), name, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	within("sweep")
	if left, err := loop.List(name); err != nil || len(left) != 0 {
		t.Fatalf("left: %v, %v", left, err)
	}
	if waiting := uninterruptible(t); len(waiting) > 0 {
		t.Fatalf("threads wait for the disk: %v", waiting)
	}
	p = start(t, env...)
	mnt = mount(t, p.device) // replays the journal
	unmount(t, mnt, p.device)
	command(t, "e2fsck", "-fn", p.device)
}

// TestKillAttach kills daemons while they attach: nothing waits for ever, what
// they leave can be swept, and the next attaches.
func TestKillAttach(t *testing.T) {
	attachtest.Need(t)
	dir := t.TempDir()
	name, run := owner(t)
	socket := startHolder(t)
	rng := rand.New(rand.NewPCG(1, 3))
	env := []string{daemonEnv + "=" + dir, ownerEnv + "=" + name, runEnv + "=" + run}
	for round := range 20 {
		env := env
		if round%2 == 1 {
			env = append(env, holderEnv+"="+socket)
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		p, _ := launch(t, w, env...)
		w.Close()
		p.reap()
		// The moments of interest are those after the disk is open.
		s := bufio.NewScanner(r)
		for s.Scan() && !strings.Contains(s.Text(), "volume is open") {
		}
		<-time.After(time.Duration(rng.IntN(8000)) * time.Microsecond)
		p.end(t, syscall.SIGKILL)
		r.Close()
		if round%5 == 4 {
			p := start(t, env...)
			p.end(t, syscall.SIGKILL)
		}
	}
	client, err := holder.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var entries []holder.Entry
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if entries, err = client.List(t.Context()); err != nil || len(entries) == 0 || !entries[0].Owned {
			break
		}
	}
	for _, e := range entries {
		err = errors.Join(err, client.Drop(t.Context(), e.Name))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := loop.Sweep(t.Context(), name, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if left, err := loop.List(name); err != nil || len(left) != 0 {
		t.Fatalf("left: %v, %v", left, err)
	}
	if waiting := uninterruptible(t); len(waiting) > 0 {
		t.Fatalf("threads wait for the disk: %v", waiting)
	}
}

// TestNoWaitForItself: a daemon that may not be an I/O flusher has no huge pages. For one, the kernel waited for the
// I/O of a page whose answer waited for the huge page.
func TestNoWaitForItself(t *testing.T) {
	attachtest.Need(t)
	name, run := owner(t)
	p := start(t, daemonEnv+"="+t.TempDir(), ownerEnv+"="+name, runEnv+"="+run)
	defer p.end(t, syscall.SIGTERM)
	_, err := unix.PrctlRetInt(unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0)
	want := "1"
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		want = "0"
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if line := "\nTHP_enabled:\t" + want + "\n"; !strings.Contains(string(status), line) {
		t.Errorf("no line %q in %s", line, status)
	}
}
