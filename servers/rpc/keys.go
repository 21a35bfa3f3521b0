package rpcserver

import (
	"context"
	"slices"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/domain/keys"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
)

// keyHandler serves core.Keys.
type keyHandler struct {
	keys   *keys.Service
	quotas *quotas.Store
}

// Keys serves s to its callers, and what q says is used with the keys.
func Keys(s *keys.Service, q *quotas.Store) core.Keys { return &keyHandler{s, q} }

func (h *keyHandler) Create(ctx context.Context, req *core.CreateKeyRequest) (*core.CreateKeyResponse, error) {
	// The audit log names the user for what is done with the key.
	if i := rpc.IdentityFrom(ctx); req.User != "" && req.User != i.Name && !slices.Contains(i.Roles, rpc.RoleAdmin) {
		return nil, errs.New(errs.PermissionDenied, "only administrators of the installation make keys of other users")
	}
	k, secret, err := h.keys.Create(ctx, keys.Request{
		Project: req.Project, Name: req.Name, Roles: req.Roles, TTL: opt.Value(req.TTL), By: caller(ctx), User: req.User, Rate: opt.Value(req.Rate),
		MaxSandboxes: req.MaxSandboxes, MaxExecutions: req.MaxExecutions,
	})
	if err != nil {
		return nil, err
	}
	rec, err := record(k)
	return &core.CreateKeyResponse{Key: rec, Secret: secret}, err
}

// Exchange makes a key for a caller that logged in by a token, which is valid for minutes.
func (h *keyHandler) Exchange(ctx context.Context) (*core.CreateKeyResponse, error) {
	k, secret, err := h.keys.Exchange(ctx, rpc.IdentityFrom(ctx))
	if err != nil {
		return nil, err
	}
	rec, err := record(k)
	return &core.CreateKeyResponse{Key: rec, Secret: secret}, err
}

func (h *keyHandler) Delete(ctx context.Context, req *core.KeyRequest) error {
	return h.keys.Delete(ctx, req.Project, req.Name)
}

// Show returns an API key and what is used with it.
func (h *keyHandler) Show(ctx context.Context, req *core.KeyRequest) (*core.KeyResponse, error) {
	k, used, err := h.quotas.ShowKey(ctx, req.Project, req.Name)
	if err != nil {
		return nil, err
	}
	rec, err := record(k)
	return &core.KeyResponse{Key: rec, Resources: used}, err
}
