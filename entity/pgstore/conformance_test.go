package pgstore_test

import (
	"testing"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/testsupport/pgtest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) entity.Store {
		return pgtest.Open(t, pgstore.Config{URL: pgtest.URL(t), Kinds: storetest.Kinds(), MaxCascade: storetest.MaxCascade})
	})
}

func TestHistoryConformance(t *testing.T) {
	storetest.RunHistory(t, func(t *testing.T) entity.History { return pgtest.Store(t, storetest.Kinds()...) })
}
