package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/testsupport/wait"
)

// TestSandboxFiles copies files and folders into a sandbox and out of it, works in
// it on a terminal, and reaches its ports.
func TestSandboxFiles(t *testing.T) {
	t.Parallel()
	sid := strings.TrimSpace(shared.r(t, "", "sandbox", "create", "--template", "python", "--name", "files", "--ttl", "1h", "--wait", "10m"))
	defer func() { shared.r(t, "", "sandbox", "delete", "files") }()
	t.Run("copy", func(t *testing.T) { testCopy(t) })
	t.Run("outputs", testOutputs)
	t.Run("terminal", func(t *testing.T) { testTerminal(t) })
	t.Run("ports", func(t *testing.T) { testForward(t) })
	t.Run("usage", func(t *testing.T) {
		contains(t, "metrics", shared.r(t, "", "sandbox", "metrics", "files"), "of 512 MiB")
		contains(t, "top", shared.r(t, "", "top"), sid, "GiB")
		contains(t, "top --json", shared.r(t, "", "top", "--json"), `"memory_bytes"`)
	})
}

func testCopy(t *testing.T) {
	dir := t.TempDir()
	data := make([]byte, 5<<20+17)
	rng := rand.NewChaCha8([32]byte{})
	_, _ = rng.Read(data) // it never fails
	if err := os.WriteFile(filepath.Join(dir, "data"), data, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "tree", "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tree", "a.txt"), "A")
	write(t, filepath.Join(dir, "tree", "sub", "b.txt"), "B")
	if err := os.Symlink("sub/b.txt", filepath.Join(dir, "tree", "link")); err != nil {
		t.Fatal(err)
	}
	cp := func(from, to string) { t.Helper(); shared.r(t, dir, "sandbox", "cp", from, to) }
	in := func(command string) string {
		t.Helper()
		return shared.r(t, "", "sandbox", "exec", "files", "--", "sh", "-c", command)
	}
	cp("data", "files:") // its working directory
	if out := in("stat -c '%a %U %s' data; pwd"); out != fmt.Sprintf("750 user %d\n/home/user\n", len(data)) {
		t.Errorf("a file in: %s", out)
	}
	cp("files:data", "copy")
	if b, err := os.ReadFile(filepath.Join(dir, "copy")); err != nil || !bytes.Equal(b, data) {
		t.Errorf("a file out: %d of %d bytes, %v", len(b), len(data), err)
	}
	if i, err := os.Stat(filepath.Join(dir, "copy")); err != nil || i.Mode() != 0o750 {
		t.Errorf("a file out: %v, %v", i, err)
	}
	cp("tree", "files:/tmp/tree")
	if out := in("cd /tmp/tree; cat a.txt link; readlink link; stat -c %U sub/b.txt"); out != "ABsub/b.txt\nuser\n" {
		t.Errorf("a folder in: %q", out)
	}
	cp("files:/tmp/tree", "out")
	if b, err := os.ReadFile(filepath.Join(dir, "out", "link")); err != nil || string(b) != "B" {
		t.Errorf("a folder out: %q, %v", b, err)
	}
	cmd := shared.command(t.Context(), dir, "sandbox", "cp", "-", "files:/tmp/stdin")
	cmd.Stdin = strings.NewReader("input")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("standard input: %v %s", err, out)
	}
	if out := shared.r(t, "", "sandbox", "cp", "files:/tmp/stdin", "-"); out != "input" {
		t.Errorf("standard output: %q", out)
	}
	contains(t, "ls", shared.r(t, "", "sandbox", "ls", "files:/tmp/tree"), "a.txt", "link -> sub/b.txt", "drwxr-xr-x")
	contains(t, "ls --json", shared.r(t, "", "sandbox", "ls", "files", "--json"), `"name": "data"`)
	if res := shared.try(t, dir, "sandbox", "cp", "data", "files:/etc/data"); res.Code != 1 || !strings.Contains(res.Stderr, "permission denied") {
		t.Errorf("a file of root: %s", res)
	}
	if res := shared.try(t, dir, "sandbox", "cp", "files:/none", "x"); res.Code != 1 || !strings.Contains(res.Stderr, "/none: no such file") {
		t.Errorf("a missing file: %s", res)
	}
	shared.r(t, "", "sandbox", "pause", "files")
	cp("files:/tmp/tree/a.txt", "awake")
	if b, err := os.ReadFile(filepath.Join(dir, "awake")); err != nil || string(b) != "A" {
		t.Errorf("of a paused sandbox: %q, %v", b, err)
	}
}

