// Package rest is the REST face of the server, /api/v1: sessions with their
// files, commands, ports, snapshots and forks, all containers of a project,
// executions, templates, pools, volumes, keys and the audit log, its apps with
// their deployments and addons, and its entities as they are stored, for programs with an
// API key. It decodes requests, makes RPC calls as their caller, and
// encodes the answers.
//
// A session is a sandbox (mode persistent) or an execution (mode ephemeral), and
// has its id. The OpenAPI 3.1 document is generated from the types of this
// package and served at /api/v1/openapi.json without a key.
package rest

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"miren.dev/runtime/pkg/version"
	"miren.dev/runtime/servers/api"
)

// Prefix is the path of the face.
const Prefix = "/api/v1"

// maxBody bounds the body of requests other than uploads: code and files of an
// execution, in base64.
const maxBody = 12 << 20

type contextKey struct{}

// callerFrom returns the caller of a request, in a handler.
func callerFrom(ctx context.Context) *api.Caller { return ctx.Value(contextKey{}).(*api.Caller) }

// Mount adds the face to a listener, and returns it.
func Mount(s *api.Server) http.Handler {
	mux := http.NewServeMux()
	New(s, mux)
	s.Handle("rest", Prefix+"/", mux)
	return mux
}

// New registers every operation on a mux and returns the API, whose OpenAPI
// method has the document.
func New(s *api.Server, mux *http.ServeMux) huma.API {
	a := humago.NewWithPrefix(mux, Prefix, huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Miren Runtime", Version: version.Get().Version,
				Description: "Sandboxes for agents and untrusted code.",
			},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"key":    {Type: "apiKey", In: "header", Name: "X-API-Key"},
					"bearer": {Type: "http", Scheme: "bearer"},
				},
			},
			Security: []map[string][]string{{"key": {}}, {"bearer": {}}},
		},
		OpenAPIPath: "/openapi", Formats: map[string]huma.Format{"application/json": huma.DefaultJSONFormat, "json": huma.DefaultJSONFormat},
		DefaultFormat: "application/json",
	})
	a.UseMiddleware(authenticate(s))
	registerSessions(a)
	registerExecutions(a)
	registerStreams(a)
	registerBackground(a)
	registerFiles(a)
	registerTemplates(a)
	registerBuilds(a)
	registerContainers(a)
	registerSnapshots(a)
	registerPools(a)
	registerVolumes(a)
	registerPorts(a)
	registerKeys(a)
	registerPolicies(a)
	registerWebhooks(a)
	registerEvents(a)
	registerAudit(a)
	registerEgress(a)
	registerApps(a)
	registerMetrics(a)
	registerAppLogs(a)
	registerDeployments(a)
	registerAppPreviews(a)
	registerAddons(a)
	registerEntities(a)
	registerNodes(a)
	mountPorts(s, mux)
	mountTerminals(s, mux)
	return a
}

// authenticate gives handlers the caller of the request.
func authenticate(s *api.Server) func(huma.Context, func(huma.Context)) {
	return func(c huma.Context, next func(huma.Context)) {
		r, _ := humago.Unwrap(c)
		caller, err := s.AuthenticateRequest(r)
		if err != nil {
			writeProblem(c, problemOf(err))
			return
		}
		defer caller.Release()
		next(huma.WithValue(c, contextKey{}, caller))
	}
}

// op describes an operation.
func op(method, path, id, tag, summary string, change ...func(*huma.Operation)) huma.Operation {
	o := huma.Operation{
		Method: method, Path: path, OperationID: id, Tags: []string{tag}, Summary: summary,
		MaxBodyBytes: maxBody, BodyReadTimeout: -1, // the listener ends stalled requests
	}
	for _, f := range change {
		f(&o)
	}
	return o
}

func status(code int) func(*huma.Operation) {
	return func(o *huma.Operation) { o.DefaultStatus = code }
}

// register adds an operation whose handler returns errors of pkg/errs.
func register[I, O any](a huma.API, o huma.Operation, h func(context.Context, *I) (*O, error)) {
	problem := &huma.MediaType{Schema: a.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "Problem")}
	if o.Responses == nil {
		o.Responses = map[string]*huma.Response{}
	}
	o.Responses["default"] = &huma.Response{Description: "Error", Content: map[string]*huma.MediaType{api.ProblemType: problem}}
	// A request that is no HTTP is refused by the HTTP server, as text.
	o.Responses["400"] = &huma.Response{Description: "Bad Request", Content: map[string]*huma.MediaType{
		api.ProblemType: problem, "text/plain": {Schema: &huma.Schema{Type: huma.TypeString}},
	}}
	huma.Register(a, o, func(ctx context.Context, in *I) (*O, error) {
		out, err := h(ctx, in)
		if err != nil {
			return nil, problemOf(err)
		}
		return out, nil
	})
}

// body is an answer of JSON.
type body[T any] struct{ Body T }
