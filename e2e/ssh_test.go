package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// sshClient is OpenSSH with a key of its own, as on another machine.
type sshClient struct {
	dir        string // with its key and the configuration
	host, port string
}

// newSSHClient makes a key pair for a client of a server.
func newSSHClient(t *testing.T, s *server) *sshClient {
	t.Helper()
	need.Tools(t, "ssh", "scp", "sftp", "rsync", "ssh-keygen")
	var status struct {
		Address string `json:"ssh_address"`
	}
	s.json(t, &status, "server", "status")
	host, port, err := net.SplitHostPort(status.Address)
	if err != nil {
		t.Fatal(err)
	}
	c := &sshClient{dir: t.TempDir(), host: host, port: port}
	c.keygen(t, "key")
	write(t, filepath.Join(c.dir, "config"), strings.Join([]string{
		"HostName " + host, "Port " + port, "IdentityFile " + filepath.Join(c.dir, "key"), "IdentitiesOnly yes", "IdentityAgent none", "BatchMode yes",
		"UserKnownHostsFile " + filepath.Join(c.dir, "known_hosts"), "GlobalKnownHostsFile none", "StrictHostKeyChecking accept-new", "LogLevel ERROR",
	}, "\n")+"\n")
	return c
}

func (c *sshClient) keygen(t *testing.T, name string) {
	t.Helper()
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", filepath.Join(c.dir, name)).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v %s", err, out)
	}
}

// command is a program of OpenSSH with the client's configuration.
func (c *sshClient) command(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, append([]string{"-F", filepath.Join(c.dir, "config")}, args...)...)
	cmd.Dir = c.dir
	return cmd
}

// try runs a program and returns the result.
func (c *sshClient) try(t *testing.T, program string, args ...string) result {
	t.Helper()
	return finish(t, c.command(t, program, args...))
}

func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// TestSSH logs in to a sandbox with OpenSSH.
func TestSSH(t *testing.T) {
	t.Parallel()
	sid := strings.TrimSpace(shared.r(t, "", "sandbox", "create", "--template", "python", "--name", "ssh", "--ttl", "1h", "--wait", "10m"))
	defer func() { shared.r(t, "", "sandbox", "delete", "ssh") }()
	c := newSSHClient(t, shared)
	if res := c.try(t, "ssh", "ssh@sandbox", "true"); res.Code != 255 || !strings.Contains(res.Stderr, "Permission denied (publickey)") {
		t.Errorf("an unknown key: %s", res)
	}
	shared.r(t, "", "ssh", "key", "add", filepath.Join(c.dir, "key.pub"), "--name", "alice")
	t.Run("exec", func(t *testing.T) { c.testExec(t, sid) })
	t.Run("terminal", func(t *testing.T) { c.testTerminal(t) })
	t.Run("forward", func(t *testing.T) { c.testForward(t) })
	t.Run("reverse", func(t *testing.T) { c.testReverse(t) })
	t.Run("rsync", func(t *testing.T) { c.testRsync(t) })
	t.Run("files", func(t *testing.T) { c.testSFTP(t) })
	t.Run("vscode", func(t *testing.T) { c.testVSCode(t) })
	t.Run("command", func(t *testing.T) { testSSHCommand(t, sid) })
	t.Run("refusals", func(t *testing.T) { c.testRefusals(t) })
}

// testExec: input, output, errors and exit codes pass, by name and id.
func (c *sshClient) testExec(t *testing.T, sid string) {
	for _, user := range []string{"ssh", sid, "default/ssh"} {
		if res := c.try(t, "ssh", "-l", user, "sandbox", "echo out; echo err >&2; exit 7"); res != (result{"out\n", "err\n", 7}) {
			t.Errorf("as %s: %s", user, res)
		}
	}
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	cmd := c.command(t, "ssh", "ssh@sandbox", "cat")
	cmd.Stdin = bytes.NewReader(data)
	if res := finish(t, cmd); res.Code != 0 || res.Stdout != string(data) || res.Stderr != "" {
		t.Errorf("cat: %d bytes, %d, %s", len(res.Stdout), res.Code, res.Stderr)
	}
	if res := c.try(t, "ssh", "ssh@sandbox", "kill -9 $$"); res.Code != 137 {
		t.Errorf("a signal: %s", res)
	}
	cmd = c.command(t, "ssh", "-o", "SetEnv=LC_TEST=entered LD_PRELOAD=/none", "ssh@sandbox", "echo $LC_TEST/$LD_PRELOAD")
	if res := finish(t, cmd); res.Stdout != "entered/\n" {
		t.Errorf("environment: %s", res)
	}
	cmd = c.command(t, "ssh", "ssh@sandbox") // a shell without a terminal
	cmd.Stdin = strings.NewReader("echo $((6*7))\nexit 3\n")
	if res := finish(t, cmd); res.Code != 3 || res.Stdout != "42\n" {
		t.Errorf("a script: %s", res)
	}
	shared.r(t, "", "sandbox", "pause", "ssh")
	if res := c.try(t, "ssh", "ssh@sandbox", "echo awake"); res.Stdout != "awake\n" {
		t.Errorf("a paused sandbox: %s", res)
	}
	// The agent of the client stays out of its reach.
	if res := c.try(t, "ssh", "-A", "ssh@sandbox", "echo agent=$SSH_AUTH_SOCK"); res.Stdout != "agent=\n" {
		t.Errorf("agent: %s", res)
	}
}

