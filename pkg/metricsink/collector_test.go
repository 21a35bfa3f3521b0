package metricsink

import (
	"context"
	"fmt"
	"testing"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"

	"miren.dev/runtime/testsupport/otelcoltest"
	"miren.dev/runtime/testsupport/wait"
)

// point is a sample as a collector received it.
type point struct {
	of, attributes map[string]string // of its resource, and of itself
	name, unit     string
	kind           string    // counter, gauge, or what else
	start, at      time.Time // start: the zero time if there is none
	value          float64
}

func points(t *testing.T, c *otelcoltest.Collector) (out []point) {
	t.Helper()
	for _, req := range c.Metrics(t) {
		for _, r := range req.ResourceMetrics {
			for _, scope := range r.ScopeMetrics {
				for _, m := range scope.Metrics {
					kind, list := "gauge", m.GetGauge().GetDataPoints()
					if sum := m.GetSum(); sum != nil {
						kind, list = fmt.Sprintf("sum, monotonic %v, %v", sum.IsMonotonic, sum.AggregationTemporality), sum.DataPoints
					}
					if kind == counter {
						kind = "counter"
					}
					for _, p := range list {
						var start time.Time
						if p.StartTimeUnixNano != 0 {
							start = time.Unix(0, int64(p.StartTimeUnixNano))
						}
						out = append(out, point{
							attributesOf(r.Resource.GetAttributes()), attributesOf(p.Attributes), m.Name, m.Unit, kind, start, time.Unix(0, int64(p.TimeUnixNano)), p.GetAsDouble(),
						})
					}
				}
			}
		}
	}
	return out
}

var counter = fmt.Sprintf("sum, monotonic true, %v", metrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE)

func attributesOf(list []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range list {
		out[a.Key] = a.Value.GetStringValue()
	}
	return out
}

// TestCollector: an OpenTelemetry Collector has of each sample its value, time, kind, unit and what it is of.
func TestCollector(t *testing.T) {
	c := otelcoltest.Start(t)
	s, err := New("otlp+http://" + c.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	at := time.Now().Truncate(time.Millisecond)
	sandbox := map[string]string{"project": "default", "app": "shop", "service": "web", "sandbox": "sb-1", "node": "node-1", "installation": "inst"}
	ofSandbox := map[string]string{
		"service.namespace": "shop", "service.name": "shop-web", "service.instance.id": "sb-1", "runtime.project": "default", "runtime.node": "node-1", "runtime.installation": "inst",
	}
	service := func(more ...string) map[string]string {
		labels := map[string]string{"project": "default", "app": "shop", "service": "web", "installation": "inst"}
		if len(more) > 0 {
			labels[more[0]] = more[1]
		}
		return labels
	}
	ofService := map[string]string{"service.namespace": "shop", "service.name": "shop-web", "runtime.project": "default", "runtime.installation": "inst"}
	start, none := at.Add(-time.Hour), time.Time{}
	samples := []Sample{
		{"runtime_sandbox_cpu_seconds_total", sandbox, start, at, 7.25},
		{"runtime_sandbox_memory_bytes", sandbox, none, at, 5 << 40},
		{"runtime_sandbox_processes", sandbox, none, at, 0},
		{"runtime_node_disk_bytes", map[string]string{"node": "node-1", "installation": "inst"}, none, at, 1e15},
		{"runtime_ingress_requests_total", service("code", "2xx"), start, at, 3},
		{"runtime_ingress_requests_total", service("code", "5xx"), start, at, 1},
		{"runtime_ingress_request_seconds_bucket", service("le", "+Inf"), start, at, 4},
		{"runtime_ingress_requests_in_flight", service(), none, at, 2},
	}
	want := []point{
		{ofSandbox, nil, samples[0].Name, "s", "counter", start, at, 7.25},
		{ofSandbox, nil, samples[1].Name, "By", "gauge", none, at, 5 << 40},
		{ofSandbox, nil, samples[2].Name, "1", "gauge", none, at, 0},
		{map[string]string{"runtime.node": "node-1", "runtime.installation": "inst"}, nil, samples[3].Name, "By", "gauge", none, at, 1e15},
		{ofService, map[string]string{"code": "2xx"}, samples[4].Name, "1", "counter", start, at, 3},
		{ofService, map[string]string{"code": "5xx"}, samples[5].Name, "1", "counter", start, at, 1},
		{ofService, map[string]string{"le": "+Inf"}, samples[6].Name, "1", "counter", start, at, 4},
		{ofService, nil, samples[7].Name, "1", "gauge", none, at, 2},
	}
	if err := s.Send(t.Context(), samples); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, p := range points(t, c) {
		got[fmt.Sprint(p)]++
	}
	for _, p := range want {
		if k := fmt.Sprint(p); got[k] != 1 {
			t.Errorf("%d times %s", got[k], k)
		}
		delete(got, fmt.Sprint(p))
	}
	for k := range got {
		t.Errorf("unexpected: %s", k)
	}
}

// TestKilledCollector: a collector that is killed again and again while samples are sent has those of all times at last.
// What one outage can send again are those of one time.
func TestKilledCollector(t *testing.T) {
	const kills = 3
	c := otelcoltest.Start(t)
	f := newFixture(t, "otlp")
	f.recv.URL = "http://" + c.Address
	f.round(0)
	d := f.delivery()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	rounds := 1
	more := func() {
		for range 10 {
			f.round(rounds)
			rounds++
		}
	}
	for range kills {
		n := len(points(t, c))
		more()
		wait.For(t, "samples are received", func() bool { return len(points(t, c)) > n })
		c.Kill()
		more()
		wait.For(t, "the delivery waits", func() bool { return d.Stats().Error != "" })
		c.Run(t)
	}
	more()
	wait.For(t, "all samples are answered", func() bool { return d.Stats().Sent == int64(2*(rounds-2)) })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	times := map[string]int{}
	for _, p := range points(t, c) {
		times[fmt.Sprint(p.name, p.at, p.value)]++
	}
	again := 0
	for n := 1; n < rounds-1; n++ { // the newest waits for the next
		for name, value := range map[string]float64{"runtime_sandbox_cpu_seconds_total": float64(n), "runtime_node_memory_bytes": float64(100 * n)} {
			switch k := times[fmt.Sprint(name, f.at(n), value)]; {
			case k == 0:
				t.Errorf("%s of round %d is lost", name, n)
			default:
				again += k - 1
			}
		}
	}
	if s := d.Stats(); again > 2*kills || s.Refused != 0 || s.Lost != 0 {
		t.Errorf("%d samples came again; %+v", again, s)
	}
}
