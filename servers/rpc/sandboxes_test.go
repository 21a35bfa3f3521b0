package rpcserver_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

func TestSandboxLife(t *testing.T) {
	e := newEnv(t)
	resp, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{
		Name: "mine", Image: "image", Command: []string{"/bin/guest", "sleep"}, Env: map[string]string{"A": "1", "B": "2"},
		EnvSecret: map[string]string{"B": "hidden"}, MemoryBytes: ptr(int64(64 << 20)), Network: sandbox.NetworkModeNone,
	})
	e.must(err)
	if strings.Contains(string(resp.Sandbox.Spec), "hidden") {
		t.Error("the answer holds a secret")
	}
	sb, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	e.must(err)
	_, err = e.sandboxes.Stats(e.ctx(), &sandbox.SandboxRequest{Sandbox: sb.GetID()})
	e.class("stats before", err, errs.FailedPrecondition)
	e.place(sb)
	if got := e.until(sb, sandbox.WaitUntilReady); !got.Status.Ready {
		t.Errorf("%+v", got.Status)
	}
	spec, _ := e.machine.Spec(string(sb.ID))
	if strings.Join(spec.Env, " ") != "A=1 B=hidden" || spec.MemoryBytes != 64<<20 {
		t.Errorf("%+v", spec)
	}
	st, err := e.sandboxes.Stats(e.ctx(), &sandbox.SandboxRequest{Sandbox: sb.GetID()})
	if err != nil || st.PIDs != 1 {
		t.Errorf("%+v, %v", st, err)
	}
	resp, err = e.sandboxes.Stop(e.ctx(), &sandbox.StopRequest{Sandbox: sb.GetID(), Wait: ptr(true)})
	e.must(err)
	got, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	if err != nil || got.Status.Phase != sandbox.SandboxPhaseStopped || got.Status.Reason != sandbox.EndReasonUser {
		t.Errorf("%+v, %v", got.Status, err)
	}
	if _, err := e.sandboxes.Stop(e.ctx(), &sandbox.StopRequest{Sandbox: sb.GetID()}); err != nil {
		t.Errorf("a second stop: %v", err)
	}
	_, err = e.sandboxes.Stats(e.ctx(), &sandbox.SandboxRequest{Sandbox: sb.GetID()})
	e.class("stats after", err, errs.FailedPrecondition)
	e.must(e.sandboxes.Delete(e.ctx(), &sandbox.SandboxRequest{Sandbox: sb.GetID()}))
	e.class("delete again", e.sandboxes.Delete(e.ctx(), &sandbox.SandboxRequest{Sandbox: sb.GetID()}), errs.NotFound)
}

func TestRunIdle(t *testing.T) {
	e := newEnv(t)
	resp, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Image: "image", Idle: ptr(true)})
	e.must(err)
	sb, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	e.must(err)
	e.place(sb)
	e.until(sb, sandbox.WaitUntilRunning)
	if spec, _ := e.machine.Spec(string(sb.ID)); !spec.Idle || len(spec.Command) > 0 {
		t.Errorf("%+v", spec)
	}
}

func TestWait(t *testing.T) {
	e := newEnv(t)
	sb := e.sandbox("sleep")
	ctx, cancel := context.WithTimeout(e.ctx(), 30*time.Millisecond)
	defer cancel()
	_, err := e.sandboxes.Wait(ctx, &sandbox.WaitRequest{Sandbox: sb.GetID(), Until: sandbox.WaitUntilEnded})
	e.class("deadline", err, errs.DeadlineExceeded)
	done := make(chan error, 1)
	go func() {
		_, err := e.sandboxes.Wait(e.ctx(), &sandbox.WaitRequest{Sandbox: sb.GetID(), Until: sandbox.WaitUntilEnded})
		done <- err
	}()
	e.must(e.sandboxes.Delete(e.ctx(), &sandbox.SandboxRequest{Sandbox: sb.GetID()}))
	e.class("deleted", <-done, errs.NotFound)
	_, err = e.sandboxes.Wait(e.ctx(), &sandbox.WaitRequest{Sandbox: sb.GetID(), Until: "soon"})
	e.class("until", err, errs.InvalidArgument)
}

