package ingress

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	admin "miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/preview"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

const (
	previewSandbox = "sb-0123456789abcdef"
	previewID      = "pv-0123456789abcdef"
)

var previewKey = preview.NewKey([]byte("secret"))

// fixture is an ingress with one preview of a port of 127.0.0.1.
type fixture struct {
	*running
	t    *testing.T
	port int
	host string
	c    *http.Client
}

// newFixture starts an ingress with a preview of the server at url.
func newFixture(t *testing.T, url string, cfg Config, set ...func(*State)) *fixture {
	t.Helper()
	_, p, err := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	port, _ := strconv.Atoi(p)
	f := &fixture{running: start(t, cfg), t: t, port: port, host: preview.Label(previewSandbox, port) + ".localhost", c: client(t)}
	f.install(f.state(set...))
	return f
}

// state is that of a public preview of a sandbox that runs.
func (f *fixture) state(set ...func(*State)) *State {
	s := &State{
		Previews: []Preview{{ID: previewID, Sandbox: previewSandbox, Port: int64(f.port), Public: true, Key: hex.EncodeToString(previewKey.Public())}},
		Guests:   []Guest{{ID: previewSandbox, Running: true, Address: "127.0.0.1"}},
	}
	for _, fn := range set {
		fn(s)
	}
	return s
}

func private(s *State) { s.Previews[0].Public = false }
func paused(s *State)  { s.Guests[0] = Guest{ID: previewSandbox} }

func (f *fixture) do(method, path string, header ...string) (*http.Response, string) {
	f.t.Helper()
	req := request(f.t, method, f.url+path, f.host)
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := f.c.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp, string(b)
}

func (f *fixture) want(status int, text, path string, header ...string) {
	f.t.Helper()
	if resp, body := f.do("GET", path, header...); resp.StatusCode != status || !strings.Contains(body, text) {
		f.t.Errorf("%s %q: %d %q, want %d with %q", path, header, resp.StatusCode, body, status, text)
	}
}

// TestPreviewHosts: a host that names a port of a sandbox is of previews only.
func TestPreviewHosts(t *testing.T) {
	up := upstream(t, says("preview"))
	app := upstream(t, says("app"))
	f := newFixture(t, up.URL, Config{})
	f.want(200, "preview", "/")
	f.install(f.state(func(s *State) {
		a := oneApp(app.URL)
		s.Apps, s.Sandboxes = a.Apps, a.Sandboxes
		for i, host := range []string{"*", "*.localhost", f.host, preview.Label(previewSandbox, 1) + ".localhost"} {
			s.Routes = append(s.Routes, Route{ID: schema.ID(fmt.Sprint("r", i)), Host: host, Path: "/", App: "app-1", Service: "web"})
		}
	}))
	f.want(200, "preview", "/")
	f.host = preview.Label(previewSandbox, 1) + ".localhost:80"
	f.want(404, "no preview", "/")
	f.host = "3000-sb0000000000000000.localhost"
	f.want(404, "no preview", "/")
	f.host = "0-sb0123456789abcdef.localhost"
	f.want(200, "app", "/") // no port of a sandbox
	f.host = "other.localhost"
	f.want(200, "app", "/")
	// A preview of every port, and one port of its own.
	f.install(f.state(private, func(s *State) {
		s.Previews = append(s.Previews, Preview{ID: "pv-all", Sandbox: previewSandbox, Public: true})
	}))
	f.host = preview.Label(previewSandbox, f.port) + ".localhost"
	f.want(401, "token", "/")
	f.install(f.state(func(s *State) { s.Previews[0].Port = 0 }))
	f.want(200, "preview", "/")
	f.install(f.state(func(s *State) { s.Guests[0].Ended = true }))
	f.want(410, "ended", "/")
	f.install(f.state(func(s *State) { s.Previews[0].Expires = time.Now().UnixMilli() }))
	f.want(404, "no preview", "/")
	f.install(&State{})
	f.want(404, "no preview", "/")
}

