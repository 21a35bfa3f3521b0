package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

// onRunner creates a ready sandbox on a runner, whose status has an address although the server
// stores none.
func (c *control) onRunner(node id.Node, v id.AppVersion, url string) *sandbox.Sandbox {
	c.Helper()
	s := c.on(node, v, url)
	if _, err := entity.ModifySpec(c.Context(), c.store, s.GetID(), func(s *sandbox.Sandbox) error {
		s.Spec.Runner = true
		return nil
	}); err != nil {
		c.Fatal(err)
	}
	return s
}

// TestSandboxesOnRunners: they are reached through the server only, which a sandbox of this node that has
// room is preferred to.
func TestSandboxesOnRunners(t *testing.T) {
	c := newControl(t)
	here, there := c.node("here"), c.node("there")
	v := c.version()
	hold, busy := make(chan struct{}), atomic.Int64{}
	local := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			busy.Add(1)
			<-hold
		}
		_, _ = io.WriteString(w, "here")
	})
	through := upstream(t, says("runner"))
	url := foreign(t)
	_, text, _ := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	port, _ := strconv.Atoi(text)
	sb := c.onRunner(there, v, url)
	var connected atomic.Bool
	connected.Store(true)
	dial := func(_ context.Context, sid schema.ID, p int) (net.Conn, error) {
		if sid != sb.ID || p != port {
			t.Errorf("connected to port %d of %s", p, sid)
		}
		if !connected.Load() {
			return nil, errors.New("the runner is not connected")
		}
		return net.Dial("tcp", through.Listener.Addr().String())
	}
	revision := c.activate(v)
	in := start(t, Config{Reader: c.store, Node: here, DialService: dial, HoldTimeout: wait.Limit, Logger: quiet})
	c.follows(in, revision)
	cl := client(t)
	answer := func(want string) {
		t.Helper()
		if code, body := get(t, cl, in.url, testHost); code != http.StatusOK || body != want {
			t.Errorf("%d %q, want %q", code, body, want)
		}
	}
	answer("runner") // the only one
	c.on(here, v, local.URL)
	wait.For(t, "the sandbox of this node", func() bool { _, body := get(t, cl, in.url, testHost); return body == "here" })
	for range 50 {
		answer("here")
	}
	// It has as many requests as it gets before one on a runner does.
	defer close(hold)
	for n := int64(1); n <= runnerCost+1; n++ {
		go func() { // it ends with hold
			if resp, err := client(t).Do(request(t, http.MethodGet, in.url+"/busy", testHost)); err == nil {
				resp.Body.Close()
			}
		}()
		wait.For(t, "a request under way", func() bool { return busy.Load() == n })
	}
	for range 10 {
		answer("runner")
	}
	if n := in.registry.inflight(schema.ID(v)); len(n) != 2 || n[sb.ID] != 0 {
		t.Errorf("requests in flight: %v", n)
	}
	// The runner is lost: no request fails.
	connected.Store(false)
	through.CloseClientConnections()
	for range 10 {
		answer("here")
	}
	connected.Store(true)
	wait.For(t, "the runner is used again", func() bool { _, body := get(t, cl, in.url, testHost); return body == "runner" })
}

// TestRunnersWithoutServer: an ingress without a way to runners does not use their sandboxes, and says so.
func TestRunnersWithoutServer(t *testing.T) {
	c := newControl(t)
	here, there := c.node("here"), c.node("there")
	v := c.version()
	c.onRunner(there, v, foreign(t))
	revision := c.activate(v)
	in := start(t, Config{Reader: c.store, Node: here, HoldTimeout: wait.Limit})
	c.follows(in, revision)
	if code, body := get(t, client(t), in.url, testHost); code != http.StatusServiceUnavailable || !strings.Contains(body, "run on other machines") {
		t.Errorf("%d %s", code, body)
	}
}

