// Package e2b serves E2B's protocol, so that its published SDKs work without
// changes: the control plane, the agent of each sandbox (envd), and the code
// interpreter, all on one port. It translates to RPC and keeps nothing but the
// processes and watches that are open.
//
//	request without a sandbox      control plane, by API key (control.go, ...)
//	E2b-Sandbox-Port: 49983        envd: processes, files (process.go, ...)
//	E2b-Sandbox-Port: 49999        code interpreter (interpreter.go)
//
// A sandbox is named by the header E2b-Sandbox-Id, or by the host name
// <port>-<id>.<domain>. E2B's ids have no hyphen: sb-4k2j... is sb4k2j... here.
//
// envd's callers have no API key but the token of a sandbox. It is a keyed hash
// of the sandbox's id, so nothing is stored for it, and it opens that sandbox
// only.
package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/preview"
	"miren.dev/runtime/pkg/rpc"
)

// envdVersion is the version of E2B's agent whose features are served. From
// 0.6.3 on clients expect that events of a watch describe the file.
const envdVersion = "0.6.2"

// Ports by which clients name the services of a sandbox.
const (
	envdPort        = "49983"
	interpreterPort = "49999"
)

// GuestIdentity is the identity of Config.Guest.
var GuestIdentity = rpc.Identity{Name: "e2b", Roles: []string{"agent"}, How: "process"}

// Caller is an authenticated caller.
type Caller struct {
	Conn    rpc.Conn // makes its calls
	Project string   // in which its sandboxes are made; "": the default
	Release func()
}

// Config is what a Server needs.
type Config struct {
	// Authenticate returns the caller with an API key, who is released after the
	// call; Unauthenticated if the key is not valid.
	Authenticate func(ctx context.Context, key string) (*Caller, error)
	// Guest makes the calls of those that have the token of a sandbox. It may work
	// in every project, and makes no call but for that sandbox.
	Guest rpc.Conn
	// Key is a secret of the installation, of at least 32 bytes. The tokens of
	// sandboxes are made with it.
	Key []byte
	// Uploads is a folder for what clients upload for builds. It is made when it is
	// needed.
	Uploads string
	Logger  *slog.Logger
}

// Server serves E2B's protocol.
type Server struct {
	cfg       Config
	previews  preview.Key
	ctx       context.Context // ends with Close
	stop      context.CancelFunc
	guests    *caller
	control   *http.ServeMux
	envd      *http.ServeMux
	interp    *http.ServeMux
	processes processes
	adopting  singleflight.Group // by sandbox
	watchers  watchers
	owners    owners
	uploads   uploads
	searches  chan struct{} // has the search for a sandbox that is under way
	running   sync.WaitGroup
}

