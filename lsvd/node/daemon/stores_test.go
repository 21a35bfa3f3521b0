package daemon_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/node/daemon"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/lsvd/store/s3/s3test"
)

// TestStoreIsTestedOnce opens a store, and attaches several volumes of it at once, twice:
// the process tests once whether the server keeps the contract.
func TestStoreIsTestedOnce(t *testing.T) {
	server := s3test.Start(t, "versitygw")
	proxy := s3test.NewProxy(t, server.URL)
	var tests atomic.Int64
	proxy.SetHook(func(r s3test.Request) s3test.Fault {
		if r.List && strings.HasSuffix(r.Key, "probe/") {
			tests.Add(1)
		}
		return s3test.Fault{}
	})
	url := fmt.Sprintf("s3://bucket/disks?endpoint=%s&credentials=%s", proxy.URL, server.Credentials)
	st, _, err := host.OpenStore(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	const disks = 4
	for i := range disks {
		if _, err := catalog.Create(t.Context(), st, fmt.Sprint("disk", i), 16*lsvd.BlockSize, nil); err != nil {
			t.Fatal(err)
		}
	}
	d := newMachine(t, time.Minute).run(t, daemon.Config{})
	for range 2 {
		if _, err := d.Attach(t.Context(), daemon.Request{Spec: daemon.Spec{Store: url}, Volume: "disk0"}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := 1; i < disks; i++ {
			wg.Go(func() {
				if _, err := d.Attach(t.Context(), daemon.Request{Spec: daemon.Spec{Store: url}, Volume: fmt.Sprint("disk", i)}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := tests.Load(); n != 1 {
			t.Errorf("the store was tested %d times", n)
		}
		for i := range disks {
			if _, err := d.Detach(t.Context(), fmt.Sprint("disk", i), "", false); err != nil {
				t.Fatal(err)
			}
		}
	}
}
