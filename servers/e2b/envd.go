package e2b

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"path"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/preview"
	"miren.dev/runtime/pkg/rpc"
)

var errNoToken = errs.New(errs.Unauthenticated, "the request has no valid token of the sandbox (X-Access-Token)")

func (s *Server) envdRoutes() *http.ServeMux {
	mux := http.NewServeMux()
	const process, files = "POST /process.Process/", "POST /filesystem.Filesystem/"
	for pattern, h := range map[string]http.HandlerFunc{
		"GET /health":              s.health,
		"GET /files":               s.download,
		"POST /files":              s.upload,
		process + "Start":          streaming(s, s.startProcess),
		process + "Connect":        streaming(s, s.connectProcess),
		process + "List":           unary(s, s.listProcesses),
		process + "SendInput":      unary(s, s.sendInput),
		process + "CloseStdin":     unary(s, s.closeStdin),
		process + "SendSignal":     unary(s, s.sendSignal),
		process + "Update":         unary(s, s.updateProcess),
		files + "Stat":             unary(s, s.stat),
		files + "ListDir":          unary(s, s.listDir),
		files + "MakeDir":          unary(s, s.makeDir),
		files + "Move":             unary(s, s.move),
		files + "Remove":           unary(s, s.remove),
		files + "WatchDir":         streaming(s, s.watchDir),
		files + "CreateWatcher":    unary(s, s.createWatcher),
		files + "GetWatcherEvents": unary(s, s.watcherEvents),
		files + "RemoveWatcher":    unary(s, s.removeWatcher),
	} {
		mux.HandleFunc(pattern, h)
	}
	for pattern, what := range map[string]string{
		process + "StreamInput": "input of a process as a stream", "/metrics": "metrics of envd", "/envs": "variables of envd",
		"/files/compose": "composing files",
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { failConnect(w, missing(what)) })
	}
	mux.HandleFunc("/", notFound)
	return mux
}

// guest is a sandbox in which the request of a client with its token works.
type guest struct {
	*caller
	sb   *sandbox.Sandbox
	user string // as the client named it; "": the sandbox's
}

// guest returns the sandbox of a request that has its token.
func (s *Server) guest(r *http.Request) (*guest, error) {
	_, name := target(r)
	sid := sandboxID(name)
	token := r.Header.Get("X-Access-Token")
	if !s.holds(token, sid) {
		return nil, errNoToken
	}
	user, _, _ := r.BasicAuth()
	return s.guestOf(r.Context(), name, user)
}

// guestOf is guest for a client that was authenticated otherwise. A paused
// sandbox is continued if its creator asked for that.
func (s *Server) guestOf(ctx context.Context, name, user string) (*guest, error) {
	g, err := s.live(ctx, name, user)
	if g == nil || err == nil || g.sb.Labels[labelAutoResume] == "" || errs.Detail(err, detailPaused) == "" {
		return g, err
	}
	yes := true
	if _, err := s.guests.sandboxes.Resume(ctx, &sandbox.PauseRequest{Sandbox: g.sb.GetID(), Wait: &yes}); err != nil {
		return nil, err
	}
	return s.live(ctx, name, user)
}

// live returns a sandbox that runs. With the error for one that is paused it is
// returned too.
func (s *Server) live(ctx context.Context, name, user string) (*guest, error) {
	c := s.guests
	sb, err := entity.Get[sandbox.Sandbox](ctx, c.store, sandboxID(name))
	switch {
	case errs.Is(err, errs.NotFound):
		return nil, errGone(name, "does not exist")
	case err != nil:
		return nil, err
	case over(sb):
		return nil, errGone(name, "has ended")
	case stateOf(sb) == statePaused:
		return &guest{caller: c, sb: sb, user: user}, errGone(name, "is paused: connect to it (Sandbox.connect)").With(detailPaused, name)
	}
	return &guest{caller: c, sb: sb, user: user}, nil
}

// explain returns errGone instead of an error if the sandbox ended meanwhile.
func (s *Server) explain(ctx context.Context, sid id.Sandbox, err error) error {
	switch errs.ClassOf(err) {
	case errs.Unavailable, errs.FailedPrecondition, errs.NotFound:
		return cmp.Or(s.gone(ctx, sid), err)
	}
	return err
}

