package rpcserver

import (
	"strings"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/pkg/rpc"
)

// Caller describes the identity of a caller to it.
func Caller(id rpc.Identity) *server.CallerResponse {
	resp := &server.CallerResponse{Name: id.Name, How: id.How, Roles: id.Roles}
	if id.How == rpc.HowKey || id.How == rpc.HowToken {
		for _, r := range id.Roles {
			if _, project, bound := strings.Cut(r, "@"); bound {
				resp.Project = project
			}
		}
	}
	if !id.Expires.IsZero() {
		resp.ExpiresAt = &id.Expires
	}
	return resp
}
