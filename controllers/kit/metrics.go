package kit

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Results of a run, the values of the label "result".
const (
	resultOK       = "ok"
	resultRequeue  = "requeue"
	resultConflict = "conflict"
	resultError    = "error"
	resultTerminal = "terminal"
	resultPanic    = "panic"
)

type metrics struct {
	runs     *prometheus.CounterVec
	retries  *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	busy     *prometheus.GaugeVec
	registry prometheus.Registerer
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runtime_controller_runs_total", Help: "Reconciliations that ended, by result."}, []string{"controller", "result"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "runtime_controller_retries_total", Help: "Reconciliations that will be retried after an error."}, []string{"controller"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "runtime_controller_run_seconds", Help: "Duration of reconciliations.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10)}, []string{"controller"}),
		busy: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "runtime_controller_busy_workers", Help: "Workers that are reconciling now."}, []string{"controller"}),
		registry: reg,
	}
	if reg != nil {
		reg.MustRegister(m.runs, m.retries, m.seconds, m.busy)
	}
	return m
}

// queue publishes the lengths of a controller's queue.
func (m *metrics) queue(name string, q *Queue) {
	if m.registry == nil {
		return
	}
	labels := prometheus.Labels{"controller": name}
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "runtime_controller_queue_depth", Help: "Keys that wait for a worker.", ConstLabels: labels},
			func() float64 { return float64(q.Depth().Ready) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "runtime_controller_queue_delayed", Help: "Keys that wait for a time.", ConstLabels: labels},
			func() float64 { return float64(q.Depth().Delayed) }),
	)
}

func (m *metrics) ran(name, result string, d time.Duration) {
	m.runs.WithLabelValues(name, result).Inc()
	m.seconds.WithLabelValues(name).Observe(d.Seconds())
	if result == resultError || result == resultConflict || result == resultPanic {
		m.retries.WithLabelValues(name).Inc()
	}
}
