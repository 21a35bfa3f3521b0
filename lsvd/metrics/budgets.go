package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/lsvd"
)

// Budgets is a prometheus.Collector of what disks share: space for logs, and memory.
// A function that returns zero has no figures to collect.
type Budgets struct {
	LogSpace func() lsvd.LogSpaceStats
	Memory   func() lsvd.MemoryStats
}

var (
	descSpaceLimit  = prometheus.NewDesc("lsvd_log_space_limit_bytes", "Space that the log files of all disks together may have.", nil, nil)
	descSpaceUsed   = prometheus.NewDesc("lsvd_log_space_used_bytes", "Space that the log files of all disks have, those kept ready included.", nil, nil)
	descMemoryLimit = prometheus.NewDesc("lsvd_memory_limit_bytes", "Memory that caches and maps of all disks together may have.", nil, nil)
	descMemoryUsed  = prometheus.NewDesc("lsvd_memory_used_bytes", "Memory that caches and maps of all disks have, about.", nil, nil)
)

// Describe implements prometheus.Collector.
func (b Budgets) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSpaceLimit, descSpaceUsed, descMemoryLimit, descMemoryUsed} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (b Budgets) Collect(ch chan<- prometheus.Metric) {
	space, memory := b.LogSpace(), b.Memory()
	pair := func(limit, used *prometheus.Desc, of, n int64) {
		if of > 0 {
			ch <- prometheus.MustNewConstMetric(limit, prometheus.GaugeValue, float64(of))
			ch <- prometheus.MustNewConstMetric(used, prometheus.GaugeValue, float64(n))
		}
	}
	pair(descSpaceLimit, descSpaceUsed, space.Limit, space.Used)
	pair(descMemoryLimit, descMemoryUsed, memory.Limit, memory.Used)
}
