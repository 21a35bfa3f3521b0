package addon

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// The addons of an app.toml are made and attached once, and are done with when their
// variables are in the app's environment, which needs no version that serves.
func TestAddonsOfAnAppToml(t *testing.T) {
	e := newEnv(t)
	must(e.apps(e.store).Ensure(t.Context(), "", "shop"))(e)
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
	a := must(e.apps(e.store).Find(t.Context(), "", "shop"))(e)
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

// An earlier version of an app gets the present variables of addons, and keeps its others.
func TestEarlierVersionGetsPresentCredentials(t *testing.T) {
	e, r := attachedAddon(t)
	before := must(e.apps(e.store).Find(t.Context(), "", "shop"))(e)
	must(e.addons.Rotate(t.Context(), "", "db"))(e)
	e.settle(r, "db", func(a *addon.Addon) bool { return a.Spec.Credential == 2 && e.running() })
	now := must(e.apps(e.store).Find(t.Context(), "", "shop"))(e)
	old := maps.Clone(before.Spec.Secrets)
	old["OTHER"], old["REDIS_URL"] = before.Spec.Secrets["DATABASE_URL"], before.Spec.Secrets["DATABASE_URL"]
	got := must(addons.Current(t.Context(), e.store, now, &app.AppVersionSpec{Secrets: old, AddonVariables: []string{"DATABASE_URL", "REDIS_URL"}}))(e)
	if !got["DATABASE_URL"].Equal(now.Spec.Secrets["DATABASE_URL"]) || !got["OTHER"].Equal(old["OTHER"]) || old["DATABASE_URL"].Equal(got["DATABASE_URL"]) {
		t.Error("the earlier version does not get the present credentials alone")
	}
	if _, has := got["REDIS_URL"]; has {
		t.Error("the earlier version keeps the variable of an addon that was detached since")
	}
	if given := must(addons.Given(t.Context(), e.store, now))(e); !slices.Equal(given, []string{"DATABASE_URL"}) {
		t.Errorf("the addons gave %q", given)
	}
}

// TestDetachInARollback: an attachment stays while the app is rolled back to a version that may have its variables, and
// takes them away again when the rollback has given them to the app.
func TestDetachInARollback(t *testing.T) {
	e, r := attachedAddon(t)
	shop := must(e.apps(e.store).Find(t.Context(), "", "shop"))(e)
	with := shop.Spec.Secrets
	shop.Spec.Secrets = nil // the version that serves was made before the addon was attached
	e.deploys["shop"]++
	e.serve(shop)
	if err := entity.UpdateStatus(t.Context(), e.store, shop); err != nil {
		t.Fatal(err)
	}
	must(e.apps(e.store).Deploy(t.Context(), shop, apps.DeployRequest{Kind: app.RolloutKindRollback, Target: shop.Status.Active()}))(e)
	attachments := func() []*addon.AddonAttachment {
		return must(addons.AttachmentsOf(t.Context(), e.store, shop.GetID()))(e)
	}
	must(entity.ModifySpec(t.Context(), e.store, attachments()[0].GetID(), func(x *addon.AddonAttachment) error {
		x.Spec.Detach = true
		return nil
	}))(e)
	db := must(e.addons.Find(t.Context(), "", "db"))(e)
	for range 3 {
		if _, err := r.Reconcile(t.Context(), db.ID); err != nil && !errs.Is(err, errs.Conflict) {
			t.Fatal(err)
		}
	}
	if all := attachments(); len(all) != 1 || !strings.Contains(all[0].Status.Message, "being deployed") {
		t.Fatalf("during the rollback: %d attachments", len(all))
	}
	// The rollback shifts to a version with the variables, and so gives them to the app.
	must(entity.ModifySpec(t.Context(), e.store, shop.GetID(), func(a *app.App) error {
		a.Spec.Secrets = with
		return nil
	}))(e)
	e.settle(r, "db", func(*addon.Addon) bool { return len(attachments()) == 0 })
	if a := must(e.apps(e.store).Find(t.Context(), "", "shop"))(e); len(a.Spec.Secrets) > 0 || e.secret("shop", "DATABASE_URL") != "" {
		t.Errorf("the app keeps variables of the addon: %d", len(a.Spec.Secrets))
	}
}

// TestAttachWhatTheAppHas: an app whose environment has the variables of an addon already, with its own values, gets
// the addon. One with other values does not.
func TestAttachWhatTheAppHas(t *testing.T) {
	e := newEnv(t)
	e.user("shop")
	for _, name := range []string{"db", "other"} {
		e.create(name)
	}
	r := e.reconciler(e.store)
	e.settle(r, "db", settled)
	e.settle(r, "other", settled)
	e.attach()
	e.settle(r, "db", func(*addon.Addon) bool { return e.running() })
	shop := must(e.apps(e.store).Find(t.Context(), "", "shop"))(e)
	earlier := shop.Spec.Secrets
	must(entity.ModifySpec(t.Context(), e.store, must(addons.AttachmentsOf(t.Context(), e.store, shop.GetID()))(e)[0].GetID(), func(x *addon.AddonAttachment) error {
		x.Spec.Detach = true
		return nil
	}))(e)
	e.settle(r, "db", func(*addon.Addon) bool {
		return len(must(addons.AttachmentsOf(t.Context(), e.store, shop.GetID()))(e)) == 0
	})
	must(entity.ModifySpec(t.Context(), e.store, shop.GetID(), func(a *app.App) error {
		a.Spec.Secrets = earlier
		return nil
	}))(e)
	if _, err := e.addons.Attach(t.Context(), "", "other", "shop", ""); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("an addon whose variable the app has from another: %v", err)
	}
	e.attach()
	e.settle(r, "db", func(*addon.Addon) bool { return e.running() })
}

// TestAttachBesidePreview: a sandbox of a preview, which keeps the variables of the version from before a detach,
// does not hold up another attach. They have the same values then.
func TestAttachBesidePreview(t *testing.T) {
	e := newEnv(t)
	e.user("shop")
	e.create("db")
	r := e.reconciler(e.store)
	e.settle(r, "db", settled)
	e.attach()
	e.settle(r, "db", func(*addon.Addon) bool { return e.running() })
	shop := must(e.apps(e.store).Find(t.Context(), "", "shop"))(e)
	preview := sandbox.NewSandbox()
	preview.Project, preview.Spec.App, preview.Spec.Service = shop.Project, shop.GetID(), "main"
	preview.Spec.Template.Image, preview.Spec.Template.Secrets = "image", shop.Spec.Secrets
	detach := func() {
		t.Helper()
		must(entity.ModifySpec(t.Context(), e.store, must(addons.AttachmentsOf(t.Context(), e.store, shop.GetID()))(e)[0].GetID(), func(x *addon.AddonAttachment) error {
			x.Spec.Detach = true
			return nil
		}))(e)
		e.settle(r, "db", func(*addon.Addon) bool {
			return len(must(addons.AttachmentsOf(t.Context(), e.store, shop.GetID()))(e)) == 0
		})
	}
	detach()
	if err := entity.Create(t.Context(), e.store, preview); err != nil {
		t.Fatal(err)
	}
	preview.Status.Phase, preview.Status.Ready = sandbox.SandboxPhaseRunning, true
	if err := entity.UpdateStatus(t.Context(), e.store, preview); err != nil {
		t.Fatal(err)
	}
	e.keep = preview.GetID()
	e.attach()
	e.settle(r, "db", func(*addon.Addon) bool { return e.running() })
	detach()
}
