package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/need"
)

// mcpClient is a client of the Model Context Protocol: testdata/mcp/client.mjs,
// which uses the official TypeScript SDK.
type mcpClient struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	mu    sync.Mutex
	next  int
	wait  map[int]chan mcpAnswer
	about struct {
		PID          int                        `json:"pid"`
		Instructions string                     `json:"instructions"`
		Capabilities map[string]json.RawMessage `json:"capabilities"`
	}
}

type mcpAnswer struct {
	ID       int             `json:"id"`
	Result   json.RawMessage `json:"result"`
	Error    string          `json:"error"`
	Progress *struct {
		Progress float64 `json:"progress"`
		Message  string  `json:"message"`
	} `json:"progress"`
}

type mcpContent struct{ Type, Text, Data, MIMEType string }

// mcpResult is the result of a tool.
type mcpResult struct {
	Content    []mcpContent    `json:"content"`
	Structured json.RawMessage `json:"structuredContent"`
	IsError    bool            `json:"isError"`
	Progress   int             `json:"progress"`
}

func (r mcpResult) text() string {
	if len(r.Content) == 0 {
		return ""
	}
	return r.Content[0].Text
}

// mcpModules returns the directory of the foreign clients.
func mcpModules(t *testing.T) string {
	t.Helper()
	need.Tools(t, "npm")
	cmd := exec.CommandContext(t.Context(), "../hack/mcp-clients.sh")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		need.Missing(t, "hack/mcp-clients.sh:", err)
	}
	return strings.TrimSpace(string(out))
}

// mcpNode returns the program that runs the clients.
func mcpNode(t *testing.T, modules string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(modules, "node_modules", "node-linux-*", "bin", "node"))
	if err != nil || len(found) != 1 {
		need.Missing(t, "no Node for this machine in", modules)
	}
	return found[0]
}

// newMCP connects a client to a server that it starts: `r mcp` with args.
func (s *server) newMCP(t *testing.T, args ...string) *mcpClient {
	t.Helper()
	r := s.command(t.Context(), "", append([]string{"mcp"}, args...)...)
	return startMCP(t, r.Env, r.Args...)
}

// startMCP connects a client to a command that it starts, or to a URL.
func startMCP(t *testing.T, env []string, target ...string) *mcpClient {
	t.Helper()
	modules, dir := mcpModules(t), t.TempDir()
	script, err := os.ReadFile("testdata/mcp/client.mjs")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "client.mjs"), string(script))
	if err := os.Symlink(filepath.Join(modules, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	c := &mcpClient{t: t, wait: map[int]chan mcpAnswer{}}
	c.cmd = exec.CommandContext(t.Context(), mcpNode(t, modules), append([]string{filepath.Join(dir, "client.mjs")}, target...)...)
	c.cmd.Env, c.cmd.Stderr = env, os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go c.read(out, done)
	t.Cleanup(func() {
		_ = c.in.Close()
		_ = c.cmd.Process.Kill()
		<-done
		_ = c.cmd.Wait()
	})
	c.must(&c.about, "connect", nil)
	return c
}

// read passes answers on to those who wait for them.
func (c *mcpClient) read(out io.Reader, done chan struct{}) {
	defer close(done)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var a mcpAnswer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			continue
		}
		c.mu.Lock()
		ch := c.wait[a.ID]
		c.mu.Unlock()
		ch <- a
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.wait {
		close(ch)
	}
}

// begin sends a request and returns its number and its answers.
func (c *mcpClient) begin(op string, params map[string]any) (int, <-chan mcpAnswer) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	msg := map[string]any{"id": c.next, "op": op}
	for k, v := range params {
		msg[k] = v
	}
	b, err := json.Marshal(msg)
	if err != nil {
		c.t.Fatal(err)
	}
	ch := make(chan mcpAnswer, 1000)
	c.wait[c.next] = ch
	if _, err := c.in.Write(append(b, '\n')); err != nil {
		c.t.Fatal(err)
	}
	return c.next, ch
}

// end waits for the answer of a request.
func (c *mcpClient) end(ch <-chan mcpAnswer) (json.RawMessage, error) {
	c.t.Helper()
	limit := time.After(15 * time.Minute)
	for {
		select {
		case a, ok := <-ch:
			switch {
			case !ok:
				c.t.Fatal("the client has ended")
			case a.Error != "":
				return nil, fmt.Errorf("%s", a.Error)
			case a.Progress == nil:
				return a.Result, nil
			}
		case <-limit:
			c.t.Fatal("no answer")
		}
	}
}

// must sends a request and decodes its answer.
func (c *mcpClient) must(into any, op string, params map[string]any) {
	c.t.Helper()
	_, ch := c.begin(op, params)
	b, err := c.end(ch)
	if err == nil && into != nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		c.t.Fatalf("%s %v: %v", op, params, err)
	}
}

// try calls a tool.
func (c *mcpClient) try(name string, args map[string]any) mcpResult {
	c.t.Helper()
	var res mcpResult
	c.must(&res, "call", map[string]any{"name": name, "args": args})
	return res
}

// call calls a tool, fails the test unless it succeeds, and decodes its result.
func (c *mcpClient) call(into any, name string, args map[string]any) mcpResult {
	c.t.Helper()
	res := c.try(name, args)
	if res.IsError {
		c.t.Fatalf("%s %v: %s", name, args, res.text())
	}
	if into != nil {
		if err := json.Unmarshal(res.Structured, into); err != nil {
			c.t.Fatalf("%s: %v in %s", name, err, res.Structured)
		}
	}
	return res
}
