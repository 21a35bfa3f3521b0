package etcdstore

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics have the names of those of pgstore, as far as there is the same.
type metrics struct {
	batchSize     prometheus.Histogram
	commitSeconds prometheus.Histogram
	ambiguous     prometheus.Counter
	expired       prometheus.Counter
	watchers      prometheus.Gauge
	wakes         prometheus.Counter
	floor         prometheus.Gauge
	appends       prometheus.Counter
	appendSeconds prometheus.Histogram
}

func newMetrics() *metrics {
	name := func(n string) string { return "runtime_store_" + n }
	seconds := prometheus.ExponentialBuckets(0.0005, 2, 15)
	return &metrics{
		batchSize: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name("batch_transactions"), Help: "Client transactions in one database transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 9)}),
		commitSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name("commit_seconds"), Help: "Time from taking a batch to its commit.", Buckets: seconds}),
		ambiguous: prometheus.NewCounter(prometheus.CounterOpts{Name: name("ambiguous_commits_total"), Help: "Commits that were not answered."}),
		expired:   prometheus.NewCounter(prometheus.CounterOpts{Name: name("leases_lapsed_total"), Help: "Leases that lapsed."}),
		watchers:  prometheus.NewGauge(prometheus.GaugeOpts{Name: name("watchers"), Help: "Open watches."}),
		wakes:     prometheus.NewCounter(prometheus.CounterOpts{Name: name("watch_wakes_total"), Help: "Times that a waiting watch was woken by a change it selects."}),
		floor:     prometheus.NewGauge(prometheus.GaugeOpts{Name: name("compacted_revision"), Help: "Oldest revision that can be resumed from."}),
		appends:   prometheus.NewCounter(prometheus.CounterOpts{Name: name("history_records_total"), Help: "Records appended to the history."}),
		appendSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name("history_append_seconds"), Help: "Time from taking a batch of history records to its commit.", Buckets: seconds}),
	}
}

func (m *metrics) batch(n int, d time.Duration) {
	m.batchSize.Observe(float64(n))
	m.commitSeconds.Observe(d.Seconds())
}

func (m *metrics) appended(n int, d time.Duration) {
	m.appends.Add(float64(n))
	m.appendSeconds.Observe(d.Seconds())
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.batchSize, m.commitSeconds, m.ambiguous, m.expired, m.watchers, m.wakes, m.floor, m.appends, m.appendSeconds}
}

// Describe implements prometheus.Collector.
func (s *Store) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.metrics.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (s *Store) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.metrics.all() {
		c.Collect(ch)
	}
}
