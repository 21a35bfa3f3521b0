package ingress

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

func get(t testing.TB, c *http.Client, url, host string) (int, string) {
	t.Helper()
	resp, err := c.Do(request(t, "GET", url, host))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(b)
}

// soon is well below the default times that requests and drains wait.
const soon = 5 * time.Second

func TestUnknownHost(t *testing.T) {
	in := start(t, Config{})
	c := client(t)
	for accept, want := range map[string]string{
		"":                           "There is nothing at this address",
		"text/html,application/*":    "<h1>There is nothing at this address</h1>",
		"application/json":           `"code":"unknown_host"`,
		"application/problem+json":   `"status":404`,
		"text/html,application/json": `"code":"unknown_host"`,
	} {
		r := request(t, "GET", in.url, `<b>.example`)
		r.Host = "no-such.example"
		r.Header.Set("Accept", accept)
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 404 || !strings.Contains(string(b), want) || !strings.Contains(string(b), "no-such.example") {
			t.Errorf("%q: %d %s", accept, resp.StatusCode, b)
		}
		if strings.Contains(accept, "json") && !json.Valid(b) {
			t.Errorf("not JSON: %s", b)
		}
	}
}

func TestNotDeployed(t *testing.T) {
	in := start(t, Config{})
	in.install(&State{Apps: []App{{ID: "app-1", Name: "shop"}}})
	begin := time.Now()
	code, body := get(t, client(t), in.url, testHost)
	if code != 503 || !strings.Contains(body, "not been deployed") || time.Since(begin) > soon {
		t.Errorf("%d %s after %s", code, body, time.Since(begin))
	}
}

func TestTriesAnotherSandbox(t *testing.T) {
	up := upstream(t, says("alive"))
	in := start(t, Config{})
	one, _ := closedAddr(t)
	two, _ := closedAddr(t)
	in.install(oneApp(one, up.URL, two))
	c := client(t)
	for range 50 {
		r := request(t, "POST", in.url, testHost)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader("x")), -1
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("%d", resp.StatusCode)
		}
	}
}

func TestWaitsForACrashedSandbox(t *testing.T) {
	// The only sandbox died and the table does not know yet; its replacement
	// listens at the same address a moment later.
	addr, listen := closedAddr(t)
	in := start(t, Config{})
	in.install(oneApp(addr))
	go func() {
		wait.For(t, "the request waits", func() bool { return in.status().Held == 1 })
		l, err := listen()
		if err != nil {
			t.Error(err)
			return
		}
		srv := &http.Server{Handler: says("back")}
		t.Cleanup(func() { srv.Close() })
		_ = srv.Serve(l)
	}()
	if code, body := get(t, client(t), in.url, testHost); code != 200 || body != "back" {
		t.Errorf("%d %s", code, body)
	}
}

func TestStaleConnections(t *testing.T) {
	// The sandbox's server closes every connection after one answer without
	// announcing it.
	l := accepting(t, func(c net.Conn) {
		b := make([]byte, 4096)
		if _, err := c.Read(b); err == nil {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	in := start(t, Config{})
	in.install(oneApp(l.Addr().String()))
	c := client(t)
	for i := range 300 {
		if code, body := get(t, c, in.url, testHost); code != 200 || body != "ok" {
			t.Fatalf("request %d: %d %s", i, code, body)
		}
	}
}

func TestWebSocket(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"chat"}})
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		for {
			typ, b, err := ws.Read(r.Context())
			if err != nil {
				return
			}
			if err := ws.Write(r.Context(), typ, append([]byte("echo "), b...)); err != nil {
				return
			}
		}
	})
	in := start(t, Config{})
	in.install(oneApp()) // held, too
	go func() {
		wait.For(t, "the upgrade waits", func() bool { return in.status().Held == 1 })
		in.install(oneApp(up.URL))
	}()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, in.url, &websocket.DialOptions{Host: testHost, Subprotocols: []string{"chat"}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if resp.StatusCode != 101 || ws.Subprotocol() != "chat" {
		t.Errorf("%d %q", resp.StatusCode, ws.Subprotocol())
	}
	for i := range 20 {
		msg := strings.Repeat(fmt.Sprint(i), 1+i*500)
		if err := ws.Write(ctx, websocket.MessageText, []byte(msg)); err != nil {
			t.Fatal(err)
		}
		if _, b, err := ws.Read(ctx); err != nil || string(b) != "echo "+msg {
			t.Fatalf("%v", err)
		}
	}
	if n := in.status().InFlight; n != 1 {
		t.Errorf("%d in flight with an open WebSocket", n)
	}
	ws.Close(websocket.StatusNormalClosure, "")
	wait.For(t, "the WebSocket is not counted any more", func() bool { return in.status().InFlight == 0 })
}

func TestUpgradeHalfClose(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		c, brw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: Lines\r\nX-Extra: 1\r\n\r\nfirst ")
		all, _ := io.ReadAll(brw) // until the client has ended its side
		fmt.Fprintf(c, "%d", len(all))
	})
	in := start(t, Config{})
	in.install(oneApp(up.URL))
	c, err := net.Dial("tcp", in.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: lines\r\n\r\nearly", testHost)
	fmt.Fprint(c, strings.Repeat("x", 100000))
	c.(*net.TCPConn).CloseWrite()
	all, err := io.ReadAll(c)
	head, body, _ := strings.Cut(string(all), "\r\n\r\n")
	if err != nil || !strings.HasPrefix(head, "HTTP/1.1 101 ") || !strings.Contains(head, "X-Extra: 1") || body != "first 100005" {
		t.Errorf("%q %q %v", head, body, err)
	}
}

