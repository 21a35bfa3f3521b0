package deployment_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
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

// preview deploys a version as a preview.
func (e *env) preview(name, src string, p app.PreviewRequest) *app.Deployment {
	e.Helper()
	if p.TTL == 0 {
		p.TTL = app.DefaultPreviewTTL
	}
	d, err := e.apps.Deploy(e.Context(), e.app(name), apps.DeployRequest{Kind: app.RolloutKindDeploy, Source: source.Digest(src), Preview: &p})
	if err != nil {
		e.Fatal(err)
	}
	return d
}

// hosts returns the hosts of routes of previews, in order.
func (e *env) hosts() []string {
	e.Helper()
	out := []string{}
	for _, r := range list(e, func(r *app.Route) bool { return r.Spec.Preview != "" }) {
		out = append(out, r.Spec.Host)
	}
	slices.Sort(out)
	return out
}

// pools returns the pools of a version by service.
func (e *env) pools(d *app.Deployment) map[string]*sandbox.SandboxPool {
	e.Helper()
	out := map[string]*sandbox.SandboxPool{}
	for _, p := range list(e, func(p *sandbox.SandboxPool) bool { return p.Spec.AppVersion == d.Status.Version }) {
		out[p.Spec.Service] = p
	}
	return out
}

// wake has the controllers look at an app again.
func (e *env) wake(name string) {
	e.Helper()
	_, err := entity.ModifySpec(e.Context(), e.store, e.app(name).GetID(), func(a *app.App) error {
		a.Spec.Env = map[string]string{"WOKEN": strconv.FormatInt(e.now().UnixNano(), 10)}
		return nil
	})
	if err != nil {
		e.Fatal(err)
	}
}

// TestPreview: a preview has a host of its own and changes nothing for the app's hosts; another deployment of its name
// replaces it; its time ends it.
func TestPreview(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	active := e.succeed(e.deploy("shop", e.source("ok", "web@data=ok", "worker=ok", "release=ok", "route=shop.example.com")))
	canaryLess := e.settled("shop")
	check := func(what string, want map[string]*app.Deployment) *app.App {
		t.Helper()
		a := e.settled("shop")
		if a.Status.Active() != active.Status.Version || a.Status.Canary() != "" || a.Status.LastDeployment != canaryLess.Status.LastDeployment {
			t.Errorf("%s: the app's hosts get %+v, last deployment %s", what, a.Status.Traffic, a.Status.LastDeployment)
		}
		for name, d := range want {
			if p := a.Status.Preview(name); p == nil || p.Version != d.Status.Version || !a.Status.Serves(d.Status.Version) {
				t.Errorf("%s: preview %s is %+v", what, name, p)
			}
		}
		if len(a.Status.Previews()) != len(want) {
			t.Errorf("%s: previews %+v", what, a.Status.Previews())
		}
		return a
	}
	first := e.succeed(e.preview("shop", e.source("ok", "web@data=ok", "worker=ok", "release=crash", "route=other.example.com"), app.PreviewRequest{Name: "pr-12", TTL: time.Hour}))
	a := check("made", map[string]*app.Deployment{"pr-12": first})
	if share := a.Status.Preview("pr-12"); share.Host != "pr-12--shop.localhost" || share.ExpiresAt == nil || first.Status.URL != "http://pr-12--shop.localhost/" {
		t.Errorf("share %+v, URL %q", share, first.Status.URL)
	}
	pools := e.pools(first)
	if names := slices.Sorted(maps.Keys(pools)); !slices.Equal(names, []string{"web"}) {
		t.Fatalf("a preview runs %q", names)
	}
	if p := pools["web"]; len(p.Spec.Template.Volumes) > 0 || p.Spec.Autoscale == nil || p.Spec.Autoscale.Min != 0 || p.Spec.Autoscale.Max != 1 || p.Spec.Template.Env["RUNTIME_PREVIEW"] != "pr-12" {
		t.Errorf("pool %+v", p.Spec)
	}
	if hosts := e.hosts(); !slices.Equal(hosts, []string{"pr-12--shop.localhost"}) {
		t.Errorf("hosts %q", hosts)
	}
	if v := e.version(first); v.Status.ServedAt != nil {
		t.Error("a preview counts as a version that served, which a rollback would choose")
	}

	other := e.succeed(e.preview("shop", e.source("ok", "web=ok"), app.PreviewRequest{Name: "other", Host: "Try.example.com"}))
	check("another one", map[string]*app.Deployment{"pr-12": first, "other": other})

	e.advance(30 * time.Minute)
	again := e.succeed(e.preview("shop", e.source("ok", "web=ok"), app.PreviewRequest{Name: "pr-12", TTL: time.Hour}))
	a = check("replaced", map[string]*app.Deployment{"pr-12": again, "other": other})
	if end := a.Status.Preview("pr-12").ExpiresAt; end.Sub(e.now()) < 50*time.Minute {
		t.Errorf("it ends at %s", end)
	}
	if hosts := e.hosts(); !slices.Equal(hosts, []string{"pr-12--shop.localhost", "try.example.com"}) {
		t.Errorf("hosts %q", hosts)
	}

	// A deployment of the app leaves previews as they are, and so does its scale.
	active = e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	canaryLess = e.settled("shop")
	if _, _, err := e.apps.Scale(t.Context(), "", "shop", apps.Scaling{Set: map[string]int64{"web": 2}}); err != nil {
		t.Fatal(err)
	}
	check("deployed and scaled", map[string]*app.Deployment{"pr-12": again, "other": other})
	if p := e.pools(again)["web"]; p.Spec.Autoscale == nil || p.Spec.Replicas != 1 {
		t.Errorf("the scale reached a preview: %+v", p.Spec)
	}

	e.advance(61 * time.Minute)
	e.wake("shop")
	e.eventually("its time is over", func() bool { return e.app("shop").Status.Preview("pr-12") == nil })
	check("its time is over", map[string]*app.Deployment{"other": other})
	if hosts := e.hosts(); !slices.Equal(hosts, []string{"try.example.com"}) {
		t.Errorf("hosts %q", hosts)
	}
	if err := e.apps.DeletePreview(t.Context(), "", "shop", "pr-12"); !errs.Is(err, errs.NotFound) {
		t.Errorf("deleted again: %v", err)
	}
	if err := e.apps.DeletePreview(t.Context(), "", "shop", "other"); err != nil {
		t.Error(err)
	}
	check("deleted", nil)
	if hosts := e.hosts(); len(hosts) > 0 {
		t.Errorf("hosts %q", hosts)
	}
}

