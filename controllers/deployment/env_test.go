package deployment_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/components/buildkit"
	"miren.dev/runtime/controllers/apppreview"
	"miren.dev/runtime/controllers/build"
	"miren.dev/runtime/controllers/deployment"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/controllers/pool"
	"miren.dev/runtime/controllers/retention"
	"miren.dev/runtime/controllers/scheduler"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/source"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// env is a control plane over a real store, with simulated node, builder,
// sources and ingress.
type env struct {
	*testing.T
	store   entity.Store // the store without faults
	apps    *apps.Service
	sources *sources
	logs    *buildlog.Logs
	temp    string
	logger  *slog.Logger

	gate    atomic.Bool // closed or open: gated sandboxes wait until it is open
	ahead   atomic.Int64
	drainer *drainer
	bake    time.Duration

	afterList atomic.Pointer[func(entity.Page)]
	port      atomic.Pointer[string] // port of the ingress, with a colon
	bad       atomic.Pointer[string] // a violation of an invariant
	retained  retention.Config
	quotas    *quotas.Store // of the last control plane
	policies  *policies.Store
}

func newEnv(t *testing.T) *env {
	t.Helper()
	dir := t.TempDir()
	e := &env{
		T: t, store: pgtest.Store(t, api.Kinds()...), logs: buildlog.New(filepath.Join(dir, "logs"), 0), temp: dir,
		sources: &sources{files: map[string]map[string]string{}}, drainer: &drainer{inflight: map[schema.ID]int64{}}, logger: slog.New(slog.DiscardHandler),
		retained: retention.Config{Versions: 20, Deployments: 100, Builds: 50, EndedPools: time.Hour},
	}
	e.port.Store(new(string))
	if os.Getenv("VERBOSE") != "" {
		e.logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	e.apps = &apps.Service{Store: e.store, Sealer: schema.NewSealer(filepath.Join(dir, "key")), Logger: e.logger}
	if err := projects.Ensure(t.Context(), e.store, projects.Default); err != nil {
		t.Fatal(err)
	}
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "n", "amd64", 1000_000, 1<<40
	n.Status.Phase = core.NodePhaseReady
	if err := entity.Create(t.Context(), e.store, n); err != nil {
		t.Fatal(err)
	}
	return e
}

// forgetful lets a control plane find every version, and few sandboxes of the lives before
// it: each life reads less.
func (e *env) forgetful() { e.retained.Versions, e.retained.EndedPools = 1000, time.Millisecond }

func (e *env) now() time.Time { return time.Now().Add(time.Duration(e.ahead.Load())) }

func (e *env) advance(d time.Duration) { e.ahead.Add(int64(d)) }

// control runs a control plane over s until stop is called.
func (e *env) control(s entity.Store) (stop func()) {
	e.Helper()
	set := informer.New(informer.Config{Reader: s})
	builds := &build.Reconciler{
		Builder: &builder{e}, Bases: bases{}, Sources: e.sources, Logs: e.logs, TempDir: e.temp, Parallel: 4, Timeout: time.Minute, Logger: e.logger,
	}
	builds.Store = kittest.Hold(e, s, builds.Controller())
	policy := policies.New(s, set)
	e.policies, e.quotas = policy, quotas.New(policy, set)
	deps := &deployment.Reconciler{Admit: func(ctx context.Context, ops []entity.Op) error {
		return cmp.Or(policy.Check(ctx, ops), e.quotas.Check(ctx, ops))
	}, Default: policy.Default, Informers: set, Drainer: e.drainer, Logger: e.logger, DrainTimeout: 2 * time.Minute, Bake: e.bake, Began: e.now(), Now: e.now,
		URL: func(a *app.App) string { return "http://" + a.Name + ".localhost" + *e.port.Load() + "/" }}
	deps.Store = kittest.Hold(e, &slowList{e.quotas, e}, deps.Controller())
	deps.Routes = &routes.Service{Store: deps.Store, LocalDomains: []string{"localhost"}}
	deps.HostURL = func(host string) string { return "http://" + host + *e.port.Load() + "/" }
	ends := &apppreview.Reconciler{Logger: e.logger, Now: e.now}
	ends.Store = kittest.Hold(e, s, ends.Controller())
	pools := &pool.Reconciler{Logger: e.logger, Now: e.now}
	pools.Store = kittest.Hold(e, e.quotas, pools.Controller())
	schedules := &scheduler.Reconciler{Logger: e.logger}
	schedules.Store = kittest.Hold(e, s, schedules.Controller())
	keeper := &retention.Reconciler{Logger: e.logger, Now: e.now, Config: e.retained}
	keeper.Store = kittest.Hold(e, s, keeper.Controller())
	all := []kit.Controller{
		builds.Controller(), deps.Controller(), ends.Controller(), pools.Controller(), schedules.Controller(), keeper.Controller(),
		{Name: "sandbox", Kind: sandbox.SandboxKind, Reconcile: (&node{e, s}).Reconcile, Workers: 4},
		{Name: "disk", Kind: disk.DiskKind, Reconcile: (&node{e, s}).disk},
	}
	for i := range all {
		all[i].Backoff = kit.Backoff{Base: 5 * time.Millisecond}
	}
	_, end := kittest.Run(e, set, kit.Config{StopGrace: time.Millisecond, Logger: e.logger}, all...)
	stop = sync.OnceFunc(func() {
		end()
		builds.Stop()
	})
	e.Cleanup(stop)
	return stop
}

// slowList is the store as the deployment controller sees it. If afterList is
// set, it is called after each list of sandboxes, before the list is returned.
type slowList struct {
	entity.Store
	env *env
}

func (s *slowList) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	page, err := s.Store.List(ctx, q)
	if after := s.env.afterList.Load(); err == nil && after != nil && q.Kind == sandbox.KindSandbox {
		(*after)(page)
	}
	return page, err
}