// TestPreviewTokens: what opens a preview, and what of it the sandbox sees.
func TestPreviewTokens(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "uri=%s auth=%s x=%s cookie=%s", r.RequestURI, r.Header.Get("Authorization"), r.Header.Get("X-Access-Token"), r.Header.Get("Cookie"))
	})
	f := newFixture(t, up.URL, Config{}, private)
	forever := previewKey.Sign(previewID, time.Time{})
	hour := previewKey.Sign(previewID, time.Now().Add(time.Hour))
	old := previewKey.Sign(previewID, time.Now().Add(-time.Second))
	other := previewKey.Sign("pv-other", time.Time{})
	ofSandbox := previewKey.Sign(previewSandbox, time.Time{})

	f.want(401, "token_required", "/", "Accept", "text/html")
	f.want(401, "valid for a limited time", "/", "Authorization", "Bearer "+old)
	f.want(401, "another preview", "/", "Authorization", "Bearer "+other)
	f.want(401, "another preview", "/?preview_token=x")
	f.want(401, "another preview", "/", "Cookie", previewCookie+"="+other)
	f.want(401, "needs a token", "/", "Authorization", "Basic "+forever)
	const seen = "uri=/a?b=1 auth= x= cookie="
	for _, tok := range []string{forever, hour, ofSandbox} {
		f.want(200, seen, "/a?b=1", "Authorization", "bearer "+tok)
		f.want(200, seen, "/a?b=1", "X-Access-Token", tok)
		f.want(200, seen, "/a?b=1", "E2b-Traffic-Access-Token", tok)
		f.want(200, seen, "/a?b=1", "Cookie", previewCookie+"="+tok)
	}
	// What is the application's stays.
	f.want(200, "auth=Bearer app x= cookie=a=1; c=\"2\"", "/", "Authorization", "Bearer app", "Cookie", "a=1; "+previewCookie+"=old; c=\"2\"; "+previewCookie+"="+hour)
	if resp, body := f.do("POST", "/p?preview_token="+hour+"&x=%20", "Content-Length", "0"); resp.StatusCode != 200 || !strings.Contains(body, "uri=/p?x=%20 ") {
		t.Errorf("POST: %d %s", resp.StatusCode, body)
	}

	for path, location := range map[string]string{
		"/a%2fb?x=1&preview_token=%s&y": "/a%2fb?x=1&y", "/?preview_token=%s": "/", "//evil.example/?preview_token=%s": "/evil.example/",
		`/\evil.example/?preview_token=%s`: "/%5Cevil.example/",
	} {
		resp, _ := f.do("GET", strings.Replace(path, "%s", hour, 1))
		if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != location {
			t.Errorf("%s: %s to %q, want %q", path, resp.Status, resp.Header.Get("Location"), location)
		}
		c := resp.Cookies()
		if len(c) != 1 || c[0].Value != hour || !c[0].HttpOnly || c[0].Domain != "" || c[0].Path != "/" || c[0].MaxAge < 3500 || c[0].MaxAge > 3600 {
			t.Errorf("%s: cookies %v", path, c)
		}
	}
	f.install(f.state())
	f.want(200, "auth=Bearer app", "/", "Authorization", "Bearer app")
	f.want(200, "auth= x=", "/", "Authorization", "Bearer "+forever)
}

// TestPreviewWakes: requests for a paused sandbox wait until it runs, and one of
// them asks for that; refused ones do not.
func TestPreviewWakes(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Write(b)
	})
	var wakes atomic.Int64
	woken := make(chan struct{}, 100)
	f := newFixture(t, up.URL, Config{Logger: quiet, Wake: func(_ context.Context, pid schema.ID) error {
		if pid != previewID {
			t.Errorf("wakes %s", pid)
		}
		if wakes.Add(1) == 1 {
			return errors.New("the first call fails")
		}
		woken <- struct{}{}
		return nil
	}}, private, paused)
	f.want(401, "needs a token", "/")
	if n := wakes.Load(); n != 0 {
		t.Errorf("a refused request woke the sandbox")
	}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			body := fmt.Sprint("body ", i)
			req, err := http.NewRequestWithContext(t.Context(), "POST", f.url, strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			req.Host = f.host
			req.Header.Set("X-Access-Token", previewKey.Sign(previewID, time.Time{}))
			resp, err := f.c.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || string(b) != body {
				t.Errorf("%s %q %v", resp.Status, b, err)
			}
		})
	}
	<-woken
	wait.For(t, "all requests wait", func() bool { return f.status().Held == 50 })
	if active, _ := f.activity(previewSandbox); active != 50 {
		t.Errorf("%d requests are counted as use", active)
	}
	f.install(f.state(private))
	wg.Wait()
	if n := wakes.Load(); n > 10 {
		t.Errorf("%d calls to wake it", n)
	}
	if active, idle := f.activity(previewSandbox); active != 0 || idle > wait.Limit {
		t.Errorf("%d requests, idle since %v", active, idle)
	}
}

