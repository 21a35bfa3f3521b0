package rpcserver

import (
	"context"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/domain/quotas"
)

// quotaHandler serves core.Quotas.
type quotaHandler struct{ quotas *quotas.Store }

// Quotas serves s to its callers.
func Quotas(s *quotas.Store) core.Quotas { return &quotaHandler{s} }

func (h *quotaHandler) Show(ctx context.Context, req *core.QuotaRequest) (*core.QuotaResponse, error) {
	return h.quotas.Show(ctx, req.Project)
}

func (h *quotaHandler) Set(ctx context.Context, req *core.SetQuotaRequest) (*core.QuotaResponse, error) {
	return h.quotas.Set(ctx, req.Project, req.Limits)
}