func TestRunRefused(t *testing.T) {
	e := newEnv(t)
	for name, req := range map[string]*sandbox.RunRequest{
		"no image":   {},
		"both":       {Image: "image", App: "shop"},
		"env name":   {Image: "image", Env: map[string]string{"A=B": ""}},
		"env value":  {Image: "image", Env: map[string]string{"A": "x\x00"}},
		"big value":  {Image: "image", EnvSecret: map[string]string{"A": strings.Repeat("x", 1<<20)}},
		"command":    {Image: "image", Command: []string{"a", "b\x00"}},
		"memory":     {Image: "image", MemoryBytes: ptr(int64(1))},
		"cpu":        {Image: "image", CPUMillis: ptr(int64(1) << 60)},
		"ttl":        {Image: "image", TTL: ptr(time.Millisecond)},
		"name":       {Image: "image", Name: "../up"},
		"label":      {Image: "image", Labels: map[string]string{"": "x"}},
		"network":    {Image: "image", Network: "host"},
		"idle":       {Image: "image", Idle: ptr(true), Command: []string{"/bin/guest", "sleep"}},
		"stop early": {Image: "image", StopTimeout: ptr(-time.Second)},
	} {
		_, err := e.sandboxes.Run(e.ctx(), req)
		e.class(name, err, errs.InvalidArgument)
	}
	_, err := e.sandboxes.Run(e.ctx(), &sandbox.RunRequest{Image: "image", Project: "none"})
	e.class("project", err, errs.NotFound)
	for _, sid := range []id.Sandbox{"", "../../etc", "SB 1", id.Sandbox(strings.Repeat("x", 1<<16))} {
		_, err := e.sandboxes.Stop(e.ctx(), &sandbox.StopRequest{Sandbox: sid})
		e.class("stop "+string(sid[:min(len(sid), 20)]), err, errs.InvalidArgument)
		_, err = e.sandboxes.Stats(e.ctx(), &sandbox.SandboxRequest{Sandbox: sid})
		e.class("stats "+string(sid[:min(len(sid), 20)]), err, errs.InvalidArgument)
	}
}

func TestRoutes(t *testing.T) {
	e := newEnv(t)
	e.app("shop")
	a, _ := e.app("other")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name := []string{"shop", "other"}[i%2]
			if _, err := e.routes.Set(e.ctx(), &app.SetRouteRequest{Host: " Shop.Example.COM. ", App: name}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	resp, err := e.routes.Set(e.ctx(), &app.SetRouteRequest{Host: "shop.example.com", App: "other", Service: "api"})
	e.must(err)
	r, err := entity.Decode[app.Route](&resp.Route)
	if err != nil || r.Spec.App != a.GetID() || r.Spec.Service != "api" || r.Spec.Path != "/" || r.Spec.Host != "shop.example.com" {
		t.Errorf("%+v, %v", r, err)
	}
	all, _, err := entity.List[app.Route](t.Context(), e.store, entity.Query{})
	if err != nil || len(all) != 1 {
		t.Errorf("%d routes, %v", len(all), err)
	}
	for _, host := range []string{"*", "*.example.com", "a-b.c_d.example", "10.0.0.1"} {
		if _, err := e.routes.Set(e.ctx(), &app.SetRouteRequest{Host: host, Path: "/api/", App: "shop"}); err != nil {
			t.Errorf("%q: %v", host, err)
		}
	}
	for _, host := range []string{"", "http://x", "x:80", "a b", "*x", "x.*", "-x", "a..b", "ä.de", "x/y", strings.Repeat("a", 64) + ".de"} {
		_, err := e.routes.Set(e.ctx(), &app.SetRouteRequest{Host: host, App: "shop"})
		e.class("host "+host, err, errs.InvalidArgument)
	}
	for _, path := range []string{"x", "/a b", "/a?b", "/a#b", "/\n", "/" + strings.Repeat("a", 2000)} {
		_, err := e.routes.Set(e.ctx(), &app.SetRouteRequest{Host: "x", Path: path, App: "shop"})
		e.class("path", err, errs.InvalidArgument)
	}
	_, err = e.routes.Set(e.ctx(), &app.SetRouteRequest{Host: "x", App: "none"})
	e.class("app", err, errs.NotFound)
	e.must(e.routes.Delete(e.ctx(), &app.DeleteRouteRequest{Host: "SHOP.example.com"}))
	e.class("again", e.routes.Delete(e.ctx(), &app.DeleteRouteRequest{Host: "shop.example.com"}), errs.NotFound)
	// Other projects' routes are theirs.
	p := core.NewProject()
	p.Name = "theirs"
	e.create(p)
	other := app.NewApp()
	other.Project, other.Name = p.ID, "app"
	e.must(entity.Create(t.Context(), e.store, other))
	_, err = e.routes.Set(e.ctx(), &app.SetRouteRequest{Project: "theirs", Host: "*", Path: "/api/", App: "app"})
	e.class("taken", err, errs.AlreadyExists)
	e.class("not theirs", e.routes.Delete(e.ctx(), &app.DeleteRouteRequest{Project: "theirs", Host: "*", Path: "/api/"}), errs.NotFound)
}

func TestNodes(t *testing.T) {
	e := newEnv(t)
	for _, name := range []string{"n", string(e.node)} {
		resp, err := e.nodes.Cordon(e.ctx(), &server.NodeRequest{Node: name})
		e.must(err)
		if n, err := entity.Decode[core.Node](&resp.Node); err != nil || !n.Spec.Cordoned {
			t.Errorf("%+v, %v", n, err)
		}
		resp, err = e.nodes.Uncordon(e.ctx(), &server.NodeRequest{Node: name})
		e.must(err)
		if n, err := entity.Decode[core.Node](&resp.Node); err != nil || n.Spec.Cordoned {
			t.Errorf("%+v, %v", n, err)
		}
	}
	_, err := e.nodes.Cordon(e.ctx(), &server.NodeRequest{Node: "none"})
	e.class("unknown", err, errs.NotFound)
}
