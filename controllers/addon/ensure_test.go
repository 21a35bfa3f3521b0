package addon

import (
	"maps"
	"slices"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/pkg/errs"
)

// The addons of an app.toml are made and attached once, and are done with when their
// variables are in the app's environment, which needs no version that serves.
func TestAddonsOfAnAppToml(t *testing.T) {
	e := newEnv(t)
	a := must(e.apps(e.store).Ensure(t.Context(), "", "shop"))(e)
	wanted := []app.AddonRequest{{Name: "db", Kind: "postgres"}, {Name: "cache", Kind: "valkey"}}
	ensure := func(list ...app.AddonRequest) (string, error) {
		return addons.Ensure(t.Context(), e.store, must(e.apps(e.store).Find(t.Context(), "", "shop"))(e), list)
	}
	for range 2 {
		if waits, err := ensure(wanted...); waits == "" || err != nil {
			t.Fatalf("waits %q, %v", waits, err)
		}
	}
	r := e.reconciler(e.store)
	for _, name := range []string{"shop-db", "shop-cache"} {
		e.settle(r, name, settled)
	}
	if waits, err := ensure(wanted...); waits != "" || err != nil {
		t.Errorf("waits %q, %v", waits, err)
	}
	a = must(e.apps(e.store).Find(t.Context(), "", "shop"))(e)
	if got := slices.Sorted(maps.Keys(a.Spec.Secrets)); !slices.Equal(got, []string{"DATABASE_URL", "REDIS_URL"}) {
		t.Errorf("variables %v", got)
	}
	for _, refused := range []app.AddonRequest{{Name: "db", Kind: "mysql"}, {Name: "other", Kind: "mysql"}, {Name: "x", Kind: "oracle"}} {
		if _, err := ensure(refused); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%+v: %v", refused, err)
		}
	}
	if waits, err := ensure(app.AddonRequest{Name: "other", Kind: "mysql", Prefix: "OTHER"}); waits == "" || err != nil {
		t.Errorf("with a prefix: waits %q, %v", waits, err)
	}
}
