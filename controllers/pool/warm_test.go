package pool

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

type warmFixture struct {
	*testing.T
	store    entity.Store
	rec      *Warm
	cache    *informer.Set
	clock    time.Time
	template *sandbox.Template
	pool     *sandbox.WarmPool
	broken   error // of making the image
}

func setupWarm(t *testing.T, change func(*sandbox.WarmPool)) *warmFixture {
	t.Helper()
	f := &warmFixture{T: t, store: pgtest.Store(t, api.Kinds()...), clock: time.Now()}
	informers := informer.New(informer.Config{Reader: f.store})
	f.cache = informers
	resolve := func(context.Context, string) (string, error) { return "image@sha256:1", f.broken }
	f.rec = &Warm{
		Informers: informers, Templates: templates.New(f.store, informers, resolve, slog.New(slog.DiscardHandler)), Demand: &sandboxes.Demand{},
		Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return f.clock },
	}
	f.rec.Store = kittest.Hold(t, f.store, f.rec.Controller())
	p := core.NewProject()
	p.Name = "default"
	f.must(entity.Create(t.Context(), f.store, p))
	f.template = sandbox.NewTemplate()
	f.template.Project, f.template.Name = p.ID, "python"
	f.must(entity.Create(t.Context(), f.store, f.template))
	f.version(1)
	f.pool = sandbox.NewWarmPool()
	f.pool.Project, f.pool.Name, f.pool.Spec.Template, f.pool.Spec.Idle = p.ID, "python", f.template.GetID(), time.Minute
	change(f.pool)
	f.must(entity.Create(t.Context(), f.store, f.pool))
	return f
}

