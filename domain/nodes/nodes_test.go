package nodes

import (
	"testing"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/pgtest"
)

func TestCordonFindsANodeByNameAndID(t *testing.T) {
	s := &Service{Store: pgtest.Store(t, api.Kinds()...)}
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "n", "amd64", 1000, 1<<30
	if err := entity.Create(t.Context(), s.Store, n); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n", string(n.ID)} {
		got, err := s.Cordon(t.Context(), name)
		if err != nil || !got.Spec.Cordoned {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		got, err = s.Uncordon(t.Context(), name)
		if err != nil || got.Spec.Cordoned {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := s.Cordon(t.Context(), "none"); !errs.Is(err, errs.NotFound) {
		t.Errorf("none: %v", err)
	}
}
