package attach_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/attach"
	"miren.dev/runtime/lsvd/holder"
	"miren.dev/runtime/pkg/errs"
)

// Environment of the processes that tests start: the test binary again.
const (
	daemonEnv = "LSVD_TEST_DAEMON" // directory of the disk
	ownerEnv  = "LSVD_TEST_OWNER"
	runEnv    = "LSVD_TEST_RUN"    // directory of mounts
	holderEnv = "LSVD_TEST_HOLDER" // socket
	keepEnv   = "LSVD_TEST_KEEP"   // socket: makes it the holder
	roundsEnv = "LSVD_HANDOVERS"   // how many times a test kills the daemon
)

func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(daemonEnv) != "":
		err = daemon()
	case os.Getenv(keepEnv) != "":
		err = holder.Run(context.Background(), os.Getenv(keepEnv), holder.Options{Patience: 20 * time.Second, Idle: 20 * time.Second})
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// daemon serves the disk until it is killed, or told to end by SIGTERM.
func daemon() error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := attach.Prepare(logger); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	o := attach.Options{Owner: os.Getenv(ownerEnv), Volume: "v", Dir: os.Getenv(runEnv), Logger: logger}
	if socket := os.Getenv(holderEnv); socket != "" {
		client, err := holder.Dial(ctx, socket)
		if err != nil {
			return err
		}
		o.Holder = client
	}
	for {
		dev, err := openDisk(ctx, os.Getenv(daemonEnv), logger)
		if errs.Is(err, errs.Conflict) && ctx.Err() == nil {
			continue // the predecessor is about to end
		}
		if err != nil {
			return err
		}
		a, err := attach.Attach(ctx, dev, o)
		if err != nil {
			return err
		}
		fmt.Println(a.Path())
		<-ctx.Done()
		a.Release()
		return dev.Close(context.Background())
	}
}

// process is a daemon that serves.
type process struct {
	cmd    *exec.Cmd
	device string
	log    string // file
	done   chan struct{}
}

func (p *process) stderr() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// start starts a daemon and waits until it serves.
func start(t *testing.T, env ...string) *process {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p, out := launch(t, log, env...)
	ok := out.Scan()
	p.device = out.Text()
	p.reap()
	if !ok {
		<-p.done
		t.Fatalf("the daemon does not serve:\n%s", p.stderr())
	}
	return p
}

// end ends the daemon and waits until it has.
func (p *process) end(t *testing.T, s os.Signal) {
	t.Helper()
	p.cmd.Process.Signal(s) // may have ended
	select {
	case <-p.done:
	case <-time.After(15 * time.Second):
		p.cmd.Process.Signal(syscall.SIGQUIT) // prints its stacks
		select {
		case <-p.done:
		case <-time.After(5 * time.Second):
			t.Errorf("waiting: %v", uninterruptible(t))
		}
		t.Fatalf("daemon %d does not end\n%s", p.cmd.Process.Pid, p.stderr())
	}
}

// TestKill kills the daemon under a mounted file system that is written to,
// without a holder: errors, no process that waits for ever, and everything
// can be taken away.
func TestKill(t *testing.T) {
	need(t, "mkfs.ext4", "mount", "losetup")
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
	select {
	case <-failed:
		within("an error of the writer")
	case <-time.After(20 * time.Second):
		t.Fatal("the writer waits for ever")
	}
	command(t, "umount", mnt)
	within("umount")
	unused(t, p.device)
	begin = time.Now()
	command(t, "losetup", "-d", p.device)
	within("losetup -d")
	if _, err := attach.Sweep(t.Context(), name, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	within("sweep")
	if left, err := attach.List(name); err != nil || len(left) != 0 {
		t.Fatalf("left: %v, %v", left, err)
	}
	if waiting := uninterruptible(t); len(waiting) > 0 {
		t.Fatalf("threads wait for the disk: %v", waiting)
	}
	p = start(t, env...)
	mnt = mount(t, p.device) // replays the journal
	command(t, "umount", mnt)
	command(t, "e2fsck", "-fn", p.device)
}

// uninterruptible returns the threads of this process and those it has started
// that wait for a FUSE request and cannot be killed. Others on this machine
// have disks too.
func uninterruptible(t *testing.T) []string {
	t.Helper()
	startedMu.Lock()
	pids := append([]int{os.Getpid()}, started...)
	startedMu.Unlock()
	var found []string
	for _, pid := range pids {
		stacks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/stack", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range stacks {
			if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte("request_wait_answer")) {
				found = append(found, f)
			}
		}
	}
	return found
}

// started are the processes that this one has started.
var (
	startedMu sync.Mutex
	started   []int
)

