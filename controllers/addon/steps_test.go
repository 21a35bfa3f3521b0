package addon

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// mortal is the store as seen by a server that dies with its n-th write: the write
// happens, but its answer and everything after it is lost.
type mortal struct {
	entity.Store
	left int
}

func (m *mortal) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	if m.left == 0 {
		return entity.TxnResult{}, errDead
	}
	res, err := m.Store.Txn(ctx, req)
	if m.left--; m.left == 0 {
		return entity.TxnResult{}, errDead
	}
	return res, err
}

func (m *mortal) Revoke(ctx context.Context, l schema.LeaseID) error {
	if m.left == 0 {
		return errDead
	}
	return m.Store.Revoke(ctx, l)
}

var errDead = errs.New(errs.Unavailable, "the server is dead")

// life reconciles as a server that dies with its n-th write, until done. It reports
// whether the server lived to see that.
func (e *env) life(n int, done func() bool) bool {
	e.Helper()
	m := &mortal{Store: e.store, left: n}
	r := e.reconciler(m)
	for range 100 {
		if done() {
			return true
		}
		a, err := e.addons.Find(e.Context(), "", "db")
		if err != nil {
			e.Fatal(err)
		}
		if _, err := r.Reconcile(e.Context(), a.ID); m.left == 0 {
			return false
		} else if err != nil && !errs.Is(err, errs.Conflict) {
			e.Fatal(err)
		}
		e.world()
	}
	e.Fatal("nothing more happens")
	return false
}

// Wherever a server dies, the next one brings an addon to the same end as without the
// crash: when it is made, when its credentials are rotated, restored, and deleted.
func TestDiesAfterEveryWrite(t *testing.T) {
	gone := func(e *env) bool {
		_, err := e.addons.Find(e.Context(), "", "db")
		return errs.Is(err, errs.NotFound)
	}
	for _, tc := range []struct {
		name  string
		begin func(e *env)
		done  func(e *env) bool
		check func(e *env)
	}{
		{"create", func(e *env) { e.create("db"); e.attach() }, (*env).running, func(e *env) {
			e.check(must(e.addons.Find(e.Context(), "", "db"))(e), "app_1")
			if e.deploys["db"] != 1 || e.deploys["shop"] != 2 {
				e.Errorf("deployments: %v", e.deploys)
			}
		}},
		{"rotate", func(e *env) { must(e.addons.Rotate(e.Context(), "", "db"))(e) }, (*env).running, func(e *env) {
			e.check(must(e.addons.Find(e.Context(), "", "db"))(e), "app_2")
		}},
		{"restore", func(e *env) { must(e.addons.Restore(e.Context(), "", "db", "monday"))(e) }, (*env).running, func(e *env) {
			a := must(e.addons.Find(e.Context(), "", "db"))(e)
			if a.Status.Disk != "db-data-2" {
				e.Errorf("it uses disk %s", a.Status.Disk)
			}
			e.check(a, "app_1")
		}},
		{"delete", func(e *env) {
			a := must(e.addons.Find(e.Context(), "", "db"))(e)
			a.Spec.Deleted = true
			if err := entity.UpdateSpec(e.Context(), e.store, a); err != nil {
				e.Fatal(err)
			}
		}, gone, func(e *env) {
			disks := list[disk.Disk](e, entity.Query{})
			all := list[app.App](e, entity.Query{})
			if len(disks) != 0 || len(all) != 1 {
				e.Errorf("%d disks and %d apps are there still", len(disks), len(all))
			}
			for name := range addons.Variables(e.engine, "", "", 0, "", "") {
				if got := e.secret("shop", name); got != "" {
					e.Errorf("the app has %s=%q still", name, got)
				}
			}
		}},
	} {
		for _, engine := range []addon.Engine{addon.EnginePostgres, addon.EngineS3} {
			t.Run(tc.name+"/"+string(engine), func(t *testing.T) {
				for n, lived := 1, false; !lived; n++ {
					t.Run(strconv.Itoa(n), func(t *testing.T) {
						e := newEnv(t)
						e.engine = engine
						e.user("shop")
						if tc.name != "create" {
							e.create("db")
							e.attach()
							a := e.settle(e.reconciler(e.store), "db", func(*addon.Addon) bool { return e.running() })
							e.snapshot(a, "monday")
						}
						tc.begin(e)
						done := func() bool { return tc.done(e) }
						if lived = e.life(n, done); !lived && !e.life(-1, done) {
							e.Fatal("the next server died too")
						}
						tc.check(e)
					})
					if t.Failed() {
						return
					}
				}
			})
		}
	}
}