// TestPreviewPromoted: the version of a preview becomes the active one without a build, with its disk, its release command
// and the app's environment.
func TestPreviewPromoted(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	e.succeed(e.deploy("shop", e.source("ok", "web@data=ok", "worker=ok")))
	src := e.source("ok", "web@data=ok", "worker=ok", "release=ok", "preview=off")
	try := e.succeed(e.preview("shop", src, app.PreviewRequest{Name: "pr-1"}))
	if got := e.pools(try)["web"].Spec.Template.Env["MAIL"]; got != "off" {
		t.Errorf("the environment of previews: MAIL=%q", got)
	}
	release := func(d *app.Deployment) int {
		return len(list(e, func(sb *sandbox.Sandbox) bool {
			return sb.Spec.AppVersion == d.Status.Version && sb.Spec.Service == apps.ReleaseService
		}))
	}
	if release(try) != 0 {
		t.Error("the release command ran for a preview")
	}
	if _, err := e.apps.PromotePreview(t.Context(), "", "shop", "none", apps.DeployRequest{}); !errs.Is(err, errs.NotFound) {
		t.Errorf("no such preview: %v", err)
	}
	if _, err := e.apps.Rollback(t.Context(), "", "shop", "v2", apps.DeployRequest{}); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("a rollback to the version of a preview: %v", err)
	}
	builds := len(list(e, func(*app.Build) bool { return true }))
	d, err := e.apps.PromotePreview(t.Context(), "", "shop", "pr-1", apps.DeployRequest{})
	if err != nil {
		t.Fatal(err)
	}
	d = e.succeed(d)
	a := e.settled("shop")
	ver := e.version(d)
	if a.Status.Active() != d.Status.Version || ver.Spec.CopiedFrom != try.Status.Version || ver.Spec.Preview != "" || ver.Status.ServedAt == nil {
		t.Errorf("active %s, version %+v", a.Status.Active(), ver.Spec)
	}
	p := e.pools(d)
	if len(p) != 2 || len(p["web"].Spec.Template.Volumes) != 1 || p["web"].Spec.Template.Env["MAIL"] != "" || p["web"].Spec.Autoscale != nil || release(d) != 1 {
		t.Errorf("pools %+v, %d release commands", p, release(d))
	}
	if n := len(list(e, func(*app.Build) bool { return true })); n != builds {
		t.Errorf("%d builds, before %d", n, builds)
	}
	if share := a.Status.Preview("pr-1"); share == nil || share.Version != try.Status.Version {
		t.Errorf("the preview is %+v", share)
	}
}

