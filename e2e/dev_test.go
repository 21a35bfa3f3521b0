package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/testsupport/leakcheck"
	"miren.dev/runtime/testsupport/wait"
)

// rebuild is how long a build and a restart may take on a busy machine with a
// cold build cache; the test logs how long they took.
const rebuild = 5 * time.Minute

// checkoutCopy copies the files of this checkout, including uncommitted ones,
// to a directory of the test.
func checkoutCopy(t *testing.T) string {
	t.Helper()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = ".."
	out, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "checkout")
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		from, to := filepath.Join("..", name), filepath.Join(dir, name)
		st, err := os.Lstat(from)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted and not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if st.Mode().Type() == os.ModeSymlink {
			target, err := os.Readlink(from)
			if err == nil {
				err = os.Symlink(target, to)
			}
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, b, st.Mode().Perm())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// terminal is a program in a pseudo-terminal, and its output.
type terminal struct {
	cmd    *exec.Cmd
	master *os.File
	ended  chan struct{}

	mu   sync.Mutex
	out  []byte
	seen int // end of the text that waits have found
}

func startTerminal(t *testing.T, cmd *exec.Cmd) *terminal {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{cmd: cmd, master: os.NewFile(uintptr(fd), "terminal"), ended: make(chan struct{})}
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.FormatUint(uint64(n), 10), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := term.master.Read(b)
			term.mu.Lock()
			term.out = append(term.out, b[:n]...)
			term.mu.Unlock()
			if err != nil { // EIO once no process has the terminal open any more
				return
			}
		}
	}()
	go func() {
		_ = cmd.Wait() // its state has the rest
		close(term.ended)
	}()
	t.Cleanup(func() {
		select {
		case <-term.ended:
		default:
			_ = cmd.Process.Kill()
			<-term.ended
		}
		term.master.Close()
		<-read
		if t.Failed() {
			t.Logf("the terminal of %v:\n%s", cmd.Args, term.out)
		}
	})
	return term
}

// wait waits for texts, in any order, after those that earlier waits have found.
func (term *terminal) wait(t *testing.T, texts ...string) {
	t.Helper()
	wait.NoError(t, fmt.Sprintf("%q in the terminal", texts), func() error {
		term.mu.Lock()
		defer term.mu.Unlock()
		end := term.seen
		for _, text := range texts {
			i := bytes.Index(term.out[term.seen:], []byte(text))
			if i < 0 {
				return fmt.Errorf("the terminal does not show %q", text)
			}
			end = max(end, term.seen+i+len(text))
		}
		term.seen = end
		return nil
	}, wait.Within(rebuild))
}

// end waits until the program has ended.
func (term *terminal) end(t *testing.T) {
	t.Helper()
	wait.Receive(t, "the end of the program in the terminal", term.ended, wait.Within(rebuild))
}

// devServer is make dev of a copy of the checkout.
type devServer struct {
	*server
	checkout string
}

