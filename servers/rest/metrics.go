package rest

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/metric"
	"miren.dev/runtime/pkg/opt"
)

// MetricSeries is the values of a metric.
type MetricSeries struct {
	Metric  string     `json:"metric" doc:"What it is: cpu, memory, processes, network_in, network_out, sandboxes, requests, latency, in_flight, disk_used." example:"cpu"`
	Unit    string     `json:"unit" enum:"cores,bytes,bytes/s,requests/s,seconds,count" doc:"Unit of the values."`
	Service string     `json:"service,omitempty" doc:"Service of the app."`
	Label   string     `json:"label,omitempty" doc:"Of requests the class of their status (2xx; gone: the client left), of latency the quantile (p50, p95, p99)."`
	Values  []*float64 `json:"values" doc:"A value for each time; null: there is none."`
}

// MetricHistory is metrics at times that have the same distance.
type MetricHistory struct {
	From        time.Time      `json:"from" doc:"Time of the first values."`
	StepSeconds float64        `json:"step_seconds" doc:"Seconds between two values."`
	Series      []MetricSeries `json:"series" doc:"Metrics that have a value."`
}

// MetricRange says for which times metrics are read.
type MetricRange struct {
	From time.Time `query:"from" doc:"Time of the first value, which is up to a step later if to or step are absent; absent: an hour before to."`
	To   time.Time `query:"to" doc:"Time of the last value; absent: now."`
	Step int64     `query:"step" minimum:"1" maximum:"31536000" doc:"Seconds between two values, of which there are at most 2,000; absent: so many that there are at most 240."`
}

func (r *MetricRange) rpc() *metric.Range {
	return &metric.Range{From: opt.Of(r.From), To: opt.Of(r.To), Step: opt.Of(time.Duration(r.Step) * time.Second)}
}

type appMetricsInput struct {
	AppInput
	MetricRange
	Service string `query:"service" maxLength:"40" doc:"Only this service."`
}

type containerMetricsInput struct {
	ContainerInput
	MetricRange
}

func registerMetrics(a huma.API) {
	register(a, op(http.MethodGet, "/apps/{app}/metrics", "get-app-metrics", "apps", "Read the history of what an app uses and serves"), appMetrics)
	register(a, op(http.MethodGet, "/containers/{id}/metrics", "get-container-metrics", "containers", "Read the history of what a container used"), containerMetrics)
}

func appMetrics(ctx context.Context, in *appMetricsInput) (*body[MetricHistory], error) {
	if _, err := findApp(ctx, in.App); err != nil {
		return nil, err
	}
	c := callerFrom(ctx)
	return metricHistory(metric.NewMetricsClient(c.Client).App(ctx, &metric.AppRequest{Project: c.Project(), App: in.App, Service: in.Service, Range: in.rpc()}))
}

func containerMetrics(ctx context.Context, in *containerMetricsInput) (*body[MetricHistory], error) {
	return metricHistory(metric.NewMetricsClient(callerFrom(ctx).Client).Sandbox(ctx, &metric.SandboxRequest{Sandbox: id.Sandbox(in.ID), Range: in.rpc()}))
}

func metricHistory(r *metric.Response, err error) (*body[MetricHistory], error) {
	if err != nil {
		return nil, err
	}
	out := MetricHistory{From: r.From, StepSeconds: r.Step.Seconds(), Series: []MetricSeries{}}
	for i := range r.Series {
		s := &r.Series[i]
		x := MetricSeries{Metric: s.Metric, Unit: s.Unit, Service: s.Service, Label: s.Label, Values: make([]*float64, len(s.Values))}
		for j := range s.Values {
			if v := s.Values[j]; !math.IsNaN(v) && !math.IsInf(v, 0) {
				x.Values[j] = &v
			}
		}
		out.Series = append(out.Series, x)
	}
	return &body[MetricHistory]{out}, nil
}