// TestPreviewRefused: a preview that cannot have its host, its name or its addons fails with a reason, before it changes
// anything.
func TestPreviewRefused(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	e.succeed(e.deploy("shop", e.source("ok", "web=ok", "route=shop.example.com")))
	e.app("pr-1--shop")
	for _, p := range []app.PreviewRequest{
		{Name: "pr-1"}, // the host of that app
		{Name: "a", Host: "shop.example.com"},
		{Name: "a", Host: "*.example.com"},
		{Name: "a", Host: "http://x"},
	} {
		d := e.phase(e.preview("shop", e.source("ok", "web=ok"), p), app.DeploymentPhaseFailed)
		if f := d.Status.Failure; f.Reason != app.FailureReasonSource || f.Hint == "" && p.Host != "*.example.com" {
			t.Errorf("%+v: %+v", p, f)
		}
	}
	d := e.phase(e.preview("shop", e.source("ok", "web=ok", "addon=postgres"), app.PreviewRequest{Name: "a"}), app.DeploymentPhaseFailed)
	if f := d.Status.Failure; !strings.Contains(f.Message, "addon") {
		t.Errorf("an addon that the app lacks: %+v", f)
	}
	src := e.source("ok", "api=ok")
	e.sources.files[src]["Procfile"] = "api: run\n" // an app without web
	d = e.phase(e.preview("shop", src, app.PreviewRequest{Name: "a"}), app.DeploymentPhaseFailed)
	if f := d.Status.Failure; !strings.Contains(f.Message, "no service web") {
		t.Errorf("no service that serves: %+v", f)
	}
	e.settled("shop")
	if hosts := e.hosts(); len(hosts) > 0 {
		t.Errorf("hosts %q", hosts)
	}
	for _, req := range []apps.DeployRequest{
		{Preview: &app.PreviewRequest{Name: strings.Repeat("a", 40), TTL: time.Hour}, Canary: 10},
		{Preview: &app.PreviewRequest{Name: "a-" + strings.Repeat("a", 60), TTL: time.Hour}},
		{Preview: &app.PreviewRequest{Name: "A", TTL: time.Hour}},
		{Preview: &app.PreviewRequest{Name: "a", TTL: time.Second}},
	} {
		req.Kind, req.Source = app.RolloutKindDeploy, source.Digest(e.source("ok", "web=ok"))
		if _, err := e.apps.Deploy(t.Context(), e.app("shop"), req); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%+v: %v", req.Preview, err)
		}
	}
}

