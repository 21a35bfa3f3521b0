package ingress

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/pkg/schema"
)

// metrics have bounded labels: names of existing apps and classes of status
// codes; never hosts or paths.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	inflight *prometheus.GaugeVec
	held     *prometheus.GaugeVec
	failures *prometheus.CounterVec
	revision prometheus.Gauge
	refused  prometheus.Counter
	protocol *prometheus.CounterVec
	moved    *prometheus.CounterVec
	unknown  *appState // requests that match no app
	services *serviceMetrics
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runtime_ingress_requests_total", Help: "Requests that ended, by app and class of status."}, []string{"app", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "runtime_ingress_request_seconds", Help: "Time from a request's head to the end of its answer, with waiting.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)}, []string{"app"}),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "runtime_ingress_requests_in_flight", Help: "Requests that sandboxes work on."}, []string{"app"}),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "runtime_ingress_requests_held", Help: "Requests that wait for a sandbox to be ready."}, []string{"app"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runtime_ingress_sandbox_failures_total", Help: "Attempts at a sandbox that failed, by kind."}, []string{"app", "kind"}),
		revision: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "runtime_ingress_table_revision", Help: "Store revision of the route table."}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "runtime_ingress_connections_refused_total", Help: "Connections closed because there were too many."}),
		protocol: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runtime_ingress_protocol_requests_total", Help: "Requests that ended, by app and protocol of the client."}, []string{"app", "protocol"}),
		moved: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runtime_ingress_http3_forwarded_packets_total", Help: "Packets of HTTP/3 that were for a process that a takeover replaced, by outcome."}, []string{"outcome"}),
	}
	if reg != nil {
		reg.MustRegister(m.requests, m.seconds, m.inflight, m.held, m.failures, m.revision, m.refused, m.protocol, m.moved)
	}
	m.services = newServiceMetrics(reg)
	m.unknown = newAppState(App{}, m)
	return m
}

// appState holds the bounds and metrics of an app, looked up once. It outlives
// tables.
type appState struct {
	id      schema.ID
	name    string
	waiting atomic.Int64
	// services by name; the registry's lock is held.
	services map[string]*serviceStats

	requests [6]prometheus.Counter // by status/100; 0: the client disconnected
	protocol [4]prometheus.Counter // by major version
	seconds  prometheus.Observer
	inflight prometheus.Gauge
	held     prometheus.Gauge
	dial     prometheus.Counter
	stale    prometheus.Counter
	answer   prometheus.Counter
}

// protocols are the labels by major version of HTTP. HTTP/0 does not exist.
var protocols = [4]string{"http/1", "http/1", "http/2", "http/3"}

// forwarded counts a packet that was sent to the predecessor.
func (m *metrics) forwarded(taken bool) {
	outcome := "sent"
	if !taken {
		outcome = "lost"
	}
	m.moved.WithLabelValues(outcome).Inc()
}

var classes = [6]string{"gone", "1xx", "2xx", "3xx", "4xx", "5xx"}

func newAppState(a App, m *metrics) *appState {
	s := &appState{
		id: a.ID, name: a.Name,
		seconds:  m.seconds.WithLabelValues(a.Name),
		inflight: m.inflight.WithLabelValues(a.Name),
		held:     m.held.WithLabelValues(a.Name),
		dial:     m.failures.WithLabelValues(a.Name, "dial"),
		stale:    m.failures.WithLabelValues(a.Name, "stale"),
		answer:   m.failures.WithLabelValues(a.Name, "answer"),
	}
	for i, c := range classes {
		s.requests[i] = m.requests.WithLabelValues(a.Name, c)
	}
	for i, p := range protocols {
		s.protocol[i] = m.protocol.WithLabelValues(a.Name, p)
	}
	return s
}

func (s *appState) ended(status, protocol int, took time.Duration) {
	if status < 100 || status > 599 {
		status = 0
	}
	s.requests[status/100].Inc()
	s.protocol[min(max(protocol, 0), len(s.protocol)-1)].Inc()
	s.seconds.Observe(took.Seconds())
}

// forget drops the metrics of an app that was deleted.
func (s *appState) forget(m *metrics) {
	l := prometheus.Labels{"app": s.name}
	m.requests.DeletePartialMatch(l)
	m.protocol.DeletePartialMatch(l)
	m.seconds.DeletePartialMatch(l)
	m.inflight.DeletePartialMatch(l)
	m.held.DeletePartialMatch(l)
	m.failures.DeletePartialMatch(l)
	m.services.forget(s.id)
}
