package metrics_test

import (
	"context"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/metric"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/metrics"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/metricstore"
	"miren.dev/runtime/testsupport/wait"
)

const interval = 10 * time.Second

// env is a project with an app, of which samples are taken by hand.
type env struct {
	*testing.T
	store    entity.Store
	history  *metricstore.Store
	set      *informer.Set
	recorder *metrics.Recorder
	service  *metrics.Service
	app      *app.App
	begin    time.Time
	rounds   int
	edge     id.Node // a runner; "": there is none

	mu       sync.Mutex
	stats    map[id.Sandbox]sandbox.Stats
	requests map[string]float64 // by class
}

func newEnv(t *testing.T) *env {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	store, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: filepath.Join(t.TempDir(), "db"), Kinds: api.Kinds(), Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	e := &env{T: t, store: store, begin: time.Now().Add(-30 * time.Minute).Truncate(time.Minute), stats: map[id.Sandbox]sandbox.Stats{}, requests: map[string]float64{}}
	if e.history, err = metricstore.Open(metricstore.Config{Dir: t.TempDir(), Lookback: 4 * interval}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.history.Close() })
	if err := projects.Ensure(t.Context(), store, projects.Default); err != nil {
		t.Fatal(err)
	}
	e.set = informer.New(informer.Config{Reader: store, Logger: log})
	informer.Of[sandbox.Sandbox](e.set)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = e.set.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	if err := e.set.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	svc := &apps.Service{Store: store, Informers: e.set, Logger: log}
	if e.app, err = svc.Create(t.Context(), "", "shop"); err != nil {
		t.Fatal(err)
	}
	e.recorder = &metrics.Recorder{
		Store: e.history, Informers: e.set, Interval: interval, Logger: log, Ingress: e.ingress,
		Stats: func(_ context.Context, sid id.Sandbox) (sandbox.Stats, error) {
			e.mu.Lock()
			defer e.mu.Unlock()
			st, ok := e.stats[sid]
			if !ok {
				return st, errs.New(errs.NotFound, "gone")
			}
			return st, nil
		},
		Hosts: func(context.Context) map[id.Node]metrics.Host {
			hosts := map[id.Node]metrics.Host{"node-1": {CPUSeconds: 1000 + 5*float64(e.rounds), MemoryBytes: 42, Processes: 7}}
			if e.edge != "" && e.rounds > 3 { // it connects later
				hosts[e.edge] = metrics.Host{CPUSeconds: 50 + 20*float64(e.rounds), MemoryBytes: 43, ReceivedBytes: 100 * int64(e.rounds), DiskBytes: 44}
			}
			return hosts
		},
	}
	e.service = &metrics.Service{Store: e.history, Entities: store, Apps: svc, Interval: interval, Now: e.now}
	return e
}

func (e *env) now() time.Time { return e.begin.Add(time.Duration(e.rounds-1) * interval) }

// sandbox makes a running sandbox.
func (e *env) sandbox(a *app.App, service string) *sandbox.Sandbox {
	e.Helper()
	s := sandbox.NewSandbox()
	s.Spec.Service, s.Spec.Node, s.Status.Phase = service, "node-1", sandbox.SandboxPhaseRunning
	s.Spec.Template.Image = "image"
	if a != nil {
		s.Spec.App, s.Project = a.GetID(), a.Project
	} else {
		s.Project = e.app.Project
	}
	n := core.NewNode()
	n.ID, n.Name = "node-1", "one"
	n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "amd64", 1000, 1<<30
	if _, err := entity.Get[core.Node](e.Context(), e.store, n.GetID()); errs.Is(err, errs.NotFound) {
		if err := entity.Create(e.Context(), e.store, n); err != nil {
			e.Fatal(err)
		}
	}
	if err := entity.Create(e.Context(), e.store, s); err != nil {
		e.Fatal(err)
	}
	wait.For(e.T, "the informer has it", func() bool { return informer.Of[sandbox.Sandbox](e.set).Get(s.ID) != nil })
	return s
}

