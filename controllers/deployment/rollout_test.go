package deployment_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/source"
)

func TestDeployRedeployRollback(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)

	d1 := e.succeed(e.deploy("shop", e.source("ok", "web=ok", "worker=ok", "idle=ok", "many=ok")))
	a := e.settled("shop")
	if a.Status.Active() != d1.Status.Version || a.Status.LastDeployment != d1.GetID() {
		t.Fatalf("status %+v", a.Status)
	}
	if d1.Status.URL != "http://shop.localhost/" || d1.Status.EndedAt == nil {
		t.Fatalf("status %+v", d1.Status)
	}
	for _, s := range d1.Status.Steps {
		if s.State != app.StepStateDone || s.StartedAt == nil || s.EndedAt == nil {
			t.Errorf("step %+v", s)
		}
	}
	count := func(service string) int {
		return len(list(e, func(sb *sandbox.Sandbox) bool {
			return sb.Spec.AppVersion == d1.Status.Version && sb.Spec.Service == service
		}))
	}
	if count("web") != 1 || count("worker") != 1 || count("idle") != 0 || count("many") != 5 {
		t.Errorf("sandboxes: web %d worker %d idle %d many %d", count("web"), count("worker"), count("idle"), count("many"))
	}
	web := list(e, func(p *sandbox.SandboxPool) bool { return p.Spec.Service == "web" })[0]
	if web.Spec.Template.Env["PORT"] != "8080" || web.Spec.Template.Probe == nil || web.Spec.Template.Resources.DiskBytes == 0 {
		t.Errorf("template %+v", web.Spec.Template)
	}
	worker := list(e, func(p *sandbox.SandboxPool) bool { return p.Spec.Service == "worker" })[0]
	if worker.Spec.Template.Probe != nil || worker.Spec.Template.Env["PORT"] != "" {
		t.Errorf("template of a service without a port %+v", worker.Spec.Template)
	}

	d2 := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	a = e.settled("shop")
	if a.Status.Active() != d2.Status.Version || d2.Status.Previous != d1.Status.Version || a.Spec.VersionCounter != 2 {
		t.Fatalf("status %+v, deployment %+v", a.Status, d2.Status)
	}

	// Environment: what a failed rollout leaves, what a rollback brings back.
	d3, _, err := e.apps.SetEnv(t.Context(), "", "shop", apps.EnvChange{Set: map[string]string{"COLOR": "red"}, SetSecret: map[string]string{"KEY": "s3"}, Deploy: true}, apps.DeployRequest{})
	if err != nil {
		t.Fatal(err)
	}
	d3 = e.succeed(d3)
	e.settled("shop")
	v3 := e.version(d3)
	if v3.Spec.Env["COLOR"] != "red" || len(v3.Spec.Secrets) != 1 || v3.Spec.CopiedFrom != d2.Status.Version || v3.Spec.Image == "" || v3.Status.ServedAt == nil {
		t.Fatalf("version %+v", v3.Spec)
	}
	d4, err := e.apps.Restart(t.Context(), "", "shop", apps.DeployRequest{})
	if err != nil {
		t.Fatal(err)
	}
	e.succeed(d4)
	// The version before the restart runs the same: what it undoes is the environment.
	d5, err := e.apps.Rollback(t.Context(), "", "shop", "", apps.DeployRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if d5.Spec.Target != d2.Status.Version {
		t.Fatalf("rollback to %s, want %s", d5.Spec.Target, d2.Status.Version)
	}
	d5 = e.succeed(d5)
	a = e.settled("shop")
	if len(a.Spec.Env)+len(a.Spec.Secrets) != 0 {
		t.Errorf("environment after rollback: %v", a.Spec.Env)
	}
	if v := e.version(d5); v.Spec.Number != 5 || v.Spec.Build != v3.Spec.Build {
		t.Errorf("version %+v", v.Spec)
	}
	// To a version by its number, whose build is forgotten meanwhile.
	b := list(e, func(b *app.Build) bool { return b.GetID() == e.version(d1).Spec.Build })[0]
	if err := entity.Delete(t.Context(), e.store, b); err != nil {
		t.Fatal(err)
	}
	d6, err := e.apps.Rollback(t.Context(), "", "shop", "v1", apps.DeployRequest{})
	if err != nil {
		t.Fatal(err)
	}
	d6 = e.succeed(d6)
	if v := e.version(d6); v.Spec.CopiedFrom != d1.Status.Version || v.Spec.Build != "" || len(v.Spec.Services) != 4 {
		t.Errorf("version %+v", v.Spec)
	}
	e.settled("shop")
}

