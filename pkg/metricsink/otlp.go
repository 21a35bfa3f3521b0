package metricsink

import (
	"context"
	"maps"
	"slices"
	"strings"

	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sink"
	"miren.dev/runtime/pkg/sink/httpsink"
)

// otlp sends to a collector of OpenTelemetry. A resource is what the samples are of: a
// sandbox, a service, or a node.
type otlp struct {
	*httpsink.Client
	url string
}

func (s *otlp) Send(ctx context.Context, samples []Sample) error {
	body, err := proto.Marshal(request(samples))
	if err != nil {
		return errs.New(errs.InvalidArgument, "encode: %w", err)
	}
	answer, err := s.PostGzip(ctx, s.url, "application/x-protobuf", body)
	if err != nil {
		return err
	}
	var resp collector.ExportMetricsServiceResponse
	if err := proto.Unmarshal(answer, &resp); err == nil && resp.GetPartialSuccess().GetRejectedDataPoints() > 0 {
		// The protocol says that what was rejected must not be sent again.
		return &sink.Refused{N: resp.GetPartialSuccess().GetRejectedDataPoints(), What: "samples", Message: resp.GetPartialSuccess().GetErrorMessage()}
	}
	return nil
}

// resourceLabels are the labels that are attributes of the resource, by these names.
var resourceLabels = map[string]string{
	"app": "service.namespace", "sandbox": "service.instance.id", "project": "runtime.project", "node": "runtime.node", "installation": "runtime.installation",
}

func request(samples []Sample) *collector.ExportMetricsServiceRequest {
	out := &collector.ExportMetricsServiceRequest{}
	type group struct {
		scope   *metrics.ScopeMetrics
		metrics map[string]*metrics.Metric
	}
	groups := map[string]*group{}
	for i := range samples {
		x := &samples[i]
		of, point := attributes(x)
		key := ""
		for _, a := range of {
			key += a.Key + "\x00" + a.Value.GetStringValue() + "\x00"
		}
		g := groups[key]
		if g == nil {
			g = &group{scope: &metrics.ScopeMetrics{}, metrics: map[string]*metrics.Metric{}}
			groups[key] = g
			out.ResourceMetrics = append(out.ResourceMetrics, &metrics.ResourceMetrics{
				Resource: &resource.Resource{Attributes: of}, ScopeMetrics: []*metrics.ScopeMetrics{g.scope},
			})
		}
		m := g.metrics[x.Name]
		if m == nil {
			m = empty(x)
			g.metrics[x.Name] = m
			g.scope.Metrics = append(g.scope.Metrics, m)
		}
		p := &metrics.NumberDataPoint{
			TimeUnixNano: uint64(max(0, x.At.UnixNano())), Attributes: point, Value: &metrics.NumberDataPoint_AsDouble{AsDouble: x.Value},
		}
		if sum := m.GetSum(); sum != nil {
			p.StartTimeUnixNano = uint64(max(0, x.Start.UnixNano()))
			sum.DataPoints = append(sum.DataPoints, p)
		} else {
			m.GetGauge().DataPoints = append(m.GetGauge().DataPoints, p)
		}
	}
	return out
}

// empty is the metric of a sample without points.
func empty(x *Sample) *metrics.Metric {
	m := &metrics.Metric{Name: x.Name, Unit: unit(x.Name)}
	if x.counts() {
		m.Data = &metrics.Metric_Sum{Sum: &metrics.Sum{IsMonotonic: true, AggregationTemporality: metrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE}}
	} else {
		m.Data = &metrics.Metric_Gauge{Gauge: &metrics.Gauge{}}
	}
	return m
}

// unit is that of the values of a metric, in UCUM.
func unit(name string) string {
	name = strings.TrimSuffix(name, "_total")
	switch {
	case strings.HasSuffix(name, "_bytes"):
		return "By"
	case strings.HasSuffix(name, "_seconds"):
		return "s"
	}
	return "1"
}

// attributes are those of the resource of a sample, and those of the sample.
func attributes(x *Sample) (of, point []*common.KeyValue) {
	for _, k := range slices.Sorted(maps.Keys(x.Labels)) {
		if name, ok := resourceLabels[k]; ok {
			of = append(of, text(name, x.Labels[k]))
		} else if k != "service" {
			point = append(point, text(k, x.Labels[k]))
		}
	}
	switch app, service := x.Labels["app"], x.Labels["service"]; {
	case app != "" && service != "":
		of = append(of, text("service.name", app+"-"+service))
	case app != "":
		of = append(of, text("service.name", app))
	}
	return of, point
}

func text(k, v string) *common.KeyValue {
	return &common.KeyValue{Key: k, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: strings.ToValidUTF8(v, "\uFFFD")}}}
}
