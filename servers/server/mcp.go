package server

import (
	"cmp"
	"net/http"
	"strings"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/servers/api"
	mcpserver "miren.dev/runtime/servers/mcp"
)

// newMCP returns the handler of MCP for the HTTP API.
func (f *front) newMCP() (*mcpserver.Handler, error) {
	cfg := f.c.cfg.MCP
	h, err := mcpserver.NewHandler(mcpserver.HandlerOptions{
		Options: mcpserver.Options{
			Tools: cfg.Tools, NoNetwork: cfg.NoNetwork, Keep: cfg.Keep, Idle: cfg.Idle, Logger: f.c.logger.With("component", "mcp"),
		},
		Authenticate: func(r *http.Request) (*mcpserver.Caller, error) {
			c, err := f.api.Authenticate(r.Context(), api.Key(r))
			if err != nil {
				return nil, err
			}
			return &mcpserver.Caller{
				ID: mcpCaller(c.Identity), Client: c.Client, Project: c.Project(), Expires: c.Identity.Expires, Release: c.Release,
			}, nil
		},
	})
	return h, errs.Wrap(err, "mcp.tools")
}

// mcpCaller names a caller: a key by its id, and the holder of a token, which has none, by what
// the token permits.
func mcpCaller(id rpc.Identity) string {
	return cmp.Or(id.Key, strings.Join(append([]string{id.Name}, id.Roles...), " "))
}