// gone returns the error of a sandbox that does not run; nil if it does.
func (s *Server) gone(ctx context.Context, sid id.Sandbox) error {
	_, err := s.live(ctx, publicID(sid), "")
	if errs.Detail(err, detailGone) != "" {
		return err
	}
	return nil
}

// health says whether a sandbox runs. It needs no token: clients without one
// ask it too, and it tells no more than whether an id that was guessed exists. So
// it continues none.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	_, name := target(r)
	if _, err := s.live(r.Context(), name, ""); err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusNoContent, nil)
}

// home returns the directory that relative paths are below.
func (g *guest) home() string {
	switch g.user {
	case "":
		return cmp.Or(g.sb.Spec.Template.Workdir, "/home/user")
	case "root":
		return "/root"
	}
	return "/home/" + g.user
}

// path returns the absolute path that a client means.
func (g *guest) path(p string) string {
	if p == "~" || strings.HasPrefix(p, "~/") {
		p = p[1:]
		return path.Join(g.home(), p)
	}
	if !strings.HasPrefix(p, "/") {
		return path.Join(g.home(), p)
	}
	return path.Clean(p)
}

// servePort passes a request on to a port of a sandbox.
func (s *Server) servePort(w http.ResponseWriter, r *http.Request, port, name string) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		fail(w, errs.New(errs.InvalidArgument, "%q is no port", port))
		return
	}
	if err := s.traffic(r, name); err != nil {
		fail(w, err)
		return
	}
	g, err := s.guestOf(r.Context(), name, "")
	if err != nil {
		fail(w, err)
		return
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", net.JoinHostPort("sandbox", port), p.In.Host
			for _, h := range []string{"E2b-Sandbox-Id", "E2b-Sandbox-Port", "X-Access-Token", trafficHeader} {
				p.Out.Header.Del(h)
			}
		},
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return g.dial(ctx, s.ctx, int64(n))
			},
		},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			fail(w, errGone(name, "does not answer at port "+port+": "+err.Error()))
		},
	}
	proxy.ServeHTTP(w, r)
}

const trafficHeader = "E2b-Traffic-Access-Token"

// traffic checks that a request to a port has a token of its sandbox.
func (s *Server) traffic(r *http.Request, name string) error {
	sid := sandboxID(name)
	if s.holds(r.Header.Get("X-Access-Token"), sid) {
		return nil
	}
	if _, err := preview.Verify(s.previews.Public(), r.Header.Get(trafficHeader), time.Now(), string(sid)); err == nil {
		return nil
	}
	return errs.New(errs.Unauthenticated, "the request has no valid token of the sandbox (%s)", trafficHeader)
}

// conn is a connection to a port of a sandbox.
type conn struct {
	rpc.ClientStream[rpc.Bytes, rpc.Bytes]
	cancel context.CancelFunc
}

// dial connects to a port of the sandbox. The connection lives as long as base.
func (g *guest) dial(ctx, base context.Context, port int64) (net.Conn, error) {
	base, cancel := context.WithCancel(base)
	stop := context.AfterFunc(ctx, cancel)
	st, err := g.sandboxes.Dial(base, &sandbox.DialRequest{Sandbox: g.sb.GetID(), Port: port})
	if err != nil || !stop() {
		cancel()
		return nil, cmp.Or(err, ctx.Err())
	}
	return &conn{st, cancel}, nil
}

func (c *conn) Read(b []byte) (int, error) { return c.Reader().Read(b) }

// Write sends to the port. When the stream has ended, what is sent is dropped: Read
// says why it ended, such as a refusal.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Writer().Write(b)
	if errors.Is(err, io.EOF) {
		return len(b), nil
	}
	return n, err
}

func (c *conn) Close() error {
	defer c.cancel()
	return c.ClientStream.Close()
}

type address struct{}

func (address) Network() string { return "sandbox" }
func (address) String() string  { return "sandbox" }

func (*conn) LocalAddr() net.Addr              { return address{} }
func (*conn) RemoteAddr() net.Addr             { return address{} }
func (*conn) SetDeadline(time.Time) error      { return nil }
func (*conn) SetReadDeadline(time.Time) error  { return nil }
func (*conn) SetWriteDeadline(time.Time) error { return nil }