func (f *warmFixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// version makes a version of the template the current one.
func (f *warmFixture) version(number int64) {
	f.Helper()
	v := sandbox.NewTemplateVersion()
	v.Project, v.Spec.Template, v.Spec.Number, v.Spec.Base = f.template.Project, f.template.GetID(), number, "runtime/python"
	f.must(entity.Create(f.Context(), f.store, v))
	f.template.Status.Version, f.template.Status.Number = v.GetID(), number
	f.must(entity.UpdateStatus(f.Context(), f.store, f.template))
}

func (f *warmFixture) reconcile() time.Duration {
	f.Helper()
	again, err := f.rec.Reconcile(f.Context(), f.pool.ID)
	f.must(err)
	p, err := entity.Get[sandbox.WarmPool](f.Context(), f.store, f.pool.ID)
	f.must(err)
	f.pool = p
	return again
}

// settle reconciles, and lets each sandbox that is made become ready, until the
// pool changes no more.
func (f *warmFixture) settle() sandboxes.Members {
	f.Helper()
	for range 50 {
		rev := f.pool.Revision
		f.reconcile()
		for _, sb := range f.members().Live {
			if sb.Status.Phase == sandbox.SandboxPhasePending {
				at := f.clock
				sb.Status.Phase, sb.Status.Ready, sb.Status.ReadyAt, sb.Status.StartedAt = sandbox.SandboxPhaseRunning, true, &at, &at
				f.must(entity.UpdateStatus(f.Context(), f.store, sb))
			}
		}
		if f.pool.Revision == rev {
			return f.members()
		}
	}
	f.Fatal("does not come to rest")
	return sandboxes.Members{}
}

func (f *warmFixture) members() sandboxes.Members {
	f.Helper()
	all, _, err := entity.List[sandbox.Sandbox](f.Context(), f.store, entity.Where(sandbox.SandboxAttrWarmPool, f.pool.ID))
	f.must(err)
	return sandboxes.Classify(all)
}

func (f *warmFixture) claim(n int) {
	f.Helper()
	for range n {
		f.rec.Demand.Note(f.pool.GetID(), f.clock)
	}
}

func (f *warmFixture) later(d time.Duration) { f.clock = f.clock.Add(d) }

func TestWarmPoolFollowsDemand(t *testing.T) {
	f := setupWarm(t, func(p *sandbox.WarmPool) { p.Spec.Min, p.Spec.Max = 1, 5 })
	if m := f.settle(); len(m.Live) != 1 || f.pool.Status.Target != 1 || f.pool.Status.Warm != 1 {
		t.Fatalf("%d live without demand; %+v", len(m.Live), f.pool.Status)
	}
	f.claim(3)
	f.later(yield)
	if m := f.settle(); len(m.Live) != 3 || f.pool.Status.Warm != 3 {
		t.Fatalf("%d live after a burst of 3; %+v", len(m.Live), f.pool.Status)
	}
	f.later(demandSlotForTest)
	f.claim(9)
	f.later(yield)
	if m := f.settle(); len(m.Live) != 5 {
		t.Fatalf("%d live after a burst of 9, at most 5 are permitted", len(m.Live))
	}
	sb := f.members().Live[0]
	if !sb.Spec.Template.Idle || sb.Spec.Template.Image != "image@sha256:1" || sb.Spec.TemplateVersion != f.template.Status.Version {
		t.Errorf("made of %+v", sb.Spec)
	}
	// The first server may have known of demand that this one does not: it keeps
	// the existing sandboxes for the idle time, then the minimum.
	f.later(2 * time.Minute)
	again := f.reconcile()
	if m := f.members(); len(m.Live) != 1 || len(m.Stopping) != 4 || again != 0 {
		t.Errorf("%d live, %d stopping, again after %s; want the minimum after the idle time", len(m.Live), len(m.Stopping), again)
	}
	for _, sb := range f.members().Stopping {
		if sb.Spec.StopReason != sandbox.EndReasonIdle {
			t.Errorf("stopped because of %s", sb.Spec.StopReason)
		}
	}
}

// demandSlotForTest is longer than the time within which claims are one burst.
const demandSlotForTest = 11 * time.Second

func TestWarmPoolYieldsToClaims(t *testing.T) {
	f := setupWarm(t, func(p *sandbox.WarmPool) { p.Spec.Min, p.Spec.Max = 2, 5 })
	f.settle()
	f.claim(3)
	if again := f.reconcile(); len(f.members().Live) != 2 || again > yield {
		t.Errorf("%d live right after a claim, again after %s", len(f.members().Live), again)
	}
	f.later(yield)
	if m := f.settle(); len(m.Live) != 3 {
		t.Errorf("%d live later", len(m.Live))
	}
}

// Claims keep a pool that still has warm sandboxes from being looked at, but not for ever.
func TestWarmPoolIsLeftAloneDuringClaims(t *testing.T) {
	f := setupWarm(t, func(p *sandbox.WarmPool) { p.Spec.Min, p.Spec.Max = 2, 5 })
	m := f.settle()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.cache.Run(ctx) }()
	defer func() { cancel(); wait.Receive(t, "the end of the informers", ended) }()
	waiting := func(n int) {
		t.Helper()
		wait.For(t, "the informer knows the sandboxes", func() bool {
			return len(informer.Of[sandbox.Sandbox](f.cache).ByIndex(indexWaiting, string(f.pool.ID))) == n
		})
	}
	waiting(2)
	f.claim(3)
	for range int(maxHold/yield) * 2 {
		if again := f.reconcile(); f.pool.Status.Target != 2 {
			t.Fatalf("looked at right after a claim: %+v", f.pool.Status)
		} else if again <= 0 || again > yield {
			t.Fatalf("again after %s", again)
		}
		f.later(yield / 2)
		f.rec.Demand.Note(f.pool.GetID(), f.clock)
	}
	if f.reconcile(); f.pool.Status.Target < 3 {
		t.Errorf("held for longer than %s: %+v", maxHold, f.pool.Status)
	}
	for _, sb := range m.Live {
		sb.Spec.WarmPool, sb.Spec.Claim = "", "claim-"+string(sb.ID)
		f.must(entity.UpdateSpec(t.Context(), f.store, sb))
	}
	waiting(0)
	if f.reconcile(); len(f.members().Live) == 0 {
		t.Error("an empty pool waits after a claim")
	}
}

