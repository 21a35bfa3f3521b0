package kit

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// env is the system that the test controller makes match the things.
type env struct {
	mu      sync.Mutex
	made    map[schema.ID]string
	runs    map[schema.ID]int
	deleted map[schema.ID]string
}

func newEnv() *env {
	return &env{made: map[schema.ID]string{}, runs: map[schema.ID]int{}, deleted: map[schema.ID]string{}}
}

func (e *env) reconcile(_ context.Context, t *thing) (time.Duration, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.made[t.ID] = t.Spec.Value
	e.runs[t.ID]++
	return 0, nil
}

func (e *env) remove(_ context.Context, t *thing) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.made, t.ID)
	e.deleted[t.ID] = t.Spec.Value
	return nil
}

func (e *env) want(t *testing.T, want map[schema.ID]string) {
	t.Helper()
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !maps.Equal(e.made, want) {
		t.Errorf("made %v, want %v", e.made, want)
	}
}

// read makes a Reconcile function of one that gets the thing, if there is one.
func read(m store, fn func(context.Context, *thing) (time.Duration, error)) func(context.Context, schema.ID) (time.Duration, error) {
	return func(ctx context.Context, key schema.ID) (time.Duration, error) {
		t, err := entity.Get[thing](ctx, m, key)
		if errs.Is(err, errs.NotFound) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		return fn(ctx, t)
	}
}

// newRuntime returns a runtime whose informers follow m until the test ends.
func newRuntime(t *testing.T, m store, cfg Config) *Runtime {
	t.Helper()
	cfg.Informers = informer.New(informer.Config{Reader: m})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cfg.Informers.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return New(cfg)
}

// start runs rt in the bubble until the test ends.
func start(t *testing.T, rt *Runtime) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func add(t *testing.T, rt *Runtime, c Controller) {
	t.Helper()
	if err := rt.Add(c); err != nil {
		t.Fatal(err)
	}
}

func TestFollowsEntities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, e := newStore(), newEnv()
		m.put("thing", "a", thingSpec{Value: "1"})
		rt := newRuntime(t, m, Config{})
		add(t, rt, Controller{Name: "t", Kind: thingKind, Workers: 3, Reconcile: read(m, e.reconcile), Deleted: Last(e.remove)})
		start(t, rt)
		<-rt.Synced()
		e.want(t, map[schema.ID]string{"a": "1"})
		m.put("thing", "a", thingSpec{Value: "2"})
		m.put("thing", "b", thingSpec{Value: "1"})
		m.put("part", "p", thingSpec{Value: "1"})
		e.want(t, map[schema.ID]string{"a": "2", "b": "1"})
		m.Delete("a")
		e.want(t, map[schema.ID]string{"b": "1"})
		if e.deleted["a"] != "2" {
			t.Errorf("Deleted got %q, not the last object", e.deleted["a"])
		}
	})
}

func TestRelistsAfterCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, e := newStore(), newEnv()
		m.put("thing", "a", thingSpec{Value: "1"})
		m.put("thing", "b", thingSpec{Value: "1"})
		rt := newRuntime(t, m, Config{})
		add(t, rt, Controller{Name: "t", Kind: thingKind, Reconcile: read(m, e.reconcile), Deleted: Last(e.remove)})
		start(t, rt)
		e.want(t, map[schema.ID]string{"a": "1", "b": "1"})
		m.setDown(true)
		synctest.Wait()
		m.Delete("a")
		m.put("thing", "b", thingSpec{Value: "2"})
		m.put("thing", "c", thingSpec{Value: "3"})
		m.Compact()
		e.want(t, map[schema.ID]string{"a": "1", "b": "1"}) // unknown is never gone
		time.Sleep(time.Hour)
		e.want(t, map[schema.ID]string{"a": "1", "b": "1"})
		m.setDown(false)
		time.Sleep(4 * time.Second) // MaxUnavailable
		e.want(t, map[schema.ID]string{"b": "2", "c": "3"})
		if e.deleted["a"] != "1" {
			t.Errorf("the deletion during the gap was not delivered: %v", e.deleted)
		}
		if n := m.Lists(); n != 2 {
			t.Errorf("%d listings", n)
		}
	})
}

func TestWaitsForTheStoreAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, e := newStore(), newEnv()
		m.put("thing", "a", thingSpec{Value: "1"})
		m.setDown(true)
		rt := newRuntime(t, m, Config{})
		add(t, rt, Controller{Name: "t", Kind: thingKind, Reconcile: read(m, e.reconcile)})
		start(t, rt)
		time.Sleep(time.Minute)
		e.want(t, map[schema.ID]string{})
		m.setDown(false)
		time.Sleep(4 * time.Second)
		e.want(t, map[schema.ID]string{"a": "1"})
	})
}

func TestMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newStore()
		m.put("part", "p", thingSpec{Owner: "a"})
		var mu sync.Mutex
		runs := map[schema.ID]int{}
		rt := newRuntime(t, m, Config{})
		add(t, rt, Controller{Name: "t", Kind: thingKind,
			Reconcile: func(_ context.Context, key schema.ID) (time.Duration, error) {
				mu.Lock()
				defer mu.Unlock()
				runs[key]++
				return 0, nil
			},
			Watches: []Source{Map(func(p *part) []string { return Key(p.Spec.Owner) })},
		})
		start(t, rt)
		want := func(want map[schema.ID]int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !maps.Equal(runs, want) {
				t.Errorf("runs %v, want %v", runs, want)
			}
		}
		want(map[schema.ID]int{"a": 1})
		m.put("part", "p", thingSpec{Owner: "b"}) // both events arrive
		want(map[schema.ID]int{"a": 2, "b": 1})
		m.put("part", "p", thingSpec{Owner: ""})
		want(map[schema.ID]int{"a": 2, "b": 2})
		m.put("part", "p", thingSpec{Owner: "a"})
		want(map[schema.ID]int{"a": 3, "b": 2})
		m.Delete("p")
		want(map[schema.ID]int{"a": 4, "b": 2})
	})
}

func TestFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, e := newStore(), newEnv()
		m.put("thing", "mine", thingSpec{Value: "1", Owner: "me"})
		m.put("thing", "other", thingSpec{Value: "1", Owner: "you"})
		rt := newRuntime(t, m, Config{})
		add(t, rt, Controller{Name: "t", Kind: thingKind, Reconcile: read(m, e.reconcile), Deleted: Last(e.remove),
			Filter: func(o schema.Object) bool { return o.(*thing).Spec.Owner == "me" }})
		start(t, rt)
		e.want(t, map[schema.ID]string{"mine": "1"})
		m.put("thing", "mine", thingSpec{Value: "2", Owner: "you"}) // it stops matching: delivered once more
		e.want(t, map[schema.ID]string{"mine": "2"})
		m.put("thing", "mine", thingSpec{Value: "3", Owner: "you"})
		e.want(t, map[schema.ID]string{"mine": "2"})
		m.Delete("mine")
		m.Delete("other")
		e.want(t, map[schema.ID]string{"mine": "2"})
	})
}

func TestRetriesTerminalAndResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newStore()
		m.put("thing", "bad", thingSpec{})
		m.put("thing", "hopeless", thingSpec{})
		m.put("thing", "panics", thingSpec{})
		m.put("thing", "fine", thingSpec{})
		var bad, hopeless, panics, fine atomic.Int32
		reg := prometheus.NewRegistry()
		rt := newRuntime(t, m, Config{Registerer: reg})
		add(t, rt, Controller{Name: "t", Kind: thingKind, Resync: time.Minute, Workers: 2,
			Reconcile: func(_ context.Context, key schema.ID) (time.Duration, error) {
				switch key {
				case "bad":
					if bad.Add(1) < 4 {
						return 0, errTest
					}
				case "hopeless":
					hopeless.Add(1)
					return 0, fmt.Errorf("wrapped: %w", Terminal(errTest))
				case "panics":
					if panics.Add(1) == 1 {
						panic("test")
					}
				default:
					fine.Add(1)
				}
				return 0, nil
			}})
		start(t, rt)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if b, h, p, f := bad.Load(), hopeless.Load(), panics.Load(), fine.Load(); b != 4 || h != 1 || p != 2 || f != 1 {
			t.Errorf("runs: bad %d, hopeless %d, panics %d, fine %d", b, h, p, f)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if h, f := hopeless.Load(), fine.Load(); h != 1 || f != 2 {
			t.Errorf("after resync: hopeless %d, fine %d", h, f)
		}
		m.put("thing", "hopeless", thingSpec{Value: "x"})
		synctest.Wait()
		if h := hopeless.Load(); h != 2 {
			t.Errorf("hopeless ran %d times after a change", h)
		}
		got := gather(t, reg)
		for name, want := range map[string]float64{
			"runtime_controller_runs_total{t,error}":    3,
			"runtime_controller_runs_total{t,panic}":    1,
			"runtime_controller_runs_total{t,terminal}": 2,
			"runtime_controller_retries_total{t}":       4,
			"runtime_controller_queue_depth{t}":         0,
		} {
			if got[name] != want {
				t.Errorf("%s = %v, want %v", name, got[name], want)
			}
		}
	})
}

func TestDeletedIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newStore()
		m.put("thing", "a", thingSpec{Value: "1"})
		var tries atomic.Int32
		rt := newRuntime(t, m, Config{})
		add(t, rt, Controller{Name: "t", Kind: thingKind,
			Reconcile: func(context.Context, schema.ID) (time.Duration, error) { return 0, nil },
			Deleted: Last(func(_ context.Context, o *thing) error {
				if o.Spec.Value != "1" {
					t.Errorf("last object is %+v", o)
				}
				if tries.Add(1) < 3 {
					return errs.New(errs.Unavailable, "not now")
				}
				return nil
			})})
		start(t, rt)
		synctest.Wait()
		m.Delete("a")
		time.Sleep(time.Hour)
		if n := tries.Load(); n != 3 {
			t.Errorf("Deleted ran %d times", n)
		}
	})
}

// from adds the keys that ch sends.
func from(ch <-chan schema.ID) func(context.Context, func(schema.ID)) {
	return func(ctx context.Context, add func(schema.ID)) {
		for {
			select {
			case key := <-ch:
				add(key)
			case <-ctx.Done():
				return
			}
		}
	}
}

func TestFuncRequeueAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ch := make(chan schema.ID)
		var runs atomic.Int32
		var cut atomic.Bool
		begun := make(chan struct{}, 1)
		rt := newRuntime(t, newStore(), Config{StopGrace: 3 * time.Second})
		add(t, rt, Controller{Name: "t", Watches: []Source{Func(from(ch))},
			Reconcile: func(ctx context.Context, key schema.ID) (time.Duration, error) {
				if key == "long" {
					begun <- struct{}{}
					<-ctx.Done()
					cut.Store(true)
					return 0, ctx.Err()
				}
				if runs.Add(1) < 5 {
					return time.Minute, nil
				}
				return 0, nil
			}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- rt.Run(ctx) }()
		ch <- "x"
		time.Sleep(time.Hour)
		if n := runs.Load(); n != 5 {
			t.Errorf("ran %d times", n)
		}
		ch <- "long"
		<-begun
		begin := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d != 3*time.Second || !cut.Load() {
			t.Errorf("stopped after %s, cut %v", d, cut.Load())
		}
	})
}

func TestAddRefuses(t *testing.T) {
	rt := New(Config{Informers: informer.New(informer.Config{Reader: newStore()})})
	fn := func(context.Context, schema.ID) (time.Duration, error) { return 0, nil }
	add(t, rt, Controller{Name: "t", Kind: thingKind, Reconcile: fn})
	for _, c := range []Controller{
		{Name: "t", Kind: thingKind, Reconcile: fn},
		{Name: "u", Reconcile: fn},
		{Name: "v", Kind: thingKind},
		{Kind: thingKind, Reconcile: fn},
	} {
		if err := rt.Add(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

func gather(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	fams, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range fams {
		for _, m := range f.GetMetric() {
			name := f.GetName() + "{"
			for i, l := range m.GetLabel() {
				if i > 0 {
					name += ","
				}
				name += l.GetValue()
			}
			out[name+"}"] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}