// TestPreviewDiesAfterEveryWrite: wherever a server dies while a preview is made, replaced, promoted or ends, the next one
// brings it to the same end as without the crash.
func TestPreviewDiesAfterEveryWrite(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 4
	}
	if s := os.Getenv("CRASH_STEP"); s != "" {
		step, _ = strconv.Atoi(s)
	}
	const name = "shop"
	pr := app.PreviewRequest{Name: "pr-1"}
	for _, tc := range []struct {
		name    string
		replace bool // a preview is there before
		bake    time.Duration
		begin   func(e *env) *app.Deployment
		end     app.DeploymentPhase
		preview string // what it is afterwards: new, old, none
	}{
		{"made", false, 20 * time.Millisecond, func(e *env) *app.Deployment {
			return e.preview(name, e.source("ok", "web=ok"), pr)
		}, app.DeploymentPhaseSucceeded, "new"},
		{"replaced with another host", true, 20 * time.Millisecond, func(e *env) *app.Deployment {
			return e.preview(name, e.source("ok", "web=ok"), app.PreviewRequest{Name: "pr-1", Host: fmt.Sprintf("try%d.example.com", e.sources.count())})
		}, app.DeploymentPhaseSucceeded, "new"},
		{"replacement that crashes in the bake", true, time.Hour, func(e *env) *app.Deployment {
			return e.preview(name, e.source("ok", "web=late"), app.PreviewRequest{Name: "pr-1", Host: "try.example.com"})
		}, app.DeploymentPhaseFailed, "old"},
		{"crash", false, 20 * time.Millisecond, func(e *env) *app.Deployment {
			return e.preview(name, e.source("ok", "web=crash"), pr)
		}, app.DeploymentPhaseFailed, "none"},
		{"crash in the bake", false, time.Hour, func(e *env) *app.Deployment {
			return e.preview(name, e.source("ok", "web=late"), pr)
		}, app.DeploymentPhaseFailed, "none"},
		{"over", true, 20 * time.Millisecond, func(e *env) *app.Deployment {
			e.advance(time.Hour + app.DefaultPreviewTTL)
			return nil
		}, "", "none"},
		{"promoted", true, 20 * time.Millisecond, func(e *env) *app.Deployment {
			d, err := e.apps.PromotePreview(e.Context(), "", name, "pr-1", apps.DeployRequest{})
			if err != nil {
				e.Fatal(err)
			}
			return d
		}, app.DeploymentPhaseSucceeded, "old"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.forgetful()
			e.bake = 20 * time.Millisecond
			stop := e.control(e.store)
			e.succeed(e.deploy(name, e.source("ok", "web=ok")))
			active := e.settled(name).Status.Active()
			stop()
			for n := 1; ; n += step {
				e.bake = 20 * time.Millisecond
				stop := e.control(e.store)
				if e.app(name).Status.Preview("pr-1") != nil && !tc.replace {
					if err := e.apps.DeletePreview(t.Context(), "", name, "pr-1"); err != nil {
						t.Fatal(err)
					}
				}
				if e.app(name).Status.Preview("pr-1") == nil && tc.replace {
					e.succeed(e.preview(name, e.source("ok", "web=ok"), pr))
				}
				before := e.settled(name).Status.Preview("pr-1")
				stop()
				e.bake = tc.bake
				d := tc.begin(e)
				done := func() bool {
					a := e.app(name)
					if d != nil {
						return e.get(d).Status.Phase == tc.end && e.leftover(a) == ""
					}
					return a.Status.Preview("pr-1") == nil && e.leftover(a) == ""
				}
				died := make(chan struct{})
				m := &mortal{Store: e.store, left: n, die: func() { close(died) }}
				stop = e.control(m)
				survived := false
				e.eventually("it dies or is done", func() bool {
					select {
					case <-died:
						return true
					default:
						survived = done()
						return survived
					}
				})
				stop()
				stop = e.control(e.store)
				if d != nil {
					d = e.phase(d, tc.end)
				}
				e.eventually("it is done", done)
				a := e.settled(name)
				wantHosts := []string{}
				share := a.Status.Preview("pr-1")
				switch {
				case tc.preview == "none" && share != nil, tc.preview != "none" && share == nil,
					tc.preview == "new" && share.Version != d.Status.Version,
					tc.preview == "old" && (share.Version != before.Version || share.Host != before.Host || !share.ExpiresAt.Equal(*before.ExpiresAt)):
					t.Fatalf("after write %d: the preview is %+v, before %+v", n, share, before)
				case share != nil:
					wantHosts = append(wantHosts, share.Host)
				}
				e.eventually(fmt.Sprintf("after write %d: the hosts are %q", n, wantHosts), func() bool { return slices.Equal(e.hosts(), wantHosts) })
				stop()
				if tc.name == "promoted" {
					active = d.Status.Version
				}
				if a.Status.Active() != active {
					t.Fatalf("after write %d: %s serves, want %s", n, a.Status.Active(), active)
				}
				if survived {
					t.Logf("%d writes, died after each", n-1)
					return
				}
			}
		})
	}
}