func (e *env) version(d *app.Deployment) *app.AppVersion {
	e.Helper()
	v, err := entity.Get[app.AppVersion](e.Context(), e.store, d.Status.Version)
	if err != nil {
		e.Fatal(err)
	}
	return v
}

// Every failure keeps the old version, leaves nothing behind and explains itself.
func TestFailures(t *testing.T) {
	for _, tc := range []struct {
		name, build string
		services    []string
		ahead       time.Duration
		reason      app.FailureReason
		message     string
		check       func(f *app.Failure) bool
	}{
		{"build", "fail", []string{"web=ok"}, 0, app.FailureReasonBuild, "RUN make: exit code 2", func(f *app.Failure) bool { return f.LogTail[0] == "make: no rule" }},
		{"builder panics", "panic", []string{"web=ok"}, 0, app.FailureReasonInternal, "index out of range", nil},
		{"crash", "ok", []string{"web=ok", "worker=crash"}, 0, app.FailureReasonCrash, "service worker ended with exit code 3", func(f *app.Failure) bool {
			return *f.ExitCode == 3 && f.LogTail[0] == "panic: no database" && f.Service == "worker"
		}},
		{"oom", "ok", []string{"web=oom"}, 0, app.FailureReasonOOM, "more than its 512 MiB", nil},
		{"port", "ok", []string{"web=deaf"}, 0, app.FailureReasonPort, "listens on port 3000, but its port is 8080", func(f *app.Failure) bool {
			return f.Listening[0] == 3000 && *f.ExpectedPort == 8080 && strings.Contains(f.Hint, "port = 3000") && len(f.LogTail) == 1
		}},
		{"loopback", "ok", []string{"web=local"}, 0, app.FailureReasonPort, "listens on port 8080 of 127.0.0.1 alone", func(f *app.Failure) bool {
			return strings.Contains(f.Hint, "0.0.0.0") && slices.Equal(f.Listening, []int64{8080, 9229})
		}},
		{"no port", "ok", []string{"web=mute"}, 0, app.FailureReasonPort, "listened on no port", nil},
		{"unhealthy", "ok", []string{"web=sick"}, 0, app.FailureReasonUnhealthy, "GET /healthz answered 500", nil},
		{"setup", "ok", []string{"web=setup"}, 0, app.FailureReasonInternal, "no space left on device", nil},
		{"capacity", "ok", []string{"huge=ok"}, time.Minute, app.FailureReasonCapacity, "no node has room", nil},
		{"never ready", "ok", []string{"many=gate"}, time.Hour, app.FailureReasonTimeout, "many", nil},
		{"node says nothing", "ok", []string{"web=gate"}, time.Hour, app.FailureReasonPort, "listened on no port", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.control(e.store)
			d1 := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
			bad := e.deploy("shop", e.source(tc.build, tc.services...))
			if tc.ahead > 0 {
				e.phase(bad, app.DeploymentPhaseStarting)
				e.eventually("only "+tc.services[0]+" is waited for", func() bool { return e.waitsFor(bad, tc.services[0]) })
				e.advance(tc.ahead)
			}
			bad = e.phase(bad, app.DeploymentPhaseFailed)
			f := bad.Status.Failure
			if f == nil || f.Reason != tc.reason || !strings.Contains(f.Message, tc.message) || f.Hint == "" {
				t.Fatalf("failure %+v", f)
			}
			if tc.check != nil && !tc.check(f) {
				t.Fatalf("failure %+v", f)
			}
			a := e.settled("shop")
			if a.Status.Active() != d1.Status.Version || a.Status.LastDeployment != bad.GetID() {
				t.Fatalf("status %+v", a.Status)
			}
			// The app can be deployed again at once.
			e.gate.Store(true)
			d3 := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
			if a := e.settled("shop"); a.Status.Active() != d3.Status.Version {
				t.Fatalf("status %+v", a.Status)
			}
		})
	}
}

