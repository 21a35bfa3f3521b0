package addon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/source"
	"miren.dev/runtime/testsupport/pgtest"
)

// env is a store with an addon's surroundings: what other controllers and the addon's
// program do happens when a test calls world.
type env struct {
	keep id.Sandbox // it goes on when a deployment ends the others of its app
	*testing.T
	store   entity.Store
	addons  *addons.Service
	engine  addon.Engine
	sealer  *schema.Sealer
	sources *source.Store
	users   map[string]map[string]string // of the programs: passwords by user, by disk
	fails   bool                         // deployments fail
	reason  app.FailureReason            // how; "": build
	broken  bool                         // the program takes no users
	deploys map[string]int               // by app
}

func newEnv(t *testing.T) *env {
	t.Helper()
	dir := t.TempDir()
	e := &env{
		T: t, engine: addon.EnginePostgres, store: pgtest.Store(t, api.Kinds()...), sealer: schema.NewSealer(filepath.Join(dir, "key")),
		sources: source.NewStore(source.StoreConfig{Dir: filepath.Join(dir, "sources")}), users: map[string]map[string]string{}, deploys: map[string]int{},
	}
	if err := projects.Ensure(t.Context(), e.store, projects.Default); err != nil {
		t.Fatal(err)
	}
	e.addons = &addons.Service{Store: e.store, Apps: e.apps(e.store)}
	return e
}

func (e *env) apps(s entity.Store) *apps.Service {
	return &apps.Service{Store: s, Sealer: e.sealer, Sources: e.sources, Logger: slog.New(slog.DiscardHandler)}
}

// reconciler is the controller of a server whose store is s, held to what it declares.
func (e *env) reconciler(s entity.Store) *Reconciler {
	r := &Reconciler{Sealer: e.sealer, Run: e.program, Logger: slog.New(slog.DiscardHandler), Informers: informer.New(informer.Config{Reader: s})}
	r.Store = kittest.Hold(e, s, r.Controller())
	r.Apps = e.apps(r.Store)
	return r
}

// program is the addon's program: it keeps its users on its disk.
func (e *env) program(ctx context.Context, sid id.Sandbox, input string, command ...string) (string, error) {
	if e.broken {
		return "", errs.New(errs.FailedPrecondition, "%s ended with exit code 1", command[0])
	}
	sb, err := entity.Get[sandbox.Sandbox](ctx, e.store, sid)
	if err != nil {
		return "", err
	}
	users := map[string]string{}
	for line := range strings.Lines(input) {
		name, password, _ := strings.Cut(strings.TrimSpace(line), " ")
		users[name] = password
	}
	e.users[string(sb.Spec.Template.Volumes[0].Disk)] = users
	return "version=15\n", nil
}

func must[T any](v T, err error) func(*env) T {
	return func(e *env) T {
		e.Helper()
		if err != nil {
			e.Fatal(err)
		}
		return v
	}
}

// list returns all entities that a query selects.
func list[T any, P entity.ObjectPtr[T]](e *env, q entity.Query) []P {
	e.Helper()
	all, _, err := entity.List[T, P](e.Context(), e.store, q)
	if err != nil {
		e.Fatal(err)
	}
	return all
}

// world does what the disk, build and deployment controllers and the nodes do.
func (e *env) world() {
	e.Helper()
	ctx := e.Context()
	for _, d := range list[disk.Disk](e, entity.Query{}) {
		var err error
		if d.Spec.Deleted {
			err = entity.Delete(ctx, e.store, d)
		} else if d.Status.Phase == disk.DiskPhasePending {
			d.Status.Phase, d.Status.SizeBytes = disk.DiskPhaseReady, d.Spec.SizeBytes
			err = entity.UpdateStatus(ctx, e.store, d)
		}
		if err != nil {
			e.Fatal(err)
		}
	}
	for _, s := range list[disk.DiskSnapshot](e, entity.Query{}) {
		if s.Spec.Deleted {
			if err := entity.Delete(ctx, e.store, s); err != nil {
				e.Fatal(err)
			}
		}
	}
	for _, a := range list[app.App](e, entity.Query{}) {
		if a.Status.ActiveDeployment != "" {
			e.finish(a)
		}
	}
}

