package server

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logsink"
	"miren.dev/runtime/pkg/sink/target"
)

// logSinks are the systems to which the kept output of apps is sent.
type logSinks struct {
	list atomic.Pointer[[]namedSink]
}

type namedSink struct {
	name string
	*logsink.Delivery
}

func (s *logSinks) load() []namedSink {
	if l := s.list.Load(); l != nil {
		return *l
	}
	return nil
}

// expired counts lines that were deleted before they were sent.
func (s *logSinks) expired(log string, segment, lines int64) {
	for _, d := range s.load() {
		d.Expired(log, segment, lines)
	}
}

// open makes the deliveries of the configuration.
func (s *logSinks) open(m *machine, store entity.Store, reg prometheus.Registerer) error {
	var list []namedSink
	for _, url := range m.cfg.Logs.Sinks {
		name := target.Name(url)
		sink, err := logsink.New(url, m.in.ID)
		if err != nil {
			return errs.Wrap(err, "logs.sinks")
		}
		dir := m.in.State("logs", "sinks")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return errs.New(errs.Unavailable, "directory of log sinks: %w", err)
		}
		d, err := logsink.NewDelivery(logsink.Config{
			Name: name, Sink: sink, Logs: m.appLogs, File: m.in.State("logs", "sinks", name+".json"), Logger: m.logger.With("component", "log sinks"),
			Owner: func(ctx context.Context, log string) (project, name string, err error) {
				return ownerOfLog(ctx, store, log)
			},
		})
		if err != nil {
			return err
		}
		list = append(list, namedSink{name, d})
		err = countSink(reg, "logs.sinks", name, prometheus.CounterOpts{
			Name: "runtime_log_sink_lines_total", Help: "Lines of apps by what became of them: sent, refused by the sink, or lost: deleted before they were sent.",
		}, map[string]func() int64{
			"sent":    func() int64 { return d.Stats().Sent },
			"refused": func() int64 { return d.Stats().Refused },
			"lost":    func() int64 { return d.Stats().Lost },
		})
		if err != nil {
			return err
		}
	}
	s.list.Store(&list)
	return nil
}

// countSink registers the counters of a sink of a setting, by outcome. InvalidArgument if the setting names it twice.
func countSink(reg prometheus.Registerer, setting, name string, o prometheus.CounterOpts, outcomes map[string]func() int64) error {
	for what, value := range outcomes {
		o.ConstLabels = prometheus.Labels{"sink": name, "outcome": what}
		if err := reg.Register(prometheus.NewCounterFunc(o, func() float64 { return float64(value()) })); err != nil {
			return errs.New(errs.InvalidArgument, "%s: %s is there twice", setting, name)
		}
	}
	return nil
}

// ownerOfLog returns the names of the project and the app of a log.
func ownerOfLog(ctx context.Context, store entity.Store, log string) (project, name string, err error) {
	a, err := entity.Get[app.App](ctx, store, id.App(log))
	if err != nil {
		return "", "", err
	}
	project, err = projects.Of(ctx, store, app.KindApp, a.ID)
	return project, a.Name, err
}

// status returns the state of each. One that fails does not make the server unready.
func (s *logSinks) status() (out []server.ComponentStatus) {
	for _, d := range s.load() {
		st := d.Stats()
		c := server.ComponentStatus{Name: d.name, Health: server.HealthOk}
		if st.Error != "" {
			c.Health, c.Message = server.HealthFailed, "log sink: "+st.Error
		}
		if st.Lost > 0 || st.Refused > 0 {
			if c.Message != "" {
				c.Message += "; "
			}
			c.Message += fmt.Sprintf("%d lines lost, %d refused", st.Lost, st.Refused)
		}
		out = append(out, c)
	}
	return out
}