// waitsFor reports whether the deployment waits for sandboxes of this service
// while its other services are ready: a test that then moves the clock blames
// this service alone.
func (e *env) waitsFor(d *app.Deployment, service string) bool {
	service, _, _ = strings.Cut(service, "=")
	ver := e.version(e.get(d))
	for _, svc := range ver.Spec.Services {
		sbs := list(e, func(sb *sandbox.Sandbox) bool {
			return sb.Spec.AppVersion == ver.GetID() && sb.Spec.Service == svc.Name
		})
		if !slices.ContainsFunc(sbs, func(sb *sandbox.Sandbox) bool {
			if svc.Name == service {
				return sb.Status.Message != "" || sb.Status.StartedAt != nil
			}
			return sb.Status.Ready
		}) {
			return false
		}
	}
	return true
}

func TestSourceFailures(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	e.sources.put("empty", map[string]string{"README": "x"})
	e.sources.put("broken", map[string]string{"app.toml": "name = \n"})
	for source, reason := range map[string]app.FailureReason{
		"absent": app.FailureReasonSource, "empty": app.FailureReasonPlan, "broken": app.FailureReasonSource,
	} {
		d := e.phase(e.deploy("shop", source), app.DeploymentPhaseFailed)
		if f := d.Status.Failure; f.Reason != reason || f.Message == "" {
			t.Errorf("%s: %+v", source, f)
		}
		e.settled("shop")
	}
}

func TestCancel(t *testing.T) {
	for _, tc := range []struct {
		name   string
		source func(e *env) string
		at     app.DeploymentPhase
	}{
		{"pending", func(e *env) string { return e.source("ok", "web=ok") }, app.DeploymentPhasePending},
		{"building", func(e *env) string { return e.source("hang", "web=ok") }, app.DeploymentPhaseBuilding},
		{"starting", func(e *env) string { return e.source("ok", "web=gate", "worker=ok") }, app.DeploymentPhaseStarting},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			stop := e.control(e.store)
			d1 := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
			if tc.at == app.DeploymentPhasePending {
				stop()
			}
			src := tc.source(e)
			d := e.phase(e.deploy("shop", src), tc.at)
			if _, err := e.apps.Cancel(t.Context(), "", "shop"); err != nil {
				t.Fatal(err)
			}
			if tc.at == app.DeploymentPhasePending {
				e.control(e.store)
			}
			e.phase(d, app.DeploymentPhaseCanceled)
			if a := e.settled("shop"); a.Status.Active() != d1.Status.Version {
				t.Fatalf("status %+v", a.Status)
			}
			if _, err := e.apps.Cancel(t.Context(), "", "shop"); !errs.Is(err, errs.NotFound) {
				t.Errorf("cancel of nothing: %v", err)
			}
		})
	}
}

