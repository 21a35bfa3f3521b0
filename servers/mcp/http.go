package mcpserver

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

const (
	// maxSessions bounds the HTTP sessions of one caller.
	maxSessions = 100
	// maxBody bounds the body of a request, in bytes.
	maxBody = 32 << 20
	// tokenFor is the time for which the SDK takes an identity without an end; each
	// request is authenticated again.
	tokenFor = time.Hour
)

// httpVersions are the versions of the protocol that are served by HTTP. Later
// ones have no sessions there, with which sandboxes could end.
var httpVersions = []string{"2025-11-25", "2025-06-18", "2025-03-26"}

// Caller is the authenticated caller of a request.
type Caller struct {
	ID      string    // the same for all requests of the caller
	Client  rpc.Conn  // makes calls with the caller's identity until Release
	Project string    // name of the project of its sandboxes; "": that of Options
	Expires time.Time // zero: never
	Release func()
}

// HandlerOptions configure a Handler.
type HandlerOptions struct {
	// Options are those of each session. Client is the caller's, and Files is not
	// possible.
	Options
	// Authenticate returns the caller of a request. Unauthenticated without a valid
	// key.
	Authenticate func(*http.Request) (*Caller, error)
	// Final: no other Handler follows, so Close ends the sandboxes of the sessions
	// too.
	Final bool
}

// Handler serves the protocol by HTTP (streamable HTTP). A session ends when the
// client deletes it, or makes no request for the idle time-out of its sandboxes.
// WebSocket is another way to the same.
type Handler struct {
	o    HandlerOptions
	http http.Handler
	ping time.Duration // between pings of a WebSocket

	mu       sync.Mutex
	closed   bool
	sessions map[*session]*Caller
	wg       sync.WaitGroup
}

// NewHandler returns a Handler. InvalidArgument for an unknown tool.
func NewHandler(o HandlerOptions) (*Handler, error) {
	if err := CheckTools(o.Tools); err != nil {
		return nil, err
	}
	o.Files = ""
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	h := &Handler{o: o, sessions: map[*session]*Caller{}, ping: pingEvery}
	h.http = auth.RequireBearerToken(token, nil)(sdk.NewStreamableHTTPHandler(h.server, &sdk.StreamableHTTPOptions{
		SessionTimeout: cmp.Or(o.Idle, DefaultIdle), MaxRequestBodyBytes: maxBody,
	}))
	return h, nil
}

// visit is one request.
type visit struct {
	caller  *Caller
	session *session // that the request began; nil: none
	err     error    // why it began none
}

type visitKey struct{}

func visitOf(ctx context.Context) *visit { return ctx.Value(visitKey{}).(*visit) }

// token gives the SDK the caller, so that no other one uses its sessions.
func token(ctx context.Context, _ string, _ *http.Request) (*auth.TokenInfo, error) {
	c := visitOf(ctx).caller
	info := &auth.TokenInfo{UserID: c.ID, Expiration: c.Expires}
	if info.Expiration.IsZero() {
		info.Expiration = time.Now().Add(tokenFor)
	}
	return info, nil
}

// authenticate returns the caller of a request. nil if it has none: then it has
// answered.
func (h *Handler) authenticate(w http.ResponseWriter, r *http.Request) *Caller {
	c, err := h.o.Authenticate(r)
	if err == nil {
		return c
	}
	status := http.StatusServiceUnavailable
	if errs.Is(err, errs.Unauthenticated) {
		status = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	http.Error(w, toolError(err).Error(), status)
	return nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := h.authenticate(w, r)
	if c == nil {
		return
	}
	v := &visit{caller: c}
	r = r.Clone(context.WithValue(r.Context(), visitKey{}, v))
	r.Header.Set("Authorization", "Bearer authenticated") // the SDK wants a token, and token knows the caller
	h.http.ServeHTTP(w, r)
	if v.session == nil || !h.keep(v) {
		c.Release()
	}
}

// server returns the server of a new session.
func (h *Handler) server(r *http.Request) *sdk.Server {
	if r.Header.Get("Mcp-Session-Id") != "" {
		return nil // the session has it
	}
	v := visitOf(r.Context())
	if v.session == nil && v.err == nil {
		v.session, v.err = h.begin(v.caller, httpVersions)
	}
	if v.err != nil {
		h.o.Logger.Warn("no session for a caller", "caller", v.caller.ID, "error", v.err)
		return nil
	}
	return v.session.server
}

// begin returns a new session of a caller, with versions of the protocol; nil: all. It
// counts until keep, or drop, has ended it. ResourceExhausted if the caller has too many.
func (h *Handler) begin(c *Caller, versions []string) (*session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, other := range h.sessions {
		if other.ID == c.ID {
			n++
		}
	}
	if n >= maxSessions || h.closed {
		return nil, errs.New(errs.ResourceExhausted, "the caller has %d sessions", n)
	}
	o := h.o.Options
	o.Client, o.Project, o.versions = c.Client, cmp.Or(c.Project, o.Project), versions
	s, err := newSession(o)
	if err == nil {
		h.sessions[s] = c
	}
	return s, err
}

// drop ends a session that was not kept.
func (h *Handler) drop(s *session) {
	h.mu.Lock()
	delete(h.sessions, s)
	h.mu.Unlock()
	s.end()
}

// keep keeps the session that a request began until it ends. It returns false if
// it has ended.
func (h *Handler) keep(v *visit) bool {
	began := slices.Collect(v.session.server.Sessions())
	h.mu.Lock()
	kept := !h.closed && len(began) > 0
	if kept {
		h.wg.Add(1) // Close waits for it
	}
	h.mu.Unlock()
	if !kept {
		h.drop(v.session)
		for _, ss := range began {
			_ = ss.Close()
		}
		return false
	}
	go func() {
		defer h.wg.Done()
		for _, ss := range began {
			_ = ss.Wait() // however the client left
		}
		h.mu.Lock()
		closed := h.closed
		delete(h.sessions, v.session)
		h.mu.Unlock()
		v.session.end()
		v.session.follower.close()
		if !closed || h.o.Final { // else the sandboxes end when they are idle
			if err := v.session.close(context.Background()); err != nil {
				h.o.Logger.Warn("cannot end a session", "caller", v.caller.ID, "error", err)
			}
		}
		v.caller.Release()
	}()
	return true
}

// Close ends the sessions. Their sandboxes stay until they are idle, unless the
// Handler is final.
func (h *Handler) Close() error {
	h.mu.Lock()
	h.closed = true
	var all []*session
	for s := range h.sessions {
		all = append(all, s)
	}
	h.mu.Unlock()
	var g errgroup.Group // a client that has gone keeps its connection for some seconds
	for _, s := range all {
		s.end()
		for ss := range s.server.Sessions() {
			g.Go(ss.Close)
		}
	}
	err := g.Wait()
	h.wg.Wait()
	return err
}