func (e *env) ingress(context.Context) ([]*dto.MetricFamily, error) {
	text := func(s string) *string { return &s }
	family := func(name string, m ...*dto.Metric) *dto.MetricFamily {
		return &dto.MetricFamily{Name: &name, Metric: m}
	}
	labels := func(more ...*dto.LabelPair) []*dto.LabelPair {
		return append(more, &dto.LabelPair{Name: text("app_id"), Value: text(string(e.app.ID))}, &dto.LabelPair{Name: text("service"), Value: text("web")})
	}
	var counters []*dto.Metric
	var total uint64
	for code, n := range e.requests {
		counters = append(counters, &dto.Metric{Label: labels(&dto.LabelPair{Name: text("code"), Value: &code}), Counter: &dto.Counter{Value: &n}})
		total += uint64(n)
	}
	fast, slow, inf := 0.1, 0.2, math.Inf(1)
	none, inFlight := uint64(0), 3.0
	return []*dto.MetricFamily{
		family("runtime_ingress_service_requests_total", counters...),
		family("runtime_ingress_service_request_seconds", &dto.Metric{Label: labels(), Histogram: &dto.Histogram{SampleCount: &total, Bucket: []*dto.Bucket{
			{UpperBound: &fast, CumulativeCount: &none}, {UpperBound: &slow, CumulativeCount: &total}, {UpperBound: &inf, CumulativeCount: &total},
		}}}),
		family("runtime_ingress_service_requests_in_flight", &dto.Metric{Label: labels(), Gauge: &dto.Gauge{Value: &inFlight}}),
	}, nil
}

// round takes a sample after change was made.
func (e *env) round(change func()) {
	e.Helper()
	e.mu.Lock()
	change()
	e.mu.Unlock()
	at := e.begin.Add(time.Duration(e.rounds) * interval)
	e.rounds++
	if err := e.recorder.Round(e.Context(), at); err != nil {
		e.Fatal(err)
	}
}

// values returns the values of a series that are there; nil: there is no such series.
func values(r *metric.Response, name, service, label string) (out []float64) {
	for _, s := range r.Series {
		if s.Metric == name && s.Service == service && s.Label == label {
			for _, v := range s.Values {
				if !math.IsNaN(v) {
					out = append(out, v)
				}
			}
		}
	}
	return out
}

func ptr[T any](v T) *T { return &v }

func about(got, want float64) bool { return math.Abs(got-want) <= want/20 }