func TestCancelTooLate(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	d1 := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	e.drainer.set(d1.Status.Version, 1)
	d2 := e.phase(e.deploy("shop", e.source("ok", "web=ok")), app.DeploymentPhaseDraining)
	if _, err := e.apps.Cancel(t.Context(), "", "shop"); !errs.Is(err, errs.FailedPrecondition) || errs.HintOf(err) == "" {
		t.Errorf("cancel while draining: %v", err)
	}
	// A cancel that is already in the spec does not take the traffic back
	// either.
	if _, err := entity.ModifySpec(t.Context(), e.store, d2.ID, func(d *app.Deployment) error { d.Spec.Cancel = true; return nil }); err != nil {
		t.Fatal(err)
	}
	e.drainer.set(d1.Status.Version, 0)
	e.succeed(d2)
	if a := e.settled("shop"); a.Status.Active() != d2.Status.Version {
		t.Errorf("status %+v", a.Status)
	}
}

func TestDrain(t *testing.T) {
	for _, bound := range []bool{false, true} {
		e := newEnv(t)
		e.control(e.store)
		d1 := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
		e.drainer.set(d1.Status.Version, 3)
		d2 := e.phase(e.deploy("shop", e.source("ok", "web=ok")), app.DeploymentPhaseDraining)
		if a := e.app("shop"); a.Status.Active() != d2.Status.Version {
			t.Fatalf("draining, but %s serves", a.Status.Active())
		}
		e.eventually("it waits for the requests", func() bool {
			s := e.get(d2).Status.Steps[3]
			return s.State == app.StepStateRunning && strings.Contains(s.Message, "under way")
		})
		running := list(e, func(sb *sandbox.Sandbox) bool { return sb.Spec.AppVersion == d1.Status.Version && sb.Status.Ready })
		if len(running) != 1 {
			t.Fatalf("%d sandboxes of the old version run while it has requests", len(running))
		}
		if bound {
			e.advance(5 * time.Minute)
		} else {
			e.drainer.set(d1.Status.Version, 0)
		}
		e.succeed(d2)
		e.settled("shop")
	}
}

// An ingress that is away delays the end, but not beyond the timeout.
func TestDrainWithoutIngress(t *testing.T) {
	e := newEnv(t)
	e.drainer.away = true
	e.control(e.store)
	d := e.phase(e.deploy("shop", e.source("ok", "web=ok")), app.DeploymentPhaseDraining)
	e.eventually("it asks", func() bool { e.drainer.mu.Lock(); defer e.drainer.mu.Unlock(); return e.drainer.asked > 1 })
	e.advance(5 * time.Minute)
	e.succeed(d)
	e.settled("shop")
}

// An ingress that does not run has no requests.
func TestDrainWithIngressDown(t *testing.T) {
	e := newEnv(t)
	e.drainer.down = true
	e.control(e.store)
	d := e.phase(e.deploy("shop", e.source("ok", "web=ok")), app.DeploymentPhaseDraining)
	e.eventually("it asks", func() bool { e.drainer.mu.Lock(); defer e.drainer.mu.Unlock(); return e.drainer.asked > 1 })
	e.advance(4 * time.Second) // the timeout is 2 min
	e.succeed(d)
	e.settled("shop")
}

func TestLeaseHeld(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	d := e.phase(e.deploy("shop", e.source("ok", "web=gate")), app.DeploymentPhaseStarting)
	_, err := e.apps.Deploy(t.Context(), e.app("shop"), apps.DeployRequest{Kind: app.RolloutKindDeploy, Source: source.Digest(e.source("ok", "web=ok"))})
	if !errs.Is(err, errs.Conflict) || errs.Detail(err, app.DetailLease) != string(d.ID) || errs.HintOf(err) == "" {
		t.Fatalf("second deployment: %v", err)
	}
	e.gate.Store(true)
	e.succeed(d)
	// At once: the end and the lease are one transaction.
	e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	e.settled("shop")
}