// testTerminal: a shell gets the size of the terminal, keys and signals.
func (c *sshClient) testTerminal(t *testing.T) {
	cmd := c.command(t, "ssh", "ssh@sandbox")
	cmd.Env = append(os.Environ(), "TERM=xterm")
	x := startTerminal(t, cmd)
	x.resize(t, 40, 100)
	x.keys(t, "echo $((6*7)) $TERM\n")
	x.wait(t, "42 xterm")
	x.resize(t, 31, 77)
	x.keys(t, "while [ \"$(stty size)\" != '31 77' ]; do sleep 0.1; done; echo resi''zed\n")
	x.wait(t, "resized")
	x.keys(t, "sh -c 'echo beg\"\"in; exec sleep 1000'\n")
	x.wait(t, "begin")
	x.keys(t, "\x03")
	x.keys(t, "echo code $?\n")
	x.wait(t, "code 130")
	x.keys(t, "exit 5\n")
	if code := x.code(t); code != 5 {
		t.Errorf("exit code %d", code)
	}
}

// testForward: ssh -L and -D reach ports of the sandbox, and nothing else.
func (c *sshClient) testForward(t *testing.T) {
	shared.r(t, "", "sandbox", "exec", "--detach", "ssh", "--", "sh", "-c", "mkdir -p /tmp/www; echo forwarded >/tmp/www/f; exec python3 -m http.server --bind 127.0.0.1 --directory /tmp/www 8000")
	wait.NoError(t, "the server listens", func() error {
		if out := shared.r(t, "", "sandbox", "ports", "ssh"); !strings.Contains(out, "8000") {
			return fmt.Errorf("ports: %s", out)
		}
		return nil
	}, wait.Within(converge))
	var ports [2]int
	for i := range ports {
		var err error
		if ports[i], err = freePort(); err != nil {
			t.Fatal(err)
		}
	}
	cmd := c.command(t, "ssh", "-N", "-o", "ExitOnForwardFailure=yes", "-L", fmt.Sprintf("127.0.0.1:%d:localhost:8000", ports[0]), "-D", fmt.Sprintf("127.0.0.1:%d", ports[1]), "ssh@sandbox")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() }() // it was killed
	url := fmt.Sprintf("http://127.0.0.1:%d/f", ports[0])
	wait.NoError(t, "-L", func() error {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "forwarded\n" {
			return fmt.Errorf("%q, %v", b, err)
		}
		return nil
	}, wait.Within(converge))
	socks := func(url string) result {
		return finish(t, exec.Command("curl", "-sS", "--max-time", "20", "--noproxy", "", "--socks5-hostname", fmt.Sprintf("127.0.0.1:%d", ports[1]), url))
	}
	if res := socks("http://localhost:8000/f"); res.Stdout != "forwarded\n" {
		t.Errorf("-D: %s", res)
	}
	// The gateway must not be a way to the machine's own services.
	if res := socks(fmt.Sprintf("http://%s/", net.JoinHostPort("127.0.0.1", c.port))); res.Code == 0 {
		t.Errorf("-D reached a port of the machine: %s", res)
	}
	if res := socks(fmt.Sprintf("http://10.0.0.1:%s/", c.port)); res.Code == 0 {
		t.Errorf("-D reached another machine: %s", res)
	}
}

