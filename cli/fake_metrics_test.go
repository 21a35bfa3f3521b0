package cli_test

import (
	"context"
	"math"
	"time"

	"miren.dev/runtime/api/metric"
)

// fakeMetrics has some metrics of an app and of a node.
type fakeMetrics struct{}

func (fakeMetrics) App(_ context.Context, req *metric.AppRequest) (*metric.Response, error) {
	none := math.NaN()
	r := fakeHistory(
		metric.Series{Metric: "cpu", Unit: "cores", Service: "web", Values: []float64{none, 0.1, 0.4, 0.2}},
		metric.Series{Metric: "memory", Unit: "bytes", Service: "web", Values: []float64{none, 64 << 20, 80 << 20, 72 << 20}},
		metric.Series{Metric: "requests", Unit: "requests/s", Service: "web", Label: "2xx", Values: []float64{0, 12.5, 50, 25}},
		metric.Series{Metric: "latency", Unit: "seconds", Service: "web", Label: "p99", Values: []float64{none, 0.012, 1.5, none}},
	)
	if req.Service != "" && req.Service != "web" {
		r.Series = nil
	}
	return r, nil
}

func (fakeMetrics) Sandbox(context.Context, *metric.SandboxRequest) (*metric.Response, error) {
	return fakeHistory(), nil
}

func (fakeMetrics) Node(context.Context, *metric.NodeRequest) (*metric.Response, error) {
	return fakeHistory(
		metric.Series{Metric: "cpu", Unit: "cores", Values: []float64{1, 2, 3, 4}},
		metric.Series{Metric: "network_in", Unit: "bytes/s", Values: []float64{0, 2048, 1024, 0}},
	), nil
}

func fakeHistory(s ...metric.Series) *metric.Response {
	return &metric.Response{From: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC), Step: time.Minute, Series: s}
}
