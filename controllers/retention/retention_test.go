package retention

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

type fixture struct {
	*testing.T
	store entity.Store
	rec   *Reconciler
	clock time.Time
	app   *app.App
}

func setup(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, store: pgtest.Store(t, api.Kinds()...), clock: time.Now(), app: app.NewApp()}
	f.rec = &Reconciler{Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return f.clock },
		Config: Config{Versions: 3, Deployments: 2, Builds: 2, EndedPools: time.Hour}}
	f.rec.Store = kittest.Hold(t, f.store, f.rec.Controller())
	p := core.NewProject()
	p.Name = "default"
	f.create(p)
	f.app.Project, f.app.Name = p.ID, "shop"
	f.create(f.app)
	return f
}

func (f *fixture) create(o schema.Object) {
	f.Helper()
	if err := entity.Create(f.Context(), f.store, o); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) version(n int64, served bool) *app.AppVersion {
	f.Helper()
	b := app.NewBuild()
	b.Project, b.Spec.App, b.Spec.Source, b.Status.Phase = f.app.Project, f.app.GetID(), "src", app.BuildPhaseSucceeded
	f.create(b)
	v := app.NewAppVersion()
	v.Project, v.Name = f.app.Project, fmt.Sprintf("shop-v%d", n)
	var svc app.Service
	svc.SetDefaults()
	svc.Name = "web"
	v.Spec = app.AppVersionSpec{App: f.app.GetID(), Number: n, Image: "img", Build: b.GetID(), Services: []app.Service{svc}}
	if served {
		v.Status.ServedAt = &f.clock
	}
	f.create(v)
	d := app.NewDeployment()
	d.Project, d.Spec.App, d.Spec.Build, d.Status.Version, d.Status.Phase = f.app.Project, f.app.GetID(), b.GetID(), v.GetID(), app.DeploymentPhaseSucceeded
	f.create(d)
	f.app = f.read()
	f.app.Status.LastDeployment = d.GetID()
	if served {
		f.app.Status.Activate(v.GetID())
	}
	f.status()
	return v
}

func (f *fixture) pool(v *app.AppVersion, replicas int64) *sandbox.SandboxPool {
	f.Helper()
	p := sandbox.NewSandboxPool()
	p.Project, p.Spec.App, p.Spec.AppVersion, p.Spec.Replicas, p.Spec.Template.Image = f.app.Project, f.app.GetID(), v.GetID(), replicas, "img"
	f.create(p)
	return p
}

func (f *fixture) read() *app.App {
	f.Helper()
	a, err := entity.Get[app.App](f.Context(), f.store, f.app.ID)
	if err != nil {
		f.Fatal(err)
	}
	return a
}

func (f *fixture) status() {
	f.Helper()
	if err := entity.UpdateStatus(f.Context(), f.store, f.app); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) reconcile() time.Duration {
	f.Helper()
	again, err := f.rec.Reconcile(f.Context(), f.app.ID)
	if err != nil {
		f.Fatal(err)
	}
	return again
}

func (f *fixture) numbers() map[int64]bool {
	f.Helper()
	all, _, err := entity.List[app.AppVersion](f.Context(), f.store, entity.Query{})
	if err != nil {
		f.Fatal(err)
	}
	n := map[int64]bool{}
	for _, v := range all {
		n[v.Spec.Number] = true
	}
	return n
}

func count[T any, P entity.ObjectPtr[T]](f *fixture) int {
	f.Helper()
	all, _, err := entity.List[T, P](f.Context(), f.store, entity.Query{})
	if err != nil {
		f.Fatal(err)
	}
	return len(all)
}

func TestHistory(t *testing.T) {
	f := setup(t)
	for n := int64(1); n <= 8; n++ {
		f.version(n, n != 3 && n != 7 && n != 8)
	}
	f.reconcile()
	// 6 serves; 3, 7 and 8 never did; of the others the newest three stay.
	got := f.numbers()
	if len(got) != 4 || !got[6] || !got[5] || !got[4] || !got[2] {
		t.Errorf("versions %v stay", got)
	}
	if d, b := count[app.Deployment](f), count[app.Build](f); d != 2 || b != 2 {
		t.Errorf("%d deployments, %d builds stay", d, b)
	}
	// Later writes succeed although the app refers to deleted entities.
	f.app = f.read()
	f.version(9, true)
	f.reconcile()
}

