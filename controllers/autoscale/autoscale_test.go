package autoscale

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// fixture is a pool of a version that serves, and the load on it.
type fixture struct {
	*testing.T
	store   entity.Store
	rec     *Reconciler
	clock   time.Time
	app     *app.App
	version *app.AppVersion
	pool    *sandbox.SandboxPool
	meter   meter
}

// meter plays the nodes: the CPU time of a sandbox by its id.
type meter struct {
	mu   sync.Mutex
	cpu  map[id.Sandbox]time.Duration
	now  func() time.Time
	away bool

	together *sync.WaitGroup // of calls that are answered once all of them are there; nil: at once
}

func (m *meter) Stats(ctx context.Context, sid id.Sandbox) (sandbox.Stats, error) {
	if m.together != nil {
		m.together.Done()
		all := make(chan struct{})
		go func() { m.together.Wait(); close(all) }()
		select {
		case <-all:
		case <-ctx.Done():
			return sandbox.Stats{}, ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return sandbox.Stats{}, errors.New("the node does not answer")
	}
	return sandbox.Stats{At: m.now(), CPU: m.cpu[sid]}, nil
}

func setup(t *testing.T, auto sandbox.Autoscale) *fixture {
	t.Helper()
	f := &fixture{T: t, store: pgtest.Store(t, api.Kinds()...), clock: time.Now()}
	f.meter = meter{cpu: map[id.Sandbox]time.Duration{}, now: func() time.Time { return f.clock }}
	f.rec = &Reconciler{Informers: informer.New(informer.Config{Reader: f.store}), Meter: &f.meter, Logger: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return f.clock }}
	f.rec.Store = kittest.Hold(t, f.store, f.rec.Controller())
	p := core.NewProject()
	p.Name = "default"
	f.must(entity.Create(t.Context(), f.store, p))
	f.app = app.NewApp()
	f.app.Project, f.app.Name = p.ID, "shop"
	f.must(entity.Create(t.Context(), f.store, f.app))
	f.version = app.NewAppVersion()
	f.version.Project, f.version.Spec.App, f.version.Spec.Number, f.version.Spec.Image = p.ID, f.app.GetID(), 1, "img"
	var web app.Service
	web.SetDefaults()
	web.Name = "web"
	f.version.Spec.Services = []app.Service{web}
	f.must(entity.Create(t.Context(), f.store, f.version))
	f.app.Status.Activate(f.version.GetID())
	f.must(entity.UpdateStatus(t.Context(), f.store, f.app))
	f.pool = sandbox.NewSandboxPool()
	f.pool.Project, f.pool.Name = p.ID, "web"
	f.pool.Spec.App, f.pool.Spec.AppVersion, f.pool.Spec.Service = f.app.GetID(), f.version.GetID(), "web"
	f.pool.Spec.Replicas, f.pool.Spec.Autoscale = auto.Max, &auto
	f.pool.Spec.Template.Image, f.pool.Spec.Template.Ports = "img", []sandbox.Port{{Name: "http", Number: 8080}}
	f.must(entity.Create(t.Context(), f.store, f.pool))
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// set gives the service a load, which was measured now.
func (f *fixture) set(l ingress.ServiceLoad) {
	f.rec.mu.Lock()
	defer f.rec.mu.Unlock()
	f.rec.load = map[service]measure{{f.version.GetID(), "web"}: {l, f.clock, time.Second}}
}

// run has the load for a time, and returns how many sandboxes are wanted then.
func (f *fixture) run(l ingress.ServiceLoad, d time.Duration) int64 {
	f.Helper()
	for range max(1, d/time.Second) {
		f.clock = f.clock.Add(time.Second)
		f.set(l)
		f.reconcile()
	}
	return f.wanted()
}

func (f *fixture) reconcile() {
	f.Helper()
	_, err := f.rec.Reconcile(f.Context(), f.pool.ID)
	f.must(err)
}

func (f *fixture) wanted() int64 {
	f.Helper()
	p, err := entity.Get[sandbox.SandboxPool](f.Context(), f.store, f.pool.ID)
	f.must(err)
	f.pool = p
	return p.Wanted()
}

func (f *fixture) expect(what string, got, want int64) {
	f.Helper()
	if got != want {
		f.Fatalf("%s: %d sandboxes, want %d", what, got, want)
	}
}

func requests(inflight float64) ingress.ServiceLoad { return ingress.ServiceLoad{InFlight: inflight} }

// TestFollowsRequests: the number rises within seconds, within the bounds, and falls to the highest that the load wanted
// in the last minute.
func TestFollowsRequests(t *testing.T) {
	f := setup(t, sandbox.Autoscale{Min: 1, Max: 4, Concurrency: 10, Idle: 5 * time.Minute})
	f.expect("no load", f.run(requests(0), 5*time.Second), 1)
	f.expect("as much as aimed at", f.run(requests(10), 5*time.Second), 1)
	f.expect("a second of a peak", f.run(requests(21), time.Second), 2)
	f.expect("three sandboxes' worth", f.run(requests(25), 3*time.Second), 3)
	f.expect("beyond the most", f.run(requests(1000), 5*time.Second), 4)
	f.expect("less", f.run(requests(15), 50*time.Second), 4)
	f.expect("less for a minute", f.run(requests(15), 15*time.Second), 2)
	f.expect("none", f.run(requests(0), 70*time.Second), 1)
}

// TestSleepsAndWakes: no request for the idle time, not even one between two measures, lets the service sleep; one that
// waits wakes it at once.
func TestSleepsAndWakes(t *testing.T) {
	f := setup(t, sandbox.Autoscale{Min: 0, Max: 4, Concurrency: 10, Idle: 10 * time.Second})
	f.expect("at first", f.run(requests(0), 8*time.Second), 1)
	f.expect("an open connection", f.run(requests(1), 30*time.Second), 1)
	f.expect("it ended", f.run(requests(0), 9*time.Second), 1)
	f.expect("a short request", f.run(ingress.ServiceLoad{Requests: 1}, 9*time.Second), 1)
	f.expect("idle", f.run(ingress.ServiceLoad{Requests: 1}, 2*time.Second), 0)
	f.expect("asleep", f.run(ingress.ServiceLoad{Requests: 1}, time.Minute), 0)
	f.expect("a held request", f.run(ingress.ServiceLoad{Requests: 1, Held: 1}, time.Second), 1)
	f.expect("after it", f.run(ingress.ServiceLoad{Requests: 2}, 11*time.Second), 0)
	f.expect("one that another version served", f.run(ingress.ServiceLoad{Requests: 2, Missed: 1}, time.Second), 1)
	f.expect("many that wait", f.run(ingress.ServiceLoad{Requests: 2, Missed: 1, Held: 35}, 4*time.Second), 4)
}

// TestUnknownLowersNothing: an ingress that does not answer, and a restart, keep the number.
func TestUnknownLowersNothing(t *testing.T) {
	f := setup(t, sandbox.Autoscale{Min: 0, Max: 4, Concurrency: 10, Idle: 10 * time.Second})
	f.reconcile() // nothing was measured yet
	f.expect("load", f.run(requests(40), 5*time.Second), 4)
	for range 60 {
		f.clock = f.clock.Add(time.Second)
		f.reconcile()
	}
	f.expect("without an ingress", f.wanted(), 4)
	f.rec.history = nil
	f.expect("after a restart", f.run(requests(0), 9*time.Second), 4)
	f.expect("after the idle time", f.run(requests(0), 3*time.Second), 0)
}

// TestOthersServeToo: a server does not see the requests to sandboxes of other servers, so it takes no sandbox of a
// service away that has one there.
func TestOthersServeToo(t *testing.T) {
	f := setup(t, sandbox.Autoscale{Min: 0, Max: 4, Concurrency: 10, Idle: 30 * time.Second})
	here, there := core.NewNode(), core.NewNode()
	for i, n := range []*core.Node{here, there} {
		n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = []string{"here", "there"}[i], "amd64", 1000, 1<<30
		f.must(entity.Create(t.Context(), f.store, n))
	}
	f.rec.Node = here.GetID()
	other := sandbox.NewSandbox()
	other.Project, other.Spec.Pool, other.Spec.Node, other.Spec.Template.Image = f.pool.Project, f.pool.GetID(), there.GetID(), "img"
	f.must(entity.Create(t.Context(), f.store, other))
	f.expect("load", f.run(requests(15), 5*time.Second), 2)
	f.expect("no load here", f.run(requests(0), 5*time.Minute), 2)
	f.must(entity.Delete(t.Context(), f.store, other))
	f.expect("no load anywhere", f.run(requests(0), 5*time.Second), 0)
}

// sandboxes makes ready sandboxes of the pool.
func (f *fixture) sandboxes(n int) (sbs []*sandbox.Sandbox) {
	f.Helper()
	for range n {
		sb := sandbox.NewSandbox()
		sb.Project, sb.Spec.Pool, sb.Spec.App, sb.Spec.AppVersion, sb.Spec.Service = f.pool.Project, f.pool.GetID(), f.app.GetID(), f.version.GetID(), "web"
		sb.Spec.Template = f.pool.Spec.Template
		sb.Spec.Template.Resources.CPUMillis = 2000
		f.must(entity.Create(f.Context(), f.store, sb))
		sb.Status.Phase, sb.Status.Ready = sandbox.SandboxPhaseRunning, true
		f.must(entity.UpdateStatus(f.Context(), f.store, sb))
		sbs = append(sbs, sb)
	}
	return sbs
}

// TestReadsCPUAtOnce: sandboxes of a node that does not answer do not keep the controller one after the other.
func TestReadsCPUAtOnce(t *testing.T) {
	cpu := int64(50)
	f := setup(t, sandbox.Autoscale{Min: 1, Max: 5, Concurrency: 10, Idle: 10 * time.Second, CPU: &cpu})
	sbs := f.sandboxes(3)
	f.meter.together = &sync.WaitGroup{}
	f.meter.together.Add(len(sbs))
	f.reconcile()
	if n := len(f.rec.history[f.pool.ID].readings); n != len(sbs) {
		t.Errorf("%d of %d sandboxes were read", n, len(sbs))
	}
}

// TestFollowsCPU: the mean use of the CPU counts, also for a service without a port; a node that does not answer lowers
// nothing.
func TestFollowsCPU(t *testing.T) {
	cpu := int64(50)
	f := setup(t, sandbox.Autoscale{Min: 1, Max: 5, Concurrency: 10, Idle: 10 * time.Second, CPU: &cpu})
	f.pool.Spec.Template.Ports = nil
	f.must(entity.UpdateSpec(t.Context(), f.store, f.pool))
	sbs := f.sandboxes(2)
	use := func(share float64, d time.Duration) int64 {
		for range d / time.Second {
			f.clock = f.clock.Add(time.Second)
			for _, sb := range sbs {
				f.meter.cpu[sb.GetID()] += time.Duration(share * 2 * float64(time.Second))
			}
			f.reconcile()
		}
		return f.wanted()
	}
	f.expect("two at 90% of their limit, aimed at 50%", use(0.9, 12*time.Second), 4)
	f.meter.away = true
	f.expect("the node is away", use(0, 30*time.Second), 4)
	f.meter.away = false
	f.expect("two at 40%", use(0.4, 30*time.Second), 2)
	f.expect("idle", use(0, 30*time.Second), 1)
}

// TestLeavesOthersAlone: a version that does not serve, and a pool that drains or has a fixed number, are not its own.
func TestLeavesOthersAlone(t *testing.T) {
	f := setup(t, sandbox.Autoscale{Min: 1, Max: 4, Concurrency: 10, Idle: time.Minute})
	f.app.Status.Activate("")
	f.must(entity.UpdateStatus(t.Context(), f.store, f.app))
	f.expect("it does not serve", f.run(requests(100), 5*time.Second), 1)
	f.app.Status.Activate(f.version.GetID())
	f.must(entity.UpdateStatus(t.Context(), f.store, f.app))
	f.pool.Spec.State = sandbox.PoolStateDraining
	f.must(entity.UpdateSpec(t.Context(), f.store, f.pool))
	f.expect("it drains", f.run(requests(100), 5*time.Second), 1)
	if f.pool.Spec.Autoscaled != nil {
		t.Errorf("wrote %d", *f.pool.Spec.Autoscaled)
	}
}

// loads plays the ingress: it answers when its load changes, and at the latest after the time asked for.
type loads struct {
	mu      sync.Mutex
	now     ingress.Load
	changed chan struct{}
}

func (l *loads) set(v ingress.Load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = v
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *loads) Load(ctx context.Context, seen int64, d time.Duration) (ingress.Load, error) {
	l.mu.Lock()
	now, changed := l.now, l.changed
	l.mu.Unlock()
	if now.Wakes == seen {
		select {
		case <-changed:
		case <-time.After(d):
		case <-ctx.Done():
			return ingress.Load{}, ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now.Over = time.Second
	return l.now, nil
}

// TestControllerWakesAtOnce: in the controller runtime, a held request wakes a service that sleeps without the second
// between two measures, and after each death of the process around its write the next one goes on.
func TestControllerWakesAtOnce(t *testing.T) {
	f := setup(t, sandbox.Autoscale{Min: 0, Max: 4, Concurrency: 10, Idle: time.Second})
	held := func(n int64) []ingress.ServiceLoad {
		return []ingress.ServiceLoad{{App: f.app.ID, Version: schema.ID(f.version.ID), Service: "web", Held: n}}
	}
	in := &loads{changed: make(chan struct{}), now: ingress.Load{Services: held(0)}}
	start := func() (stop func()) {
		set := informer.New(informer.Config{Reader: f.store})
		r := &Reconciler{Informers: set, Ingress: in, Meter: &f.meter, Logger: slog.New(slog.DiscardHandler)}
		c := r.Controller()
		r.Store = kittest.Hold(t, f.store, c)
		_, end := kittest.Run(t, set, kit.Config{StopGrace: time.Millisecond}, c)
		return end
	}
	becomes := func(n int64) {
		t.Helper()
		wait.For(t, "the number is written", func() bool { return f.wanted() == n })
	}
	stop := start()
	becomes(0)
	stop()
	stop = start() // the next server
	in.set(ingress.Load{Wakes: 1, Services: held(1)})
	becomes(1)
	in.set(ingress.Load{Wakes: 1, Services: held(0)})
	becomes(0)
	stop()
	in.set(ingress.Load{Wakes: 2, Services: held(1)}) // nothing runs
	stop = start()
	becomes(1)
	stop()
}
