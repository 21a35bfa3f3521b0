package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"miren.dev/runtime/testsupport/wait"
)

// sandboxd returns the command line and the environment of mcp-sandboxd with a
// configuration, whose sections follow those of the installation.
func (l *onDemand) sandboxd(t *testing.T, config string) (env, args []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mcp-sandboxd.yaml")
	write(t, file, fmt.Sprintf("sandbox:\n  database_path: %s/store.db\n  idle_end: 5s\n%s", l.state, config))
	cmd := l.command(t, "", "mcp-sandboxd")
	env = append(cmd.Env, "MCP_SANDBOXD_SANDBOX_RUN_DIR="+l.run)
	return env, []string{cmd.Path, "--config", file}
}

// TestMCPSandboxd: mcp-sandboxd serves a foreign client on standard input and
// output and by HTTP without a server. Sandboxes survive a kill of what runs them,
// and nothing is left when both have ended.
func TestMCPSandboxd(t *testing.T) {
	t.Parallel()
	l := localInstallation(t, "mcpd")
	env, args := l.sandboxd(t, "  memory_bytes: 536870912\n  templates: [base, python]\n  allow_network: false\ntools:\n  enabled: [sandboxes, code, write_file]\nfiles:\n  max_bytes: 10\n")
	c := startMCP(t, env, args...)
	var sb mcpSandbox
	c.call(&sb, "create_sandbox", map[string]any{"name": "work"})
	if sb.State != "ready" || sb.Network != "none" || sb.Template != "base:1" {
		t.Errorf("a new sandbox: %+v", sb)
	}
	var proc struct{ Process string }
	c.call(&proc, "start_process", map[string]any{"sandbox": sb.ID, "command": "echo kept > kept; sleep 5000"})
	if c.call(&sb, "describe_sandbox", map[string]any{"sandbox": sb.ID}); sb.State != "running" {
		t.Errorf("with a process: %+v", sb)
	}
	for what, call := range map[string]struct {
		tool string
		args map[string]any
		want string
	}{
		"memory":   {"create_sandbox", map[string]any{"memory_mib": 1024}, "at most 512"},
		"template": {"run_code", map[string]any{"language": "go", "code": "package main"}, "no sandboxes of template go"},
		"network":  {"create_sandbox", map[string]any{"network": "all"}, "no network"},
		"file":     {"write_file", map[string]any{"sandbox": sb.ID, "path": "x", "content": "more than ten bytes"}, "permits 10"},
	} {
		if res := c.try(call.tool, call.args); !res.IsError || !strings.Contains(res.text(), call.want) {
			t.Errorf("%s: %+v", what, res)
		}
	}

	// By HTTP, beside it.
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "mcp-sandboxd.log")
	env, args = l.sandboxd(t, fmt.Sprintf("server:\n  protocol: http\n  address: 127.0.0.1:%d\nlog:\n  file: %s\n  format: json\n", port, log))
	daemon := l.command(t, "", "mcp-sandboxd", args[1:]...)
	var stderr bytes.Buffer
	daemon.Env, daemon.Stderr = env, &stderr
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	target := fmt.Sprintf("http://127.0.0.1:%d/mcp", port)
	wait.NoError(t, "it serves HTTP", func() error {
		resp, err := client.Post(target, "application/json", strings.NewReader("{}"))
		if err == nil {
			if resp.Body.Close(); resp.StatusCode != http.StatusUnauthorized {
				err = fmt.Errorf("a request without the token: %s", resp.Status)
			}
		}
		return err
	})
	token, err := os.ReadFile(filepath.Join(l.state, "mcp-sandboxd.token"))
	if err != nil {
		t.Fatal(err)
	}
	h := startMCP(t, append(os.Environ(), "MCP_KEY="+strings.TrimSpace(string(token))), target)
	var run mcpRun
	if h.call(&run, "run_code", map[string]any{"language": "shell", "code": "echo hello"}); run.Stdout != "hello\n" {
		t.Errorf("run_code by HTTP: %+v", run)
	}
	ws := startMCP(t, append(os.Environ(), "MCP_KEY="+strings.TrimSpace(string(token))), fmt.Sprintf("ws://127.0.0.1:%d/mcp/ws", port))
	if ws.call(&run, "run_code", map[string]any{"language": "shell", "code": "echo hello"}); run.Stdout != "hello\n" {
		t.Errorf("run_code by WebSocket: %+v", run)
	}
	ws.must(nil, "close", nil)

	kill(t, l.pid(t, "server"))
	for _, c := range []*mcpClient{c, h} {
		if c.call(&run, "run_command", map[string]any{"sandbox": "work", "command": "cat kept"}); run.Stdout != "kept\n" {
			t.Errorf("after the kill: %+v", run)
		}
	}
	if c.call(&sb, "stop_sandbox", map[string]any{"sandbox": sb.ID}); sb.State != "terminated" {
		t.Errorf("a stopped sandbox: %+v", sb)
	}

	// The installation ends after those who use it. The session by HTTP is open and
	// has a sandbox.
	h.call(&sb, "create_sandbox", map[string]any{"language": "shell"})
	c.must(nil, "close", nil)
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := wait.Receive(t, "mcp-sandboxd ends", ended); err != nil {
		t.Errorf("mcp-sandboxd: %v\n%s", err, stderr.String())
	}
	l.awaitEnd(t)
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if lines := bufio.NewScanner(f); !lines.Scan() || !strings.HasPrefix(lines.Text(), "{") {
		t.Errorf("the log: %q", lines.Text())
	}
}

// TestMCPSandboxdConfig: the printed configuration is valid, and mistakes have
// their lines.
func TestMCPSandboxdConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := &onDemand{&server{state: dir}, nil, ""}
	file := filepath.Join(dir, "mcp-sandboxd.yaml")
	out, err := l.command(t, dir, "mcp-sandboxd", "--print-config").Output()
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, string(out))
	if out, err := l.command(t, dir, "mcp-sandboxd", "--check-config", "--config", file).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	write(t, file, "server:\n  protocol: socket\nsandbox:\n  network: host\ntools:\n  enabled: [run_cod]\nlog:\n  fil: /x\n")
	out, err = l.command(t, dir, "mcp-sandboxd", "--check-config", "--config", file).CombinedOutput()
	if err == nil {
		t.Error("a file with mistakes is valid")
	}
	contains(t, "the mistakes", string(out), file+":2: server.protocol", file+":4: sandbox.network", file+":6: tools.enabled", file+":8: unknown key log.fil; did you mean log.file?")
}
