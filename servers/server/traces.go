package server

import (
	"context"
	"log/slog"
	"strconv"

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