// testOutputs: files that a program made are copied out, also when it failed.
func testOutputs(t *testing.T) {
	dir := t.TempDir()
	program := "import os, sys\nopen('result.txt', 'w').write('42')\nos.makedirs('/tmp/plots/x')\nopen('/tmp/plots/x/1', 'w').write('one')\nsys.exit(3)"
	res := shared.try(t, dir, "run", "-l", "python", "--out", "result.txt", "--out", "/tmp/plots:plots", program)
	if res.Code != 3 {
		t.Errorf("%s", res)
	}
	for name, want := range map[string]string{"result.txt": "42", "plots/x/1": "one"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	res = shared.try(t, dir, "sandbox", "run", "--template", "python", "--out", "/tmp/f", "--out", "none", "--", "sh", "-c", "echo made > /tmp/f")
	if b, err := os.ReadFile(filepath.Join(dir, "f")); res.Code != 1 || !strings.Contains(res.Stderr, "output none") || err != nil || string(b) != "made\n" {
		t.Errorf("%q, %v, %s", b, err, res)
	}
}

// testTerminal: a shell gets keys, signals and the size of the terminal, outlives
// its connection, and is continued.
func testTerminal(t *testing.T) {
	x := shared.terminal(t, "sandbox", "connect", "files")
	x.keys(t, "echo $((6*7)) $TERM; KEPT=here\n")
	x.wait(t, "42 xterm")
	x.resize(t, 31, 77)
	x.keys(t, "while [ \"$(stty size)\" != '31 77' ]; do sleep 0.1; done; echo resi''zed\n")
	x.wait(t, "resized")
	x.keys(t, "sh -c 'echo beg\"\"in; exec sleep 1000'\n") // the child prints, so it has the terminal
	x.wait(t, "begin")
	x.keys(t, "\x03")
	x.keys(t, "echo code $?\n")
	x.wait(t, "code 130")
	x.keys(t, "\x1d\x1d\x1d") // Ctrl-] three times
	x.wait(t, "detached from process")
	if code := x.code(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	contains(t, "ps", shared.r(t, "", "sandbox", "ps", "files"), "running", "detached")
	x = shared.terminal(t, "sandbox", "attach", "files")
	x.wait(t, "42 xterm") // what the sandbox kept
	x.keys(t, "echo still $KEPT\n")
	x.wait(t, "still here")
	x.keys(t, "exit 5\n")
	if code := x.code(t); code != 5 {
		t.Errorf("exit code %d", code)
	}
	var started struct {
		Process string `json:"process"`
	}
	out := shared.r(t, "", "sandbox", "exec", "--detach", "--json", "files", "--", "sh", "-c", "echo one; exit 4")
	if err := json.Unmarshal([]byte(out), &started); err != nil {
		t.Fatal(err, out)
	}
	if res := shared.try(t, "", "sandbox", "attach", "files", started.Process); res.Code != 4 || res.Stdout != "one\n" {
		t.Errorf("%s", res)
	}
	if res := shared.try(t, "", "sandbox", "attach", "files"); res.Code != 1 || !strings.Contains(res.Stderr, "left running") {
		t.Errorf("%s", res)
	}
}

// terminal starts r on a terminal of 40 by 100.
func (s *server) terminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	cmd := s.command(t.Context(), "", args...)
	cmd.Env = append(cmd.Env, "TERM=xterm")
	x := startTerminal(t, cmd)
	x.resize(t, 40, 100)
	return x
}

func (term *terminal) resize(t *testing.T, rows, cols uint16) {
	t.Helper()
	rc, err := term.master.SyscallConn()
	if err == nil {
		err = rc.Control(func(fd uintptr) {
			if err := unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// keys types.
func (term *terminal) keys(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(term.master, text); err != nil {
		t.Fatal(err)
	}
}

// code waits for the end of the command and returns its exit code.
func (term *terminal) code(t *testing.T) int {
	t.Helper()
	term.end(t)
	return term.cmd.ProcessState.ExitCode()
}

// testForward reaches a server that listens on the sandbox's loopback address.
func testForward(t *testing.T) {
	shared.r(t, "", "sandbox", "exec", "--detach", "files", "--", "python3", "-m", "http.server", "--bind", "127.0.0.1", "--directory", "/tmp/tree", "8000")
	wait.NoError(t, "the server listens", func() error {
		if out := shared.r(t, "", "sandbox", "ports", "files"); !strings.Contains(out, "8000") {
			return fmt.Errorf("ports: %s", out)
		}
		return nil
	}, wait.Within(converge))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := shared.command(ctx, "", "sandbox", "forward", "files", "0:8000")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }() // it was killed
	var address string
	if _, err := fmt.Fscan(stdout, &address); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		resp, err := client.Get("http://" + address + "/a.txt")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || string(b) != "A" {
			t.Errorf("%d %q, %v", resp.StatusCode, b, err)
		}
	}
}
