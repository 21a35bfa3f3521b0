// Package workspace is a small HTTP API for sandboxes, /workspace/se: sessions
// that have the caller's names, code and commands in them, and files. It serves
// programs that were written for such an API; others use REST. It makes RPC calls
// as the caller, as every face does.
//
// A session is a sandbox of the template Template with the labels below. Its name
// is made of the session's, so a name is unique in the project of the key.
package workspace

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"sync"

	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/servers/api"
)

// Prefix is the path of the face.
const Prefix = "/workspace/se"

// maxBody bounds the JSON of a request, in bytes.
const maxBody = 12 << 20

// Labels of the sandbox of a session.
const (
	labelKind    = "runtime/workspace" // "se"
	labelSession = "runtime/workspace-session"
)

type server struct {
	api      *api.Server
	settings Settings
	logger   *slog.Logger
	pools    sync.Map // names of projects whose pool was looked at
}

// Mount adds the face to a listener.
func Mount(a *api.Server, settings Settings, log *slog.Logger) {
	s := &server{api: a, settings: settings, logger: log}
	mux := http.NewServeMux()
	for pattern, h := range map[string]handler{
		"POST " + Prefix + "/session/{id}":               createSession,
		"DELETE " + Prefix + "/session/{id}":             deleteSession,
		"GET " + Prefix + "/list":                        listSessions,
		"POST " + Prefix + "/execute_code/{id}":          executeCode,
		"POST " + Prefix + "/execute/{id}":               executeCommand,
		"POST " + Prefix + "/upload/{id}":                upload,
		"GET " + Prefix + "/download/{id}/{filename...}": download,
	} {
		mux.Handle(pattern, s.with(h))
	}
	mux.Handle("/", s.with(func(_ *call, _ http.ResponseWriter, r *http.Request) error {
		return errs.New(errs.NotFound, "%s %s: there is no such call", r.Method, r.URL.Path)
	}))
	a.Handle("workspace", Prefix+"/", mux)
}

// handler answers a request, or returns the error to answer.
type handler func(c *call, w http.ResponseWriter, r *http.Request) error

// call is a request of an authenticated caller.
type call struct {
	*server
	ctx     context.Context
	project string

	sandboxes  sandbox.SandboxesClient
	files      sandbox.FilesClient
	templates  sandbox.TemplatesClient
	executions execution.ExecutionsClient
	store      *remote.Store
}

// with authenticates the callers of h.
func (s *server) with(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := s.api.Authenticate(r.Context(), api.Key(r))
		if err != nil {
			api.WriteProblem(w, err)
			return
		}
		defer caller.Release()
		c := &call{
			server: s, ctx: r.Context(), project: caller.Project(), sandboxes: sandbox.NewSandboxesClient(caller.Client),
			files: sandbox.NewFilesClient(caller.Client), templates: sandbox.NewTemplatesClient(caller.Client),
			executions: execution.NewExecutionsClient(caller.Client), store: remote.New(caller.Client),
		}
		if err := h(c, w, r); err != nil {
			api.WriteProblem(w, err)
		}
	})
}

// decode reads the JSON of a request.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(into)
	if err == io.EOF {
		return errs.New(errs.InvalidArgument, "the request has no JSON")
	}
	if err != nil {
		return errs.New(errs.InvalidArgument, "the request is no JSON of the expected form: %w", err)
	}
	return nil
}

// answer sends a value as JSON.
func answer(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the client may have gone
	return nil
}

// optional returns nil, an absent field, for the zero value.
func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
