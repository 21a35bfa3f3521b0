package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
)

// env holds the paths and ports of one development server.
type env struct {
	root  string // root of the checkout
	bin   string // directory of the binaries that the server runs
	state string // DEV_STATE, or /var/lib/runtime-dev/<checkout>-<hash of its path>
	port  int    // port of the ingress on 127.0.0.1
	out   *output
}

// output serialises the lines of dev and of the server's log.
type output struct {
	mu sync.Mutex
	w  io.Writer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.w.Write(b)
}

func newEnv(w io.Writer) (*env, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(root, "hack", "dev.sh")); err != nil {
		return nil, fmt.Errorf("%s is not a checkout of runtime: use hack/dev.sh", root)
	}
	e := &env{root: root, bin: filepath.Join(root, "bin", "dev"), state: os.Getenv("DEV_STATE"), out: &output{w: w}}
	if e.state == "" {
		e.state = filepath.Join("/var/lib/runtime-dev", fmt.Sprintf("%s-%08x", filepath.Base(root), hash(root)))
	}
	if e.state, err = filepath.Abs(e.state); err != nil {
		return nil, err
	}
	return e, nil
}

func hash(s string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s))
	return h.Sum32()
}

func (e *env) lockFile() string  { return filepath.Join(e.state, "dev.lock") }
func (e *env) portFile() string  { return filepath.Join(e.state, "dev-port") }
func (e *env) serverLog() string { return filepath.Join(e.state, "logs", "server.log") }

// say prints a line of dev's own.
func (e *env) say(format string, args ...any) {
	fmt.Fprintf(e.out, "dev: "+format+"\n", args...)
}

// vars returns the environment of commands for this server and no other.
func (e *env) vars(more ...string) []string {
	set := append([]string{"RUNTIME_STATE_DIR=" + e.state, "RUNTIME_SERVER=", "RUNTIME_CLUSTER=", "PATH=" + e.bin + ":" + os.Getenv("PATH")}, more...)
	vars := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.ContainsFunc(set, func(s string) bool { return strings.HasPrefix(s, name+"=") })
	})
	return append(vars, set...)
}

// command returns a program with that environment, in a process group of its
// own: Ctrl-C in the terminal reaches only dev, which ends the program.
func (e *env) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = e.root, e.vars()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// server returns the running server process, or nil.
func (e *env) server() (*proc.Process, error) { return e.recorded("server.json") }

func (e *env) recorded(name string) (*proc.Process, error) {
	in, err := instance.Find(e.state, runDir())
	if err != nil {
		if _, missing := os.Stat(filepath.Join(e.state, "instance-id")); errors.Is(missing, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	return proc.Find(in.Socket(name))
}

func runDir() string {
	if dir := os.Getenv("RUNTIME_RUN_DIR"); dir != "" {
		return dir
	}
	return config.DefaultRunDir()
}

// shell replaces dev with a shell in which r talks to this server.
func (e *env) shell(args []string) error {
	if _, err := os.Stat(filepath.Join(e.bin, "r")); err != nil {
		return errors.New("nothing is built yet: run make dev in another terminal")
	}
	shell := os.Getenv("SHELL")
	if shell == "" {
		shell = "/bin/sh"
	}
	path, err := exec.LookPath(shell)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		e.say("r talks to the server of %s; leave with exit", e.state)
	}
	return unix.Exec(path, append([]string{filepath.Base(shell)}, args...), e.vars())
}

// holder is the process id of the dev that holds the lock, or 0.
func (e *env) holder() int {
	b, err := os.ReadFile(e.lockFile())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return pid
}

// endRun ends the dev that holds the lock and waits for it.
func (e *env) endRun(ctx context.Context) error {
	f, err := os.Open(e.lockFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	for asked := false; ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		// The holder writes its id only after it has the lock.
		if pid := e.holder(); pid != 0 && !asked {
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				return fmt.Errorf("end make dev (pid %d): %w", pid, err)
			}
			asked = true
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("make dev (pid %d) does not end: %w", e.holder(), ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Ports of the ingress are between these: above those of well-known services
// and below those that Linux gives to outgoing connections.
const (
	firstPort = 20000
	ports     = 10000
)

// choosePort returns the port of the last run, unless another program has it
// now. The first run begins its search at a port that depends on the state
// directory, so that several checkouts rarely try the same port.
func choosePort(e *env) (int, error) {
	if s := os.Getenv("DEV_PORT"); s != "" {
		port, err := strconv.Atoi(s)
		if err != nil || port < 1 || port > 65535 {
			return 0, fmt.Errorf("DEV_PORT is %q: want a port, 1 to 65535", s)
		}
		return port, nil
	}
	first := firstPort + int(hash(e.state)%ports)
	if b, err := os.ReadFile(e.portFile()); err == nil {
		if port, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			if ingress, err := e.recorded("ingress.pid"); err == nil && ingress != nil {
				return port, nil // our own ingress has it
			}
			first = port
		}
	}
	for i := range 100 {
		port := firstPort + (first-firstPort+i)%ports
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return 0, err
		}
		return port, os.WriteFile(e.portFile(), fmt.Appendf(nil, "%d\n", port), 0o644)
	}
	return 0, fmt.Errorf("no free port from %d on: choose one with DEV_PORT", first)
}
