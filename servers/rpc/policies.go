package rpcserver

import (
	"context"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/domain/policies"
)

// policyHandler serves core.Policies.
type policyHandler struct{ policies *policies.Store }

// Policies serves s to its callers.
func Policies(s *policies.Store) core.Policies { return &policyHandler{s} }

func (h *policyHandler) Show(ctx context.Context, req *core.PolicyRequest) (*core.PolicyResponse, error) {
	return h.policies.Show(ctx, req.Project)
}

func (h *policyHandler) Set(ctx context.Context, req *core.SetPolicyRequest) (*core.PolicyResponse, error) {
	return h.policies.Set(ctx, req.Project, req.Policy)
}

func (h *policyHandler) Clear(ctx context.Context, req *core.ClearPolicyRequest) (*core.PolicyResponse, error) {
	return h.policies.Clear(ctx, req.Project, req.Rules)
}

func (h *policyHandler) Report(ctx context.Context, req *core.PolicyReportRequest) (*core.PolicyReport, error) {
	names, err := historyProjects(ctx, req.Project)
	if err != nil {
		return nil, err
	}
	return h.policies.Report(ctx, names)
}
