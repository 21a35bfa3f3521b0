package server

import (
	"net/http"

	"miren.dev/runtime/pkg/errs"
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
				ID: c.Identity.Key, Client: c.Client, Project: c.Project(), Expires: c.Identity.Expires, Release: c.Release,
			}, nil
		},
	})
	return h, errs.Wrap(err, "mcp.tools")
}