// TestRunnersOfAnotherServer: a sandbox on a runner that is connected to another server is refused at once, by all
// protocols. Requests for one on a runner that is connected nowhere wait.
func TestRunnersOfAnotherServer(t *testing.T) {
	through := upstream(t, says("runner"))
	var failure atomic.Pointer[error]
	fail := func(err error) { failure.Store(&err) }
	dial := func(context.Context, schema.ID, int) (net.Conn, error) {
		if err := *failure.Load(); err != nil {
			return nil, err
		}
		return net.Dial("tcp", through.Listener.Addr().String())
	}
	elsewhere := errs.Wrap(errs.New(errs.Unavailable, "it is connected to another").With(sandboxes.OnOtherServer, "node-1"), "through the server")
	fail(elsewhere)
	for name, change := range map[string]func(*State){
		"HTTP/1.1": func(*State) {},
		"h2c":      func(s *State) { s.Sandboxes[0].H2C = true },
		"two":      func(s *State) { s.Sandboxes = append(s.Sandboxes, s.Sandboxes[0]); s.Sandboxes[1].ID += "-second" },
	} {
		t.Run(name, func(t *testing.T) {
			in := start(t, Config{DialService: dial, HoldTimeout: 2 * wait.Limit})
			st := toRunner(oneApp(foreign(t)))
			change(st)
			in.install(st)
			for range 2 {
				if code, body := get(t, client(t), in.url, testHost); code != http.StatusServiceUnavailable || !strings.Contains(body, "run on other machines") {
					t.Errorf("%d %s", code, body)
				}
			}
		})
	}
	t.Run("TCP", func(t *testing.T) {
		cfg, addr := tcpConfig(t, lineEcho(t, false), TCPRoute{})
		st, err := loadState(cfg.TableFile)
		if err == nil {
			err = saveState(cfg.TableFile, toRunner(st))
		}
		if err != nil {
			t.Fatal(err)
		}
		cfg.DialService, cfg.HoldTimeout = dial, 2*wait.Limit
		start(t, cfg)
		if _, say := dialTCP(t, addr); say("") != io.EOF.Error() {
			t.Error("a connection for a runner of another server is not ended")
		}
	})
	t.Run("connected nowhere", func(t *testing.T) {
		fail(errs.New(errs.Unavailable, "the runner is not connected"))
		in := start(t, Config{DialService: dial, HoldTimeout: 2 * wait.Limit})
		in.install(toRunner(oneApp(foreign(t))))
		answer := make(chan string, 1)
		go func() { _, body := get(t, client(t), in.url, testHost); answer <- body }()
		wait.For(t, "the request waits", func() bool { return in.status().Held == 1 })
		fail(nil)
		if body := wait.Receive(t, "the answer", answer); body != "runner" {
			t.Error(body)
		}
	})
}

// toRunner moves the sandboxes of oneApp to a runner.
func toRunner(st *State) *State {
	for i := range st.Sandboxes {
		sb := &st.Sandboxes[i]
		sb.Address, sb.Remote, sb.Port = "", true, 8080
	}
	return st
}

// dialRunner connects to such a sandbox, whose id ends with its address.
func dialRunner(_ context.Context, sid schema.ID, port int) (net.Conn, error) {
	_, address, ok := strings.Cut(string(sid), "-0-")
	if !ok || port != 8080 {
		return nil, fmt.Errorf("connection to port %d of %s", port, sid)
	}
	return net.Dial("tcp", strings.TrimPrefix(address, "http://"))
}

// TestProtocolsOfRunners: services on runners speak what those of this machine do.
func TestProtocolsOfRunners(t *testing.T) {
	t.Run("WebSocket", func(t *testing.T) {
		up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
			ws, err := websocket.Accept(w, r, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer ws.CloseNow()
			typ, b, err := ws.Read(r.Context())
			if err == nil {
				err = ws.Write(r.Context(), typ, b)
			}
			if err != nil {
				t.Error(err)
			}
		})
		in := start(t, Config{DialService: dialRunner})
		in.install(toRunner(oneApp(up.URL)))
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		ws, _, err := websocket.Dial(ctx, in.url, &websocket.DialOptions{Host: testHost})
		if err != nil {
			t.Fatal(err)
		}
		defer ws.CloseNow()
		if err := ws.Write(ctx, websocket.MessageText, []byte("text")); err != nil {
			t.Fatal(err)
		}
		if _, b, err := ws.Read(ctx); err != nil || string(b) != "text" {
			t.Errorf("%q, %v", b, err)
		}
	})
	t.Run("gRPC", func(t *testing.T) {
		_, _, c := startGRPC(t, Config{DialService: dialRunner})
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		resp, err := c.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 1<<20)}})
		if err != nil || len(resp.Payload.Body) != 1<<20 {
			t.Errorf("%v", err)
		}
		stream, err := c.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := stream.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: []byte("text")}}); err != nil {
				t.Fatal(err)
			}
			if m, err := stream.Recv(); err != nil || string(m.Payload.Body) != "text" {
				t.Fatalf("%v, %v", m, err)
			}
		}
	})
	t.Run("TCP", func(t *testing.T) {
		cfg, addr := tcpConfig(t, lineEcho(t, true), TCPRoute{Proxy: true})
		st, err := loadState(cfg.TableFile)
		if err == nil {
			err = saveState(cfg.TableFile, toRunner(st))
		}
		if err != nil {
			t.Fatal(err)
		}
		cfg.DialService = dialRunner
		start(t, cfg)
		c, say := dialTCP(t, addr)
		if got := say("one"); got != "one "+c.LocalAddr().String() {
			t.Errorf("%q", got)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got := say(""); got != "end" {
			t.Errorf("after the half-close: %q", got)
		}
	})
}
