package etcdstore_test

import (
	"log/slog"
	"testing"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/etcdstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/testsupport/etcdtest"
)

func TestConformance(t *testing.T) {
	etcd := etcdtest.Start(t)
	storetest.Run(t, func(t *testing.T) entity.Store {
		return open(t, etcdstore.Config{URL: etcd.URL(t), MaxCascade: storetest.MaxCascade})
	})
}

func TestHistoryConformance(t *testing.T) {
	etcd := etcdtest.Start(t)
	storetest.RunHistory(t, func(t *testing.T) entity.History { return open(t, etcdstore.Config{URL: etcd.URL(t)}) })
}

// open opens a store that is closed at the end of the test, with the kinds of the
// suite.
func open(t testing.TB, cfg etcdstore.Config) *etcdstore.Store {
	t.Helper()
	if cfg.Kinds == nil {
		cfg.Kinds = storetest.Kinds()
	}
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := etcdstore.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("open store: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}
