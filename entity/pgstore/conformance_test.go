package pgstore_test

import (
	"testing"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/testsupport/pgtest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) entity.Store { return pgtest.Store(t, storetest.Kinds()...) })
}
