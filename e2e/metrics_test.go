package e2e

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"

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

// logSink is a server that takes lines of logs as ClickHouse does.
type logSink struct {
	url string
	mu  sync.Mutex
	got strings.Builder
}

func newLogSink(t *testing.T) *logSink {
	s := &logSink{}
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, err := io.Copy(&s.got, body); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(srv.Close)
	s.url = "clickhouse+" + srv.URL + "/logs/lines"
	return s
}

// newMetricsSink is a server that takes samples by OTLP. It keeps a line for each metric: service.name and name.
func newMetricsSink(t *testing.T) *logSink {
	s := &logSink{}
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var req collector.ExportMetricsServiceRequest
		body, err := gzip.NewReader(r.Body)
		if err == nil {
			var b []byte
			if b, err = io.ReadAll(body); err == nil {
				err = proto.Unmarshal(b, &req)
			}
		}
		if err != nil {
			t.Error(err)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, of := range req.ResourceMetrics {
			service := ""
			for _, a := range of.Resource.Attributes {
				if a.Key == "service.name" {
					service = a.Value.GetStringValue()
				}
			}
			for _, m := range of.ScopeMetrics[0].Metrics {
				fmt.Fprintln(&s.got, service, m.Name)
			}
		}
	}))
	t.Cleanup(srv.Close)
	s.url = "otlp+" + srv.URL
	return s
}

// has waits until the sink has lines with texts.
func (s *logSink) has(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		wait.For(t, "the sink has "+text, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return strings.Contains(s.got.String(), text)
		})
	}
}
