package secrets

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/secret"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// TestSecrets: a value is replaced and deleted for its readers at once, is in no
// record, and belongs to its project.
func TestSecrets(t *testing.T) {
	ctx := t.Context()
	s := &Service{Store: pgtest.Store(t, api.Kinds()...), Sealer: schema.NewSealer(filepath.Join(t.TempDir(), "key"))}
	ids := map[string]schema.ID{}
	for _, name := range []string{projects.Default, "other"} {
		if err := projects.Ensure(ctx, s.Store, name); err != nil {
			t.Fatal(err)
		}
		id, err := projects.Find(ctx, s.Store, name)
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = id
	}
	ref := Reference(ids[projects.Default], "key")
	for _, v := range []string{"first-value", "second-value"} {
		sec, err := s.Set(ctx, "", "key", v)
		if err != nil {
			t.Fatal(err)
		}
		rec, err := s.Store.Get(ctx, secret.KindSecret, sec.ID)
		if err != nil || strings.Contains(fmt.Sprintf("%+v %+v", rec, sec), v) {
			t.Errorf("the record has the value, or %v", err)
		}
		if got, err := s.Value(ctx, ref); err != nil || got != v {
			t.Errorf("%q, %v, want %q", got, err, v)
		}
	}
	if list, _, err := entity.List[secret.Secret](ctx, s.Store, entity.Query{}); err != nil || len(list) != 1 {
		t.Errorf("%d secrets, %v", len(list), err)
	}
	if _, err := s.Value(ctx, Reference(ids["other"], "key")); !errs.Is(err, errs.NotFound) {
		t.Errorf("by another project: %v", err)
	}
	for _, v := range []string{"", "two\nlines", strings.Repeat("x", secret.MaxValue+1)} {
		if _, err := s.Set(ctx, "", "key", v); !errs.Is(err, errs.InvalidArgument) || v != "" && strings.Contains(err.Error(), v) {
			t.Errorf("%.10q: %v", v, err)
		}
	}
	if err := s.Delete(ctx, "", "key"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Value(ctx, ref); !errs.Is(err, errs.NotFound) {
		t.Errorf("after the deletion: %v", err)
	}
	if err := s.Delete(ctx, "", "key"); !errs.Is(err, errs.NotFound) {
		t.Errorf("a second deletion: %v", err)
	}
}