func newDev(t *testing.T, name string) *devServer {
	t.Helper()
	s, err := newServer(name)
	if err != nil {
		t.Fatal(err)
	}
	d := &devServer{s, checkoutCopy(t)}
	t.Cleanup(func() {
		if err := d.remove(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// script is a program that runs in the copy.
func (d *devServer) script(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), name, args...)
	cmd.Dir = d.checkout
	cmd.Env = append(os.Environ(), "DEV_STATE="+d.state, "DEV_PORT="+strconv.Itoa(d.port), "HOME="+d.state+"-home",
		"RUNTIME_CACHE="+cacheDir(), "GOPATH="+goEnv("GOPATH"), "GOCACHE="+goEnv("GOCACHE"), "SHELL=/bin/bash", "NO_COLOR=1",
		"TERM=xterm", "TMUX=", "TMUX_TMPDIR="+filepath.Dir(d.checkout), "MAKEFLAGS=", "MAKELEVEL=")
	return cmd
}

// cacheDir is where hack/toolchain.sh keeps builds.
func cacheDir() string {
	if dir := os.Getenv("RUNTIME_CACHE"); dir != "" {
		return dir
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "miren-runtime")
	}
	return filepath.Join(os.Getenv("HOME"), ".cache", "miren-runtime")
}

func goEnv(name string) string {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// pid is the process id of the running server.
func (d *devServer) pid(t *testing.T) int {
	t.Helper()
	var st struct {
		Components []struct {
			Name string `json:"name"`
			PID  int    `json:"pid"`
		} `json:"components"`
	}
	d.json(t, &st, "server", "status")
	for _, c := range st.Components {
		if c.Name == "server" {
			return c.PID
		}
	}
	t.Fatalf("server status names no server: %+v", st)
	return 0
}

// clean fails the test if anything of the installation is on the host.
func (d *devServer) clean(t *testing.T) {
	t.Helper()
	in, err := instance.Find(d.state, config.DefaultRunDir())
	if err != nil {
		t.Fatal(err)
	}
	left, err := leakcheck.List(in)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left on the host: %v", left)
	}
}

// load requests / of an app until stop, which returns how many requests there
// were and the first failure.
func (d *devServer) load(app string) (stop func() (int64, error)) {
	done, ended := make(chan struct{}), make(chan struct{})
	var n atomic.Int64
	var failure error
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			code, body, err := d.get(app, "/")
			if failure == nil && (err != nil || code != http.StatusOK) {
				failure = fmt.Errorf("request %d: %d %q %w", n.Load(), code, body, err)
			}
			n.Add(1)
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	return func() (int64, error) {
		close(done)
		<-ended
		return n.Load(), failure
	}
}

// TestDevRestartsOnEditWhileAppsAnswer edits a copy of the checkout under make dev.
func TestDevRestartsOnEditWhileAppsAnswer(t *testing.T) {
	d := newDev(t, "dev")
	term := startTerminal(t, d.script("make", "dev"))
	term.wait(t, "dev: server runs")
	deploy := d.script("hack/dev.sh", "shell", "-c", "r app deploy --dir examples/go-http --app dev")
	if out, err := deploy.CombinedOutput(); err != nil {
		t.Fatalf("deploy in the shell: %v\n%s", err, out)
	}
	d.answers(t, "dev", "/", "v1")
	sandboxes := d.r(t, "", "sandbox", "list", "--json")
	stop := d.load("dev")

	pid := d.pid(t)
	source := filepath.Join(d.checkout, "servers", "server", "daemon.go")
	began := time.Now()
	edit(t, source, `"server runs"`, `"the edited server runs"`)
	term.wait(t, "the edited server runs", "dev: server runs") // two processes print them
	t.Logf("edit to ready: %s", time.Since(began).Round(100*time.Millisecond))
	edited := d.pid(t)
	if edited == pid {
		t.Errorf("the server is still process %d", pid)
	}
	if now := d.r(t, "", "sandbox", "list", "--json"); now != sandboxes {
		t.Errorf("sandboxes changed:\n%s\n%s", sandboxes, now)
	}

	edit(t, source, "package server", "package server )")
	term.wait(t, "daemon.go")
	term.wait(t, "the build failed")
	if now := d.pid(t); now != edited {
		t.Errorf("after a build that failed the server is process %d, not %d", now, edited)
	}
	edit(t, source, "package server )", "package server")
	term.wait(t, "nothing to restart")
	if now := d.pid(t); now != edited {
		t.Errorf("after a build of the same binaries the server is process %d, not %d", now, edited)
	}

	if err := syscall.Kill(edited, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	term.wait(t, "ended by itself")
	edit(t, source, `"the edited server runs"`, `"server runs"`)
	term.wait(t, "dev: server runs")
	n, err := stop()
	t.Logf("%d requests", n)
	if err != nil || n == 0 {
		t.Errorf("of %d requests: %v", n, err)
	}

	if _, err := io.WriteString(term.master, "\x03"); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	term.wait(t, "everything is stopped")
	term.end(t)
	d.clean(t)
}

// TestDevTmuxHasServerLogsAndShell starts make dev-tmux, types a command in its
// shell, kills the server's pane and stops what it left.
func TestDevTmuxHasServerLogsAndShell(t *testing.T) {
	t.Parallel()
	d := newDev(t, "dev-tmux")
	tmux := func(args ...string) string {
		t.Helper()
		out, err := d.script("tmux", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	out, err := d.script("make", "dev-tmux").Output()
	if err != nil {
		t.Fatalf("make dev-tmux: %v\n%s", err, out)
	}
	t.Cleanup(func() { _ = d.script("tmux", "kill-server").Run() }) // ended by the test already, unless it failed
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	session, ok := strings.CutPrefix(lines[len(lines)-1], "tmux attach -t ")
	if !ok {
		t.Fatalf("make dev-tmux does not say how to attach: %s", out)
	}
	panes := strings.Fields(tmux("list-panes", "-t", session, "-F", "#{pane_id}"))
	if len(panes) != 3 {
		t.Fatalf("panes %v, want the server, the logs and a shell", panes)
	}
	shows := func(pane, text string) {
		t.Helper()
		wait.NoError(t, fmt.Sprintf("%q in a pane", text), func() error {
			if screen := tmux("capture-pane", "-p", "-J", "-S", "-", "-t", pane); !strings.Contains(screen, text) {
				return fmt.Errorf("the pane does not show %q:\n%s", text, screen)
			}
			return nil
		}, wait.Within(rebuild))
	}
	shows(panes[0], "dev: server runs")
	shows(panes[1], "server runs")
	tmux("send-keys", "-t", panes[2], "r server status", "Enter")
	shows(panes[2], d.state)

	holder, err := os.ReadFile(filepath.Join(d.state, "dev.lock"))
	if err != nil {
		t.Fatal(err)
	}
	supervisor, err := strconv.Atoi(strings.TrimSpace(string(holder)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.answersStatus(t)
	if out, err := d.script("make", "dev-stop", "REMOVE=1").CombinedOutput(); err != nil {
		t.Fatalf("make dev-stop: %v\n%s", err, out)
	}
	if _, err := os.Stat(d.state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state directory is still there: %v", err)
	}
}

// answersStatus fails the test unless the server answers.
func (d *devServer) answersStatus(t *testing.T) {
	t.Helper()
	contains(t, "server status", d.r(t, "", "server", "status"), "ready")
}