// TestPreviewBounds: the wait for a sandbox is bounded in time and number.
func TestPreviewBounds(t *testing.T) {
	up := upstream(t, says("ok"))
	f := newFixture(t, up.URL, Config{HoldTimeout: -1}, paused)
	f.want(503, "does not run", "/")
	f = newFixture(t, up.URL, Config{HoldLimit: 1}, paused)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.want(200, "ok", "/")
	}()
	wait.For(t, "a request waits", func() bool { return f.status().Held == 1 })
	f.want(503, "Too many", "/")
	f.install(f.state())
	<-done
	addr, _ := closedAddr(t)
	f = newFixture(t, "http://"+addr, Config{})
	f.want(502, "Nothing listens", "/")
	f.registry.mu.Lock()
	n := len(f.registry.guests[previewSandbox].backends)
	f.registry.mu.Unlock()
	if n != 0 {
		t.Errorf("%d backends of a port that refuses", n)
	}
}

// TestPreviewByServer: a port that its network address refuses, and one of a
// sandbox without a network, is reached through the server.
func TestPreviewByServer(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", r.Method, b)
	})
	addr, _ := closedAddr(t)
	var dials atomic.Int64
	cfg := Config{Dial: func(ctx context.Context, pid schema.ID, port int) (net.Conn, error) {
		if dials.Add(1); pid != previewID || !strings.HasSuffix(addr, fmt.Sprint(":", port)) {
			return nil, fmt.Errorf("%s %d", pid, port)
		}
		c, err := new(net.Dialer).DialContext(ctx, "tcp", up.Listener.Addr().String())
		return struct{ net.Conn }{c}, err // without a file descriptor
	}}
	f := newFixture(t, "http://"+addr, cfg)
	for _, noNetwork := range []bool{false, true} {
		if noNetwork {
			f.install(f.state(func(s *State) { s.Guests[0].Address = "" }))
		}
		for range 3 {
			if resp, body := f.do("POST", "/"); resp.StatusCode != 200 || body != "POST " {
				t.Errorf("%s %q", resp.Status, body)
			}
		}
	}
	f.install(f.state(func(s *State) { s.Previews[0].Port = 0 }))
	f.want(502, "Nothing listens", "/")
	if n := dials.Load(); n != 6 {
		t.Errorf("%d connections for 6 requests", n)
	}
}

// TestPreviewRevoked: tunnels through a preview are use of its sandbox, and end
// with the preview.
func TestPreviewRevoked(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, b) != nil {
				return
			}
		}
	})
	dir := t.TempDir()
	f := newFixture(t, up.URL, Config{AdminSocket: dir + "/admin"}, private)
	opts := &websocket.DialOptions{Host: f.host}
	if _, resp, err := websocket.Dial(t.Context(), f.url, opts); err == nil || resp == nil || resp.StatusCode != 401 {
		t.Fatalf("without a token: %v", err)
	}
	// A browser's API for WebSockets sets no header.
	c, _, err := websocket.Dial(t.Context(), f.url+"/?preview_token="+previewKey.Sign(previewID, time.Time{}), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	echo := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
			return err
		}
		_, b, err := c.Read(ctx)
		if err == nil && string(b) != "hello" {
			err = fmt.Errorf("%q", b)
		}
		return err
	}
	if err := echo(); err != nil {
		t.Fatal(err)
	}
	a, err := admin.Client{Socket: dir + "/admin"}.Activity(t.Context(), previewSandbox)
	if err != nil || a.Requests != 1 {
		t.Errorf("%+v %v", a, err)
	}
	f.install(f.state(private, func(s *State) { s.Previews = append(s.Previews, Preview{ID: "pv-2", Sandbox: previewSandbox, Port: 1}) }))
	if err := echo(); err != nil {
		t.Errorf("after another preview was made: %v", err)
	}
	f.install(&State{})
	wait.For(t, "the connection ends after the preview was deleted", func() bool { return echo() != nil })
	// A request that chose before the preview was deleted leaves no backend for good.
	late := f.registry.guestBackend(&guest{Guest: Guest{ID: previewSandbox}, state: &guestState{}}, f.port, nil)
	f.registry.mu.Lock()
	_, leaving := f.registry.leaving[late]
	f.registry.mu.Unlock()
	if !leaving {
		t.Error("a backend of a sandbox that left the table is not swept")
	}
	wait.For(t, "nothing is left of it", func() bool {
		f.registry.mu.Lock()
		defer f.registry.mu.Unlock()
		return len(f.registry.guests)+len(f.registry.previews)+len(f.registry.backends) == 0 && f.conns.Load() <= 1
	})
}

