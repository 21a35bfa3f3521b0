package server

import (
	"context"
	"log/slog"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/traced"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/trace/otlp"
	"miren.dev/runtime/pkg/version"
)

// openTraces returns what sends the traces of a process; nil if none are to be made.
func openTraces(ctx context.Context, cfg *config.Config, service, instance string, log *slog.Logger) (*otlp.Exporter, error) {
	t := cfg.Traces
	if t.Endpoint == "" {
		return nil, nil
	}
	share, err := strconv.ParseFloat(t.Sample, 64)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "traces.sample: %q is not a number from 0 to 1", t.Sample)
	}
	return otlp.New(ctx, otlp.Config{
		Endpoint: t.Endpoint, HeadersFile: t.HeadersFile, Sample: share, Service: service, ID: instance, Version: version.Version,
		Logger: log.With("component", "traces"),
	})
}

// tracedStore is a store whose operations are spans.
type tracedStore struct {
	entity.Store
	entity.History
	prometheus.Collector
	database
}

// traceStore returns s, whose operations are spans from now on.
func traceStore(s entityStore) entityStore { return tracedStore{traced.New(s), s, s, s} }
