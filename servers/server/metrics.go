package server

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/pkg/errs"
)

// ingressMetricsTimeout bounds how long the ingress process may take to tell its
// metrics.
const ingressMetricsTimeout = 2 * time.Second

// withIngress returns the metrics of the server and those of the ingress process
// with this admin socket. While that cannot be asked its metrics are missing.
func withIngress(reg prometheus.Gatherer, socket string) prometheus.Gatherer {
	return prometheus.Gatherers{reg, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		list, err := ingressMetrics(context.Background(), socket)
		if errs.Is(err, errs.Unavailable) {
			return nil, nil // `r server status` says why
		}
		return list, err
	})}
}

// ingressMetrics reads the metrics of the ingress process. Unavailable if it cannot be
// asked.
func ingressMetrics(ctx context.Context, socket string) ([]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, ingressMetricsTimeout)
	defer cancel()
	body, err := ingress.Client{Socket: socket}.Metrics(ctx)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "metrics of the ingress: %w", err)
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return nil, errs.New(errs.Internal, "metrics of the ingress: %w", err)
	}
	return slices.Collect(maps.Values(families)), nil
}
