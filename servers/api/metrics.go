package api

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics have bounded labels: names of faces and outcomes, never keys or paths.
type metrics struct {
	seconds  *prometheus.HistogramVec // its count is that of the requests
	inflight *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "runtime_api_request_seconds", Help: "Time from a request's head to the end of its answer, by face and outcome.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10)}, []string{"face", "outcome"}),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "runtime_api_requests_in_flight", Help: "Requests that have not been answered to the end."}, []string{"face"}),
	}
	if reg != nil {
		reg.MustRegister(m.seconds, m.inflight)
	}
	return m
}

// Outcomes of a request.
const (
	outcomeOK      = "ok"
	outcomeRefused = "refused" // status 4xx
	outcomeLimited = "limited" // by the rate limit
	outcomeFailed  = "failed"  // status 5xx, or an answer that was broken off
	outcomeGone    = "gone"    // the client went before the end
)

// outcome returns the outcome of a request whose handler returned.
func outcome(ctx context.Context, status int) string {
	switch {
	case ctx.Err() != nil:
		return outcomeGone
	case status >= http.StatusInternalServerError:
		return outcomeFailed
	case status >= http.StatusBadRequest:
		return outcomeRefused
	}
	return outcomeOK
}

// face is a mounted handler with what holds for the requests of every face.
type face struct {
	s    *Server
	name string
	h    http.Handler
}

// ServeHTTP implements http.Handler.
func (f *face) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began, m := time.Now(), f.s.metrics
	if d, why := f.s.limit(r, f.h); d > 0 {
		w.Header().Set("Retry-After", retrySeconds(d))
		WriteProblem(w, why)
		m.seconds.WithLabelValues(f.name, outcomeLimited).Observe(time.Since(began).Seconds())
		return
	}
	inflight := m.inflight.WithLabelValues(f.name)
	inflight.Inc()
	result := outcomeFailed // if the handler panics
	defer func() {
		inflight.Dec()
		m.seconds.WithLabelValues(f.name, result).Observe(time.Since(began).Seconds())
	}()
	r, end := f.trace(w, r)
	status := http.StatusInternalServerError // if the handler panics
	defer func() { end(status) }()
	f.h.ServeHTTP(w, r)
	status = http.StatusOK
	if sw, ok := w.(*stallWriter); ok && sw.status != 0 {
		status = sw.status
	}
	result = outcome(r.Context(), status)
}
