package server

import (
	"context"
	"log/slog"
	"time"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/source"
)

// collectEvery is the time between two removals of unused sources.
const collectEvery = time.Hour

// sources is the store of uploaded sources.
type sources struct{ *source.Store }

func openSources(cfg *config.Config, in *instance.Instance, log *slog.Logger) sources {
	return sources{source.NewStore(source.StoreConfig{Dir: in.State("sources"), MaxBytes: cfg.Build.SourceBytes, Logger: log})}
}

// Materialize lays a source out for a build.
func (s sources) Materialize(ctx context.Context, digest, dir string) error {
	d, err := source.ParseDigest(digest)
	if err != nil {
		return err
	}
	return s.Store.Materialize(ctx, d, dir)
}

// collect keeps the store within its budget until ctx ends.
func (s sources) collect(ctx context.Context, log *slog.Logger) error {
	t := time.NewTicker(collectEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			if _, err := s.Collect(ctx); err != nil && ctx.Err() == nil {
				log.Warn("collect unused sources", "error", err)
			}
		}
	}
}
