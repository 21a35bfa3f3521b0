package server

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/metricsink"
	"miren.dev/runtime/pkg/sink/target"
)

// metricSinks are the systems to which the history of metrics is sent. The list is
// complete before the server serves.
type metricSinks struct {
	list []namedMetricSink
	err  error // why the history, and so every sink, does not work
}

type namedMetricSink struct {
	name string
	*metricsink.Delivery
}

// open makes the deliveries of the configuration.
func (s *metricSinks) open(m *machine, store entity.Store, reg prometheus.Registerer) error {
	urls := m.cfg.Metrics.Sinks
	switch {
	case len(urls) == 0:
		return nil
	case m.metricsErr != nil:
		s.err = m.metricsErr // it was logged, and the server works without
		return nil
	case m.metrics == nil:
		return errs.New(errs.InvalidArgument, "metrics.sinks: there is no history to send, for metrics.max_bytes is 0").WithHint("set metrics.max_bytes, or remove metrics.sinks")
	}
	dir := m.in.State("metrics-sinks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return errs.New(errs.Unavailable, "directory of metrics sinks: %w", err)
	}
	for _, url := range urls {
		name := target.Name(url)
		sink, err := metricsink.New(url)
		if err != nil {
			return errs.Wrap(err, "metrics.sinks")
		}
		d, err := metricsink.NewDelivery(metricsink.Config{
			Name: name, Sink: sink, Store: m.metrics, File: m.in.State("metrics-sinks", name+".json"), Installation: m.in.ID,
			Logger: m.logger.With("component", "metrics sinks"),
			Owner: func(ctx context.Context, app string) (project, name string, err error) {
				return ownerOfLog(ctx, store, app)
			},
		})
		if err != nil {
			return err
		}
		s.list = append(s.list, namedMetricSink{name, d})
		err = countSink(reg, "metrics.sinks", name, prometheus.CounterOpts{
			Name: "runtime_metrics_sink_samples_total", Help: "Samples of the history by what became of them: sent, or refused by the sink.",
		}, map[string]func() int64{
			"sent":    func() int64 { return d.Stats().Sent },
			"refused": func() int64 { return d.Stats().Refused },
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// status returns the state of each. One that fails does not make the server unready.
func (s *metricSinks) status() (out []server.ComponentStatus) {
	if s.err != nil {
		return []server.ComponentStatus{{Name: "metrics sinks", Health: server.HealthFailed, Message: "there is no history to send: " + s.err.Error()}}
	}
	for _, d := range s.list {
		st := d.Stats()
		c := server.ComponentStatus{Name: "metrics to " + d.name, Health: server.HealthOk}
		var says []string
		if st.Error != "" {
			c.Health = server.HealthFailed
			says = append(says, "metrics sink: "+st.Error)
		}
		if st.Refused > 0 {
			says = append(says, fmt.Sprintf("%d samples refused", st.Refused))
		}
		if st.Lost > 0 {
			says = append(says, fmt.Sprintf("those of %s lost", st.Lost.Round(time.Second)))
		}
		c.Message = strings.Join(says, "; ")
		out = append(out, c)
	}
	return out
}
