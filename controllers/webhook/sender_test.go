package webhook

import (
	"fmt"
	"testing"

	"miren.dev/runtime/pkg/schema"
)

// Deliveries that were deleted while they waited for an attempt do not hold up those
// that still wait, whatever the order in which the sender wakes them.
func TestDeletedDeliveriesHoldUpNoOther(t *testing.T) {
	woken := map[schema.ID]bool{}
	s := &Sender{
		running: map[schema.ID]int{}, waiting: map[schema.ID]map[schema.ID]struct{}{},
		add: func(key schema.ID) { woken[key] = true },
	}
	const waiting = 10 * perProject
	for i := range perProject + waiting {
		if got, want := s.acquire("p", schema.ID(fmt.Sprint(i))), i < perProject; got != want {
			t.Fatalf("attempt %d begins: %v", i, got)
		}
	}
	for range perProject {
		s.release("p") // those that it wakes were deleted, so they begin no attempt
	}
	if len(woken) != waiting || len(s.waiting) != 0 || len(s.running) != 0 {
		t.Errorf("%d of %d were woken, %d projects wait, %d run", len(woken), waiting, len(s.waiting), len(s.running))
	}
}
