package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// wsEnv is a Handler whose one key is "good" as long as it is valid.
type wsEnv struct {
	t       *testing.T
	h       *Handler
	url     string
	revoked atomic.Bool
	holds   atomic.Int64 // callers that were not released
}

func newWSEnv(t *testing.T, ping time.Duration) *wsEnv {
	t.Helper()
	e := &wsEnv{t: t}
	var err error
	if e.h, err = NewHandler(HandlerOptions{Authenticate: func(r *http.Request) (*Caller, error) {
		if r.Header.Get("Authorization") != "Bearer good" || e.revoked.Load() {
			return nil, errs.New(errs.Unauthenticated, "no key")
		}
		e.holds.Add(1)
		return &Caller{ID: "good", Client: away{}, Release: func() { e.holds.Add(-1) }}, nil
	}}); err != nil {
		t.Fatal(err)
	}
	e.h.ping = ping
	srv := httptest.NewServer(e.h.WebSocket())
	t.Cleanup(func() {
		if err := e.h.Close(); err != nil {
			t.Error(err)
		}
		srv.Close()
		wait.For(t, "callers are released", func() bool { return e.holds.Load() == 0 })
	})
	e.url = srv.URL
	return e
}

func (e *wsEnv) dial(header map[string]string, protocols ...string) (*websocket.Conn, *http.Response, error) {
	e.t.Helper()
	o := &websocket.DialOptions{HTTPHeader: http.Header{}, Subprotocols: protocols}
	for name, value := range header {
		if o.HTTPHeader.Set(name, value); name == "Host" {
			o.Host = value
		}
	}
	c, resp, err := websocket.Dial(e.t.Context(), e.url, o)
	if err == nil {
		e.t.Cleanup(func() { _ = c.CloseNow() })
	}
	return c, resp, err
}

func (e *wsEnv) open() *websocket.Conn {
	e.t.Helper()
	c, _, err := e.dial(map[string]string{"Authorization": "Bearer good"}, subprotocol)
	if err != nil {
		e.t.Fatal(err)
	}
	return c
}

func (e *wsEnv) sessions() int {
	e.h.mu.Lock()
	defer e.h.mu.Unlock()
	return len(e.h.sessions)
}

// ended waits for the end of a connection and returns its status.
func (e *wsEnv) ended(c *websocket.Conn) websocket.StatusCode {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), wait.Limit)
	defer cancel()
	for {
		if _, _, err := c.Read(ctx); err != nil {
			return websocket.CloseStatus(err)
		}
	}
}

// clientSocket is the client's side of a connection.
type clientSocket struct{ *websocket.Conn }

func (s clientSocket) Connect(context.Context) (sdk.Connection, error) {
	s.SetReadLimit(maxBody)
	return &socket{conn: s.Conn, end: func() {}}, nil
}

// TestWebSocket: the SDK's client works over a connection, and the session is that
// of the connection.
func TestWebSocket(t *testing.T) {
	e := newWSEnv(t, pingEvery)
	cs, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(t.Context(), clientSocket{e.open()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tools, err := cs.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) == 0 {
		t.Errorf("%+v, %v", tools, err)
	}
	if res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "list_sandboxes"}); err != nil || !res.IsError {
		t.Errorf("a call: %+v, %v", res, err)
	}
	if n := e.sessions(); n != 1 {
		t.Errorf("%d sessions", n)
	}
	if err := cs.Close(); err != nil {
		t.Error(err)
	}
	wait.For(t, "the session ends with the connection", func() bool { return e.sessions() == 0 })
	lost := e.open()
	wait.For(t, "a session", func() bool { return e.sessions() == 1 })
	_ = lost.CloseNow()
	wait.For(t, "the session ends with a lost connection", func() bool { return e.sessions() == 0 })
}

