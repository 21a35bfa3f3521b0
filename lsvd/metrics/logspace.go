package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/lsvd"
)

var (
	descSpaceLimit = prometheus.NewDesc("lsvd_log_space_limit_bytes", "Space that the log files of all disks together may have.", nil, nil)
	descSpaceUsed  = prometheus.NewDesc("lsvd_log_space_used_bytes", "Space that the log files of all disks have, those kept ready included.", nil, nil)
)

// LogSpace is a prometheus.Collector of the space that logs share.
type LogSpace struct {
	stats func() lsvd.LogSpaceStats
}

// NewLogSpace collects what stats returns at each scrape; nothing while it is zero.
func NewLogSpace(stats func() lsvd.LogSpaceStats) *LogSpace { return &LogSpace{stats} }

// Describe implements prometheus.Collector.
func (c *LogSpace) Describe(ch chan<- *prometheus.Desc) {
	ch <- descSpaceLimit
	ch <- descSpaceUsed
}

// Collect implements prometheus.Collector.
func (c *LogSpace) Collect(ch chan<- prometheus.Metric) {
	s := c.stats()
	if s.Limit == 0 {
		return
	}
	ch <- prometheus.MustNewConstMetric(descSpaceLimit, prometheus.GaugeValue, float64(s.Limit))
	ch <- prometheus.MustNewConstMetric(descSpaceUsed, prometheus.GaugeValue, float64(s.Used))
}
