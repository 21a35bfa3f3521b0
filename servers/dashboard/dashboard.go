// Package dashboard serves the web interface of the server, below /ui/: its
// files, a login with an API key or by OpenID Connect, and the REST face for its
// pages.
//
// A login makes a session: a cookie that holds the key, sealed, so that scripts
// of a page cannot read it. The REST face itself accepts no cookie. The pages call
// it below /ui/api, where Bridge replaces the cookie by the key. A request there
// must have the header X-Dashboard, which pages of other origins cannot send
// without permission, or be a WebSocket, whose origin the face checks.
package dashboard

import (
	"crypto/cipher"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/servers/api"
)

// Prefix is the path of the interface.
const Prefix = "/ui"

// header is what every request of a page to Bridge has.
const header = "X-Dashboard"

// sessionTime is how long a session lasts.
const sessionTime = 12 * time.Hour

// maxLogin bounds the body of a login, in bytes.
const maxLogin = 4 << 10

// Config configures the interface.
type Config struct {
	Key    []byte       // 32 bytes; sessions are sealed with a key that is made of it
	Secure bool         // browsers reach it by TLS
	REST   http.Handler // the REST face, at its own path
	OIDC   *OIDC        // nil: people log in by key alone
	Logger *slog.Logger
}

// Dashboard serves the interface.
type Dashboard struct {
	cfg      Config
	api      *api.Server
	sessions *sessions
	attempts cipher.AEAD // of logins under way
	files    http.Handler
}

// Mount adds the interface to a listener.
func Mount(s *api.Server, cfg Config) error {
	ss, err := newSessions(cfg.Key, time.Now)
	if err != nil {
		return err
	}
	d := &Dashboard{cfg: cfg, api: s, sessions: ss}
	if d.attempts, err = newCipher(cfg.Key, "dashboard login"); err != nil {
		return err
	}
	if d.files, err = newFiles(); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+Prefix+"/login", d.login)
	mux.HandleFunc("GET "+Prefix+"/login/methods", d.methods)
	mux.HandleFunc("GET "+Prefix+"/login/begin", d.begin)
	mux.HandleFunc("GET "+callback, d.finish)
	mux.HandleFunc("POST "+Prefix+"/logout", d.logout)
	mux.HandleFunc("GET "+Prefix+"/session", d.session)
	mux.HandleFunc(Prefix+"/api/", d.bridge)
	mux.Handle(Prefix+"/", d.files)
	s.Handle("dashboard", Prefix+"/", &subject{mux, d})
	s.Handle("dashboard", "GET /{$}", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, Prefix+"/", http.StatusFound)
	}))
	return nil
}

// subject lets the listener count the requests of a session together.
type subject struct {
	http.Handler
	d *Dashboard
}

// Subject names the session of a request.
func (s *subject) Subject(r *http.Request) string {
	if x, err := s.d.sessions.of(r); err == nil {
		return "dashboard " + x.ID
	}
	return ""
}

// who is what the interface shows of the caller.
type who struct {
	Name    string    `json:"name"`
	Project string    `json:"project"`
	Roles   []string  `json:"roles"`
	Expires time.Time `json:"expires_at"` // of the session
	// Installation: a role holds in all projects, so its pages are shown too.
	Installation bool `json:"installation,omitempty"`
}

func whoOf(c *api.Caller, x *session) who {
	w := who{Name: c.Identity.Name, Project: c.Project(), Roles: []string{}, Expires: x.Expires}
	for _, r := range c.Identity.Roles {
		name, _, bound := rpc.SplitRole(r)
		w.Roles, w.Installation = append(w.Roles, name), w.Installation || !bound
	}
	return w
}

// fromPage refuses a request that a page of another origin can make.
func fromPage(r *http.Request) error {
	if r.Header.Get(header) == "" {
		return errs.New(errs.PermissionDenied, "the request does not come from the dashboard: it has no header %s", header).
			WithHint("programs call /api/v1 with an API key")
	}
	return nil
}

