package loop_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/frontend/holder"
	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/attachtest"
	"miren.dev/runtime/testsupport/private"
	"miren.dev/runtime/testsupport/wait"
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
		err = holder.Run(context.Background(), os.Getenv(keepEnv), holder.Options{HandoverTimeout: 20 * time.Second, Idle: 20 * time.Second})
	default:
		os.Exit(private.Main(m))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// daemon serves the disk until it is killed, or told to end by SIGTERM.
func daemon() error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := loop.Prepare(logger); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	o := loop.Options{Owner: os.Getenv(ownerEnv), Volume: "v", Dir: os.Getenv(runEnv), Logger: logger}
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
		a, err := loop.Attach(ctx, dev, o)
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
	p = &process{cmd: exec.Command(attachtest.Executable(t)), log: log.Name(), done: make(chan struct{})}
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

// startHolder starts a holder and returns its socket.
func startHolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	attachtest.Holder(t, dir, keepEnv+"="+holder.Socket(dir))
	return holder.Socket(dir)
}

// unused waits until no file system has the device.
func unused(t *testing.T, device string) {
	t.Helper()
	begin := time.Now()
	wait.NoError(t, device+" is not in use", func() error {
		fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if err == nil {
			return unix.Close(fd)
		}
		if !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
		return err
	}, wait.Within(30*time.Second))
	t.Logf("%s was in use for %v after the unmount", device, time.Since(begin))
}