// testReverse: ssh -R makes a service of the client's machine a port of the
// sandbox, as long as the connection lasts.
func (c *sshClient) testReverse(t *testing.T) {
	data := strings.Repeat("from the client\n", 1<<16) // 1 MiB
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = fmt.Fprintf(w, "%d\n%s", len(b), data) // the client may have gone
	}))
	defer service.Close()
	_, port, err := net.SplitHostPort(service.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	script := `import concurrent.futures, urllib.request
def get(i):
    return urllib.request.urlopen("http://127.0.0.1:9000/", data=b"x" * (i << 16)).read()
with concurrent.futures.ThreadPoolExecutor(20) as pool:
    for i, got in enumerate(pool.map(get, range(20))):
        assert got.startswith(b"%d\n" % (i << 16)) and len(got) > 1 << 20, (i, len(got))
print("all")
`
	cmd := c.command(t, "ssh", "-o", "ExitOnForwardFailure=yes", "-R", "9000:127.0.0.1:"+port, "ssh@sandbox", "python3 -")
	cmd.Stdin = strings.NewReader(script)
	if res := finish(t, cmd); res != (result{"all\n", "", 0}) {
		t.Errorf("-R: %s", res)
	}
	// The listener ends with the connection, and another connection gets the port.
	probe := "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 9000))' 2>/dev/null && echo listens || echo free"
	wait.NoError(t, "the port is free", func() error {
		if res := c.try(t, "ssh", "ssh@sandbox", probe); res.Stdout != "free\n" {
			return fmt.Errorf("%s", res)
		}
		return nil
	}, wait.Within(converge))
	if res := c.try(t, "ssh", "-o", "ExitOnForwardFailure=yes", "-R", "9000:127.0.0.1:"+port, "ssh@sandbox", probe); res.Stdout != "listens\n" {
		t.Errorf("-R again: %s", res)
	}
	if res := c.try(t, "ssh", "-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:"+port, "ssh@sandbox", "echo here"); res.Stdout != "here\n" {
		t.Errorf("-R with any port: %s", res)
	}
	// Nothing listens at the client: the connection is closed at once.
	if res := c.try(t, "ssh", "-R", "9001:127.0.0.1:1", "ssh@sandbox", "timeout 8 python3 -c 'import socket; print(socket.create_connection((\"127.0.0.1\", 9001)).recv(1))'"); res.Stdout != "b''\n" && !strings.Contains(res.Stderr, "reset") {
		t.Errorf("-R to nothing: %s", res)
	}
	// A port that is in use, and more listeners than a connection may have.
	if res := c.try(t, "ssh", "-o", "ExitOnForwardFailure=yes", "-R", "8000:127.0.0.1:1", "ssh@sandbox", "true"); res.Code != 255 || !strings.Contains(res.Stderr, "remote port forwarding failed") {
		t.Errorf("-R of a port that is in use: %s", res)
	}
	args := []string{"-o", "ExitOnForwardFailure=yes"}
	for i := range 9 {
		args = append(args, "-R", fmt.Sprintf("%d:127.0.0.1:1", 9100+i))
	}
	if res := c.try(t, "ssh", append(args, "ssh@sandbox", "true")...); res.Code != 255 || !strings.Contains(res.Stderr, "remote port forwarding failed") {
		t.Errorf("many -R: %s", res)
	}
}

