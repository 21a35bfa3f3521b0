// Package process starts programs that end with the test, and also when the process of the test dies.
package process

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"miren.dev/runtime/testsupport/wait"
)

// Process is a started program.
type Process struct {
	*os.Process
	ended chan struct{}
	out   bytes.Buffer // complete once ended
}

// Start starts a program with arguments. Its environment is PATH, GOMAXPROCS=2 and env. The log of a failed test has
// its output.
func Start(t testing.TB, env []string, path string, args ...string) *Process {
	t.Helper()
	p := &Process{ended: make(chan struct{})}
	cmd := exec.Command(path, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "GOMAXPROCS=2"}, env...)
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The signal is sent when the thread that started the process ends, so the thread must stay until then.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
		}
		close(p.ended)
	}()
	name := filepath.Base(path)
	if err := wait.Receive(t, "the start of "+name, started); err != nil {
		t.Fatal(err)
	}
	p.Process = cmd.Process
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s: %s", name, p.Output())
		}
	})
	return p
}

// Kill kills the program, and waits until it has ended.
func (p *Process) Kill() {
	select {
	case <-p.ended:
	default:
		_ = p.Process.Kill()
		<-p.ended
	}
}

// Ended reports whether the program has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Output waits until the program has ended, and returns what it printed.
func (p *Process) Output() string {
	<-p.ended
	return p.out.String()
}
