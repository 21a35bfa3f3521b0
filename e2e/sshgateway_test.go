package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// TestSSHGateway: many clients at once, the gateway killed under them, and the
// rotation of its host key, on a server of its own.
func TestSSHGateway(t *testing.T) {
	t.Parallel()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	g := newGuide(t, nil, "ssh")
	g.words["0.0.0.0:2222"] = fmt.Sprintf("127.0.0.1:%d", port)
	s := own(t, "ssh-gateway", g.args("r server start")...)
	s.r(t, "", "sandbox", "create", "--template", "python", "--name", "box", "--ttl", "1h", "--wait", "10m")
	c := newSSHClient(t, s)
	s.r(t, "", "ssh", "key", "add", filepath.Join(c.dir, "key.pub"), "--name", "alice")
	t.Run("many", func(t *testing.T) { c.testMany(t, s) })
	t.Run("push killed", func(t *testing.T) { c.testPushKilled(t, s) })
	t.Run("host keys", func(t *testing.T) { c.testHostKeys(t, s) })
	g.s = s
	c.testSSHGuide(t, g)
}

// many is how many clients work at once.
const many = 50

// each runs f for each of the clients, at the same time.
func each(f func(i int)) {
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// commands: every client gets its whole output and its exit code.
func (c *sshClient) commands(t *testing.T) {
	t.Helper()
	each(func(i int) {
		data := bytes.Repeat([]byte(fmt.Sprintf("%07d\n", i)), 32<<10) // 256 KiB
		cmd := c.command(t, "ssh", "box@sandbox", fmt.Sprintf("cat; echo error %d >&2; exit %d", i, i))
		cmd.Stdin = bytes.NewReader(data)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // the exit code says more
		if code := cmd.ProcessState.ExitCode(); code != i || !bytes.Equal(stdout.Bytes(), data) || stderr.String() != fmt.Sprintf("error %d\n", i) {
			t.Errorf("client %d: exit code %d, %d of %d bytes, %s", i, code, stdout.Len(), len(data), stderr.String())
		}
	})
}

// resident returns the memory of a process, in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// maxGrowth bounds the memory of the server for the clients of testMany, in
// bytes: for each a window of SSH, of RPC and of the agent, and some.
const maxGrowth = many * 5 << 20

func (c *sshClient) testMany(t *testing.T, s *server) {
	c.commands(t)
	pid := s.pid(t, "server")
	before := resident(t, pid)
	// Each prints without end, and its client does not read.
	var cmds [many]*exec.Cmd
	each(func(i int) {
		cmds[i] = c.command(t, "ssh", "box@sandbox", "echo begun; exec cat /dev/zero")
		out, err := cmds[i].StdoutPipe()
		if err == nil {
			err = cmds[i].Start()
		}
		if err == nil {
			_, err = io.ReadFull(bufio.NewReaderSize(out, 16), make([]byte, len("begun\n")))
		}
		if err != nil {
			t.Errorf("client %d: %v", i, err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	// Others are served meanwhile.
	if res := c.try(t, "ssh", "box@sandbox", "echo here"); res.Stdout != "here\n" {
		t.Errorf("beside them: %s", res)
	}
	grown := resident(t, pid) - before
	t.Logf("the server grew by %d MiB", grown>>20)
	if grown > maxGrowth {
		t.Errorf("the server grew by %d bytes", grown)
	}
	kill(t, pid)
	each(func(i int) {
		_ = cmds[i].Wait() // the exit code says more
		if code := cmds[i].ProcessState.ExitCode(); code != 255 {
			t.Errorf("client %d of a killed server: exit code %d", i, code)
		}
	})
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.healthy(t)
	c.commands(t)
	// The agent ends the processes of lost connections after a minute.
	wait.NoError(t, "the processes of lost connections end", func() error {
		if res := c.try(t, "ssh", "box@sandbox", "cat /proc/[0-9]*/comm | grep -cx cat"); res.Stdout != "1\n" {
			return fmt.Errorf("%s", res)
		}
		return nil
	}, wait.Within(2*time.Minute))
}

// testHostKeys: OpenSSH learns the next host key before it becomes the current
// one, so that a rotation, and a server killed by it, surprises nobody.
func (c *sshClient) testHostKeys(t *testing.T, s *server) {
	known := filepath.Join(c.dir, "learned")
	ssh := func(file string, options ...string) result {
		args := []string{"-o", "UserKnownHostsFile=" + file, "-o", "StrictHostKeyChecking=yes"}
		for _, o := range options {
			args = append(args, "-o", o)
		}
		return c.try(t, "ssh", append(args, "box@sandbox", "echo here")...)
	}
	keys := func() (current, next string) {
		var hosts []struct {
			Spec struct {
				Current string `json:"current_key"`
				Next    string `json:"next_key"`
			}
		}
		s.json(t, &hosts, "ssh", "host-key", "list")
		if len(hosts) != 1 {
			t.Fatalf("%+v", hosts)
		}
		return hosts[0].Spec.Current, hosts[0].Spec.Next
	}
	learned := func() string {
		b, err := os.ReadFile(known)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first, second := keys()
	write(t, known, fmt.Sprintf("[%s]:%s %s\n", c.host, c.port, first))
	stale := filepath.Join(c.dir, "stale")
	write(t, stale, learned())
	learns := []string{"UpdateHostKeys=yes"}
	if res := ssh(known, learns...); res.Stdout != "here\n" {
		t.Fatalf("before: %s", res)
	}
	contains(t, "known_hosts", learned(), first, second)
	pid := s.pid(t, "server")
	s.r(t, "", "ssh", "host-key", "rotate")
	kill(t, pid)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.healthy(t)
	current, third := keys()
	if current != second || third == first || third == second {
		t.Errorf("%s, %s after %s, %s", current, third, first, second)
	}
	if res := ssh(known, learns...); res.Stdout != "here\n" {
		t.Errorf("after the rotation: %s", res)
	}
	if got := learned(); !strings.Contains(got, second) || !strings.Contains(got, third) || strings.Contains(got, first) {
		t.Errorf("known_hosts:\n%s", got)
	}
	if res := ssh(stale); res.Code != 255 || !strings.Contains(res.Stderr, "REMOTE HOST IDENTIFICATION HAS CHANGED") {
		t.Errorf("a client that did not learn the key: %s", res)
	}
	// It is the same for clients of r, which get the keys with their certificate.
	if res := s.try(t, "", "ssh", "box", "--", "echo here"); res.Stdout != "here\n" {
		t.Errorf("r ssh: %s", res)
	}
}