// TestWebSocketRefuses: who is refused, and with what.
func TestWebSocketRefuses(t *testing.T) {
	t.Parallel() // it waits for clients that do not read
	e := newWSEnv(t, pingEvery)
	good := map[string]string{"Authorization": "Bearer good"}
	with := func(name, value string) map[string]string {
		return map[string]string{"Authorization": "Bearer good", name: value}
	}
	for _, c := range []struct {
		name   string
		header map[string]string
		want   int
	}{
		{"no key", nil, http.StatusUnauthorized},
		{"a wrong key", map[string]string{"Authorization": "Bearer other"}, http.StatusUnauthorized},
		{"another origin", with("Origin", "https://example.com"), http.StatusForbidden},
		{"another name of this machine", with("Host", "example.com"), http.StatusForbidden},
		{"its own origin", with("Origin", e.url), http.StatusSwitchingProtocols},
	} {
		_, resp, err := e.dial(c.header, subprotocol)
		if resp == nil || resp.StatusCode != c.want || (resp.Header.Get("WWW-Authenticate") != "") != (c.want == http.StatusUnauthorized) {
			t.Errorf("%s: %+v, %v; want status %d", c.name, resp, err, c.want)
		}
	}
	other, _, err := e.dial(good, "other")
	if err != nil {
		t.Fatal(err)
	}
	if s := e.ended(other); s != websocket.StatusPolicyViolation {
		t.Errorf("another subprotocol: %v", s)
	}
	for message, want := range map[string]websocket.StatusCode{
		"{": websocket.StatusInvalidFramePayloadData, strings.Repeat("x", maxBody+1): websocket.StatusMessageTooBig,
	} {
		c := e.open()
		_ = c.Write(t.Context(), websocket.MessageText, []byte(message)) // the server may close it before it has read all
		if s := e.ended(c); s != want && len(message) == 1 || s == websocket.StatusNormalClosure {
			t.Errorf("a message of %d bytes: %v, want %v", len(message), s, want)
		}
	}
	c := e.open()
	if err := c.Write(t.Context(), websocket.MessageBinary, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if s := e.ended(c); s != websocket.StatusUnsupportedData {
		t.Errorf("a message that is no text: %v", s)
	}
	wait.For(t, "all sessions have ended", func() bool { return e.sessions() <= 1 }) // that of its own origin
	for e.sessions() < maxSessions {
		before := e.sessions()
		e.open()
		wait.For(t, "a session", func() bool { return e.sessions() > before })
	}
	if s := e.ended(e.open()); s != websocket.StatusTryAgainLater {
		t.Errorf("one session too much: %v", s)
	}
}

// TestWebSocketEndsWithItsKey: a key that is not valid any more ends a connection
// that uses it, and so does a client that does not answer.
func TestWebSocketEndsWithItsKey(t *testing.T) {
	e := newWSEnv(t, 10*time.Millisecond)
	c := e.open()
	ids := make(chan json.RawMessage, 10)
	ended := make(chan websocket.StatusCode, 1)
	go func() {
		for {
			_, b, err := c.Read(context.Background())
			if err != nil {
				ended <- websocket.CloseStatus(err)
				return
			}
			var m struct{ ID json.RawMessage }
			_ = json.Unmarshal(b, &m)
			ids <- m.ID
		}
	}()
	for i := range 5 { // pings and answers go on
		id, err := jsonrpc.MakeID(float64(i))
		if err != nil {
			t.Fatal(err)
		}
		b, err := jsonrpc.EncodeMessage(&jsonrpc.Request{ID: id, Method: "ping"})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Write(t.Context(), websocket.MessageText, b); err != nil {
			t.Fatal(err)
		}
		if got := wait.Receive(t, "an answer", ids); string(got) != fmt.Sprint(i) {
			t.Errorf("an answer to %s, want %d", got, i)
		}
	}
	e.revoked.Store(true)
	if s := wait.Receive(t, "the end of the connection", ended); s != websocket.StatusPolicyViolation {
		t.Errorf("ended with %v", s)
	}
	wait.For(t, "the session ends", func() bool { return e.sessions() == 0 })
}
