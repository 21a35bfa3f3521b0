package server

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/api"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/etcdstore"
	"miren.dev/runtime/entity/guarded"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/entity/traced"
	"miren.dev/runtime/pkg/breaker"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
)

// entityStore is the store of a server, whatever its database is.
type entityStore interface {
	entity.Store
	entity.History
	prometheus.Collector
	database
}

// database is what a store is kept in.
type database interface {
	Ping(ctx context.Context) error
	Close()
}

// openStore opens the store that a URL names.
func openStore(ctx context.Context, cfg *config.Config, url string, log *slog.Logger) (entityStore, error) {
	log = log.With("component", "store")
	keep := map[entity.Stream]time.Duration{
		entity.StreamAudit: cfg.History.Audit, entity.StreamEvent: cfg.History.Events,
		entity.StreamExecution: cfg.History.Executions, entity.StreamEgress: cfg.History.Egress,
	}
	var store entityStore
	var err error
	switch {
	case strings.HasPrefix(url, sqlitestore.Scheme):
		var path string
		if path, err = sqlitestore.PathOf(url); err == nil {
			store, err = sqlitestore.Open(ctx, sqlitestore.Config{
				Path: path, Kinds: api.Kinds(), Logger: log, KeepRevisions: cfg.Store.KeepRevisions, KeepHistory: keep,
			})
		}
	case strings.HasPrefix(url, etcdstore.Scheme):
		store, err = etcdstore.Open(ctx, etcdstore.Config{URL: url, Kinds: api.Kinds(), Logger: log, KeepRevisions: cfg.Store.KeepRevisions, KeepHistory: keep})
	default:
		store, err = pgstore.Open(ctx, pgstore.Config{URL: url, Kinds: api.Kinds(), Logger: log, KeepRevisions: cfg.Store.KeepRevisions, KeepHistory: keep})
	}
	if err != nil {
		return nil, errs.Wrap(err, "store")
	}
	return wrapStore(store, breaker.New(breaker.Config{Name: "database", Logger: log}), cfg.Traces.Endpoint != ""), nil
}

// wrappedStore is a store some of whose operations go through others first.
type wrappedStore struct {
	entity.Store
	entity.History
	prometheus.Collector
	database
}

// wrapStore returns s, which a circuit breaker guards, and whose operations are
// spans if they are to be traced.
func wrapStore(s entityStore, b *breaker.Breaker, spans bool) entityStore {
	w := wrappedStore{guarded.New(s, b), s, metricsOf{s, b}, s}
	if spans {
		w.Store = traced.New(w.Store)
	}
	return w
}

// metricsOf is several collectors of metrics as one.
type metricsOf []prometheus.Collector

// Describe implements prometheus.Collector.
func (c metricsOf) Describe(ch chan<- *prometheus.Desc) {
	for _, x := range c {
		x.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (c metricsOf) Collect(ch chan<- prometheus.Metric) {
	for _, x := range c {
		x.Collect(ch)
	}
}