// launch starts a daemon, whose messages go to log.
func launch(t *testing.T, log *os.File, env ...string) (p *process, out *bufio.Scanner) {
	t.Helper()
	p = &process{cmd: exec.Command(executable(t)), log: log.Name(), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = log
	r, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	startedMu.Lock()
	started = append(started, p.cmd.Process.Pid)
	startedMu.Unlock()
	t.Cleanup(func() { p.end(t, syscall.SIGKILL) })
	return p, bufio.NewScanner(r)
}

// reap waits for the end of the daemon. Its output has been read.
func (p *process) reap() {
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
}

// TestKillAttach kills daemons while they attach: nothing waits for ever, what
// they leave can be swept, and the next attaches.
func TestKillAttach(t *testing.T) {
	need(t)
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
	if _, err := attach.Sweep(t.Context(), name, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if left, err := attach.List(name); err != nil || len(left) != 0 {
		t.Fatalf("left: %v, %v", left, err)
	}
	if waiting := uninterruptible(t); len(waiting) > 0 {
		t.Fatalf("threads wait for the disk: %v", waiting)
	}
}

// startHolder starts a holder and returns its socket.
func startHolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv(keepEnv, holder.Socket(dir))
	client, err := holder.Start(t.Context(), holder.Spec{Path: executable(t), Dir: dir})
	os.Unsetenv(keepEnv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		entries, err := client.List(ctx)
		for _, e := range entries {
			err = errors.Join(err, client.Drop(ctx, e.Name))
		}
		if err = errors.Join(err, client.Stop(ctx)); err != nil {
			t.Error(err)
		}
		<-client.Done()
	})
	return holder.Socket(dir)
}

// TestHandover ends the daemon under a file system that is written to and
// verified, by kill -9 and by SIGTERM in turn. Its users notice nothing.
func TestHandover(t *testing.T) {
	rounds := 20
	if s := os.Getenv(roundsEnv); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		name        string
		mkfs, check []string
		rounds      int
	}{
		{"ext4", []string{"mkfs.ext4", "-q", "-F"}, []string{"e2fsck", "-fn"}, rounds},
		{"xfs", []string{"mkfs.xfs", "-q", "-f"}, []string{"xfs_repair", "-n"}, (rounds + 1) / 2},
	} {
		t.Run(x.name, func(t *testing.T) {
			need(t, x.mkfs[0], x.check[0], "mount")
			dir := t.TempDir()
			name, run := owner(t)
			env := []string{daemonEnv + "=" + dir, ownerEnv + "=" + name, runEnv + "=" + run, holderEnv + "=" + startHolder(t)}
			p := start(t, env...)
			device := p.device
			command(t, x.mkfs[0], append(x.mkfs[1:], device)...)
			mnt := mount(t, device)
			w := write(t, mnt)
			rng := rand.New(rand.NewPCG(uint64(rounds), 1))
			var pauses time.Duration
			for round := range x.rounds {
				w.until(t, 30+rng.Int64N(200)) // operations
				kill := os.Signal(syscall.SIGKILL)
				if round%2 == 1 {
					kill = syscall.SIGTERM
				}
				begin := time.Now()
				p.end(t, kill)
				p = start(t, env...)
				pauses += time.Since(begin)
				if p.device != device {
					t.Fatalf("round %d: the successor has %s, not %s", round, p.device, device)
				}
				if w.failed() {
					t.Fatalf("round %d: %v\n%s", round, kill, p.stderr())
				}
			}
			t.Logf("%d operations, mean pause %v", w.ops(), pauses/time.Duration(x.rounds))
			w.stop()
			command(t, "umount", mnt)
			unused(t, device)
			command(t, x.check[0], append(x.check[1:], device)...)
			command(t, "mount", device, mnt)
			w.verify(t)
			command(t, "umount", mnt)
			p.end(t, syscall.SIGTERM)
		})
	}
}

// unused waits until no file system has the device: after an unmount it may
// still be mounted in the namespace of somebody who was just starting.
func unused(t *testing.T, device string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for begin, deadline := time.Now(), time.Now().Add(30*time.Second); ; <-tick.C {
		fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
			t.Logf("%s was in use for %v after the unmount", device, time.Since(begin))
			return
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func executable(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestGivenUp finds that users get errors soon when no successor comes.
func TestGivenUp(t *testing.T) {
	need(t, "mkfs.ext4", "mount")
	dir := t.TempDir()
	name, run := owner(t)
	socket := startHolder(t)
	p := start(t, daemonEnv+"="+dir, ownerEnv+"="+name, runEnv+"="+run, holderEnv+"="+socket)
	command(t, "mkfs.ext4", "-q", "-F", p.device)
	mnt := mount(t, p.device)
	f, err := os.Create(filepath.Join(mnt, "f"))
	if err != nil {
		t.Fatal(err)
	}
	p.end(t, syscall.SIGKILL)
	failed := make(chan error, 1)
	go func() {
		_, err := f.WriteAt(make([]byte, 4096), 0)
		failed <- errors.Join(err, f.Sync(), f.Close())
	}()
	c, err := holder.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var entries []holder.Entry
	for deadline := time.Now().Add(10 * time.Second); ; { // until the holder has noticed
		if entries, err = c.List(t.Context()); err != nil || len(entries) != 1 || time.Now().After(deadline) {
			t.Fatalf("held: %v, %v", entries, err)
		}
		if !entries[0].Owned {
			break
		}
	}
	select {
	case err := <-failed:
		t.Fatalf("a write did not wait: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	begin := time.Now()
	if err := c.Drop(t.Context(), entries[0].Name); err != nil { // as the holder does when it has no more patience
		t.Fatal(err)
	}
	if err := <-failed; err == nil || time.Since(begin) > time.Second {
		t.Fatalf("write: %v after %v", err, time.Since(begin))
	}
	command(t, "umount", mnt)
	if waiting := uninterruptible(t); len(waiting) > 0 {
		t.Fatalf("threads wait for the disk: %v", waiting)
	}
}