func TestWarmPoolReplacesOldVersions(t *testing.T) {
	f := setupWarm(t, func(p *sandbox.WarmPool) { p.Spec.Min = 2 })
	f.settle()
	f.version(2)
	m := f.settle()
	if len(m.Live) != 2 || len(m.Stopping) != 2 {
		t.Fatalf("%d live, %d stopping", len(m.Live), len(m.Stopping))
	}
	for _, sb := range m.Live {
		if sb.Spec.TemplateVersion != f.template.Status.Version {
			t.Errorf("%s is of the old version", sb.ID)
		}
	}
}

func TestWarmPoolMakesRoom(t *testing.T) {
	f := setupWarm(t, func(p *sandbox.WarmPool) { p.Spec.Min = 2 })
	f.settle()
	other := sandbox.NewSandbox()
	other.Project, other.Spec.Template.Image = f.template.Project, "img"
	f.must(entity.Create(t.Context(), f.store, other))
	if f.reconcile(); len(f.members().Live) != 2 {
		t.Fatal("a sandbox that was not refused yet ends warm ones")
	}
	other.Status.Message = "no node has room"
	f.must(entity.UpdateStatus(t.Context(), f.store, other))
	if f.reconcile(); len(f.members().Live) != 0 || f.pool.Status.Target != 0 {
		t.Fatalf("%d live while a sandbox finds no room; %+v", len(f.members().Live), f.pool.Status)
	}
	f.must(entity.Delete(t.Context(), f.store, other))
	if m := f.settle(); len(m.Live) != 2 {
		t.Errorf("%d live afterwards", len(m.Live))
	}
}

func TestWarmPoolBacksOff(t *testing.T) {
	f := setupWarm(t, func(p *sandbox.WarmPool) { p.Spec.Min = 1 })
	f.reconcile()
	sb := f.members().Live[0]
	at := f.clock
	sb.Status.Phase, sb.Status.Reason, sb.Status.EndedAt = sandbox.SandboxPhaseFailed, sandbox.EndReasonSetup, &at
	f.must(entity.UpdateStatus(t.Context(), f.store, sb))
	again := f.reconcile()
	if len(f.members().Live) != 0 || f.pool.Status.Failures != 1 || again <= 0 || again > minBackoff || f.pool.Status.Message == "" {
		t.Fatalf("%d live, again after %s, %+v", len(f.members().Live), again, f.pool.Status)
	}
	f.later(again + time.Millisecond)
	if f.reconcile(); len(f.members().Live) != 1 {
		t.Errorf("%d live after the back-off", len(f.members().Live))
	}
}

func TestWarmPoolSaysWhyItHasNoImage(t *testing.T) {
	f := setupWarm(t, func(p *sandbox.WarmPool) { p.Spec.Min = 1 })
	f.broken = errs.New(errs.Unavailable, "the registry is away")
	again := f.reconcile()
	if len(f.members().Live) != 0 || f.pool.Status.Message == "" || again != maxBackoff {
		t.Fatalf("%d live, again after %s, %+v", len(f.members().Live), again, f.pool.Status)
	}
	f.broken = nil
	if m := f.settle(); len(m.Live) != 1 || f.pool.Status.Message != "" {
		t.Errorf("%d live, %+v", len(m.Live), f.pool.Status)
	}
}

func TestDeletedWarmPoolTakesItsSandboxesAlong(t *testing.T) {
	f := setupWarm(t, func(p *sandbox.WarmPool) { p.Spec.Min = 2 })
	m := f.settle()
	claimed := m.Live[0]
	claimed.Spec.WarmPool, claimed.Spec.Claim = "", "claim-1"
	f.must(entity.UpdateSpec(t.Context(), f.store, claimed))
	f.must(entity.Remove[sandbox.WarmPool](t.Context(), f.store, f.pool.ID))
	all, _, err := entity.List[sandbox.Sandbox](t.Context(), f.store, entity.Query{})
	f.must(err)
	if len(all) != 1 || all[0].ID != claimed.ID {
		t.Errorf("%d sandboxes are left, want the claimed one", len(all))
	}
	if _, err := f.rec.Reconcile(t.Context(), f.pool.ID); err != nil {
		t.Error(err)
	}
}
