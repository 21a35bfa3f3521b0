package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	api_sandbox "miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/executiontest/fake"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// Short for the tests.
type (
	Sandbox = api_sandbox.Sandbox
	Status  = api_sandbox.SandboxStatus
)

// gate is a store that can be made to fail.
type gate struct {
	entity.Store
	mu     sync.Mutex
	before func(op string) error
	after  func(op string) error
	writes atomic.Int64
}

func (g *gate) set(before, after func(string) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.before, g.after = before, after
}

func (g *gate) pass(op string, after bool) error {
	g.mu.Lock()
	f := g.before
	if after {
		f = g.after
	}
	g.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(op)
}

func (g *gate) Get(ctx context.Context, kind string, id schema.ID) (schema.Record, error) {
	if err := g.pass("Get", false); err != nil {
		return schema.Record{}, err
	}
	return g.Store.Get(ctx, kind, id)
}

func (g *gate) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	if err := g.pass("Txn", false); err != nil {
		return entity.TxnResult{}, err
	}
	g.writes.Add(1)
	res, err := g.Store.Txn(ctx, req)
	if err == nil {
		err = g.pass("Txn", true)
	}
	return res, err
}

var errAway = errs.New(errs.Unavailable, "away")

// world is a node over a real store and a machine that is not.
type world struct {
	*testing.T
	store   *gate // that the controller uses
	machine *fake.Machine
	rec     *sandbox.Reconciler
	project schema.ID
	node    id.Node
	sealer  *schema.Sealer
	ahead   atomic.Int64 // of the clock
	log     *slog.Logger

	mu      sync.Mutex
	runs    map[schema.ID]int
	verdict error // of the probe
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, store: &gate{Store: pgtest.Store(t, api.Kinds()...)}, machine: fake.NewMachine(), runs: map[schema.ID]int{}}
	out := io.Discard
	if os.Getenv("VERBOSE") != "" {
		out = t.Output()
	}
	w.log = slog.New(slog.NewTextHandler(out, nil))
	p := core.NewProject()
	p.Name = "default"
	w.must(entity.Create(t.Context(), w.store, p))
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "n", "amd64", 1000_000, 1<<40
	w.must(entity.Create(t.Context(), w.store, n))
	w.project, w.node = p.ID, n.GetID()
	w.sealer = schema.NewSealer(filepath.Join(t.TempDir(), "key"))
	w.rec = w.reconciler(w.store)
	t.Cleanup(func() {
		for _, sid := range w.machine.IDs() {
			w.machine.Vanish(sid)
		}
	})
	return w
}

func (w *world) reconciler(s entity.Store) *sandbox.Reconciler {
	r := &sandbox.Reconciler{
		Driver: w.machine.Driver(), Node: w.node, Sealer: w.sealer, Log: w.log, Now: w.now,
		Booted: func() time.Time { return time.Time{} },
		Probe: func(context.Context, string, api_sandbox.Probe) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.verdict
		},
	}
	r.Store = kittest.Hold(w, s, r.Controller())
	return r
}

func (w *world) now() time.Time          { return time.Now().Add(time.Duration(w.ahead.Load())) }
func (w *world) advance(d time.Duration) { w.ahead.Add(int64(d)) }