// TestVersionFlips is the shift of traffic: 100 times the active version
// changes under load; the sandbox of a version is closed as soon as the
// admin interface says that nothing is in flight on it, and no request fails.
func TestVersionFlips(t *testing.T) {
	const flips = 100
	in := start(t, Config{})
	type version struct {
		srv    *http.Server
		addr   string
		closed atomic.Bool
	}
	makeVersion := func(i int) *version {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		v := &version{addr: l.Addr().String()}
		v.srv = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			if v.closed.Load() {
				t.Errorf("version %d got a request after its drain", i)
			}
			fmt.Fprintf(w, "v%d %d", i, len(b))
		})}
		go func() { _ = v.srv.Serve(l) }()
		return v
	}
	state := func(active int, versions map[int]*version) *State {
		s := &State{Apps: []App{{ID: "app-1", Name: "shop", Versions: []Share{{Version: schema.ID(fmt.Sprint("v", active)), Weight: 100}}}}}
		for i, v := range versions {
			s.Sandboxes = append(s.Sandboxes, Sandbox{ID: schema.ID(fmt.Sprint("sb-", i)), App: "app-1", Version: schema.ID(fmt.Sprint("v", i)), Service: "web", Address: v.addr})
		}
		return s
	}
	old := makeVersion(0)
	in.install(state(0, map[int]*version{0: old}))

	var served, newest atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			c := client(t)
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				atLeast := newest.Load()
				r := request(t, "POST", in.url, testHost)
				size := []int{0, 10, 100000}[(n+w)%3]
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", size))), int64(size)
				if size == 0 {
					r.Body = nil
				}
				resp, err := c.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				var v int64
				var got int
				fmt.Sscanf(string(b), "v%d %d", &v, &got)
				if err != nil || resp.StatusCode != 200 || got != size {
					t.Errorf("%d %q %v", resp.StatusCode, b, err)
				}
				if v < atLeast {
					t.Errorf("version %d answered a request made after the switch to %d", v, atLeast)
				}
				served.Add(1)
			}
		})
	}
	for i := 1; i <= flips; i++ {
		next := makeVersion(i)
		both := map[int]*version{i - 1: old, i: next}
		in.install(state(i-1, both)) // ready beside the old
		before := served.Load()
		in.install(state(i, both)) // the switch
		newest.Store(int64(i))
		wait.For(t, "the old version drains", func() bool {
			return in.registry.inflight(schema.ID(fmt.Sprint("v", i-1)))[schema.ID(fmt.Sprint("sb-", i-1))] == 0
		})
		old.closed.Store(true)
		old.srv.Close() // a hard error: no request may be lost
		in.install(state(i, map[int]*version{i: next}))
		wait.For(t, "requests go on", func() bool { return served.Load() > before+20 })
		old = next
	}
	close(stop)
	wg.Wait()
	old.srv.Close()
	t.Logf("%d requests over %d switches", served.Load(), flips)
}

func TestGracefulStop(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-release
		fmt.Fprint(w, "finished")
	})
	in := start(t, Config{})
	in.install(oneApp(up.URL))
	var wg sync.WaitGroup
	wg.Go(func() {
		if code, body := get(t, client(t), in.url, testHost); code != 200 || body != "finished" {
			t.Errorf("%d %s", code, body)
		}
	})
	<-begun
	wg.Go(in.stop)
	wait.For(t, "new connections are refused", func() bool {
		c, err := net.Dial("tcp", in.addr)
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	close(release)
	wg.Wait()
}

func TestStopIsBounded(t *testing.T) {
	begun := make(chan struct{}, 2)
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			c, brw, _ := http.NewResponseController(w).Hijack()
			defer c.Close()
			fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
			begun <- struct{}{}
			_, _ = io.Copy(io.Discard, brw)
			return
		}
		begun <- struct{}{}
		<-r.Context().Done()
	})
	in := start(t, Config{DrainTimeout: 300 * time.Millisecond, Logger: quiet})
	in.install(oneApp(up.URL))
	for _, extra := range []string{"", "Connection: Upgrade\r\nUpgrade: x\r\n"} {
		c, err := net.Dial("tcp", in.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n", testHost, extra)
		<-begun
	}
	begin := time.Now()
	in.stop()
	if d := time.Since(begin); d > soon {
		t.Errorf("stopped after %s", d)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	up := upstream(t, says("hi"))
	in := start(t, Config{MaxConnections: 3})
	in.install(oneApp(up.URL))
	ask := func() (net.Conn, bool) {
		c, err := net.Dial("tcp", in.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", testHost)
		b := make([]byte, 12)
		_, err = io.ReadFull(c, b)
		return c, err == nil && string(b) == "HTTP/1.1 200"
	}
	var open []net.Conn
	for i := range 3 {
		c, ok := ask()
		if !ok {
			t.Fatalf("connection %d was refused", i)
		}
		open = append(open, c)
	}
	if _, ok := ask(); ok {
		t.Error("a fourth connection was served")
	}
	open[0].Close()
	wait.For(t, "there is room again", func() bool { _, ok := ask(); return ok })
}