// TestPreviewFollows: the table has the previews of the store, and the state of
// their sandboxes.
func TestPreviewFollows(t *testing.T) {
	up := upstream(t, says("ok"))
	host, number, _ := net.SplitHostPort(up.Listener.Addr().String())
	port, _ := strconv.Atoi(number)
	c := newControl(t)
	other := sandbox.NewSandbox() // without a preview
	sb := sandbox.NewSandbox()
	for _, o := range []*sandbox.Sandbox{sb, other} {
		o.Project, o.Spec.Template.Image = c.project, "img@sha256:0"
		o.Status.Phase, o.Status.Address = sandbox.SandboxPhaseRunning, host
		c.create(o)
	}
	file := t.TempDir() + "/table"
	cfg := Config{Reader: c.store, TableFile: file, HoldTimeout: -1, Logger: quiet}
	f := &fixture{running: start(t, cfg), t: t, c: client(t), host: preview.Label(string(sb.ID), port) + ".localhost"}
	becomes := func(status int) {
		t.Helper()
		wait.NoError(t, fmt.Sprint("the answer is ", status), func() error {
			if resp, body := f.do("GET", "/"); resp.StatusCode != status {
				return fmt.Errorf("%s %s", resp.Status, body)
			}
			return nil
		})
	}
	becomes(404)
	p := sandbox.NewPreview()
	p.Project, p.Spec = c.project, sandbox.PreviewSpec{Sandbox: sb.GetID(), Port: int64(port), Public: true, Key: previewKey.Public()}
	c.create(p)
	becomes(200)
	state := func(desired sandbox.DesiredState, phase sandbox.SandboxPhase, address string) {
		t.Helper()
		if _, err := entity.ModifySpec(t.Context(), c.store, sb.ID, func(s *sandbox.Sandbox) error { s.Spec.Desired = desired; return nil }); err != nil {
			t.Fatal(err)
		}
		if _, err := entity.ModifyStatus(t.Context(), c.store, sb.ID, func(s *sandbox.Sandbox) error {
			s.Status.Phase, s.Status.Address = phase, address
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	state(sandbox.DesiredStatePaused, sandbox.SandboxPhaseRunning, host) // it will be paused
	becomes(503)
	state(sandbox.DesiredStateRunning, sandbox.SandboxPhasePaused, "")
	becomes(503)
	state(sandbox.DesiredStateRunning, sandbox.SandboxPhaseRunning, host)
	becomes(200)
	if _, err := entity.ModifySpec(t.Context(), c.store, p.ID, func(p *sandbox.Preview) error { p.Spec.Public = false; return nil }); err != nil {
		t.Fatal(err)
	}
	becomes(401)
	f.want(200, "ok", "/", "X-Access-Token", previewKey.Sign(string(p.ID), time.Time{}))

	// Without the store, the next process serves from the file.
	f.stop()
	cfg.Reader = nil
	f.running = start(t, cfg)
	f.want(401, "token", "/")
	f.want(200, "ok", "/", "X-Access-Token", previewKey.Sign(string(p.ID), time.Time{}))
	f.stop()

	cfg.Reader = c.store
	f.running = start(t, cfg)
	if _, err := entity.ModifyStatus(t.Context(), c.store, sb.ID, func(s *sandbox.Sandbox) error {
		s.Status.Phase = sandbox.SandboxPhaseStopped
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the end of the sandbox is known", func() bool {
		resp, _ := f.do("GET", "/", "X-Access-Token", previewKey.Sign(string(p.ID), time.Time{}))
		return resp.StatusCode == 410
	})
	if err := entity.Remove[sandbox.Sandbox](t.Context(), c.store, sb.ID); err != nil {
		t.Fatal(err)
	}
	becomes(404)
}