// finish ends the deployment of an app that is under way.
func (e *env) finish(a *app.App) {
	e.Helper()
	ctx, now := e.Context(), time.Now()
	dep := must(entity.Get[app.Deployment](ctx, e.store, a.Status.ActiveDeployment))(e)
	e.deploys[a.Name]++
	dep.Status.EndedAt, dep.Status.Phase = &now, app.DeploymentPhaseSucceeded
	if e.fails {
		dep.Status.Phase, dep.Status.Failure = app.DeploymentPhaseFailed, &app.Failure{Reason: cmp.Or(e.reason, app.FailureReasonBuild), Message: "the build failed"}
	} else {
		e.serve(a)
	}
	a.Status.LastDeployment, a.Status.ActiveDeployment = dep.GetID(), ""
	lease := must(apps.LeaseOf(ctx, e.store, a.GetID()))(e)
	if err := entity.UpdateStatus(ctx, e.store, dep); err != nil {
		e.Fatal(err)
	}
	if err := entity.UpdateStatus(ctx, e.store, a); err != nil {
		e.Fatal(err)
	}
	if err := entity.Delete(ctx, e.store, lease); err != nil {
		e.Fatal(err)
	}
}

// serve gives an app a version with its environment, and a sandbox of that in place of
// the one before.
func (e *env) serve(a *app.App) {
	e.Helper()
	ctx := e.Context()
	for _, sb := range list[sandbox.Sandbox](e, entity.Where(sandbox.SandboxAttrApp, a.ID)) {
		if sb.GetID() == e.keep {
			continue
		}
		sb.Status.Phase, sb.Status.Ready = sandbox.SandboxPhaseStopped, false
		if err := entity.UpdateStatus(ctx, e.store, sb); err != nil {
			e.Fatal(err)
		}
	}
	v := app.NewAppVersion()
	v.Project, v.Name = a.Project, fmt.Sprintf("%s-v%d", a.Name, e.deploys[a.Name])
	var svc app.Service
	svc.SetDefaults()
	svc.Name = "main"
	sb := sandbox.NewSandbox()
	if label := a.Labels[addons.Label]; label != "" {
		x := must(entity.Get[addon.Addon](ctx, e.store, label))(e)
		d := must(entity.ByName[disk.Disk](ctx, e.store, a.Project, addon.DiskName(x.Name, x.Spec.Disk)))(e)
		svc.Volumes = []app.Volume{{Disk: d.Name, Path: "/data"}}
		sb.Spec.Template.Volumes = []sandbox.Volume{{Disk: d.GetID(), Path: "/data"}}
	}
	v.Spec = app.AppVersionSpec{App: a.GetID(), Number: int64(e.deploys[a.Name]), Image: "image", Services: []app.Service{svc}, Secrets: a.Spec.Secrets}
	if err := entity.Create(ctx, e.store, v); err != nil {
		e.Fatal(err)
	}
	a.Status.Activate(v.GetID())
	pool := apps.PoolFor(a, v, &svc)
	if err := entity.Create(ctx, e.store, pool); err != nil {
		e.Fatal(err)
	}
	sb.Project, sb.Spec.App, sb.Spec.AppVersion, sb.Spec.Pool, sb.Spec.Service = a.Project, a.GetID(), v.GetID(), pool.GetID(), svc.Name
	sb.Spec.Template.Image, sb.Spec.Template.Secrets, sb.Status.Phase, sb.Status.Ready = "image", a.Spec.Secrets, sandbox.SandboxPhaseRunning, true
	if err := entity.Create(ctx, e.store, sb); err != nil {
		e.Fatal(err)
	}
}

// settle reconciles an addon, and lets the others do their part, until cond holds.
func (e *env) settle(r *Reconciler, name string, cond func(*addon.Addon) bool) *addon.Addon {
	e.Helper()
	var a *addon.Addon
	for range 100 {
		var err error
		if a, err = e.addons.Find(e.Context(), "", name); errs.Is(err, errs.NotFound) {
			if cond(nil) {
				return nil
			}
			e.Fatal(err)
		} else if err != nil {
			e.Fatal(err)
		}
		if cond(a) {
			return a
		}
		if _, err := r.Reconcile(e.Context(), a.ID); err != nil && !errs.Is(err, errs.Conflict) {
			e.Fatal(err)
		}
		e.world()
	}
	e.Fatalf("addon %s does not settle: %s %s", name, a.Status.Phase, a.Status.Message)
	return nil
}