// testRsync copies a folder in and out with rsync.
func (c *sshClient) testRsync(t *testing.T) {
	in, out := filepath.Join(c.dir, "in"), filepath.Join(c.dir, "out")
	if err := os.MkdirAll(filepath.Join(in, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("rsync"), 1<<18)
	write(t, filepath.Join(in, "sub", "data"), string(data))
	write(t, filepath.Join(in, "small"), "small")
	rsh := "ssh -F " + filepath.Join(c.dir, "config")
	for _, args := range [][]string{{in + "/", "ssh@sandbox:/tmp/rsync/"}, {"ssh@sandbox:/tmp/rsync/", out + "/"}} {
		if res := finish(t, exec.CommandContext(t.Context(), "rsync", append([]string{"-a", "-e", rsh}, args...)...)); res.Code != 0 {
			t.Fatalf("rsync %v: %s", args, res)
		}
	}
	if b, err := os.ReadFile(filepath.Join(out, "sub", "data")); err != nil || !bytes.Equal(b, data) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// testSFTP copies files with scp and sftp, which read and write them without a
// program in the sandbox.
func (c *sshClient) testSFTP(t *testing.T) {
	data := make([]byte, 9<<20+17)
	rng := rand.NewChaCha8([32]byte{})
	_, _ = rng.Read(data) // it never fails
	big, back := filepath.Join(c.dir, "big"), filepath.Join(c.dir, "back")
	if err := os.WriteFile(big, data, 0o750); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{big, "ssh@sandbox:"}, {"ssh@sandbox:big", back}, {"-r", filepath.Join(c.dir, "in"), "ssh@sandbox:/tmp/scp"}} {
		if res := c.try(t, "scp", args...); res.Code != 0 {
			t.Fatalf("scp %v: %s", args, res)
		}
	}
	if b, err := os.ReadFile(back); err != nil || !bytes.Equal(b, data) {
		t.Errorf("%d of %d bytes, %v", len(b), len(data), err)
	}
	if res := c.try(t, "ssh", "ssh@sandbox", "stat -c '%a %U %s' big; cat /tmp/scp/small"); res.Stdout != fmt.Sprintf("750 user %d\nsmall", len(data)) {
		t.Errorf("in the sandbox: %s", res)
	}
	cmd := c.command(t, "sftp", "-b", "-", "ssh@sandbox")
	cmd.Stdin = strings.NewReader("pwd\nmkdir /tmp/sftp\ncd /tmp/sftp\nput in/small one\nrename one two\nchmod 600 two\nls -l\nget two two\nrm two\ncd ..\nrmdir sftp\n")
	res := finish(t, cmd)
	contains(t, "sftp", res.Stdout, "working directory: /home/user", "-rw-------", "two")
	if b, err := os.ReadFile(filepath.Join(c.dir, "two")); res.Code != 0 || err != nil || string(b) != "small" {
		t.Errorf("%q, %v, %s", b, err, res)
	}
	c.testAttributes(t)
	if res := c.try(t, "scp", big, "ssh@sandbox:/etc/big"); res.Code == 0 || !strings.Contains(res.Stderr, "Permission denied") {
		t.Errorf("a file of root: %s", res)
	}
	if res := c.try(t, "scp", "ssh@sandbox:/none", back); res.Code == 0 || !strings.Contains(res.Stderr, "No such file") {
		t.Errorf("a missing file: %s", res)
	}
}

// testAttributes: sftp continues files, makes links and sets times, and so do scp
// and rsync.
func (c *sshClient) testAttributes(t *testing.T) {
	local := filepath.Join(c.dir, "grown")
	write(t, local, "begin")
	sftp := func(batch string) result {
		cmd := c.command(t, "sftp", "-b", "-", "ssh@sandbox")
		cmd.Stdin = strings.NewReader(batch)
		return finish(t, cmd)
	}
	res := sftp("mkdir /tmp/attr\ncd /tmp/attr\nput grown\nln grown hard\nln -s grown text\nln -s ../nowhere dangling\nls -l\ndf\n")
	if res.Code != 0 {
		t.Fatalf("sftp: %s", res)
	}
	write(t, local, "begin, and then the end")
	if res := sftp("put -a grown /tmp/attr/text\n"); res.Code != 0 { // through the link
		t.Errorf("put -a: %s", res)
	}
	if res := c.try(t, "ssh", "ssh@sandbox", "cd /tmp/attr; cat hard; echo; readlink text dangling; stat -c %h grown"); res.Stdout != "begin, and then the end\ngrown\n../nowhere\n2\n" {
		t.Errorf("in the sandbox: %s", res)
	}
	then := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	if err := os.Chtimes(local, then, then); err != nil {
		t.Fatal(err)
	}
	if res := c.try(t, "scp", "-p", local, "ssh@sandbox:/tmp/attr/text"); res.Code != 0 || res.Stderr != "" {
		t.Errorf("scp -p: %s", res)
	}
	// The file was changed in its place.
	if res := c.try(t, "ssh", "ssh@sandbox", "cd /tmp/attr; stat -c '%Y %s %h' grown; readlink text"); res.Stdout != fmt.Sprintf("%d 23 2\ngrown\n", then.Unix()) {
		t.Errorf("times: %s", res)
	}
	back := filepath.Join(c.dir, "attr")
	if res := c.try(t, "scp", "-pr", "ssh@sandbox:/tmp/attr/grown", back); res.Code != 0 {
		t.Errorf("scp -p: %s", res)
	}
	if st, err := os.Stat(back); err != nil || !st.ModTime().Equal(then) {
		t.Errorf("%+v, %v", st, err)
	}
	tree := filepath.Join(c.dir, "tree")
	if res := finish(t, exec.CommandContext(t.Context(), "rsync", "-aH", "-e", "ssh -F "+filepath.Join(c.dir, "config"), "ssh@sandbox:/tmp/attr/", tree+"/")); res.Code != 0 {
		t.Errorf("rsync: %s", res)
	}
	if target, err := os.Readlink(filepath.Join(tree, "dangling")); err != nil || target != "../nowhere" {
		t.Errorf("%q, %v", target, err)
	}
	if st, err := os.Stat(filepath.Join(tree, "hard")); err != nil || !st.ModTime().Equal(then) {
		t.Errorf("%+v, %v", st, err)
	}
}

// testSSHCommand: r ssh logs in with a certificate, and r ssh-config prints a
// configuration for plain ssh that renews it.
func testSSHCommand(t *testing.T, sid string) {
	if res := shared.try(t, "", "ssh", "ssh", "--", "echo out; echo err >&2; exit 9"); res != (result{"out\n", "err\n", 9}) {
		t.Errorf("r ssh: %s", res)
	}
	x := shared.terminal(t, "ssh", "ssh")
	x.keys(t, "echo $((6*7)); exit 4\n")
	x.wait(t, "42")
	if code := x.code(t); code != 4 {
		t.Errorf("exit code %d", code)
	}
	config := filepath.Join(t.TempDir(), "config")
	write(t, config, shared.r(t, "", "ssh-config", "ssh", "--host", "work"))
	ssh := func() result {
		return finish(t, exec.CommandContext(t.Context(), "ssh", "-F", config, "-o", "BatchMode=yes", "work", "echo here"))
	}
	if res := ssh(); res != (result{"here\n", "", 0}) {
		t.Errorf("ssh with the configuration: %s", res)
	}
	b, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "CertificateFile \"")
	cert, _, _ := strings.Cut(rest, `"`)
	if err := os.Remove(cert); err != nil { // as one that has expired
		t.Fatal(err)
	}
	if res := ssh(); res != (result{"here\n", "", 0}) {
		t.Errorf("after its certificate is gone: %s", res)
	}
	// The certificate is for this sandbox only.
	other := strings.TrimSpace(shared.r(t, "", "sandbox", "create", "--template", "python", "--ttl", "1h", "--wait", "10m"))
	defer func() { shared.r(t, "", "sandbox", "delete", other) }()
	res := finish(t, exec.CommandContext(t.Context(), "ssh", "-F", config, "-o", "BatchMode=yes", "-l", other, "work", "echo here"))
	if res.Code != 255 || !strings.Contains(res.Stderr, "Permission denied") {
		t.Errorf("another sandbox with a certificate of %s: %s", sid, res)
	}
}