// New returns a server. Close ends it.
func New(cfg Config) (*Server, error) {
	if len(cfg.Key) < sha256.Size {
		return nil, errs.New(errs.InvalidArgument, "the key for tokens of sandboxes has %d bytes, and needs %d", len(cfg.Key), sha256.Size)
	}
	s := &Server{cfg: cfg, previews: preview.NewKey(cfg.Key), guests: newCaller(cfg.Guest, ""), uploads: uploads{dir: cfg.Uploads, max: maxUploads}, searches: make(chan struct{}, 1)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.control, s.envd, s.interp = s.controlRoutes(), s.envdRoutes(), s.interpreterRoutes()
	return s, nil
}

// Start continues, in the background, the processes that clients started with an
// earlier server.
func (s *Server) Start() { s.running.Go(s.adoptAll) }

// Close ends watches, and waits for the calls of the processes that clients started.
// They end with the RPC server of Config.Guest, which must have stopped before. The
// processes go on for a minute, until the next server adopts them.
func (s *Server) Close() {
	s.stop()
	s.running.Wait()
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	port, name := target(r)
	switch {
	case name != "" && port == envdPort && controls(r):
		s.control.ServeHTTP(w, r)
	case name != "" && port == envdPort:
		s.envd.ServeHTTP(w, r)
	case name != "" && port == interpreterPort:
		s.interp.ServeHTTP(w, r)
	case name != "":
		s.servePort(w, r, port, name)
	case r.URL.Path == "/files": // a signed URL names no sandbox
		s.envd.ServeHTTP(w, r)
	default:
		s.control.ServeHTTP(w, r)
	}
}

// Subject names the sandbox whose token a request has, "" for none: the rate
// limit of the listener counts the requests with each.
func (s *Server) Subject(r *http.Request) string {
	if _, name := target(r); name != "" && s.holds(r.Header.Get("X-Access-Token"), sandboxID(name)) {
		return name
	}
	return ""
}

// roots are the first elements of the paths of E2B's control plane.
var roots = []string{"sandboxes", "v2", "v3", "templates", "snapshots", "volumes", "volumecontent", "secrets", "api-keys", "teams", "events", "files"}

func root(r *http.Request) string {
	root, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	return root
}

// controls reports whether a request that names a sandbox is for the control plane
// by its path: PyPI's e2b 2.15 sends the headers of the sandbox with Connect, too.
func controls(r *http.Request) bool {
	return root(r) != "files" && slices.Contains(roots, root(r))
}

// Matches reports whether a request is for E2B's protocol: it names a sandbox, or
// has a path of the control plane.
func Matches(r *http.Request) bool {
	if _, name := target(r); name != "" {
		return true
	}
	return slices.Contains(roots, root(r))
}

var hostRE = regexp.MustCompile(`^([0-9]{1,5})-(sb[0-9a-z]{16})\.`)

// target returns the port and the sandbox that a request is for; empty if it is
// for the control plane.
func target(r *http.Request) (port, name string) {
	if name := r.Header.Get("E2b-Sandbox-Id"); name != "" {
		return r.Header.Get("E2b-Sandbox-Port"), name
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if m := hostRE.FindStringSubmatch(host + "."); m != nil {
		return m[1], m[2]
	}
	return "", ""
}

// caller makes calls with one identity.
type caller struct {
	sandboxes   sandbox.SandboxesClient
	files       sandbox.FilesClient
	previews    sandbox.PreviewsClient
	interpreter interpreter.InterpreterClient
	templates   sandbox.TemplatesClient
	builds      app.BuildsClient
	deploys     app.DeploysClient
	disks       disk.DisksClient
	store       entity.Reader
	project     string // in which its sandboxes are made; "": the default
}

func newCaller(c rpc.Conn, project string) *caller {
	return &caller{
		sandboxes: sandbox.NewSandboxesClient(c), files: sandbox.NewFilesClient(c), previews: sandbox.NewPreviewsClient(c), interpreter: interpreter.NewInterpreterClient(c),
		templates: sandbox.NewTemplatesClient(c), builds: app.NewBuildsClient(c), deploys: app.NewDeploysClient(c), disks: disk.NewDisksClient(c),
		store: remote.New(c), project: project,
	}
}

const idPrefix = "sb-"

// publicID returns the id of a sandbox as E2B's clients know it.
func publicID[T ~string](sid T) string { return strings.Replace(string(sid), "-", "", 1) }

// sandboxID is the reverse of publicID.
func sandboxID(name string) id.Sandbox {
	rest, ok := strings.CutPrefix(name, strings.TrimSuffix(idPrefix, "-"))
	if !ok {
		return id.Sandbox(name) // exists nowhere
	}
	return id.Sandbox(idPrefix + rest)
}

// token returns the token of a sandbox for envd.
func (s *Server) token(sid id.Sandbox) string {
	h := hmac.New(sha256.New, s.cfg.Key)
	h.Write([]byte("e2b envd\x00" + string(sid)))
	return hex.EncodeToString(h.Sum(nil))
}

// holds reports whether a token is that of a sandbox for envd.
func (s *Server) holds(token string, sid id.Sandbox) bool {
	return hmac.Equal([]byte(token), []byte(s.token(sid)))
}

// trafficToken returns the token of a sandbox for its ports. It opens its
// previews, too.
func (s *Server) trafficToken(sid id.Sandbox) string {
	return s.previews.Sign(string(sid), time.Time{})
}
