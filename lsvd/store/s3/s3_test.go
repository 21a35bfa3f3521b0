package s3_test

import (
	"testing"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/s3/s3test"
	"miren.dev/runtime/lsvd/store/storetest"
)

func TestConformance(t *testing.T) {
	for _, name := range []string{"minio", "versitygw"} {
		t.Run(name, func(t *testing.T) {
			server := s3test.Start(t, name)
			storetest.Run(t, func(t *testing.T) store.Store { return server.Open(t, "") })
		})
	}
}