// testRefusals: what a key may not do is refused, without a word on what exists,
// and a deleted key ends its connections.
func (c *sshClient) testRefusals(t *testing.T) {
	for i, args := range [][]string{{"--role", "viewer"}, {"--role", "deployer@elsewhere"}} {
		if i == 1 {
			project := filepath.Join(c.dir, "project.yaml")
			write(t, project, "kind: project\nname: elsewhere\n")
			shared.r(t, "", "entity", "put", project)
		}
		name := fmt.Sprintf("refused%d", i)
		c.keygen(t, name)
		shared.r(t, "", append([]string{"ssh", "key", "add", filepath.Join(c.dir, name+".pub"), "--name", name}, args...)...)
		var answers [2]result
		for j, user := range []string{"ssh", "none"} {
			answers[j] = c.try(t, "ssh", "-o", "IdentityFile="+filepath.Join(c.dir, name), "-o", "IdentityFile=none", "-l", user, "sandbox", "true")
			answers[j].Stderr = strings.ReplaceAll(answers[j].Stderr, `"`+user+`"`, "NAME")
		}
		if answers[0] != answers[1] || answers[0].Code != 255 || !strings.Contains(answers[0].Stderr, "no sandbox NAME that this key may use") {
			t.Errorf("%v: %s\n%s", args, answers[0], answers[1])
		}
	}
	cmd := c.command(t, "ssh", "ssh@sandbox", "echo begun; sleep 1000")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	var keys []struct {
		ID   string
		Spec struct{ Identity, Fingerprint string }
	}
	shared.json(t, &keys, "ssh", "key", "list")
	for _, k := range keys {
		if k.Spec.Identity == "alice" {
			shared.r(t, "", "ssh", "key", "delete", k.Spec.Fingerprint)
		}
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 255 {
		t.Errorf("a connection of a deleted key: %v", err)
	}
	if res := c.try(t, "ssh", "ssh@sandbox", "true"); res.Code != 255 || !strings.Contains(res.Stderr, "Permission denied (publickey)") {
		t.Errorf("a deleted key: %s", res)
	}
	audit := shared.r(t, "", "audit", "list", "--json")
	contains(t, "audit", audit, "server.SSH/Connect", `"alice"`, `"unauthenticated"`, `"127.0.0.1"`)
}
