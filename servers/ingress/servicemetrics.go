package ingress

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/pkg/schema"
)

// serviceMetrics are the metrics of services, from which the server keeps a history.
// They name apps by id, since names are unique in a project only.
type serviceMetrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	inflight *prometheus.GaugeVec
}

func newServiceMetrics(reg prometheus.Registerer) *serviceMetrics {
	m := &serviceMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runtime_ingress_service_requests_total", Help: "Requests that ended, by service and class of status."}, []string{"app_id", "service", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "runtime_ingress_service_request_seconds", Help: "Time from a request's head to the end of its answer, with waiting, by service.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}, []string{"app_id", "service"}),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "runtime_ingress_service_requests_in_flight", Help: "Requests that sandboxes of a service work on."}, []string{"app_id", "service"}),
	}
	if reg != nil {
		reg.MustRegister(m.requests, m.seconds, m.inflight)
	}
	return m
}

// serviceStats are the metrics of one service; nil of none.
type serviceStats struct {
	requests [6]prometheus.Counter // by status/100; 0: the client disconnected
	seconds  prometheus.Observer
	inflight prometheus.Gauge
}

// service returns the metrics of a service of the app, which those who hold the
// registry's lock ask for.
func (s *appState) service(m *serviceMetrics, name string) *serviceStats {
	if st := s.services[name]; st != nil {
		return st
	}
	id := string(s.id)
	st := &serviceStats{seconds: m.seconds.WithLabelValues(id, name), inflight: m.inflight.WithLabelValues(id, name)}
	for i, c := range classes {
		st.requests[i] = m.requests.WithLabelValues(id, name, c)
	}
	if s.services == nil {
		s.services = map[string]*serviceStats{}
	}
	s.services[name] = st
	return st
}

// add counts a request that sandboxes work on (1), or no longer do (-1).
func (s *serviceStats) add(n float64) {
	if s != nil {
		s.inflight.Add(n)
	}
}

func (s *serviceStats) ended(status int, took time.Duration) {
	if s == nil {
		return
	}
	if status < 100 || status > 599 {
		status = 0
	}
	s.requests[status/100].Inc()
	s.seconds.Observe(took.Seconds())
}

// forget drops the metrics of the services of an app.
func (m *serviceMetrics) forget(app schema.ID) {
	l := prometheus.Labels{"app_id": string(app)}
	m.requests.DeletePartialMatch(l)
	m.seconds.DeletePartialMatch(l)
	m.inflight.DeletePartialMatch(l)
}
