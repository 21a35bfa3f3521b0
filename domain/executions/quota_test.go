package executions

import (
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// A submission above the quota is refused as a whole, before its request is
// kept; one that was accepted is still found by its key.
func TestSubmissionAboveTheQuotaIsRefused(t *testing.T) {
	f := setup(t)
	q := quotas.New(f.store, f.Informers)
	f.Store, f.Quota = q, q.Check
	limit := int64(2)
	_, err := q.Set(t.Context(), "", []core.QuotaLimit{{Resource: core.QuotaResourceExecutions, Limit: &limit}})
	f.must(err)
	keyed := program("1")
	keyed.Key = "k"
	first := f.submit(keyed)
	seen := func(n int) { // requests are refused before they are written only by what is known here
		t.Helper()
		wait.For(t, "the executions to be known", func() bool { return informer.Of[execution.Execution](f.Informers).Len() == n })
	}
	seen(1)
	batch := &execution.SubmitBatchRequest{Executions: []execution.SubmitRequest{*program("2"), *program("3")}}
	if _, _, err := f.SubmitBatch(t.Context(), batch, Submitter{Name: "tester"}); !quotas.Refused(err) || !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("a batch of two beside one: %v", err)
	}
	second := f.submit(program("2"))
	seen(2)
	if _, err := f.Submit(t.Context(), program("3"), Submitter{Name: "tester"}); !quotas.Refused(err) {
		t.Errorf("a third one: %v", err)
	}
	if again := f.submit(keyed); again.ID != first.ID {
		t.Errorf("the key leads to %s, not %s", again.ID, first.ID)
	}
	f.objects.mu.Lock()
	if len(f.objects.data) != 2 {
		t.Errorf("%d requests are kept, of 2 executions", len(f.objects.data))
	}
	f.objects.mu.Unlock()
	f.retire(second.GetID())
	f.submit(program("3"))
}
