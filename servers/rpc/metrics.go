package rpcserver

import (
	"context"

	"miren.dev/runtime/api/metric"
	"miren.dev/runtime/domain/metrics"
	"miren.dev/runtime/pkg/opt"
)

// metricHandler serves metric.Metrics.
type metricHandler struct{ metrics *metrics.Service }

// Metrics serves s to its callers.
func Metrics(s *metrics.Service) metric.Metrics { return &metricHandler{s} }

func (h *metricHandler) App(ctx context.Context, req *metric.AppRequest) (*metric.Response, error) {
	return h.metrics.App(ctx, req.Project, req.App, req.Service, metricRange(req.Range))
}

func (h *metricHandler) Sandbox(ctx context.Context, req *metric.SandboxRequest) (*metric.Response, error) {
	return h.metrics.Sandbox(ctx, req.Sandbox, metricRange(req.Range))
}

func (h *metricHandler) Node(ctx context.Context, req *metric.NodeRequest) (*metric.Response, error) {
	return h.metrics.Node(ctx, req.Node, metricRange(req.Range))
}

func metricRange(r *metric.Range) metrics.Range {
	if r == nil {
		return metrics.Range{}
	}
	return metrics.Range{From: opt.Value(r.From), To: opt.Value(r.To), Step: opt.Value(r.Step)}
}
