package deployment_test

import (
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
)

// releases returns the sandboxes of the release command of a version.
func (e *env) releases(v id.AppVersion) []*sandbox.Sandbox {
	return list(e, func(sb *sandbox.Sandbox) bool {
		return sb.Spec.AppVersion == v && sb.Spec.Service == apps.ReleaseService
	})
}

// releasing waits until the release command of a deployment runs.
func (e *env) releasing(d *app.Deployment) (*app.Deployment, *sandbox.Sandbox) {
	e.Helper()
	var all []*sandbox.Sandbox
	e.eventually("the release command runs", func() bool {
		d = e.get(d)
		all = nil
		if d.Status.Version != "" {
			all = e.releases(d.Status.Version)
		}
		return len(all) > 0 && all[0].Status.Phase == sandbox.SandboxPhaseRunning
	})
	return d, all[0]
}

func (e *env) poolsOf(v id.AppVersion) []*sandbox.SandboxPool {
	return list(e, func(p *sandbox.SandboxPool) bool { return p.Spec.AppVersion == v })
}

// failed returns the failure of a deployment that must fail.
func (e *env) failed(d *app.Deployment) *app.Failure {
	e.Helper()
	return e.phase(d, app.DeploymentPhaseFailed).Status.Failure
}

func TestReleaseCommandRunsOnceBeforeTheVersionStarts(t *testing.T) {
	e := newEnv(t)
	stop := e.control(e.store)
	e.gate.Store(false)
	d1 := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	if slices.ContainsFunc(d1.Status.Steps, func(s app.Step) bool { return s.Name == apps.ReleaseService }) {
		t.Errorf("steps without a release command: %+v", d1.Status.Steps)
	}

	d2, sb := e.releasing(e.deploy("shop", e.source("ok", "web=ok", "release=gate")))
	if env := sb.Spec.Template.Env; env["SIM"] != "ok" || env["RUNTIME_SERVICE"] != "release" || env["PORT"] != "" || sb.Spec.Template.Probe != nil {
		t.Errorf("template %+v", sb.Spec.Template)
	}
	// The server restarts meanwhile.
	stop()
	e.control(e.store)
	if a := e.app("shop"); a.Status.Active() != d1.Status.Version || len(e.poolsOf(d2.Status.Version)) > 0 {
		t.Errorf("it started before its release command had ended: %+v", a.Status)
	}
	e.gate.Store(true)
	d2 = e.succeed(d2)
	names := []string{}
	for _, s := range d2.Status.Steps {
		names = append(names, s.Name)
		if s.State != app.StepStateDone {
			t.Errorf("step %+v", s)
		}
	}
	if strings.Join(names, " ") != "build release start shift drain" {
		t.Errorf("steps %v", names)
	}
	if n := len(e.releases(d2.Status.Version)); n != 1 {
		t.Errorf("%d sandboxes ran the release command", n)
	}

	// A change of the environment may name another database; a restart and a rollback change nothing of that kind.
	d3, _, err := e.apps.SetEnv(t.Context(), "", "shop", apps.EnvChange{Set: map[string]string{"DB": "other"}, Deploy: true}, apps.DeployRequest{})
	if err != nil {
		t.Fatal(err)
	}
	d3 = e.succeed(d3)
	if all := e.releases(d3.Status.Version); len(all) != 1 || all[0].Spec.Template.Env["DB"] != "other" {
		t.Errorf("after a change of the environment: %+v", all)
	}
	d4, err := e.apps.Restart(t.Context(), "", "shop", apps.DeployRequest{})
	if err != nil {
		t.Fatal(err)
	}
	d4 = e.succeed(d4)
	d5, err := e.apps.Rollback(t.Context(), "", "shop", "v2", apps.DeployRequest{})
	if err != nil {
		t.Fatal(err)
	}
	d5 = e.succeed(d5)
	if n := len(e.releases(d4.Status.Version)) + len(e.releases(d5.Status.Version)); n != 0 {
		t.Errorf("%d release commands of a restart and a rollback", n)
	}
	e.settled("shop")
}

func TestReleaseCommandThatFailsKeepsTheOldVersion(t *testing.T) {
	for sim, want := range map[string]app.Failure{
		"crash": {Reason: app.FailureReasonCrash, Message: "the release command ended with exit code 3"},
		"oom":   {Reason: app.FailureReasonOOM, Message: "used more than its 512 MiB"},
		"setup": {Reason: app.FailureReasonInternal, Message: "no space left on device"},
	} {
		t.Run(sim, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.control(e.store)
			d1 := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
			d2 := e.deploy("shop", e.source("ok", "web=ok", "release="+sim))
			f := e.failed(d2)
			if f.Reason != want.Reason || !strings.Contains(f.Message, want.Message) || f.Hint == "" || f.Service != apps.ReleaseService {
				t.Errorf("failure %+v", f)
			}
			if sim == "crash" && (*f.ExitCode != 3 || !slices.Equal(f.LogTail, []string{"panic: no database"})) {
				t.Errorf("failure %+v", f)
			}
			d2 = e.get(d2)
			if a := e.settled("shop"); a.Status.Active() != d1.Status.Version || len(e.poolsOf(d2.Status.Version)) > 0 {
				t.Errorf("status %+v", a.Status)
			}
			if n := len(e.releases(d2.Status.Version)); n != 1 {
				t.Errorf("%d sandboxes ran the release command", n)
			}
		})
	}
}

func TestCancelStopsTheReleaseCommand(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	d, sb := e.releasing(e.deploy("shop", e.source("ok", "web=ok", "release=gate")))
	if _, err := e.apps.Cancel(t.Context(), "", "shop"); err != nil {
		t.Fatal(err)
	}
	e.phase(d, app.DeploymentPhaseCanceled)
	e.eventually("the release command is stopped", func() bool {
		all := e.releases(d.Status.Version)
		return len(all) == 1 && all[0].ID == sb.ID && all[0].Status.Phase.Ended()
	})
	e.settled("shop")
}

func TestReleaseCommandThatIsDeletedDoesNotRunAgain(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	d, sb := e.releasing(e.deploy("shop", e.source("ok", "web=ok", "release=gate")))
	if err := entity.Remove[sandbox.Sandbox](t.Context(), e.store, sb.GetID()); err != nil {
		t.Fatal(err)
	}
	if f := e.failed(d); !strings.Contains(f.Message, "deleted before its end was known") {
		t.Errorf("failure %+v", f)
	}
	if all := e.releases(d.Status.Version); len(all) > 0 {
		t.Errorf("it runs again: %+v", all)
	}
	e.settled("shop")
}
