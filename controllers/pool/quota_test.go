package pool

import (
	"context"
	"strings"
	"sync"
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/entity/informer"
)

// A pool has as many sandboxes as the quota permits, says why it has not more,
// and stops none when the quota is lowered.
func TestPoolKeepsTheQuota(t *testing.T) {
	f := setup(t, 5)
	set := informer.New(informer.Config{Reader: f.store})
	q := quotas.New(f.store, set)
	f.rec.Store = kittest.Hold(t, q, f.rec.Controller())
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = set.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	f.must(set.WaitSynced(t.Context()))
	limit := func(n int64) {
		_, err := q.Set(t.Context(), "", []core.QuotaLimit{{Resource: core.QuotaResourceSandboxes, Limit: &n}})
		f.must(err)
	}
	limit(3)
	for range 3 { // the sandboxes that it made wake it
		if again := f.reconcile(); again != quotaRetry {
			t.Errorf("again after %v", again)
		}
	}
	if live := f.members().Live; len(live) != 3 || f.pool.Status.Total != 3 || f.pool.Status.Created != 3 || !strings.Contains(f.pool.Status.Message, "3 of 3 in use") {
		t.Errorf("%d live, %+v", len(live), f.pool.Status)
	}
	limit(1)
	f.reconcile()
	if live := f.members().Live; len(live) != 3 {
		t.Errorf("%d live after the quota was lowered", len(live))
	}
	limit(5)
	if again := f.reconcile(); again != 0 || len(f.members().Live) != 5 || f.pool.Status.Message != "" || f.pool.Status.Total != 5 {
		t.Errorf("%d live, again after %v, %+v", len(f.members().Live), again, f.pool.Status)
	}
}