// What a deployment under way needs stays, however old.
func TestKeepsForDeployment(t *testing.T) {
	f := setup(t)
	f.rec.Config = Config{}
	v1, v2, v3 := f.version(1, true), f.version(2, true), f.version(3, true)
	b := app.NewBuild()
	b.Project, b.Spec.App, b.Spec.Source, b.Status.Phase = f.app.Project, f.app.GetID(), "src", app.BuildPhaseSucceeded
	f.create(b)
	d := app.NewDeployment()
	d.Project, d.Spec.App, d.Spec.Build, d.Spec.Target, d.Status.Previous = f.app.Project, f.app.GetID(), b.GetID(), v1.GetID(), v3.GetID()
	d.Status.Phase = app.DeploymentPhaseBuilding
	f.create(d)
	old := f.pool(v2, 1) // while a rollout is under way, it decides
	f.app.Status.ActiveDeployment = d.GetID()
	f.status()
	f.reconcile()
	if got := f.numbers(); !got[1] || !got[2] || !got[3] { // v2 has a pool
		t.Errorf("versions %v stay", got)
	}
	if n := count[app.Build](f); n != 1 {
		t.Errorf("%d builds stay", n)
	}
	if p, err := entity.Get[sandbox.SandboxPool](t.Context(), f.store, old.ID); err != nil || p.Spec.State != sandbox.PoolStateActive {
		t.Errorf("%+v %v", p, err)
	}
	// A user deletes the deployment: the app forgets it, and its pool is
	// retired.
	if err := entity.Delete(t.Context(), f.store, d); err != nil {
		t.Fatal(err)
	}
	f.reconcile()
	f.reconcile()
	if a := f.read(); a.Status.ActiveDeployment != id.Deployment("") {
		t.Errorf("status %+v", a.Status)
	}
	if p, err := entity.Get[sandbox.SandboxPool](t.Context(), f.store, old.ID); err != nil || p.Spec.State != sandbox.PoolStateRetired {
		t.Errorf("%+v %v", p, err)
	}
	if n := count[app.Build](f); n != 0 {
		t.Errorf("%d builds stay", n)
	}
}

// A version with a share of the requests stays with its sandboxes, however old.
func TestKeepsTraffic(t *testing.T) {
	f := setup(t)
	f.rec.Config = Config{}
	v1, v2, v3 := f.version(1, true), f.version(2, true), f.version(3, true)
	tried, left := f.pool(v1, 1), f.pool(v2, 1)
	f.app = f.read()
	f.app.Status.Try(v1.GetID(), 10)
	f.status()
	f.reconcile()
	for _, c := range []struct {
		pool *sandbox.SandboxPool
		want sandbox.PoolState
	}{{tried, sandbox.PoolStateActive}, {left, sandbox.PoolStateRetired}} {
		if p, err := entity.Get[sandbox.SandboxPool](t.Context(), f.store, c.pool.ID); err != nil || p.Spec.State != c.want {
			t.Errorf("pool of %s: %+v, %v, want %s", c.pool.Spec.AppVersion, p, err, c.want)
		}
	}
	if got := f.numbers(); !got[1] || !got[3] {
		t.Errorf("versions %v stay, of them serve %s and %s", got, v1.ID, v3.ID)
	}
}

func TestPools(t *testing.T) {
	f := setup(t)
	v1, v2 := f.version(1, true), f.version(2, true)
	active, gone := f.pool(v2, 1), f.pool(v1, 0)
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Pool, sb.Spec.App, sb.Spec.Template.Image = f.app.Project, gone.GetID(), f.app.GetID(), "img"
	sb.Spec.Desired = sandbox.DesiredStateStopped
	f.create(sb)
	f.clock = f.clock.Add(24 * time.Hour)
	if again := f.reconcile(); again > soon {
		t.Errorf("looks again after %s while a sandbox ends", again)
	}
	if n := count[sandbox.SandboxPool](f); n != 2 {
		t.Fatalf("%d pools while a sandbox ends", n)
	}
	sb.Status.Phase, sb.Status.Reason = sandbox.SandboxPhaseStopped, sandbox.EndReasonUser
	if err := entity.UpdateStatus(t.Context(), f.store, sb); err != nil {
		t.Fatal(err)
	}
	f.clock = time.Now()
	if again := f.reconcile(); again <= 0 || again > interval {
		t.Errorf("looks again after %s", again)
	}
	if n := count[sandbox.SandboxPool](f); n != 2 {
		t.Fatalf("%d pools, too early", n)
	}
	f.clock = f.clock.Add(2 * time.Hour)
	f.reconcile()
	if _, err := entity.Get[sandbox.SandboxPool](t.Context(), f.store, active.ID); err != nil || count[sandbox.SandboxPool](f) != 1 || count[sandbox.Sandbox](f) != 0 {
		t.Errorf("%d pools, %d sandboxes stay: %v", count[sandbox.SandboxPool](f), count[sandbox.Sandbox](f), err)
	}
}
