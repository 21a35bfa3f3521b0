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

// gate is a store that a test can make fail.
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

// env is a node over a real store and a simulated machine.
type env struct {
	*testing.T
	store   *gate // the store that the controller uses
	machine *fake.Machine
	disks   sandbox.Disks // of the reconcilers made next
	rec     *sandbox.Reconciler
	project schema.ID
	node    id.Node
	sealer  *schema.Sealer
	ahead   atomic.Int64 // offset of the clock
	logger  *slog.Logger

	mu      sync.Mutex
	runs    map[schema.ID]int
	verdict error // result of the probe
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{T: t, store: &gate{Store: pgtest.Store(t, api.Kinds()...)}, machine: fake.NewMachine(), runs: map[schema.ID]int{}}
	out := io.Discard
	if os.Getenv("VERBOSE") != "" {
		out = t.Output()
	}
	e.logger = slog.New(slog.NewTextHandler(out, nil))
	p := core.NewProject()
	p.Name = "default"
	e.must(entity.Create(t.Context(), e.store, p))
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "n", "amd64", 1000_000, 1<<40
	e.must(entity.Create(t.Context(), e.store, n))
	e.project, e.node = p.ID, n.GetID()
	e.sealer = schema.NewSealer(filepath.Join(t.TempDir(), "key"))
	e.rec = e.reconciler(e.store)
	t.Cleanup(func() {
		for _, sid := range e.machine.IDs() {
			e.machine.Vanish(sid)
		}
	})
	return e
}

func (e *env) reconciler(s entity.Store) *sandbox.Reconciler {
	r := &sandbox.Reconciler{
		Driver: e.machine.Driver(), Node: e.node, Sealer: e.sealer, Logger: e.logger, Now: e.now, Disks: e.disks,
		Booted: func() time.Time { return time.Time{} },
		Probe: func(context.Context, string, api_sandbox.Probe) error {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.verdict
		},
	}
	r.Store = kittest.Hold(e, s, r.Controller())
	return r
}

func (e *env) now() time.Time          { return time.Now().Add(time.Duration(e.ahead.Load())) }
func (e *env) advance(d time.Duration) { e.ahead.Add(int64(d)) }

func (e *env) answer(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.verdict = err
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// add creates a sandbox that is placed on the node.
func (e *env) add(change func(*Sandbox), command ...string) *Sandbox {
	e.Helper()
	sb := api_sandbox.NewSandbox()
	sb.Project, sb.Spec.Node, sb.Spec.Template.Image = e.project, e.node, "image"
	sb.Spec.Template.Command = append([]string{"/bin/guest"}, command...)
	sb.Spec.Template.StopTimeout = 5 * time.Second
	sb.Status.Phase = api_sandbox.SandboxPhaseScheduled
	if change != nil {
		change(sb)
	}
	e.must(entity.Create(e.Context(), e.store.Store, sb))
	return sb
}

// withProbe gives a sandbox a probe of port 80.
func withProbe(sb *Sandbox) {
	sb.Spec.Template.Ports = []api_sandbox.Port{{Name: "http", Number: 80}}
	sb.Spec.Template.Probe = &api_sandbox.Probe{
		Kind: api_sandbox.ProbeKindTCP, Path: "/", Interval: 250 * time.Millisecond, Timeout: 2 * time.Second, Deadline: time.Minute,
	}
}

func (e *env) get(sb *Sandbox) *Sandbox {
	e.Helper()
	got, err := entity.Get[Sandbox](e.Context(), e.store.Store, sb.ID)
	e.must(err)
	return got
}

// step reconciles once, at the time of the test's clock.
func (e *env) step(sb *Sandbox) (*Sandbox, time.Duration) {
	e.Helper()
	again, err := e.rec.Reconcile(e.Context(), sb.ID)
	e.must(err)
	return e.get(sb), again
}

func (e *env) spec(sb *Sandbox, change func(*api_sandbox.SandboxSpec)) {
	e.Helper()
	_, err := entity.ModifySpec(e.Context(), e.store.Store, sb.ID, func(o *Sandbox) error {
		change(&o.Spec)
		return nil
	})
	e.must(err)
}

func (e *env) tellStop(sb *Sandbox) {
	e.Helper()
	e.spec(sb, func(s *api_sandbox.SandboxSpec) { s.Desired = api_sandbox.DesiredStateStopped })
}

// drop deletes the entity.
func (e *env) drop(sb *Sandbox) {
	e.Helper()
	for {
		err := entity.Delete(e.Context(), e.store.Store, e.get(sb))
		if !errs.Is(err, errs.Conflict) {
			e.must(err)
			return
		}
	}
}

// control runs the controller over s until stop is called or the test ends.
func (e *env) control(s entity.Store) (stop func()) {
	e.Helper()
	c := e.reconciler(s).Controller()
	c.Backoff = kit.Backoff{Base: 5 * time.Millisecond, MaxUnavailable: 20 * time.Millisecond}
	inner := c.Reconcile
	c.Reconcile = func(ctx context.Context, key schema.ID) (time.Duration, error) {
		e.mu.Lock()
		e.runs[key]++
		e.mu.Unlock()
		return inner(ctx, key)
	}
	_, stop = kittest.Run(e, informer.New(informer.Config{Reader: s}), kit.Config{StopGrace: time.Millisecond, Logger: e.logger}, c)
	return stop
}

func (e *env) count(sb *Sandbox) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs[sb.ID]
}

// eventually waits, and prints all sandboxes on failure.
func (e *env) eventually(what string, cond func() bool) {
	e.Helper()
	wait.For(e, what, cond, wait.State(func() any {
		all, _, _ := entity.List[Sandbox](context.Background(), e.store.Store, entity.Query{})
		for _, sb := range all {
			e.Logf("%s desired %s status %+v", sb.ID, sb.Spec.Desired, sb.Status)
		}
		return e.machine
	}))
}

func (e *env) phase(sb *Sandbox, p api_sandbox.SandboxPhase) *Sandbox {
	e.Helper()
	var got *Sandbox
	e.eventually(fmt.Sprintf("%s is %s", sb.ID, p), func() bool {
		got = e.get(sb)
		return got.Status.Phase == p
	})
	return got
}

// empty waits until nothing is left on the machine.
func (e *env) empty() {
	e.Helper()
	e.eventually("the machine is empty", func() bool { return len(e.machine.IDs()) == 0 })
}

// unlogged waits until no logs are kept.
func (e *env) unlogged() {
	e.Helper()
	e.eventually("no logs are left", func() bool {
		ids, err := e.machine.Driver().LogIDs(e.Context())
		return err == nil && len(ids) == 0
	})
}

var errHung = errors.New("no answer on port 80 in time")
