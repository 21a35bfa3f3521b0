package pgstore_test

import (
	"testing"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore/pgtest"
	"miren.dev/runtime/entity/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) entity.Store { return pgtest.Store(t, storetest.Kinds()...) })
}
