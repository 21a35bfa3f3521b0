package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"miren.dev/runtime/api/ingress"
)

// ingressMetricsTimeout bounds how long the ingress process may take to tell its
// metrics.
const ingressMetricsTimeout = 2 * time.Second

// withIngress returns the metrics of the server and those of the ingress process
// with this admin socket. While that cannot be asked its metrics are missing.
func withIngress(reg prometheus.Gatherer, socket string) prometheus.Gatherer {
	return prometheus.Gatherers{reg, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		ctx, cancel := context.WithTimeout(context.Background(), ingressMetricsTimeout)
		defer cancel()
		body, err := ingress.Client{Socket: socket}.Metrics(ctx)
		if err != nil {
			return nil, nil // `r server status` says why
		}
		defer body.Close()
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(body)
		if err != nil {
			return nil, err
		}
		out := make([]*dto.MetricFamily, 0, len(families))
		for _, f := range families {
			out = append(out, f)
		}
		return out, nil
	})}
}
