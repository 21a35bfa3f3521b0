package sshserver

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// host stands for a sandbox: its processes and ports are those of this machine,
// and its agent is the real one.
type host struct {
	sandbox.Sandboxes
	server.SSH
	agent   string
	execs   sync.WaitGroup
	address string // of the gateway
}

func (h *host) Connect(ctx context.Context, _ *server.SSHConnectRequest, st rpc.ServerStream[rpc.None, server.SSHConnection]) error {
	if err := st.Send(&server.SSHConnection{At: time.Now()}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (h *host) Exec(ctx context.Context, req *sandbox.ExecRequest, st rpc.ServerStream[sandbox.ExecInput, sandbox.ExecOutput]) error {
	h.execs.Add(1)
	defer h.execs.Done()
	cmd := exec.CommandContext(ctx, h.agent, req.Command[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { // ends with the call
		for m, err := st.Recv(); err == nil; m, err = st.Recv() {
			_, _ = in.Write(m.Stdin) // the process may have ended
		}
	}()
	buf := make([]byte, 4096)
	for {
		n, err := out.Read(buf)
		if n > 0 && st.Send(&sandbox.ExecOutput{Stdout: buf[:n]}) != nil || err != nil {
			break
		}
	}
	_ = cmd.Wait() // the code says it
	code := int64(cmd.ProcessState.ExitCode())
	return st.Send(&sandbox.ExecOutput{ExitCode: &code})
}

func (h *host) Dial(ctx context.Context, req *sandbox.DialRequest, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", req.Port))
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	go func() { // ends with the call
		if _, err := io.Copy(c, st.Reader()); err == nil {
			_ = c.(*net.TCPConn).CloseWrite() // a lost connection shows below
		}
	}()
	_, err = io.Copy(st.Writer(), c)
	return err
}

const user = "sb-aaaaaaaaaaaaaaaa"

// newHost connects an SSH client with a gateway.
func newHost(t *testing.T) (*host, *ssh.Client) {
	t.Helper()
	h := &host{agent: filepath.Join(t.TempDir(), "agent")}
	if b, err := exec.Command("go", "build", "-o", h.agent, "../../cmd/runtime-agent").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, b)
	}
	r, err := rpc.NewServer(rpc.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	sandbox.RegisterSandboxes(r, h)
	server.RegisterSSH(r, h)
	a, err := OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var keys [3]ssh.Signer
	for i := range keys {
		_, k, err := ed25519.GenerateKey(rand.Reader)
		if err == nil {
			keys[i], err = ssh.NewSignerFromKey(k)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	a.SetHostKeys(keys[0], keys[1])
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := core.NewSSHKey()
	k.Spec = core.SSHKeySpec{Identity: "alice", Roles: []string{rpc.RoleAdmin}, ExpiresAt: time.Now().Add(time.Hour)}
	s := New(Config{
		Authority: a, Key: func(string) (*core.SSHKey, error) { return k, nil }, Refuse: func(rpc.Identity) error { return nil },
		Dial: r.LocalFor, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() { cancel(); <-done })
	h.address = l.Addr().String()
	c, err := ssh.Dial("tcp", h.address, &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(keys[2])}, HostKeyCallback: ssh.FixedHostKey(keys[0].PublicKey()), Timeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return h, c
}

// TestListen: connections to a port of the sandbox reach the client whole in both
// directions, also after one side has ended its own, until the connection ends.
func TestListen(t *testing.T) {
	h, c := newHost(t)
	l, err := c.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	data := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				b, err := io.ReadAll(conn) // to the end of what the peer sends
				if err == nil {
					_, err = fmt.Fprintf(conn, "%d%s", len(b), data)
				}
				if err != nil {
					t.Error(err)
				}
			}()
		}
	}()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, data[:i<<15]); err != nil {
				t.Error(err)
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Error(err)
			}
			if b, err := io.ReadAll(conn); err != nil || string(b) != fmt.Sprint(i<<15)+data {
				t.Errorf("%d: %d bytes, %v", i, len(b), err)
			}
		})
	}
	wg.Wait()
	if _, err := c.Listen("tcp", l.Addr().String()); err == nil {
		t.Error("it listens twice on a port")
	}
	// A client may end a listener and go on.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	free := func(l net.Listener) bool {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}
	wait.For(t, "the listener has ended", func() bool { return free(l) })
	var more [maxListeners]net.Listener
	for i := range more {
		if more[i], err = c.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
		t.Error("there is no bound on listeners")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for _, l := range more {
		wait.For(t, "it ends with its connection", func() bool { return free(l) })
	}
	ended := make(chan struct{})
	go func() { h.execs.Wait(); close(ended) }()
	wait.Receive(t, "the processes that listen end", ended)
}

// TestListensBeforeCommands: what a client asks for after a port finds it.
func TestListensBeforeCommands(t *testing.T) {
	_, c := newHost(t)
	for range 5 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().(*net.TCPAddr)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.SendRequest("tcpip-forward", false, ssh.Marshal(listenRequest{"127.0.0.1", uint32(address.Port)})); err != nil {
			t.Fatal(err)
		}
		s, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", address.String())
		if err != nil {
			t.Fatal("the session begins before the port listens:", err)
		}
		_ = conn.Close()
		_ = s.Close()
	}
}

// TestListenForOpenSSH: ssh -R.
func TestListenForOpenSSH(t *testing.T) {
	need.Tools(t, "ssh", "ssh-keygen")
	h, _ := newHost(t)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "from the client") // a peer that has gone fails below
	}))
	t.Cleanup(service.Close)
	address, port, err := net.SplitHostPort(h.address)
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ssh", "-F", "none", "-i", key, "-o", "IdentityAgent=none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
		"-o", "ExitOnForwardFailure=yes", "-N", "-R", "0:"+service.Listener.Addr().String(), "-p", port, "-l", user, address)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	bound := 0
	said := ""
	for s := bufio.NewScanner(stderr); bound == 0 && s.Scan(); {
		said += s.Text() + "\n"
		_, _ = fmt.Sscanf(s.Text(), "Allocated port %d", &bound) // other lines are warnings
	}
	if bound == 0 {
		t.Fatalf("ssh: %s", said)
	}
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", bound))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "from the client" {
		t.Errorf("%q, %v", b, err)
	}
	cancel()
	_ = cmd.Wait() // it was killed
	wait.For(t, "the port is free", func() bool {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", bound))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}
