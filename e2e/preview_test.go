package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"miren.dev/runtime/testsupport/wait"
)

// previewed is a sandbox whose port 3000 has a preview.
type previewed struct {
	*server
	box  string // its name
	host string
}

// newPreviewed makes a sandbox whose main process is the server of
// testdata/preview, which listens on an address. flags are of sandbox run.
func newPreviewed(t *testing.T, s *server, box, address string, flags ...string) *previewed {
	t.Helper()
	code, err := os.ReadFile("testdata/preview/server.py")
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"sandbox", "run", "--detach", "--template", "python", "--name", box, "--wait", "10m"}, flags...)
	id := strings.TrimSpace(s.r(t, "", append(args, "--", "python3", "-c", string(code), address)...))
	return &previewed{s, box, "3000-" + strings.Replace(id, "-", "", 1) + ".localhost"}
}

// request makes a request to the preview. header are names and values.
func (p *previewed) request(ctx context.Context, method, path, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://127.0.0.1:%d%s", p.port, path), strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Host = p.host
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return noRedirect.Do(req)
}

var noRedirect = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// do makes a request and returns its status and body.
func (p *previewed) do(t *testing.T, method, path, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	resp, err := p.request(t.Context(), method, path, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

// says fails the test unless the answer has a status and holds a text.
func (p *previewed) says(t *testing.T, status int, text, path string, header ...string) {
	t.Helper()
	if code, body, _ := p.do(t, "GET", path, "", header...); code != status || !strings.Contains(body, text) {
		t.Errorf("%s answered %d %q, want %d with %q", path, code, body, status, text)
	}
}

// up waits until the preview answers.
func (p *previewed) up(t *testing.T, header ...string) {
	t.Helper()
	wait.NoError(t, "the preview answers", func() error {
		if code, body, _ := p.do(t, "GET", "/", "", header...); code != 200 {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	}, wait.Within(converge))
}

// TestPreview runs the commands of docs/previews.md, and reaches a port of a
// sandbox through the ingress.
func TestPreview(t *testing.T) {
	t.Parallel()
	p := newPreviewed(t, shared, "previewed", "0.0.0.0", "--ttl", "1h")
	p.says(t, 404, "no preview", "/")
	if out := strings.TrimSpace(p.r(t, "", "sandbox", "preview", p.box, "3000", "--public")); out != fmt.Sprintf("http://%s:%d/", p.host, p.port) {
		t.Errorf("the URL is %q", out)
	}
	p.up(t)
	if code, body, _ := p.do(t, "POST", "/", "body"); code != 200 || body != "body" {
		t.Errorf("POST: %d %q", code, body)
	}
	contains(t, "preview list", p.r(t, "", "preview", "list"), "3000", "public")
	t.Run("websocket", func(t *testing.T) { p.testWebSocket(t) })
	t.Run("events", func(t *testing.T) { p.testEvents(t) })
	t.Run("wake", func(t *testing.T) { p.testWake(t) })
	t.Run("loopback", testLoopback)
	t.Run("tokens", func(t *testing.T) { p.testTokens(t) })
	p.r(t, "", "sandbox", "preview", p.box, "all", "--public")
	p.says(t, 401, "token", "/")
	elsewhere := *p
	elsewhere.host = "3001" + strings.TrimPrefix(p.host, "3000")
	wait.For(t, "every port is open", func() bool {
		code, body, _ := elsewhere.do(t, "GET", "/", "")
		return code == 502 && strings.Contains(body, "Nothing listens on port 3001")
	})
	p.r(t, "", "sandbox", "delete", p.box)
	p.says(t, 404, "no preview", "/")
	if out := p.r(t, "", "preview", "list"); strings.Contains(out, strings.TrimSuffix(p.host, ".localhost")) {
		t.Errorf("a preview is left: %s", out)
	}
}

// dial opens a WebSocket.
func (p *previewed) dial(t *testing.T) *websocket.Conn {
	t.Helper()
	c, _, err := websocket.Dial(t.Context(), fmt.Sprintf("ws://127.0.0.1:%d/ws", p.port), &websocket.DialOptions{Host: p.host})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.CloseNow() })
	return c
}

func echo(ctx context.Context, c *websocket.Conn, text string) error {
	ctx, cancel := context.WithTimeout(ctx, wait.Limit)
	defer cancel()
	if err := c.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		return err
	}
	_, b, err := c.Read(ctx)
	if err == nil && string(b) != text {
		err = fmt.Errorf("%q came back as %q", text, b)
	}
	return err
}

