package rpcserver

import (
	"context"

	"miren.dev/runtime/api/secret"
	"miren.dev/runtime/domain/secrets"
)

// secretHandler serves secret.Secrets.
type secretHandler struct{ secrets *secrets.Service }

// Secrets serves s to its callers.
func Secrets(s *secrets.Service) secret.Secrets { return &secretHandler{s} }

func (h *secretHandler) Set(ctx context.Context, req *secret.SetSecretRequest) (*secret.SecretResponse, error) {
	sec, err := h.secrets.Set(ctx, req.Project, req.Secret, req.Value, req.Hosts)
	if err != nil {
		return nil, err
	}
	rec, err := record(sec)
	return &secret.SecretResponse{Secret: rec}, err
}

func (h *secretHandler) Delete(ctx context.Context, req *secret.SecretRequest) error {
	return h.secrets.Delete(ctx, req.Project, req.Secret)
}
