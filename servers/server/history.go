package server

import (
	"context"
	"log/slog"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/components/hoststats"
	"miren.dev/runtime/domain/metrics"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/metricstore"
)

// openMetrics opens the history of metrics. A server that cannot keep one works
// without: the operations that read it return why.
func (m *machine) openMetrics() (closing func()) {
	if m.cfg.Metrics.MaxBytes == 0 {
		return func() {}
	}
	log := m.logger.With("component", "metrics")
	m.metrics, m.metricsErr = metricstore.Open(metricstore.Config{
		Dir: m.in.State("metrics"), MaxBytes: m.cfg.Metrics.MaxBytes, MaxAge: m.cfg.Metrics.MaxAge, Lookback: 4 * m.cfg.Metrics.Interval,
		Logger: slog.New(quiet{log.Handler()}),
	})
	if m.metricsErr != nil {
		log.Error("metrics are not kept", "error", m.metricsErr)
		return func() {}
	}
	return func() {
		if err := m.metrics.Close(); err != nil {
			log.Warn("close the history of metrics", "error", err)
		}
	}
}

// quiet drops what a library logs below a warning.
type quiet struct{ slog.Handler }

func (h quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && h.Handler.Enabled(ctx, l)
}

func (h quiet) WithAttrs(a []slog.Attr) slog.Handler { return quiet{h.Handler.WithAttrs(a)} }

func (h quiet) WithGroup(name string) slog.Handler { return quiet{h.Handler.WithGroup(name)} }

// recordMetrics takes samples of what runs, if there is a history.
func (c *control) recordMetrics(ctx context.Context, g *errgroup.Group, nodeID id.Node) {
	if c.m.metrics == nil {
		return
	}
	r := &metrics.Recorder{
		Store: c.m.metrics, Informers: c.informers, Stats: c.deps.Sandboxes.Node.Stats, Interval: c.cfg.Metrics.Interval,
		Logger: c.logger.With("component", "metrics"),
	}
	r.Hosts = func(ctx context.Context) map[id.Node]metrics.Host { return c.readHosts(ctx, nodeID) }
	if c.cfg.Ingress.HTTPAddress != "" {
		socket := ingressAdmin(c.m.in)
		r.Ingress = func(ctx context.Context) ([]*dto.MetricFamily, error) { return ingressMetrics(ctx, socket) }
	}
	g.Go(func() error { return r.Run(ctx) })
}

// readHosts reads this machine, which is a node, and those of the connected runners.
func (c *control) readHosts(ctx context.Context, this id.Node) map[id.Node]metrics.Host {
	hosts := map[id.Node]metrics.Host{}
	for node, h := range c.runners.Hosts(ctx) {
		hosts[node] = metrics.Host{
			CPUSeconds: h.CPU.Seconds(), MemoryBytes: h.MemoryBytes, Processes: h.Processes,
			ReceivedBytes: h.ReceivedBytes, SentBytes: h.SentBytes, DiskBytes: h.DiskBytes,
		}
	}
	h, err := readHost(c.m.in)
	if err != nil {
		c.logger.Warn("read the machine", "error", err)
		return hosts
	}
	hosts[this] = h
	return hosts
}

// readHost reads what the machine of an installation uses.
func readHost(in *instance.Instance) (metrics.Host, error) {
	u, err := hoststats.Read(in.StateDir, func(name string) bool { return strings.HasPrefix(name, "rt"+in.ID) })
	return metrics.Host{
		CPUSeconds: u.CPUSeconds, MemoryBytes: u.MemoryUsed, Processes: u.Processes,
		ReceivedBytes: u.ReceivedBytes, SentBytes: u.SentBytes, DiskBytes: u.DiskUsed,
	}, err
}