// TestApp: what the services of an app use and serve, summed over their sandboxes, also
// of one that has ended.
func TestApp(t *testing.T) {
	e := newEnv(t)
	a, b, w := e.sandbox(e.app, "web"), e.sandbox(e.app, "web"), e.sandbox(e.app, "worker")
	other := e.sandbox(nil, "")
	for i := range 30 {
		e.round(func() {
			for _, s := range []*sandbox.Sandbox{a, b, w, other} {
				e.stats[s.GetID()] = sandbox.Stats{CPU: time.Duration(i) * 5 * time.Second, MemoryBytes: 100, PIDs: 2, ReceivedBytes: ptr(int64(i) * 1000), SentBytes: ptr(int64(i) * 10)}
			}
			e.requests["2xx"] = float64(i * 100)
			if i >= 20 {
				delete(e.stats, b.GetID())
				e.requests["5xx"] = float64(i-19) * 10
			}
		})
	}
	r, err := e.service.App(t.Context(), "", "shop", "", metrics.Range{From: e.begin, Step: interval})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		metric, service, label string
		early, late            float64
	}{
		{"cpu", "web", "", 1, 0.5}, {"cpu", "worker", "", 0.5, 0.5}, {"memory", "web", "", 200, 100}, {"processes", "web", "", 4, 2},
		{"sandboxes", "web", "", 2, 1}, {"requests", "web", "2xx", 10, 10}, {"latency", "web", "p50", 0.15, 0.15}, {"latency", "web", "p99", 0.199, 0.199},
		{"in_flight", "web", "", 3, 3}, {"network_in", "web", "", 200, 100}, {"network_out", "worker", "", 1, 1},
	} {
		got := values(r, x.metric, x.service, x.label)
		if len(got) < 28 || !about(got[10], x.early) || !about(got[len(got)-1], x.late) {
			t.Errorf("%s of %s %s: %v, want %v and later %v", x.metric, x.service, x.label, got, x.early, x.late)
		}
	}
	// A class that appears later began at 0: its first requests count.
	if got := values(r, "requests", "web", "5xx"); len(got) == 0 || !about(got[len(got)-1], 1) || got[0] <= 0 {
		t.Errorf("errors: %v", got)
	}
	if slices.ContainsFunc(r.Series, func(s metric.Series) bool { return s.Service == "" }) {
		t.Error("a sandbox of no app is counted")
	}

	// Long steps have the mean of the time.
	r, err = e.service.App(t.Context(), "", "shop", "web", metrics.Range{From: e.begin, Step: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if got := values(r, "memory", "web", ""); len(got) < 2 || got[len(got)-1] < 100 || got[len(got)-1] > 200 || values(r, "cpu", "worker", "") != nil {
		t.Errorf("%+v", r.Series)
	}
	// Without a step the last value is the present one, however long the time is.
	r, err = e.service.App(t.Context(), "", "shop", "web", metrics.Range{From: e.now().Add(-24*time.Hour - 7*time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	if got := values(r, "memory", "web", ""); len(got) == 0 || r.Step != 370*time.Second {
		t.Errorf("in steps of %s: %v", r.Step, got)
	}
	if _, err := e.service.App(t.Context(), "", "none", "", metrics.Range{}); !errs.Is(err, errs.NotFound) {
		t.Error(err)
	}
	for _, bad := range []metrics.Range{{From: e.now(), To: e.begin}, {From: e.begin.Add(-24 * time.Hour), Step: time.Second}} {
		if _, err := e.service.App(t.Context(), "", "shop", "", bad); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestSandboxAndNode: a sandbox that has ended has its past; a node has its own figures.
func TestSandboxAndNode(t *testing.T) {
	e := newEnv(t)
	s := e.sandbox(nil, "")
	for i := range 12 {
		e.round(func() {
			delete(e.stats, s.GetID())
			if i < 6 {
				e.stats[s.GetID()] = sandbox.Stats{CPU: time.Duration(i) * interval, MemoryBytes: 9}
			}
		})
	}
	r, err := e.service.Sandbox(t.Context(), s.GetID(), metrics.Range{From: e.begin, Step: interval})
	if err != nil {
		t.Fatal(err)
	}
	if got := values(r, "memory", "", ""); len(got) < 6 || len(got) > 10 || got[0] != 9 {
		t.Errorf("memory: %v", got)
	}
	if got := values(r, "cpu", "", ""); len(got) == 0 || !about(got[4], 1) {
		t.Errorf("cpu: %v", got)
	}
	r, err = e.service.Node(t.Context(), "one", metrics.Range{})
	if err != nil {
		t.Fatal(err)
	}
	if got := values(r, "cpu", "", ""); len(got) == 0 || !about(got[len(got)-1], 0.5) {
		t.Errorf("cpu of the node: %v", got)
	}
	if got := values(r, "memory", "", ""); len(got) == 0 || got[0] != 42 {
		t.Errorf("memory of the node: %v", got)
	}
}

// TestRunnerHasItsMachine: of a runner that was read there is what its machine uses, and of one that was not what its
// sandboxes use.
func TestRunnerHasItsMachine(t *testing.T) {
	e := newEnv(t)
	nodes := map[string]id.Node{}
	for _, name := range []string{"edge", "old"} {
		n := core.NewNode()
		n.Name, n.Spec.Runner, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = name, true, "amd64", 1000, 1<<30
		if err := entity.Create(t.Context(), e.store, n); err != nil {
			t.Fatal(err)
		}
		nodes[name] = n.GetID()
	}
	e.edge = nodes["edge"]
	for range 12 {
		e.round(func() {})
	}
	r, err := e.service.Node(t.Context(), "edge", metrics.Range{})
	if err != nil {
		t.Fatal(err)
	}
	for metric, want := range map[string]float64{"cpu": 2, "memory": 43, "network_in": 10, "disk_used": 44} {
		if got := values(r, metric, "", ""); len(got) == 0 || !about(got[len(got)-1], want) {
			t.Errorf("%s: %v, want %v", metric, got, want)
		}
	}
	if r, err = e.service.Node(t.Context(), "old", metrics.Range{}); err != nil || len(r.Series) != 0 {
		t.Errorf("of a runner that was not read: %+v %v", r, err)
	}
}

// TestNoHistory: reading says why there is none.
func TestNoHistory(t *testing.T) {
	e := newEnv(t)
	e.service.Store = nil
	if _, err := e.service.App(t.Context(), "", "shop", "", metrics.Range{}); !errs.Is(err, errs.FailedPrecondition) {
		t.Error(err)
	}
	e.service.Err = errs.New(errs.Unavailable, "a disk is full")
	if _, err := e.service.App(t.Context(), "", "shop", "", metrics.Range{}); !errs.Is(err, errs.Unavailable) {
		t.Error(err)
	}
}