func settled(a *addon.Addon) bool { return a != nil && a.Settled() }

// user is an app that serves.
func (e *env) user(name string) *app.App {
	e.Helper()
	a := must(e.apps(e.store).Ensure(e.Context(), "", name))(e)
	e.deploys[name]++
	e.serve(a)
	if err := entity.UpdateStatus(e.Context(), e.store, a); err != nil {
		e.Fatal(err)
	}
	return a
}

// secret returns a variable of the sandbox of an app that runs.
func (e *env) secret(name, variable string) string {
	e.Helper()
	a := must(e.apps(e.store).Find(e.Context(), "", name))(e)
	for _, sb := range list[sandbox.Sandbox](e, entity.Where(sandbox.SandboxAttrApp, a.ID)) {
		if !sb.Status.Phase.Ended() {
			v, ok := sb.Spec.Template.Secrets[variable]
			if !ok {
				return ""
			}
			return must(e.sealer.Open(v))(e)
		}
	}
	return ""
}

// check fails unless the program of an addon has one user, which its app has too.
func (e *env) check(a *addon.Addon, user string) {
	e.Helper()
	d := must(entity.ByName[disk.Disk](e.Context(), e.store, a.Project, a.Status.Disk))(e)
	users := e.users[string(d.ID)]
	if names := slices.Sorted(maps.Keys(users)); !slices.Equal(names, []string{user}) {
		e.Fatalf("the program has the users %v, want %s", names, user)
	}
	want := map[string]string{"DATABASE_URL": fmt.Sprintf("postgres://%s:%s@postgres.db.internal:5432/app?sslmode=disable", user, users[user])}
	if e.engine == addon.EngineS3 {
		want = map[string]string{
			"AWS_ACCESS_KEY_ID": user, "AWS_SECRET_ACCESS_KEY": users[user],
			"AWS_ENDPOINT_URL_S3": "http://s3.db.internal:9000", "AWS_REGION": "auto", "BUCKET_NAME": "app",
		}
	}
	for name, value := range want {
		if got := e.secret("shop", name); got != value {
			e.Fatalf("the app has %s=%s, want %s", name, got, value)
		}
	}
}

func (e *env) create(name string) {
	e.Helper()
	must(e.addons.Create(e.Context(), addons.CreateRequest{Name: name, Engine: e.engine}))(e)
}

func (e *env) attach() {
	e.Helper()
	must(e.addons.Attach(e.Context(), "", "db", "shop", ""))(e)
}

// attachedAddon returns an environment in which the addon db is attached to the app shop, and its controller.
func attachedAddon(t *testing.T) (*env, *Reconciler) {
	t.Helper()
	e := newEnv(t)
	e.user("shop")
	e.create("db")
	e.attach()
	r := e.reconciler(e.store)
	e.settle(r, "db", func(*addon.Addon) bool { return e.running() })
	return e, r
}

// running reports whether the attached app has the credential that it is to have.
func (e *env) running() bool {
	a := must(e.addons.Find(e.Context(), "", "db"))(e)
	all := must(addons.Attachments(e.Context(), e.store, a.GetID()))(e)
	return a.Settled() && len(all) == 1 && all[0].Status.Running == a.Spec.Credential
}

// snapshot makes a backup as the disk controller does.
func (e *env) snapshot(a *addon.Addon, name string) {
	e.Helper()
	d := must(entity.ByName[disk.Disk](e.Context(), e.store, a.Project, a.Status.Disk))(e)
	s := disk.NewDiskSnapshot()
	s.Project, s.Spec.Disk, s.Spec.Name, s.Spec.Key, s.Status.Phase = a.Project, d.GetID(), name, string(d.ID)+name, disk.DiskPhaseReady
	if err := entity.Create(e.Context(), e.store, s); err != nil {
		e.Fatal(err)
	}
}