func (d *Dashboard) login(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Key string `json:"key"`
	}
	err := fromPage(r)
	if err == nil {
		if err = json.NewDecoder(http.MaxBytesReader(w, r.Body, maxLogin)).Decode(&in); err != nil {
			err = errs.New(errs.InvalidArgument, "the login is no JSON with a key")
		}
	}
	var c *api.Caller
	if err == nil {
		c, err = d.api.Authenticate(r.Context(), strings.TrimSpace(in.Key))
	}
	if err != nil {
		api.WriteProblem(w, err)
		return
	}
	defer c.Release()
	answer(w, whoOf(c, d.logIn(w, strings.TrimSpace(in.Key), c)))
}

// logIn makes a session for the key of a caller.
func (d *Dashboard) logIn(w http.ResponseWriter, key string, c *api.Caller) *session {
	x := d.sessions.make(key, c.Identity.Expires)
	http.SetCookie(w, d.cookie(d.sessions.seal(x), x.Expires))
	return x
}

// cookie returns the cookie of a session; the empty value removes it.
func (d *Dashboard) cookie(value string, expires time.Time) *http.Cookie {
	c := &http.Cookie{
		Name: cookieName, Value: value, Path: Prefix, Expires: expires, HttpOnly: true, Secure: d.cfg.Secure, SameSite: http.SameSiteStrictMode,
	}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

func (d *Dashboard) logout(w http.ResponseWriter, r *http.Request) {
	if err := fromPage(r); err != nil {
		api.WriteProblem(w, err)
		return
	}
	if x, err := d.sessions.of(r); err == nil {
		d.sessions.end(x)
	}
	http.SetCookie(w, d.cookie("", time.Time{}))
	w.WriteHeader(http.StatusNoContent)
}

// session answers with who is logged in; null for nobody.
func (d *Dashboard) session(w http.ResponseWriter, r *http.Request) {
	x, err := d.sessions.of(r)
	var c *api.Caller
	if err == nil {
		c, err = d.api.Authenticate(r.Context(), x.Key)
	}
	if errs.Is(err, errs.Unauthenticated) {
		answer(w, nil)
		return
	}
	if err != nil {
		api.WriteProblem(w, err)
		return
	}
	defer c.Release()
	answer(w, whoOf(c, x))
}

// bridge answers a request of a page by the REST face.
func (d *Dashboard) bridge(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, Prefix)
	x, err := d.sessions.of(r)
	switch {
	case err != nil:
	case isPort(path):
		// A program of a sandbox must not answer at the origin of the dashboard.
		err = errs.New(errs.PermissionDenied, "ports of sandboxes are not reached through the dashboard").WithHint("make a preview (`r sandbox preview`)")
	case isWebSocket(r):
	default:
		err = fromPage(r)
	}
	if err != nil {
		api.WriteProblem(w, err)
		return
	}
	ctx, release := d.sessions.during(r.Context(), x)
	defer release()
	out := r.Clone(ctx)
	out.URL.Path, out.URL.RawPath = path, strings.TrimPrefix(r.URL.RawPath, Prefix)
	for _, h := range []string{"Cookie", "Authorization"} {
		out.Header.Del(h)
	}
	out.Header.Set("X-API-Key", x.Key)
	w.Header().Set("Content-Security-Policy", "default-src 'none'; sandbox; frame-ancestors 'none'")
	w.Header().Set("Cache-Control", "no-store")
	d.cfg.REST.ServeHTTP(w, out)
}

// isPort reports whether a path is that of a port of a session.
func isPort(path string) bool {
	rest, ok := strings.CutPrefix(path, "/api/v1/sessions/")
	parts := strings.Split(rest, "/")
	return ok && len(parts) > 2 && parts[1] == "ports"
}

func isWebSocket(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

func answer(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		api.WriteProblem(w, errs.New(errs.Internal, "answer: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = io.WriteString(w, string(b)+"\n") // the client may have gone
}