func TestManyAtOnce(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	src, a := e.source("ok", "web=ok"), e.app("shop")
	type result struct {
		d   *app.Deployment
		err error
	}
	results := make(chan result)
	for range 8 {
		go func() {
			d, err := e.apps.Deploy(t.Context(), a, apps.DeployRequest{Kind: app.RolloutKindDeploy, Source: source.Digest(src)})
			results <- result{d, err}
		}()
	}
	accepted := 0
	for range 8 {
		r := <-results
		switch {
		case r.err == nil:
			accepted++
			e.succeed(r.d)
		case errs.Detail(r.err, app.DetailLease) == "":
			t.Errorf("refused without naming who holds the lease: %v", r.err)
		}
	}
	if accepted == 0 {
		t.Error("none was accepted")
	}
	if a := e.settled("shop"); int(a.Spec.VersionCounter) != accepted {
		t.Errorf("%d deployments, %d versions", accepted, a.Spec.VersionCounter)
	}
}

// A deployment whose lease lapsed ends, and changes nothing of its successor.
func TestLeaseLost(t *testing.T) {
	for _, at := range []app.DeploymentPhase{app.DeploymentPhaseBuilding, app.DeploymentPhaseStarting, app.DeploymentPhaseDraining} {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			stop := e.control(e.store)
			d1 := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
			e.drainer.set(d1.Status.Version, 1)
			src := e.source("ok", "web=ok")
			switch at {
			case app.DeploymentPhaseBuilding:
				src = e.source("hang", "web=ok")
			case app.DeploymentPhaseStarting:
				src = e.source("ok", "web=gate")
			}
			d2 := e.phase(e.deploy("shop", src), at)
			stop()
			l, err := apps.LeaseOf(t.Context(), e.store, d2.Spec.App)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.store.Revoke(t.Context(), l.Lease); err != nil {
				t.Fatal(err)
			}
			d3 := e.deploy("shop", e.source("ok", "web=ok"))
			e.drainer.set(d1.Status.Version, 0)
			e.control(e.store)
			if at == app.DeploymentPhaseDraining {
				e.succeed(d2) // its version served
			} else {
				d2 = e.phase(d2, app.DeploymentPhaseFailed)
				if d2.Status.Failure.Reason != app.FailureReasonLease {
					t.Errorf("failure %+v", d2.Status.Failure)
				}
			}
			d3 = e.succeed(d3)
			if a := e.settled("shop"); a.Status.Active() != d3.Status.Version {
				t.Errorf("status %+v", a.Status)
			}
		})
	}
}

func TestAppDeletedMidway(t *testing.T) {
	for _, src := range []string{"hang", "ok"} {
		e := newEnv(t)
		e.control(e.store)
		e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
		d := e.deploy("shop", e.source(src, "web=gate"))
		if src == "ok" {
			e.phase(d, app.DeploymentPhaseStarting)
		} else {
			e.phase(d, app.DeploymentPhaseBuilding)
		}
		if err := e.apps.Delete(t.Context(), "", "shop"); err != nil {
			t.Fatal(err)
		}
		e.eventually("nothing is left", func() bool {
			n := len(list(e, func(*app.Deployment) bool { return true })) + len(list(e, func(*app.Build) bool { return true })) +
				len(list(e, func(*app.AppVersion) bool { return true })) + len(list(e, func(*app.DeployLease) bool { return true })) +
				len(list(e, func(*sandbox.SandboxPool) bool { return true })) + len(list(e, func(*sandbox.Sandbox) bool { return true }))
			logs, err := e.logs.List()
			if err != nil {
				t.Fatal(err)
			}
			return n == 0 && len(logs) == 0
		})
		// The name is free again.
		e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
		e.settled("shop")
	}
}

// Long names must not make an app that cannot be deployed.
func TestLongNames(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	name := strings.Repeat("a", 40)
	svc := strings.Repeat("b", 32)
	e.succeed(e.deploy(name, e.source("ok", "web=ok", svc+"=ok", svc[:31]+"c=ok")))
	e.settled(name)
}

