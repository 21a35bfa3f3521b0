package retention

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/domain/executions"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/testsupport/pgtest"
)

// keys are executions.Objects of ten bytes each.
type keys []string

func (k *keys) Get(context.Context, string) ([]byte, error) { return nil, nil }
func (k *keys) Create(_ context.Context, key string, _ []byte) error {
	*k = append(*k, key)
	return nil
}
func (k *keys) Delete(_ context.Context, key string) error {
	*k = slices.DeleteFunc(*k, func(o string) bool { return o == key })
	return nil
}
func (k *keys) List(context.Context) iter.Seq2[executions.Object, error] {
	sorted := slices.Sorted(slices.Values(*k))
	return func(yield func(executions.Object, error) bool) {
		for _, key := range sorted {
			if !yield(executions.Object{Key: key, Size: 10}, nil) {
				return
			}
		}
	}
}

// Objects of executions go when the history has forgotten them, and the oldest
// ones while there are too many bytes; those of an execution that has not ended
// stay, however old they are.
func TestObjectsOfExecutions(t *testing.T) {
	s := pgtest.Store(t, api.Kinds()...)
	e := execution.NewExecution()
	e.Project, e.Spec.Objects, e.Spec.InputBytes, e.Status.NotBefore = project(t, s), "20260101T0000/x", 1, time.Now()
	if err := entity.Create(t.Context(), s, e); err != nil {
		t.Fatal(err)
	}
	lives := "20260101T0000/" + string(e.ID) + "/n/request"
	for _, c := range []struct {
		max  int64
		want keys
	}{
		{1000, keys{lives, "20260131T0000/exec-a/n/output-1", "20260131T0001/exec-b/n/output-1", "other/file"}},
		{40, keys{lives, "20260131T0000/exec-a/n/output-1", "20260131T0001/exec-b/n/output-1", "other/file"}},
		{39, keys{lives, "20260131T0001/exec-b/n/output-1", "other/file"}},
		{0, keys{lives, "other/file"}},
	} {
		all := keys{
			"other/file", "20260131T0001/exec-b/n/output-1", "20260131T0000/exec-a/n/output-1", lives,
			"20260101T0000/exec-gone/n/request", "20260101T0000/exec-gone/n/output-1",
		}
		o := NewObjects(&Objects{Objects: &all, Store: s, Keep: 14 * 24 * time.Hour, MaxBytes: c.max, Logger: slog.New(slog.DiscardHandler)})
		if err := o.Collect(t.Context(), time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)); err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(slices.Values(all)); !slices.Equal(got, c.want) {
			t.Errorf("at most %d bytes: %v, want %v", c.max, got, c.want)
		}
	}
}

// An object that makes them too many starts a collection.
func TestTooManyObjectsAreCollected(t *testing.T) {
	s := pgtest.Store(t, api.Kinds()...)
	var all keys
	o := NewObjects(&Objects{Objects: &all, Store: s, Keep: time.Hour, MaxBytes: 10, Logger: slog.New(slog.DiscardHandler)})
	for i, want := range []int{0, 1, 1} {
		if err := o.Create(t.Context(), fmt.Sprintf("20260131T0000/exec-a/n/output-%d", i), make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		if len(o.full) != want {
			t.Errorf("object %d: %d signals, want %d", i, len(o.full), want)
		}
	}
}