// node plays the sandbox controller. What becomes of a process is in its
// environment:
//
//	SIM=ok crash oom setup deaf(listens elsewhere) mute(listens nowhere) sick(never healthy)
//	    gate(ready when the gate is open) slow(crashes when the gate is open)
//	    late(crashes with the traffic) wilt(its probe fails with the traffic)
//	    early(listens elsewhere until the gate is open) stuck(does not stop)
//
// For a release command it is in its first argument: ok crash oom setup gate(ends
// well when the gate is open).
type node struct {
	env *env
	s   entity.Store
}

func (n *node) Reconcile(ctx context.Context, sid schema.ID) (time.Duration, error) {
	sb, err := entity.Get[sandbox.Sandbox](ctx, n.s, sid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err == nil && sb.Status.Phase.Ended() && len(sb.Spec.Template.Volumes) > 0 {
		return 0, disks.Release(ctx, n.s, sb.GetID())
	}
	if err != nil || sb.Status.Phase.Ended() || sb.Spec.Node == "" {
		return 0, err
	}
	now := n.env.now()
	st := &sb.Status
	end := func(phase sandbox.SandboxPhase, reason sandbox.EndReason) (time.Duration, error) {
		st.Phase, st.Reason, st.EndedAt, st.Ready, st.Address = phase, reason, &now, false, ""
		return 0, entity.UpdateStatus(ctx, n.s, sb)
	}
	sim := sb.Spec.Template.Env["SIM"]
	if sb.Spec.Desired == sandbox.DesiredStateStopped && sim == "stuck" && !n.env.gate.Load() {
		return 10 * time.Millisecond, nil
	}
	if sb.Spec.Desired == sandbox.DesiredStateStopped {
		if a, err := entity.Get[app.App](ctx, n.env.store, sb.Spec.App); err == nil && a.Status.Active() == sb.Spec.AppVersion {
			if p, err := entity.Get[sandbox.SandboxPool](ctx, n.env.store, sb.Spec.Pool); err == nil && (p.Spec.Replicas == 0 || p.Spec.State == sandbox.PoolStateRetired) && !n.env.yielded(p) && !scaled(a, sb) {
				bad := fmt.Sprintf("sandbox %s of the active version was stopped", sb.ID)
				n.env.bad.CompareAndSwap(nil, &bad)
			}
		}
		return end(sandbox.SandboxPhaseStopped, sb.Spec.StopReason)
	}
	release := sb.Spec.Service == apps.ReleaseService
	if release {
		sim = sb.Spec.Template.Command[0]
	}
	if st.Phase == sandbox.SandboxPhaseScheduled {
		if sim == "setup" {
			st.Message = "no space left on device"
			return end(sandbox.SandboxPhaseFailed, sandbox.EndReasonSetup)
		}
		for _, v := range sb.Spec.Template.Volumes {
			if _, err := disks.Claim(ctx, n.s, sb, disks.Volume{Disk: v.Disk, Path: v.Path, ReadOnly: v.ReadOnly}); errs.Is(err, errs.FailedPrecondition) {
				st.Message = err.Error()
				return end(sandbox.SandboxPhaseFailed, sandbox.EndReasonSetup)
			} else if err != nil {
				return 0, err
			}
		}
		started := now
		if sb.Spec.Template.Probe == nil {
			started = now.Add(-3 * time.Second) // as if that time had passed
		}
		st.Phase, st.StartedAt, st.Address = sandbox.SandboxPhaseRunning, &started, "10.0.0.1"
		return time.Millisecond, entity.UpdateStatus(ctx, n.s, sb)
	}
	code := int64(3)
	switch sim {
	case "crash", "slow":
		if sim == "slow" && !n.env.gate.Load() {
			return 10 * time.Millisecond, nil
		}
		st.ExitCode, st.LogTail = &code, []string{"panic: no database"}
		return end(sandbox.SandboxPhaseStopped, sandbox.EndReasonExit)
	case "oom":
		return end(sandbox.SandboxPhaseStopped, sandbox.EndReasonOOM)
	case "deaf", "mute", "sick", "local":
		if st.Overdue {
			return 0, nil
		}
		st.Overdue, st.LogTail, st.Message = true, []string{"starting"}, "nothing listens on port 8080"
		switch sim {
		case "deaf":
			st.Listening = []int64{3000}
		case "local":
			st.Listening, st.Unreachable = []int64{8080, 9229}, []int64{8080}
		case "sick":
			st.Listening, st.Message = []int64{8080}, "GET /healthz answered 500"
		}
		return 0, entity.UpdateStatus(ctx, n.s, sb)
	case "early":
		if !n.env.gate.Load() {
			if len(st.Listening) > 0 {
				return 10 * time.Millisecond, nil
			}
			st.Listening, st.Message = []int64{3000}, "nothing listens on port 8080"
			return 10 * time.Millisecond, entity.UpdateStatus(ctx, n.s, sb)
		}
	case "gate":
		if !n.env.gate.Load() {
			return 10 * time.Millisecond, nil
		}
	}
	if release {
		code = 0
		st.ExitCode = &code
		return end(sandbox.SandboxPhaseStopped, sandbox.EndReasonExit)
	}
	if st.Ready && (sim == "late" || sim == "wilt" || sim == "hang") {
		a, err := entity.Get[app.App](ctx, n.env.store, sb.Spec.App)
		switch {
		case err != nil || !a.Status.Serves(sb.Spec.AppVersion):
			return 10 * time.Millisecond, err
		case sim == "late":
			st.ExitCode, st.LogTail = &code, []string{"panic: no database"}
			return end(sandbox.SandboxPhaseStopped, sandbox.EndReasonExit)
		}
		st.Ready, st.Message = false, "GET /healthz answered 500"
		if sim == "hang" {
			st.HungAt, st.Message = &now, "it hangs"
		}
		return 0, entity.UpdateStatus(ctx, n.s, sb)
	}
	if st.Ready || (sim == "wilt" || sim == "hang") && st.ReadyAt != nil {
		return 0, nil
	}
	st.Ready, st.ReadyAt = true, &now
	return 0, entity.UpdateStatus(ctx, n.s, sb)
}

// disk plays the disk controller. A disk named bad cannot be made.
func (n *node) disk(ctx context.Context, did schema.ID) (time.Duration, error) {
	d, err := entity.Get[disk.Disk](ctx, n.s, did)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil || d.Status.Phase != disk.DiskPhasePending {
		return 0, err
	}
	d.Status.Phase, d.Status.Volume = disk.DiskPhaseReady, "v"
	if d.Name == "bad" {
		d.Status.Phase, d.Status.Message = disk.DiskPhaseFailed, "the store refuses the volume"
	}
	return 0, entity.UpdateStatus(ctx, n.s, d)
}

// sources are uploaded sources: files by digest.
type sources struct {
	mu    sync.Mutex
	files map[string]map[string]string
}

func (s *sources) put(digest string, files map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[digest] = files
}

func (s *sources) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.files)
}

