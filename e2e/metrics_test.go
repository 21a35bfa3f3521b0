package e2e

import (
	"fmt"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/checkout"
	"miren.dev/runtime/testsupport/clickhousetest"
	"miren.dev/runtime/testsupport/otelcoltest"
	"miren.dev/runtime/testsupport/wait"
)

// testMetricsGuide: an app that was used has a history, and so has its node.
func testMetricsGuide(t *testing.T, s *server) {
	t.Helper()
	wait.For(t, "the history has what the app serves", func() bool {
		out := s.r(t, "", "app", "metrics", "shop", "--since", "10m")
		return strings.Contains(out, "memory") && strings.Contains(out, "latency p99")
	})
	var nodes []struct{ Name string }
	s.json(t, &nodes, "node", "list")
	g := newGuide(t, s, "metrics")
	g.words["NODE"] = nodes[0].Name
	g.run("r app metrics shop", "requests 2xx", "cpu")
	if out := g.run("r app metrics shop --service", "web"); strings.Contains(out, "worker") {
		t.Errorf("of one service: %s", out)
	}
	g.run("r app metrics shop --since 2h", `"step_seconds": 60`, "null")
	g.run("r node metrics", "memory", "network in", "disk used")
	g.run("r top", "shop-v1-web")
}

// sinks are a collector and a ClickHouse to which a server sends logs, metrics and traces.
type sinks struct {
	collector  *otelcoltest.Collector
	clickhouse *clickhousetest.Server
}

func startSinks(t *testing.T) *sinks {
	t.Helper()
	s := &sinks{otelcoltest.Start(t), clickhousetest.Start(t)}
	s.clickhouse.Query(t, checkout.DocBlock(t, "docs/sinks.md", "CREATE TABLE"))
	return s
}

// flags are those of a server that sends everything to both.
func (s *sinks) flags() []string {
	otlp := "http://" + s.collector.Address
	return []string{"--logs-sinks", "otlp+" + otlp + ",clickhouse+http://" + s.clickhouse.Address + "/logs/lines", "--metrics-sinks", "otlp+" + otlp, "--traces-endpoint", otlp}
}

// have waits until the sinks have what an app printed, its metrics and those of its node, and spans of the server.
func (s *sinks) have(t *testing.T, app, service, text string) {
	t.Helper()
	where := fmt.Sprintf("app = '%s' AND service = '%s' AND message LIKE '%%%s%%'", app, service, text)
	wait.For(t, "ClickHouse has what the app printed", func() bool {
		return s.clickhouse.Query(t, "SELECT count() > 0 FROM logs.lines WHERE "+where) == "1\n"
	})
	wait.For(t, "the collector has what the app printed", func() bool {
		for _, req := range s.collector.Logs(t) {
			if b := req.String(); strings.Contains(b, `"`+app+"-"+service+`"`) && strings.Contains(b, text) {
				return true
			}
		}
		return false
	})
	want := map[string]bool{app + "-" + service + " runtime_sandbox_memory_bytes": true, app + "-" + service + " runtime_ingress_requests_total": true, " runtime_node_disk_bytes": true}
	wait.For(t, "the collector has the metrics", func() bool {
		for _, req := range s.collector.Metrics(t) {
			for _, of := range req.ResourceMetrics {
				name := ""
				for _, a := range of.Resource.Attributes {
					if a.Key == "service.name" {
						name = a.Value.GetStringValue()
					}
				}
				for _, m := range of.ScopeMetrics[0].Metrics {
					delete(want, name+" "+m.Name)
				}
			}
		}
		return len(want) == 0
	}, wait.State(func() any { return want }))
	wait.For(t, "the collector has spans", func() bool { return len(s.collector.Traces(t)) > 0 })
}
