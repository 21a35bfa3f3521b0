package mcpserver

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"miren.dev/runtime/pkg/errs"
)

const (
	// subprotocol is the one that clients offer.
	subprotocol = "mcp"
	// pingEvery is the time between pings, with each of which the key is checked.
	pingEvery = 30 * time.Second
	// peerTimeout bounds the answer to a ping, and the time for which the client
	// reads nothing.
	peerTimeout = time.Minute
)

// WebSocket serves the protocol by WebSocket, a message of JSON in each message of
// text. The session ends with the connection.
func (h *Handler) WebSocket() http.Handler { return http.HandlerFunc(h.serveWebSocket) }

func (h *Handler) serveWebSocket(w http.ResponseWriter, r *http.Request) {
	if !localHost(r) {
		http.Error(w, "the header Host names another machine", http.StatusForbidden)
		return
	}
	c := h.authenticate(w, r)
	if c == nil {
		return
	}
	v := &visit{caller: c}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}}) // it refuses other origins
	if err != nil {
		c.Release()
		return
	}
	defer conn.CloseNow()
	if conn.Subprotocol() != subprotocol {
		c.Release()
		_ = conn.Close(websocket.StatusPolicyViolation, "the client does not offer the subprotocol "+subprotocol)
		return
	}
	conn.SetReadLimit(maxBody)
	if v.session, err = h.begin(c, nil); err != nil {
		c.Release()
		h.o.Logger.Warn("no session for a caller", "caller", c.ID, "error", err)
		_ = conn.Close(websocket.StatusTryAgainLater, "there are too many sessions")
		return
	}
	ss, err := v.session.server.Connect(r.Context(), &socket{conn: conn, end: v.session.end}, nil)
	if err != nil || !h.keep(v) {
		h.drop(v.session)
		c.Release()
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	var wg sync.WaitGroup
	wg.Go(func() { h.watchPeer(ctx, conn, r) })
	_ = ss.Wait() // however the client left
	cancel()
	wg.Wait()
}

// watchPeer ends a connection whose client does not answer, or whose key is not
// valid any more. It returns when ctx ends.
func (h *Handler) watchPeer(ctx context.Context, conn *websocket.Conn, r *http.Request) {
	t := time.NewTicker(h.ping)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		c, err := h.o.Authenticate(r)
		if errs.Is(err, errs.Unauthenticated) {
			_ = conn.Close(websocket.StatusPolicyViolation, "the key is not valid any more")
			return
		}
		if err == nil {
			c.Release()
		}
		answer, cancel := context.WithTimeout(ctx, peerTimeout)
		err = conn.Ping(answer)
		cancel()
		if err != nil {
			_ = conn.CloseNow()
			return
		}
	}
}

// localHost reports whether a request that reaches a loopback address names it in
// the header Host. The page of a browser that resolves its own name to that
// address does not.
func localHost(r *http.Request) bool {
	a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok || !a.IP.IsLoopback() {
		return true
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// socket is the transport of one connection.
type socket struct {
	conn *websocket.Conn
	end  func() // called when the client has gone
}

// Connect implements mcp.Transport.
func (s *socket) Connect(context.Context) (sdk.Connection, error) { return s, nil }

// SessionID implements mcp.Connection.
func (*socket) SessionID() string { return "" }

// Read implements mcp.Connection.
func (s *socket) Read(ctx context.Context) (jsonrpc.Message, error) {
	kind, b, err := s.conn.Read(ctx)
	if err == nil && kind != websocket.MessageText {
		err = errs.New(errs.InvalidArgument, "a message is not text")
		_ = s.conn.Close(websocket.StatusUnsupportedData, "messages are text")
	}
	if err != nil {
		s.end()
		return nil, err
	}
	m, err := jsonrpc.DecodeMessage(b)
	if err != nil {
		s.end()
		_ = s.conn.Close(websocket.StatusInvalidFramePayloadData, "a message is not JSON-RPC")
	}
	return m, err
}

// Write implements mcp.Connection.
func (s *socket) Write(ctx context.Context, m jsonrpc.Message) error {
	b, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	return s.conn.Write(ctx, websocket.MessageText, b)
}

// Close implements mcp.Connection.
func (s *socket) Close() error {
	_ = s.conn.Close(websocket.StatusNormalClosure, "") // the client may have gone
	return nil
}