func (p *previewed) testWebSocket(t *testing.T) {
	c := p.dial(t)
	for _, text := range []string{"hello", strings.Repeat("long ", 1000)} {
		if err := echo(t.Context(), c, text); err != nil {
			t.Error(err)
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
}

// testEvents: each event arrives before the server makes the next one.
func (p *previewed) testEvents(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	resp, err := p.request(ctx, "GET", "/events", "")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for n := 1; n <= 3; n++ {
		line, err := lines.ReadString('\n')
		if err != nil || line != fmt.Sprintf("data: %d\n", n) {
			t.Fatalf("event %d: %q %v", n, line, err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		p.do(t, "POST", "/more", "")
	}
	if rest, err := io.ReadAll(lines); err != nil || len(rest) != 0 {
		t.Errorf("after the events: %q %v", rest, err)
	}
}

// testLoopback: a process that listens on 127.0.0.1, and one of a sandbox without a
// network, are reached through the server.
func testLoopback(t *testing.T) {
	for box, flags := range map[string][]string{"loopback": nil, "alone": {"--network", "none"}} {
		p := newPreviewed(t, shared, box, "127.0.0.1", append(flags, "--ttl", "1h")...)
		p.r(t, "", "sandbox", "preview", p.box, "3000", "--public")
		p.up(t)
		p.testWebSocket(t)
		p.testEvents(t)
		p.testWake(t)
		p.r(t, "", "sandbox", "preview", p.box, "all", "--public")
		p.r(t, "", "preview", "delete", strings.TrimSuffix(p.host, ".localhost"))
		wait.For(t, "a preview of every port does not open it", func() bool {
			code, body, _ := p.do(t, "GET", "/", "")
			return code == 502 && strings.Contains(body, "Nothing listens")
		})
		p.r(t, "", "sandbox", "delete", p.box)
	}
}

// testWake: requests that come at once for a paused sandbox are all answered, by
// the process that was paused.
func (p *previewed) testWake(t *testing.T) {
	_, before, _ := p.do(t, "GET", "/", "")
	p.r(t, "", "sandbox", "pause", p.box)
	answers := make([]string, 20)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			resp, err := p.request(t.Context(), "POST", "/", fmt.Sprint("request ", i))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != 200 || string(b) != fmt.Sprint("request ", i) {
				t.Errorf("request %d: %s %q %v", i, resp.Status, b, err)
			}
		})
	}
	wg.Wait()
	var n, m int
	_, after, _ := p.do(t, "GET", "/", "")
	if _, err := fmt.Sscanf(before+after, "visit %d\nvisit %d", &n, &m); err != nil || m != n+1 {
		t.Errorf("%q, then %q", before, after)
	}
}

// testTokens makes the preview one that needs a token.
func (p *previewed) testTokens(t *testing.T) {
	var made struct {
		Token   string
		Preview struct{ Name string }
	}
	p.json(t, &made, "sandbox", "preview", p.box, "3000")
	wait.For(t, "it needs a token", func() bool { code, _, _ := p.do(t, "GET", "/", ""); return code == 401 })
	p.says(t, 200, "visit", "/", "Authorization", "Bearer "+made.Token)
	p.says(t, 200, "visit", "/", "X-Access-Token", made.Token)
	p.says(t, 401, "does not open", "/", "X-Access-Token", strings.ToLower(made.Token))
	link := func(ttl string) string {
		t.Helper()
		u, err := url.Parse(strings.TrimSpace(p.r(t, "", "preview", "url", made.Preview.Name, "--ttl", ttl)))
		if err != nil {
			t.Fatal(err)
		}
		if u.Host != fmt.Sprintf("%s:%d", p.host, p.port) {
			t.Errorf("the link is to %s", u.Host)
		}
		return u.RequestURI()
	}
	uri := link("10m")
	code, _, header := p.do(t, "GET", uri, "")
	if code != 303 || header.Get("Location") != "/" {
		t.Errorf("the link answers %d, to %q", code, header.Get("Location"))
	}
	cookie, attributes, _ := strings.Cut(header.Get("Set-Cookie"), ";")
	if !strings.Contains(attributes, "HttpOnly") || strings.Contains(attributes, "Domain") {
		t.Errorf("the cookie has %s", attributes)
	}
	code, body, _ := p.do(t, "GET", "/request?a=1", "", "Cookie", "mine=1; "+cookie)
	var seen struct {
		Path    string
		Headers map[string]string
	}
	if err := json.Unmarshal([]byte(body), &seen); code != 200 || err != nil {
		t.Fatalf("with the cookie: %d %s %v", code, body, err)
	}
	if _, token, _ := strings.Cut(cookie, "="); seen.Path != "/request?a=1" || seen.Headers["Cookie"] != "mine=1" || strings.Contains(body, token) {
		t.Errorf("the sandbox sees %s", body)
	}
	short := link("1s")
	wait.For(t, "the link expires", func() bool {
		code, body, _ := p.do(t, "GET", short, "")
		return code == 401 && strings.Contains(body, "expired")
	})
	// It is revoked with the preview: a new one has another token.
	p.r(t, "", "preview", "delete", made.Preview.Name)
	wait.For(t, "it is deleted", func() bool { code, _, _ := p.do(t, "GET", "/", ""); return code == 404 })
	p.r(t, "", "sandbox", "preview", p.box, "3000", "--ttl", "1h")
	wait.For(t, "it is there again", func() bool { code, _, _ := p.do(t, "GET", "/", ""); return code == 401 })
	p.says(t, 401, "does not open", "/", "X-Access-Token", made.Token)
	p.says(t, 401, "does not open", uri)
	for _, name := range []string{"server.log", "ingress.log"} {
		b, err := os.ReadFile(filepath.Join(p.state, "logs", name))
		if err != nil {
			t.Fatal(err)
		}
		_, signed, _ := strings.Cut(uri, "=")
		if strings.Contains(string(b), made.Token) || strings.Contains(string(b), signed) {
			t.Errorf("%s has a token", name)
		}
	}
}

// TestPreviewOutlivesServer: previews answer while the server is down, and a
// request for a paused sandbox waits for it.
func TestPreviewOutlivesServer(t *testing.T) {
	t.Parallel()
	s := own(t, "preview", "--rpc-address", "127.0.0.1:0")
	p := newPreviewed(t, s, "box", "0.0.0.0", "--egress", "none")
	s.r(t, "", "sandbox", "preview", p.box, "3000", "--public")
	p.up(t)
	c := p.dial(t)
	kill(t, s.pid(t, "server"))
	for range 20 {
		p.says(t, 200, "visit", "/")
		if err := echo(t.Context(), c, "hello"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if err := echo(t.Context(), c, "hello"); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	s.healthy(t)
	kill(t, s.pid(t, "ingress"))
	wait.NoError(t, "the next ingress answers", func() error {
		resp, err := p.request(t.Context(), "GET", "/", "")
		if err == nil {
			defer resp.Body.Close()
			if resp.StatusCode != 200 {
				err = fmt.Errorf("%s", resp.Status)
			}
		}
		return err
	}, wait.Within(converge))

	s.r(t, "", "sandbox", "pause", p.box)
	kill(t, s.pid(t, "server"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.says(t, 200, "visit", "/")
	}()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	<-done
	t.Run("idle", func(t *testing.T) { testPreviewIdle(t, s) })
	t.Run("projects", func(t *testing.T) { p.testProjects(t) })
}

// testPreviewIdle: an open WebSocket keeps a sandbox from being idle.
func testPreviewIdle(t *testing.T, s *server) {
	p := newPreviewed(t, s, "busy", "0.0.0.0", "--idle-timeout", "3s", "--auto-pause")
	s.r(t, "", "sandbox", "preview", p.box, "3000", "--public")
	p.up(t)
	c := p.dial(t)
	newPreviewed(t, s, "idle", "0.0.0.0", "--idle-timeout", "3s", "--auto-pause")
	phase := func(box string) string { return s.r(t, "", "sandbox", "show", box) }
	wait.For(t, "the sandbox without a connection is paused", func() bool { return strings.Contains(phase("idle"), "paused") }, wait.Within(time.Minute))
	if err := echo(t.Context(), c, "hello"); err != nil {
		t.Errorf("the connection: %v", err)
	}
	if out := phase(p.box); strings.Contains(out, "paus") {
		t.Errorf("the sandbox with a connection: %s", out)
	}
	_ = c.Close(websocket.StatusNormalClosure, "") // the sandbox may not answer any more
	wait.For(t, "the sandbox without a connection any more is paused", func() bool { return strings.Contains(phase(p.box), "paused") }, wait.Within(time.Minute))
	p.says(t, 200, "visit", "/")
}

// testProjects: who has a role in another project only makes no preview of this
// sandbox, no link, and deletes none.
func (p *previewed) testProjects(t *testing.T) {
	file := filepath.Join(t.TempDir(), "project.yml")
	write(t, file, "kind: project\nname: second\n")
	p.r(t, "", "entity", "put", file)
	identity := filepath.Join(t.TempDir(), "mallory.yaml")
	p.r(t, "", "auth", "generate", "--name", "mallory", "--role", "agent@second", "--file", identity)
	c := newRemoteClient(t)
	c.r(t, "cluster", "add", "prod", "--from", c.receive(t, identity), "--use")
	var list []struct {
		ID   string
		Spec struct{ Sandbox string }
	}
	if p.json(t, &list, "preview", "list"); len(list) == 0 {
		t.Fatal("no preview")
	}
	for _, args := range [][]string{
		{"sandbox", "preview", list[0].Spec.Sandbox, "3000", "--public"}, {"preview", "url", list[0].ID}, {"preview", "delete", list[0].ID},
	} {
		for _, project := range []string{"second", "default"} {
			if res := c.try(t, append(args, "--project", project)...); res.Code == 0 {
				t.Errorf("%q in project %s: %s", args, project, res)
			}
		}
	}
	if res := c.try(t, "preview", "list", "--json", "--project", "second"); strings.TrimSpace(res.Stdout) != "[]" {
		t.Errorf("the list of another project: %s", res)
	}
	p.says(t, 200, "visit", "/")
}
