package sqlitestore_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/entity/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) entity.Store { return open(t, sqlitestore.Config{MaxCascade: storetest.MaxCascade}) })
}

func TestHistoryConformance(t *testing.T) {
	storetest.RunHistory(t, func(t *testing.T) entity.History { return open(t, sqlitestore.Config{}) })
}

// open opens a store that is closed at the end of the test, by default a new one
// with the kinds of the suite.
func open(t testing.TB, cfg sqlitestore.Config) *sqlitestore.Store {
	t.Helper()
	if cfg.Path == "" {
		cfg.Path = filepath.Join(t.TempDir(), "store.db")
	}
	if cfg.Kinds == nil {
		cfg.Kinds = storetest.Kinds()
	}
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := sqlitestore.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("open store: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}