func (w *world) answer(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.verdict = err
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// add creates a sandbox that is placed on the node.
func (w *world) add(change func(*Sandbox), command ...string) *Sandbox {
	w.Helper()
	sb := api_sandbox.NewSandbox()
	sb.Project, sb.Spec.Node, sb.Spec.Template.Image = w.project, w.node, "image"
	sb.Spec.Template.Command = append([]string{"/bin/guest"}, command...)
	sb.Spec.Template.StopTimeout = 5 * time.Second
	sb.Status.Phase = api_sandbox.SandboxPhaseScheduled
	if change != nil {
		change(sb)
	}
	w.must(entity.Create(w.Context(), w.store.Store, sb))
	return sb
}

// withProbe gives a sandbox a probe of port 80.
func withProbe(sb *Sandbox) {
	sb.Spec.Template.Ports = []api_sandbox.Port{{Name: "http", Number: 80}}
	sb.Spec.Template.Probe = &api_sandbox.Probe{
		Kind: api_sandbox.ProbeKindTCP, Path: "/", Interval: 250 * time.Millisecond, Timeout: 2 * time.Second, Deadline: time.Minute,
	}
}

func (w *world) get(sb *Sandbox) *Sandbox {
	w.Helper()
	got, err := entity.Get[Sandbox](w.Context(), w.store.Store, sb.ID)
	w.must(err)
	return got
}

// step reconciles once, as the controller would now.
func (w *world) step(sb *Sandbox) (*Sandbox, time.Duration) {
	w.Helper()
	again, err := w.rec.Reconcile(w.Context(), sb.ID)
	w.must(err)
	return w.get(sb), again
}

func (w *world) spec(sb *Sandbox, change func(*api_sandbox.SandboxSpec)) {
	w.Helper()
	_, err := entity.ModifySpec(w.Context(), w.store.Store, sb.ID, func(o *Sandbox) error {
		change(&o.Spec)
		return nil
	})
	w.must(err)
}

func (w *world) tellStop(sb *Sandbox) {
	w.Helper()
	w.spec(sb, func(s *api_sandbox.SandboxSpec) { s.Desired = api_sandbox.DesiredStateStopped })
}

// drop deletes the entity.
func (w *world) drop(sb *Sandbox) {
	w.Helper()
	for {
		err := entity.Delete(w.Context(), w.store.Store, w.get(sb))
		if !errs.Is(err, errs.Conflict) {
			w.must(err)
			return
		}
	}
}

// control runs the controller over s until stop is called or the test ends.
func (w *world) control(s entity.Store) (stop func()) {
	w.Helper()
	c := w.reconciler(s).Controller()
	c.Backoff = kit.Backoff{Base: 5 * time.Millisecond, MaxUnavailable: 20 * time.Millisecond}
	inner := c.Reconcile
	c.Reconcile = func(ctx context.Context, key schema.ID) (time.Duration, error) {
		w.mu.Lock()
		w.runs[key]++
		w.mu.Unlock()
		return inner(ctx, key)
	}
	_, stop = kittest.Run(w, informer.New(informer.Config{Reader: s}), kit.Config{StopGrace: time.Millisecond, Logger: w.log}, c)
	return stop
}

func (w *world) count(sb *Sandbox) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[sb.ID]
}

// eventually waits, and shows all sandboxes when it is in vain.
func (w *world) eventually(what string, cond func() bool) {
	w.Helper()
	wait.For(w, what, cond, wait.State(func() any {
		all, _, _ := entity.List[Sandbox](context.Background(), w.store.Store, entity.Query{})
		for _, sb := range all {
			w.Logf("%s desired %s status %+v", sb.ID, sb.Spec.Desired, sb.Status)
		}
		return w.machine
	}))
}

func (w *world) phase(sb *Sandbox, p api_sandbox.SandboxPhase) *Sandbox {
	w.Helper()
	var got *Sandbox
	w.eventually(fmt.Sprintf("%s is %s", sb.ID, p), func() bool {
		got = w.get(sb)
		return got.Status.Phase == p
	})
	return got
}

// empty waits until nothing is left on the machine.
func (w *world) empty() {
	w.Helper()
	w.eventually("the machine is empty", func() bool { return len(w.machine.IDs()) == 0 })
}

// unlogged waits until no logs are kept.
func (w *world) unlogged() {
	w.Helper()
	w.eventually("no logs are left", func() bool {
		ids, err := w.machine.Driver().LogIDs(w.Context())
		return err == nil && len(ids) == 0
	})
}

var errHung = errors.New("no answer on port 80 in time")