func (s *sources) Materialize(_ context.Context, digest, dir string) error {
	s.mu.Lock()
	files, ok := s.files[digest]
	s.mu.Unlock()
	if !ok {
		return errs.New(errs.NotFound, "source %s does not exist", digest)
	}
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// source makes a source of the services, each "name=SIM", and returns its digest.
// "release=SIM" is a release command. A service "name@disk" writes to a disk, one
// "name<disk" reads it. A deployment creates disks, except the one named absent. The
// disk named kept has snapshots, of which as many are kept as there are services.
func (e *env) source(how string, services ...string) string {
	var b strings.Builder
	top := ""
	for _, s := range services {
		name, sim, _ := strings.Cut(s, "=")
		if name == apps.ReleaseService {
			top = fmt.Sprintf("release = [%q]\n", sim)
			continue
		}
		if format := map[string]string{"network": "[network]\negress = %q\n", "route": "[routes.%q]\ntimeout = \"30s\"\n",
			"preview": "[preview.env]\nMAIL = %q\n", "addon": "[addons]\ndb = %q\n"}[name]; format != "" {
			fmt.Fprintf(&b, format, sim)
			continue
		}
		name, written, _ := strings.Cut(name, "@")
		name, read, _ := strings.Cut(name, "<")
		fmt.Fprintf(&b, "[services.%s]\ncommand = \"run\"\nenv = { SIM = %q }\n", name, sim)
		if sim == "sick" {
			b.WriteString("health_path = \"/healthz\"\n")
		}
		if name == "idle" {
			b.WriteString("replicas = 0\n")
		}
		if name == "many" {
			b.WriteString("replicas = 5\n")
		}
		if name == "huge" {
			b.WriteString("memory = \"900GB\"\nreplicas = 3\n")
		}
		if d := written + read; d != "" {
			fmt.Fprintf(&b, "[services.%s.volumes.%s]\npath = \"/data\"\nread_only = %t\n", name, d, read != "")
			if d != "absent" {
				b.WriteString("size = \"64MB\"\n")
			}
			if d == "kept" {
				fmt.Fprintf(&b, "snapshots = { cron = \"@daily\", keep = %d }\n", len(services))
			}
		}
	}
	digest := fmt.Sprintf("src-%d", e.sources.count()+1)
	e.sources.put(digest, map[string]string{"Dockerfile": "FROM scratch\nCMD [\"/x\"]\n", "app.toml": top + b.String(), "BUILD": how})
	return digest
}

type bases struct{}

func (bases) Resolve(_ context.Context, names []string, _ func(string)) (map[string]*baseimage.Image, []string, error) {
	images := map[string]*baseimage.Image{}
	for _, n := range names {
		images[n] = &baseimage.Image{Dir: "/base", Digest: "sha256:base"}
	}
	return images, nil, nil
}

// builder behaves as the file BUILD of the source says.
type builder struct{ e *env }

func (b *builder) Build(ctx context.Context, req buildkit.Request, _ func(buildlog.Event)) (*buildkit.Result, error) {
	how, err := os.ReadFile(filepath.Join(req.ContextDir, "BUILD"))
	if err != nil {
		return nil, err
	}
	switch string(how) {
	case "fail":
		return nil, errs.New(errs.FailedPrecondition, "%w", &buildkit.Failure{Step: "RUN make", ExitCode: 2, Log: []string{"make: no rule"}})
	case "hang":
		<-ctx.Done()
		return nil, ctx.Err()
	case "panic":
		panic("index out of range")
	}
	return &buildkit.Result{Image: "runtime.local/x@sha256:" + strings.Repeat("0", 64)}, nil
}

// The helpers below are the vocabulary of the tests.

// eventually waits, and dumps the store on failure.
func (e *env) eventually(what string, cond func() bool) {
	e.Helper()
	wait.For(e, what, cond, wait.State(func() any { e.dump(); return "see above" }))
}

func (e *env) app(name string) *app.App {
	e.Helper()
	a, err := e.apps.Ensure(e.Context(), "", name)
	if err != nil {
		e.Fatal(err)
	}
	return a
}

func (e *env) deploy(name, src string) *app.Deployment {
	e.Helper()
	d, err := e.apps.Deploy(e.Context(), e.app(name), apps.DeployRequest{Kind: app.RolloutKindDeploy, Source: source.Digest(src)})
	if err != nil {
		e.Fatal(err)
	}
	return d
}

func (e *env) get(d *app.Deployment) *app.Deployment {
	e.Helper()
	got, err := entity.Get[app.Deployment](e.Context(), e.store, d.ID)
	if err != nil {
		e.Fatal(err)
	}
	return got
}

func (e *env) phase(d *app.Deployment, p app.DeploymentPhase) *app.Deployment {
	e.Helper()
	e.eventually(fmt.Sprintf("%s is %s", d.ID, p), func() bool {
		got := e.get(d).Status
		if got.Phase != p && got.Phase.Ended() {
			e.dump()
			e.Fatalf("deployment ended as %s, want %s; failure %+v", got.Phase, p, got.Failure)
		}
		return got.Phase == p
	})
	return e.get(d)
}

func (e *env) succeed(d *app.Deployment) *app.Deployment {
	e.Helper()
	return e.phase(d, app.DeploymentPhaseSucceeded)
}

func list[T any, P entity.ObjectPtr[T]](e *env, keep func(P) bool) []P {
	e.Helper()
	all, _, err := entity.List[T, P](e.Context(), e.store, entity.Query{})
	if err != nil {
		e.Fatal(err)
	}
	var out []P
	for _, o := range all {
		if keep(o) {
			out = append(out, o)
		}
	}
	return out
}

// settled waits until nothing of a rollout is left: no lease, no build under
// way, and only sandboxes of the active version, as many as wanted.
func (e *env) settled(name string) *app.App {
	e.Helper()
	a := e.app(name)
	why := ""
	e.eventually("nothing of "+name+" is left over", func() bool {
		a = e.app(name)
		if why = e.leftover(a); why != "" {
			return false
		}
		return true
	})
	if bad := e.bad.Load(); bad != nil {
		e.Fatal(*bad)
	}
	return a
}

func (e *env) leftover(a *app.App) string {
	if a.Status.ActiveDeployment != "" {
		return "active deployment " + string(a.Status.ActiveDeployment)
	}
	if l := list(e, func(l *app.DeployLease) bool { return l.Spec.App == a.GetID() }); len(l) > 0 {
		return "lease"
	}
	if b := list(e, func(b *app.Build) bool { return b.Spec.App == a.GetID() && !b.Status.Phase.Ended() }); len(b) > 0 {
		return "build under way"
	}
	numbers := map[int64]bool{}
	for _, v := range list(e, func(v *app.AppVersion) bool { return v.Spec.App == a.GetID() }) {
		if numbers[v.Spec.Number] || v.Spec.Number > a.Spec.VersionCounter {
			return "version number used twice, or not counted"
		}
		numbers[v.Spec.Number] = true
	}
	for _, p := range list(e, func(p *sandbox.SandboxPool) bool { return p.Spec.App == a.GetID() }) {
		live := list(e, func(sb *sandbox.Sandbox) bool { return sb.Spec.Pool == p.GetID() && !sb.Status.Phase.Ended() })
		want := int(p.Wanted())
		switch {
		case p.Spec.State == sandbox.PoolStateRetired:
			want = 0
		case p.Spec.State != sandbox.PoolStateActive || !a.Status.Serves(p.Spec.AppVersion) && want > 0:
			return "pool of another version: " + p.Name + " " + string(p.Spec.State)
		}
		if len(live) != want {
			return fmt.Sprintf("pool %s has %d sandboxes, wants %d", p.Name, len(live), want)
		}
		for _, sb := range live {
			if !sb.Status.Ready {
				return "sandbox not ready"
			}
		}
	}
	return ""
}

func (e *env) dump() {
	for _, d := range list(e, func(*app.Deployment) bool { return true }) {
		e.Logf("deployment %s app %s kind %s phase %s version %s steps %+v failure %+v", d.ID, d.Spec.App, d.Spec.Kind, d.Status.Phase, d.Status.Version, d.Status.Steps, d.Status.Failure)
	}
	for _, p := range list(e, func(*sandbox.SandboxPool) bool { return true }) {
		e.Logf("pool %s version %s replicas %d status %+v", p.Name, p.Spec.AppVersion, p.Spec.Replicas, p.Status)
	}
	for _, sb := range list(e, func(*sandbox.Sandbox) bool { return true }) {
		e.Logf("sandbox %s desired %s node %q phase %s ready %t reason %s %s", sb.Name, sb.Spec.Desired, sb.Spec.Node, sb.Status.Phase, sb.Status.Ready, sb.Status.Reason, sb.Status.Message)
	}
	for _, b := range list(e, func(*app.Build) bool { return true }) {
		e.Logf("build %s cancel %t phase %s %s", b.ID, b.Spec.Cancel, b.Status.Phase, b.Status.Message)
	}
}

// scaled reports whether a user set the number of sandboxes of a sandbox's service.
func scaled(a *app.App, sb *sandbox.Sandbox) bool {
	_, ok := a.Spec.Scale[sb.Spec.Service]
	return ok
}

// yielded reports whether a deployment has taken sandboxes from a pool.
func (e *env) yielded(p *sandbox.SandboxPool) bool {
	return len(list(e, func(d *app.Deployment) bool {
		return slices.ContainsFunc(d.Status.Yielded, func(y app.YieldedPool) bool { return y.Pool == p.GetID() })
	})) > 0
}