// A deployment that cannot be stored fails at once; if a name is taken, the
// next one is used.
func TestUnstorable(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	d1 := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	taken := app.NewAppVersion()
	taken.Project, taken.Name, taken.Spec = e.version(d1).Project, "shop-v2", e.version(d1).Spec
	taken.Spec.Number = 99
	if err := entity.Create(t.Context(), e.store, taken); err != nil {
		t.Fatal(err)
	}
	d2 := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	if v := e.version(d2); v.Spec.Number != 3 {
		t.Errorf("version %d", v.Spec.Number)
	}
	if err := entity.Delete(t.Context(), e.store, taken); err != nil {
		t.Fatal(err)
	}
	e.settled("shop")
}

func TestPoolNameTaken(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	a := e.app("shop")
	p := sandbox.NewSandboxPool()
	p.Project, p.Name, p.Spec.Replicas, p.Spec.Template.Image = a.Project, "shop-v1-web", 0, "x"
	if err := entity.Create(t.Context(), e.store, p); err != nil {
		t.Fatal(err)
	}
	d := e.phase(e.deploy("shop", e.source("ok", "web=ok")), app.DeploymentPhaseStarting)
	e.advance(5 * time.Minute)
	d = e.phase(d, app.DeploymentPhaseFailed)
	if f := d.Status.Failure; f.Reason != app.FailureReasonInternal || !strings.Contains(f.Message, "taken") {
		t.Errorf("failure %+v", f)
	}
	e.settled("shop")
}

// An app whose first deployment fails serves nothing, and can be deployed.
func TestFirstFails(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	d := e.phase(e.deploy("shop", e.source("ok", "web=crash", "many=ok")), app.DeploymentPhaseFailed)
	if a := e.settled("shop"); a.Status.Active() != "" || d.Status.Previous != "" {
		t.Errorf("status %+v", a.Status)
	}
	if _, err := e.apps.Rollback(t.Context(), "", "shop", "", apps.DeployRequest{}); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("rollback: %v", err)
	}
	e.succeed(e.deploy("shop", e.source("ok", "worker=ok"))) // a worker alone
	e.settled("shop")
}

// The server was away between readiness and the shift: a version that is no
// longer ready does not get the traffic.
func TestNotReadyAtTheShift(t *testing.T) {
	e := newEnv(t)
	stop := e.control(e.store)
	d1 := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	d2 := e.phase(e.deploy("shop", e.source("ok", "web=gate")), app.DeploymentPhaseStarting)
	e.eventually("the sandbox runs", func() bool {
		return len(list(e, func(sb *sandbox.Sandbox) bool {
			return sb.Spec.AppVersion != d1.Status.Version && sb.Status.Phase == sandbox.SandboxPhaseRunning
		})) == 1
	})
	stop()
	if _, err := entity.ModifyStatus(t.Context(), e.store, d2.ID, func(d *app.Deployment) error {
		d.Status.Phase = app.DeploymentPhaseShifting
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	e.control(e.store)
	e.phase(d2, app.DeploymentPhaseStarting)
	if a := e.app("shop"); a.Status.Active() != d1.Status.Version {
		t.Fatalf("%s serves", a.Status.Active())
	}
	e.gate.Store(true)
	e.succeed(d2)
	e.settled("shop")
}

// Two servers over one store, which conflict at every write, have the effect of
// one.
func TestTwoServers(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	e.control(e.store)
	for i := range 5 {
		how := "web=ok"
		if i == 3 {
			how = "web=crash"
		}
		d := e.deploy("shop", e.source("ok", how, "many=ok"))
		if i == 3 {
			e.phase(d, app.DeploymentPhaseFailed)
		} else {
			e.succeed(d)
		}
		if a := e.settled("shop"); int(a.Spec.VersionCounter) != i+1 {
			t.Fatalf("%d versions after %d deployments", a.Spec.VersionCounter, i+1)
		}
	}
	// Never more sandboxes than wanted, but for those that replace others.
	for _, p := range list(e, func(*sandbox.SandboxPool) bool { return true }) {
		if p.Spec.Service == "many" && p.Status.Created > 5 {
			t.Errorf("pool %s made %d sandboxes", p.Name, p.Status.Created)
		}
	}
}
