// Package metrics shows what open disks do: it counts the operations that
// frontends ask of a disk, those that the disk asks of its store, and gives
// them with the disk's own figures to Prometheus. Labels are bounded: the
// volume, the frontend (nbd or block), the kind of operation and the class of
// its result.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/lsvd"
)

// Sample is one open disk at the moment of a scrape.
type Sample struct {
	Volume    string // label: its name, or ID
	Stats     lsvd.Stats
	Frontends map[string]*Disk // by kind
	Store     *Store
	Up        bool // it can be used
}

// Collector is a prometheus.Collector of all disks of a process.
type Collector struct {
	samples func() []Sample
}

// NewCollector collects what samples returns at each scrape. No two samples
// may have the same volume.
func NewCollector(samples func() []Sample) *Collector { return &Collector{samples} }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lsvd_"+name, help, append([]string{"volume"}, labels...), nil)
}

var (
	descUp       = desc("up", "1 if the disk can be used, 0 if it is closed or has failed.")
	descLag      = desc("lag_seconds", "Age of the oldest acknowledged write that the store does not have yet.")
	descUnsent   = desc("unsent_bytes", "Acknowledged bytes that the store does not have yet.")
	descWritten  = desc("written_bytes_total", "Bytes written to the disk since it was opened.")
	descStored   = desc("stored_bytes_total", "Bytes created in the store since the disk was opened, by origin.", "origin")
	descAmp      = desc("write_amplification", "Bytes brought to the store and moved there per byte written, before compression, since the disk was opened.")
	descLive     = desc("live_bytes", "Bytes of segments that the disk uses.")
	descHeld     = desc("segment_bytes", "Bytes that the segments hold, in use or not, uncompressed.")
	descSegments = desc("segments", "Segments of the disk.")
	descLog      = desc("log_bytes", "Space of log files in use.")
	descLogFull  = desc("log_full", "1 while writes wait for room in the log.")
	descHits     = desc("cache_hits_total", "Reads of a frame that the cache had.")
	descMisses   = desc("cache_misses_total", "Reads of a frame that the cache did not have.")
	descCache    = desc("cache_bytes", "Memory that the cache uses.")
	descDiskHits = desc("cache_disk_hits_total", "Of the reads that memory did not have, those that the disk cache had.")
	descFetched  = desc("store_read_bytes_total", "Bytes of segments read from the store.")
	descAhead    = desc("read_ahead_bytes_total", "Bytes brought in before they were asked for.")
	descRetries  = desc("store_retries_total", "Operations on the store that were tried again.")
	descQueue    = desc("committer_queue", "Operations that wait to be logged.")
	descMap      = desc("map_bytes", "Memory that the map uses, about.")
	descMoved    = desc("gc_moved_bytes_total", "Bytes that garbage collection moved, uncompressed.")
	descOps      = desc("operation_seconds", "Time that operations took.", "frontend", "op")
	descOpBytes  = desc("operation_bytes_total", "Bytes that operations moved or cleared.", "frontend", "op")
	descOpErrors = desc("operation_errors_total", "Operations that failed.", "frontend", "op")
	descBusy     = desc("operations_in_flight", "Operations under way: the queue of the frontend.", "frontend")
	descStoreOps = desc("store_requests_total", "Requests to the store, by result.", "op", "result")
	descStoreSec = desc("store_request_seconds", "Time that requests to the store took.", "op")
)

var all = []*prometheus.Desc{descUp, descLag, descUnsent, descWritten, descStored, descAmp, descLive, descHeld, descSegments, descLog, descLogFull, descHits, descMisses,
	descCache, descDiskHits, descFetched, descAhead, descRetries, descQueue, descMap, descMoved, descOps, descOpBytes, descOpErrors, descBusy, descStoreOps, descStoreSec}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range all {
		ch <- d
	}
}

// Amplification is how much of the disk was brought to the store and moved
// there per byte written, before compression.
func Amplification(s lsvd.Stats) float64 {
	if s.Written == 0 {
		return 0
	}
	return float64(s.Published+s.Moved) / float64(s.Written)
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.samples() {
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{s.Volume}, labels...)...)
		}
		count := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, append([]string{s.Volume}, labels...)...)
		}
		truth := func(d *prometheus.Desc, v bool) {
			if v {
				gauge(d, 1)
			} else {
				gauge(d, 0)
			}
		}
		truth(descUp, s.Up)
		x := s.Stats
		truth(descLogFull, x.LogFull)
		gauge(descLag, x.Lag.Seconds())
		gauge(descUnsent, float64(x.UnsentBytes))
		count(descWritten, float64(x.Written))
		count(descStored, float64(x.Stored-x.StoredGC-x.StoredMap), "writes")
		count(descStored, float64(x.StoredMap), "map")
		count(descStored, float64(x.StoredGC), "gc")
		gauge(descAmp, Amplification(x))
		gauge(descLive, float64(x.LiveBlocks*lsvd.BlockSize))
		gauge(descHeld, float64(x.StoredBlocks*lsvd.BlockSize))
		gauge(descSegments, float64(x.Segments))
		gauge(descLog, float64(x.LogBytes))
		count(descHits, float64(x.CacheHits))
		count(descMisses, float64(x.CacheMisses))
		gauge(descCache, float64(x.CacheBytes))
		gauge(descQueue, float64(x.Queue))
		gauge(descMap, float64(x.MapBytes))
		count(descMoved, float64(x.Moved))
		count(descDiskHits, float64(x.CacheDiskHits))
		count(descFetched, float64(x.StoreReadBytes))
		count(descAhead, float64(x.ReadAhead))
		count(descRetries, float64(x.StoreFailures))
		histogram := func(d *prometheus.Desc, h Counts, labels ...string) {
			ch <- prometheus.MustNewConstHistogram(d, h.Count, h.Sum.Seconds(), h.cumulative(), append([]string{s.Volume}, labels...)...)
		}
		for kind, f := range s.Frontends {
			gauge(descBusy, float64(f.Busy()), kind)
			for _, op := range Ops() {
				figures := f.Figures(op)
				histogram(descOps, figures.Latency, kind, op.String())
				count(descOpBytes, float64(figures.Bytes), kind, op.String())
				count(descOpErrors, float64(figures.Errors), kind, op.String())
			}
		}
		if s.Store == nil {
			continue
		}
		for r, n := range s.Store.requests() {
			count(descStoreOps, float64(n), storeOpNames[r.op], r.result)
		}
		for op := range storeOps {
			histogram(descStoreSec, s.Store.time[op].Counts(), storeOpNames[op])
		}
	}
}