// While the credentials are rotated the program takes both, and it refuses the old ones
// only when no sandbox has them.
func TestOldCredentialsWorkUntilTheAppsHaveTheNew(t *testing.T) {
	e := newEnv(t)
	e.user("shop")
	e.create("db")
	e.attach()
	r := e.reconciler(e.store)
	a := e.settle(r, "db", func(*addon.Addon) bool { return e.running() })
	e.check(a, "app_1")
	must(e.addons.Rotate(t.Context(), "", "db"))(e)
	if _, err := e.addons.Rotate(t.Context(), "", "db"); !errs.Is(err, errs.Conflict) {
		t.Errorf("a second rotation at the same time: %v", err)
	}
	e.settle(r, "db", func(a *addon.Addon) bool {
		d := must(entity.ByName[disk.Disk](e.Context(), e.store, a.Project, a.Status.Disk))(e)
		users := e.users[string(d.ID)]
		if got := e.secret("shop", "DATABASE_URL"); !strings.Contains(got, "app_1:"+users["app_1"]+"@") && !strings.Contains(got, "app_2:"+users["app_2"]+"@") {
			t.Fatalf("the program refuses what the app has: %s", got)
		}
		return a.Settled() && a.Spec.Credential == 2
	})
	e.check(must(e.addons.Find(t.Context(), "", "db"))(e), "app_2")
}

// An app that cannot be rolled out keeps its credentials, and the addon takes them.
func TestRotationWaitsForAnAppThatCannotBeRolledOut(t *testing.T) {
	e := newEnv(t)
	e.user("shop")
	e.create("db")
	e.attach()
	r := e.reconciler(e.store)
	a := e.settle(r, "db", func(*addon.Addon) bool { return e.running() })
	must(e.addons.Rotate(t.Context(), "", "db"))(e)
	e.fails = true
	e.settle(r, "db", func(*addon.Addon) bool {
		all := list[addon.AddonAttachment](e, entity.Where(addon.AddonAttachmentAttrAddon, a.ID))
		return strings.Contains(all[0].Status.Message, "cannot be rolled out")
	})
	if n := e.deploys["shop"]; n != 3 {
		t.Errorf("%d deployments, want 3: the failed one is not repeated at once", n)
	}
	d := must(entity.ByName[disk.Disk](t.Context(), e.store, a.Project, a.Status.Disk))(e)
	if users := e.users[string(d.ID)]; len(users) != 2 || !strings.Contains(e.secret("shop", "DATABASE_URL"), "app_1:"+users["app_1"]+"@") {
		t.Errorf("users %v, the app has %s", users, e.secret("shop", "DATABASE_URL"))
	}
}

func TestAddonThatCannotBeDeployedSaysWhy(t *testing.T) {
	e := newEnv(t)
	e.create("db")
	e.fails = true
	r := e.reconciler(e.store)
	a := e.settle(r, "db", func(a *addon.Addon) bool { return a.Status.Phase == addon.AddonPhaseFailed })
	if !strings.Contains(a.Status.Message, "the build failed") {
		t.Errorf("message: %s", a.Status.Message)
	}
}

// TestAddonWaitsThroughFaultsOfTheSystem: if a part of the system fails during the deployment, such as a killed
// containerd, the controller keeps the addon pending and deploys again soon. Callers who wait for the addon wait on.
func TestAddonWaitsThroughFaultsOfTheSystem(t *testing.T) {
	e := newEnv(t)
	e.create("db")
	e.fails, e.reason = true, app.FailureReasonInternal
	r := e.reconciler(e.store)
	a := e.settle(r, "db", func(a *addon.Addon) bool { return strings.Contains(a.Status.Message, "the build failed") })
	if a.Status.Phase != addon.AddonPhasePending {
		t.Errorf("phase %s: %s", a.Status.Phase, a.Status.Message)
	}
	e.fails = false
	r.Now = func() time.Time { return time.Now().Add(retrySoon) }
	e.settle(r, "db", settled)
}

// What the program of an addon refuses keeps it from being ready, and is tried again.
func TestUsersThatTheProgramRefuses(t *testing.T) {
	e := newEnv(t)
	e.create("db")
	e.broken = true
	r := e.reconciler(e.store)
	e.settle(r, "db", func(a *addon.Addon) bool { return strings.Contains(a.Status.Message, "exit code 1") })
	e.broken = false
	e.settle(r, "db", settled)
}
