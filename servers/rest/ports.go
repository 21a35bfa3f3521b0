package rest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/servers/api"
)

// Ports are the ports of a session.
type Ports struct {
	Ports []int64 `json:"ports" doc:"TCP ports on which its processes listen, in order." example:"[8000]"`
}

func registerPorts(a huma.API) {
	register(a, op(http.MethodGet, "/sessions/{id}/ports", "list-ports", "ports", "List the ports on which processes of a session listen"), listPorts)
}

func listPorts(ctx context.Context, in *SessionInput) (*body[Ports], error) {
	sid, err := in.persistent()
	if err != nil {
		return nil, err
	}
	resp, err := sandboxes(ctx).Ports(ctx, &sandbox.SandboxRequest{Sandbox: sid})
	if err != nil {
		return nil, err
	}
	return &body[Ports]{Ports{append([]int64{}, resp.Ports...)}}, nil
}

// portPath is the path of a port of a session, without the path that its
// process gets.
const portPath = Prefix + "/sessions/{id}/ports/{port}"

// mountPorts passes requests below portPath on to the port, WebSockets too. It
// is no operation of the document, since every method and path is permitted.
func mountPorts(s *api.Server, mux *http.ServeMux) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := servePort(s, w, r); err != nil {
			api.WriteProblem(w, err)
		}
	})
	mux.Handle(portPath, h)
	mux.Handle(portPath+"/{path...}", h)
}

func servePort(s *api.Server, w http.ResponseWriter, r *http.Request) error {
	caller, err := s.Authenticate(r.Context(), api.Key(r))
	if err != nil {
		return err
	}
	defer caller.Release()
	in := SessionInput{ID: r.PathValue("id")}
	sid, err := in.persistent()
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 {
		return errs.New(errs.InvalidArgument, "%q is no port", r.PathValue("port"))
	}
	prefix := Prefix + "/sessions/" + in.ID + "/ports/" + r.PathValue("port")
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", net.JoinHostPort("localhost", strconv.FormatUint(port, 10)), p.In.Host
			p.Out.URL.Path = "/" + strings.TrimPrefix(strings.TrimPrefix(p.In.URL.Path, prefix), "/")
			if raw := p.In.URL.RawPath; raw != "" {
				p.Out.URL.RawPath = "/" + strings.TrimPrefix(strings.TrimPrefix(raw, prefix), "/")
			}
			p.SetXForwarded()
			p.Out.Header.Set("X-Forwarded-Prefix", prefix)
			// The session must not get the key of its caller.
			if p.In.Header.Get("X-API-Key") == "" {
				p.Out.Header.Del("Authorization")
			}
			p.Out.Header.Del("X-API-Key")
		},
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true,
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return dialPort(r.Context(), caller, sid, int64(port))
			},
		},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if e := new(errs.Error); !errors.As(err, &e) {
				err = errs.New(errs.Unavailable, "port %d of session %s does not answer: %w", port, sid, err)
			}
			api.WriteProblem(w, err)
		},
	}
	proxy.ServeHTTP(w, r)
	return nil
}

// portConn is a connection to a port of a session.
type portConn struct {
	rpc.ClientStream[rpc.Bytes, rpc.Bytes]
	cancel context.CancelFunc
}

// dialPort connects to a port. The connection lives no longer than ctx.
func dialPort(ctx context.Context, caller *api.Caller, sid id.Sandbox, port int64) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	st, err := sandbox.NewSandboxesClient(caller.Client).Dial(ctx, &sandbox.DialRequest{Sandbox: sid, Port: port})
	if err != nil {
		cancel()
		return nil, err
	}
	return &portConn{st, cancel}, nil
}

func (c *portConn) Read(b []byte) (int, error) { return c.Reader().Read(b) }

// Write sends to the port. When the stream has ended, what is sent is dropped: Read
// says why it ended, such as a refusal.
func (c *portConn) Write(b []byte) (int, error) {
	n, err := c.Writer().Write(b)
	if errors.Is(err, io.EOF) {
		return len(b), nil
	}
	return n, err
}

func (c *portConn) Close() error {
	defer c.cancel()
	return c.ClientStream.Close()
}

func (*portConn) LocalAddr() net.Addr              { return portAddress{} }
func (*portConn) RemoteAddr() net.Addr             { return portAddress{} }
func (*portConn) SetDeadline(time.Time) error      { return nil } // the request's context bounds it
func (*portConn) SetReadDeadline(time.Time) error  { return nil }
func (*portConn) SetWriteDeadline(time.Time) error { return nil }

type portAddress struct{}

func (portAddress) Network() string { return "session" }
func (portAddress) String() string  { return "session" }
