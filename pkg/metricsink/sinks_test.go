package metricsink

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	remoteapi "github.com/prometheus/client_golang/exp/api/remote"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sink/target"
)

// receiver is a Prometheus: its storage behind its own handlers of both protocols.
type receiver struct {
	*httptest.Server
	db     *tsdb.DB
	header atomic.Pointer[http.Header]
	fails  atomic.Int32 // status of answers; 0: those of Prometheus
	posts  atomic.Int32
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	o := tsdb.DefaultOptions()
	db, err := tsdb.Open(t.TempDir(), nil, nil, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	mux := http.NewServeMux()
	mux.Handle("/api/v1/write", remote.NewWriteHandler(log, prometheus.NewRegistry(), db, remoteapi.MessageTypes{remoteapi.WriteV1MessageType}, false, false, false))
	cfg := config.DefaultConfig
	cfg.OTLPConfig.PromoteResourceAttributes = []string{"service.namespace", "runtime.project", "runtime.node", "service.instance.id", "runtime.installation"}
	mux.Handle("/v1/metrics", remote.NewOTLPWriteHandler(log, prometheus.NewRegistry(), db, func() config.Config { return cfg }, remote.OTLPOptions{}))
	r := &receiver{db: db}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := req.Header.Clone()
		r.header.Store(&h)
		r.posts.Add(1)
		if code := r.fails.Load(); code != 0 {
			http.Error(w, "the test refuses", int(code))
			return
		}
		mux.ServeHTTP(w, req)
	}))
	t.Cleanup(func() {
		r.Server.Close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// query returns the value of a series of the receiver at a time.
func (r *receiver) query(t *testing.T, query string, at time.Time) promql.Vector {
	t.Helper()
	e := promql.NewEngine(promql.EngineOpts{MaxSamples: 100_000, Timeout: time.Minute, LookbackDelta: time.Second})
	defer e.Close()
	q, err := e.NewInstantQuery(t.Context(), r.db, nil, query, at)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	v, err := q.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

var kinds = []string{"otlp", "prometheus"}

// Prometheus's own receivers have what both sinks send, with its labels.
func TestReceivedByPrometheus(t *testing.T) {
	at := time.Now().Truncate(time.Millisecond)
	labels := map[string]string{"project": "default", "app": "shop", "service": "web", "sandbox": "sb-1", "node": "node-1", "installation": "inst"}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			r := newReceiver(t)
			file := filepath.Join(t.TempDir(), "headers")
			if err := os.WriteFile(file, []byte("Authorization: Bearer abc\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := New(kind + "+" + r.URL + "?headers_file=" + file)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			samples := []Sample{
				{Name: "runtime_sandbox_memory_bytes", Labels: labels, At: at, Value: 5 << 20},
				{Name: "runtime_sandbox_cpu_seconds_total", Labels: labels, At: at, Value: 7.5, Start: at.Add(-time.Minute)},
				{Name: "runtime_ingress_requests_total", Labels: map[string]string{"project": "default", "app": "shop", "service": "web", "code": "2xx", "installation": "inst"}, At: at, Value: 3, Start: at},
			}
			for range 2 { // what is sent again is the same
				if err := s.Send(t.Context(), samples); err != nil {
					t.Fatal(err)
				}
			}
			if got := r.header.Load().Get("Authorization"); got != "Bearer abc" {
				t.Errorf("Authorization: %q", got)
			}
			sandbox := map[string]string{"otlp": `service_namespace="shop", service_instance_id="sb-1", runtime_project="default"`, "prometheus": `app="shop", sandbox="sb-1", project="default"`}[kind]
			for query, want := range map[string]float64{
				`runtime_sandbox_memory_bytes{` + sandbox + `}`:      5 << 20,
				`runtime_sandbox_cpu_seconds_total{` + sandbox + `}`: 7.5,
				`runtime_ingress_requests_total{code="2xx"}`:         3,
			} {
				if got := r.query(t, query, at); len(got) != 1 || got[0].F != want {
					t.Errorf("%s is %v, want %v", query, got, want)
				}
			}
			r.fails.Store(http.StatusBadRequest)
			if err := s.Send(t.Context(), samples); !errs.Is(err, errs.InvalidArgument) {
				t.Errorf("refused: %v", err)
			}
			r.fails.Store(http.StatusServiceUnavailable)
			if err := s.Send(t.Context(), samples); !errs.Is(err, errs.Unavailable) {
				t.Errorf("unavailable: %v", err)
			}
		})
	}
}

// TestStatuses: what is sent again after an answer. OTLP names the statuses, and remote write has all of 5xx and 429.
func TestStatuses(t *testing.T) {
	r := newReceiver(t)
	for kind, again := range map[string][]int32{
		"otlp":       {429, 502, 503, 504},
		"prometheus": {429, 500, 501, 502, 503, 504},
	} {
		s, err := New(kind + "+" + r.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, code := range []int32{400, 401, 403, 404, 408, 413, 422, 429, 500, 501, 502, 503, 504} {
			r.fails.Store(code)
			want := errs.InvalidArgument
			if slices.Contains(again, code) {
				want = errs.Unavailable
			}
			if err := s.Send(t.Context(), []Sample{{Name: "runtime_node_processes", At: time.Now(), Value: 1}}); !errs.Is(err, want) {
				t.Errorf("%s, %d: %s (%v), want %s", kind, code, errs.ClassOf(err), err, want)
			}
		}
	}
}

func TestTargets(t *testing.T) {
	for url, want := range map[string]string{
		"otlp+https://collector:4318":            "https://collector:4318/v1/metrics",
		"otlp+http://collector/x":                "http://collector/x",
		"prometheus+http://p:9090":               "http://p:9090/api/v1/write",
		"prometheus+https://mimir/api/v1/push":   "https://mimir/api/v1/push",
		"prometheus+https://m?headers_file=/a/b": "https://m/api/v1/write",
	} {
		if p, err := target.ParseMetrics(url); err != nil || p.URL != want {
			t.Errorf("%s: %+v, %v", url, p, err)
		}
	}
	for url, want := range map[string]string{
		"syslog+udp://host":           "neither",
		"http://host":                 "neither",
		"otlp+http://":                "names no server",
		"otlp+http://u:p@host":        "password",
		"prometheus+http://host?x=1":  "unknown parameter",
		"clickhouse+http://host/d/t":  "neither",
		"prometheus+tcp://host":       "neither",
		"otlp+http://[bad":            "no URL",
		"otlp+https://h?ca_file=x&y=": "unknown parameter",
	} {
		if _, err := target.ParseMetrics(url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}
