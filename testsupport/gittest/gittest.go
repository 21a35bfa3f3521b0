// Package gittest has a repository of a user of git, and a server that speaks git's own
// protocol, for tests of pushes.
package gittest

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/need"
)

// Repo is a repository with a working tree. Its commands run without the configuration of the
// machine.
type Repo struct {
	t   testing.TB
	Dir string
}

// New makes a repository with the branch main in a directory, which may have files. It skips
// the test, or fails it, if there is no git.
func New(t testing.TB, dir string) *Repo {
	t.Helper()
	need.Tools(t, "git")
	r := &Repo{t, dir}
	r.Git("init", "--quiet", "--initial-branch=main")
	return r
}

// Command makes a command of git in the working tree.
func (r *Repo) Command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(r.t.Context(), "git", args...)
	cmd.Dir = r.Dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com")
	return cmd
}

// Try runs a command and returns what it prints.
func (r *Repo) Try(args ...string) (string, error) {
	out, err := r.Command(args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Git is Try of a command that must succeed.
func (r *Repo) Git(args ...string) string {
	r.t.Helper()
	out, err := r.Try(args...)
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return out
}

// Commit commits a file with the message "change NAME", and returns the commit.
func (r *Repo) Commit(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	r.Git("add", "--force", name)
	r.Git("commit", "--quiet", "--message", "change "+name)
	return r.Git("rev-parse", "HEAD")
}

// Serve accepts clients of git:// until the test ends, one after the other, and returns the
// address. serve gets the path that a client names, such as shop, and its connection.
func Serve(t testing.TB, serve func(path string, c net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if path, err := readPath(c); err == nil {
				serve(path, c)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

// readPath reads the first line of the protocol: "git-receive-pack /PATH", a zero byte, and more.
func readPath(c net.Conn) (string, error) {
	size := make([]byte, 4)
	if _, err := io.ReadFull(c, size); err != nil {
		return "", err
	}
	n, err := strconv.ParseUint(string(size), 16, 16)
	if err != nil {
		return "", err
	}
	line := make([]byte, max(n, 4)-4)
	if _, err := io.ReadFull(c, line); err != nil {
		return "", err
	}
	path, _, _ := strings.Cut(strings.TrimPrefix(string(line), "git-receive-pack /"), "\x00")
	return path, nil
}
