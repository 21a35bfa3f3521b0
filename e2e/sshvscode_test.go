package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"miren.dev/runtime/testsupport/wait"
)

// vscodeWindow is a connection that a window of VS Code Remote makes: a bash without a
// terminal, which has read the script and goes on to wait for its input.
type vscodeWindow struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	output map[string]string // what the script printed, by name
	log    string            // file with what ssh did
}

// openWindow connects and has a bash run the script.
func (c *sshClient) openWindow(t *testing.T, args ...string) *vscodeWindow {
	t.Helper()
	script, err := os.ReadFile("testdata/vscode/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "ssh.log")
	cmd := c.command(t, "ssh", append(append([]string{"-E", log, "-o", "LogLevel=DEBUG1", "-T", "-o", "ConnectTimeout=15", "-o", "ExitOnForwardFailure=yes"}, args...), "ssh@sandbox", "bash")...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = io.WriteString(stdin, "SCRIPT_ID=3f2a\n"+string(script))
	}
	if err != nil {
		t.Fatal(err)
	}
	w := &vscodeWindow{cmd: cmd, stdin: stdin, output: map[string]string{}, log: log}
	t.Cleanup(func() {
		if cmd.ProcessState == nil { // of a test that failed
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if name, value, ok := strings.Cut(strings.TrimSuffix(lines.Text(), "=="), "=="); ok {
			w.output[name] = value
		}
		if lines.Text() == "3f2a: end" {
			return w
		}
	}
	t.Fatalf("the script printed %v, and no end", w.output)
	return nil
}

// close ends the connection, as a window that is closed does.
func (w *vscodeWindow) close(t *testing.T) {
	t.Helper()
	_ = w.stdin.Close() // bash ends at the end of its input
	if err := w.cmd.Wait(); err != nil {
		b, _ := os.ReadFile(w.log) // without it, the message lacks it
		t.Errorf("the connection of a window: %v\n%s", err, b[max(0, len(b)-8192):])
	}
}

// testVSCode: the server of VS Code Remote starts through the gateway as the extension
// Remote-SSH starts it, and is reached and used again. The program is one of the
// test's, since the real one is a download.
func (c *sshClient) testVSCode(t *testing.T) {
	// The extension copies the server if the machine cannot download it.
	tar := filepath.Join(c.dir, "server.tar.gz")
	if out, err := exec.Command("tar", "-czf", tar, "-C", "testdata/vscode", "server-main.js").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v %s", err, out)
	}
	if res := c.try(t, "ssh", "ssh@sandbox", "mkdir -p ~/.vscode-server"); res.Code != 0 {
		t.Fatalf("mkdir: %s", res)
	}
	if res := c.try(t, "scp", tar, "ssh@sandbox:.vscode-server/server.tar.gz"); res.Code != 0 {
		t.Fatalf("scp: %s", res)
	}
	var ports [3]int
	for i := range ports {
		var err error
		if ports[i], err = freePort(); err != nil {
			t.Fatal(err)
		}
	}
	control := filepath.Join(c.dir, "control")
	first := c.openWindow(t, "-D", fmt.Sprintf("127.0.0.1:%d", ports[0]), "-o", "ControlMaster=yes", "-o", "ControlPath="+control)
	port, token := first.output["listeningOn"], first.output["connectionToken"]
	if port == "" || token == "" || first.output["reused"] != "no" {
		t.Fatalf("the script printed %v", first.output)
	}
	socks := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "socks5", Host: fmt.Sprintf("127.0.0.1:%d", ports[0])})}}
	pid := uses(t, socks, "127.0.0.1:"+port, token)

	// Another window gets the same server: over a connection of its own, with -L, and
	// over that of the first window.
	second := c.openWindow(t, "-L", fmt.Sprintf("127.0.0.1:%d:127.0.0.1:%s", ports[1], port))
	if second.output["reused"] != "yes" || second.output["listeningOn"] != port {
		t.Errorf("a second window: %v", second.output)
	}
	if other := uses(t, client, fmt.Sprintf("127.0.0.1:%d", ports[1]), token); other != pid {
		t.Errorf("a second window reaches process %s, the first %s", other, pid)
	}
	third := c.openWindow(t, "-S", control, "-o", "ControlMaster=no")
	if third.output["reused"] != "yes" || third.output["listeningOn"] != port {
		t.Errorf("a window over the first connection: %v", third.output)
	}
	if res := c.try(t, "ssh", "-S", control, "-O", "forward", "-L", fmt.Sprintf("127.0.0.1:%d:127.0.0.1:%s", ports[2], port), "ssh@sandbox"); res.Code != 0 {
		t.Errorf("-O forward: %s", res)
	}
	if other := uses(t, client, fmt.Sprintf("127.0.0.1:%d", ports[2]), token); other != pid {
		t.Errorf("over the first connection: process %s, not %s", other, pid)
	}
	socks.CloseIdleConnections()
	client.CloseIdleConnections()
	for _, w := range []*vscodeWindow{third, second, first} {
		w.close(t)
	}
	// The server outlives its windows, and the next one gets it.
	again := c.openWindow(t, "-L", fmt.Sprintf("127.0.0.1:%d:127.0.0.1:%s", ports[1], port))
	if again.output["reused"] != "yes" || again.output["listeningOn"] != port {
		t.Errorf("a window after all were closed: %v, before it was process %s at %s", again.output, pid, port)
	}
	if other := uses(t, client, fmt.Sprintf("127.0.0.1:%d", ports[1]), token); other != pid {
		t.Errorf("after all windows were closed: process %s, not %s", other, pid)
	}
	client.CloseIdleConnections()
	again.close(t)
	if res := c.try(t, "ssh", "ssh@sandbox", "kill $(cat ~/.vscode-server/.test.pid)"); res.Code != 0 {
		t.Errorf("kill: %s", res)
	}
}

// uses makes a request to the server of VS Code Remote, and has it run a command by a
// WebSocket, as a window does. It returns the id of its process.
func uses(t *testing.T, c *http.Client, address, token string) (pid string) {
	t.Helper()
	wait.NoError(t, "the server is reached", func() error {
		resp, err := c.Get("http://" + address + "/version?tkn=" + token)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", resp.Status, b)
		}
		_, pid, _ = strings.Cut(string(b), " ")
		return err
	}, wait.Within(converge))
	ws, _, err := websocket.Dial(t.Context(), "ws://"+address+"/?tkn="+token, &websocket.DialOptions{HTTPClient: c})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.CloseNow() }() // the test has what it wants
	for range 3 {
		if err := ws.Write(t.Context(), websocket.MessageText, []byte("echo $((6*7)); pwd")); err != nil {
			t.Fatal(err)
		}
		if _, b, err := ws.Read(t.Context()); err != nil || !strings.HasPrefix(string(b), "42\n/home/user") {
			t.Fatalf("the server answered %q, %v", b, err)
		}
	}
	return pid
}
