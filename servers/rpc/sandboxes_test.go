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
	w := newWorld(t)
	resp, err := w.sandboxes.Run(w.ctx(), &sandbox.RunRequest{
		Name: "mine", Image: "image", Command: []string{"/bin/guest", "sleep"}, Env: map[string]string{"A": "1", "B": "2"},
		EnvSecret: map[string]string{"B": "hidden"}, MemoryBytes: ptr(int64(64 << 20)), Network: sandbox.NetworkModeNone,
	})
	w.must(err)
	if strings.Contains(string(resp.Sandbox.Spec), "hidden") {
		t.Error("the answer holds a secret")
	}
	sb, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	w.must(err)
	_, err = w.sandboxes.Stats(w.ctx(), &sandbox.SandboxRequest{Sandbox: sb.GetID()})
	w.class("stats before", err, errs.FailedPrecondition)
	w.place(sb)
	if got := w.until(sb, sandbox.WaitUntilReady); !got.Status.Ready {
		t.Errorf("%+v", got.Status)
	}
	spec, _ := w.machine.Spec(string(sb.ID))
	if strings.Join(spec.Env, " ") != "A=1 B=hidden" || spec.MemoryBytes != 64<<20 {
		t.Errorf("%+v", spec)
	}
	st, err := w.sandboxes.Stats(w.ctx(), &sandbox.SandboxRequest{Sandbox: sb.GetID()})
	if err != nil || st.PIDs != 1 {
		t.Errorf("%+v, %v", st, err)
	}
	resp, err = w.sandboxes.Stop(w.ctx(), &sandbox.StopRequest{Sandbox: sb.GetID(), Wait: ptr(true)})
	w.must(err)
	got, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	if err != nil || got.Status.Phase != sandbox.SandboxPhaseStopped || got.Status.Reason != sandbox.EndReasonUser {
		t.Errorf("%+v, %v", got.Status, err)
	}
	if _, err := w.sandboxes.Stop(w.ctx(), &sandbox.StopRequest{Sandbox: sb.GetID()}); err != nil {
		t.Errorf("a second stop: %v", err)
	}
	_, err = w.sandboxes.Stats(w.ctx(), &sandbox.SandboxRequest{Sandbox: sb.GetID()})
	w.class("stats after", err, errs.FailedPrecondition)
	w.must(w.sandboxes.Delete(w.ctx(), &sandbox.SandboxRequest{Sandbox: sb.GetID()}))
	w.class("delete again", w.sandboxes.Delete(w.ctx(), &sandbox.SandboxRequest{Sandbox: sb.GetID()}), errs.NotFound)
}

func TestWait(t *testing.T) {
	w := newWorld(t)
	sb := w.sandbox("sleep")
	ctx, cancel := context.WithTimeout(w.ctx(), 30*time.Millisecond)
	defer cancel()
	_, err := w.sandboxes.Wait(ctx, &sandbox.WaitRequest{Sandbox: sb.GetID(), Until: sandbox.WaitUntilEnded})
	w.class("deadline", err, errs.DeadlineExceeded)
	done := make(chan error, 1)
	go func() {
		_, err := w.sandboxes.Wait(w.ctx(), &sandbox.WaitRequest{Sandbox: sb.GetID(), Until: sandbox.WaitUntilEnded})
		done <- err
	}()
	w.must(w.sandboxes.Delete(w.ctx(), &sandbox.SandboxRequest{Sandbox: sb.GetID()}))
	w.class("deleted", <-done, errs.NotFound)
	_, err = w.sandboxes.Wait(w.ctx(), &sandbox.WaitRequest{Sandbox: sb.GetID(), Until: "soon"})
	w.class("until", err, errs.InvalidArgument)
}

func TestRunRefused(t *testing.T) {
	w := newWorld(t)
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
		"stop early": {Image: "image", StopTimeout: ptr(-time.Second)},
	} {
		_, err := w.sandboxes.Run(w.ctx(), req)
		w.class(name, err, errs.InvalidArgument)
	}
	_, err := w.sandboxes.Run(w.ctx(), &sandbox.RunRequest{Image: "image", Project: "none"})
	w.class("project", err, errs.NotFound)
	for _, sid := range []id.Sandbox{"", "../../etc", "SB 1", id.Sandbox(strings.Repeat("x", 1<<16))} {
		_, err := w.sandboxes.Stop(w.ctx(), &sandbox.StopRequest{Sandbox: sid})
		w.class("stop "+string(sid[:min(len(sid), 20)]), err, errs.InvalidArgument)
		_, err = w.sandboxes.Stats(w.ctx(), &sandbox.SandboxRequest{Sandbox: sid})
		w.class("stats "+string(sid[:min(len(sid), 20)]), err, errs.InvalidArgument)
	}
}

func TestRoutes(t *testing.T) {
	w := newWorld(t)
	w.app("shop")
	a, _ := w.app("other")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name := []string{"shop", "other"}[i%2]
			if _, err := w.routes.Set(w.ctx(), &app.SetRouteRequest{Host: " Shop.Example.COM. ", App: name}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	resp, err := w.routes.Set(w.ctx(), &app.SetRouteRequest{Host: "shop.example.com", App: "other", Service: "api"})
	w.must(err)
	r, err := entity.Decode[app.Route](&resp.Route)
	if err != nil || r.Spec.App != a.GetID() || r.Spec.Service != "api" || r.Spec.Path != "/" || r.Spec.Host != "shop.example.com" {
		t.Errorf("%+v, %v", r, err)
	}
	all, _, err := entity.List[app.Route](t.Context(), w.store, entity.Query{})
	if err != nil || len(all) != 1 {
		t.Errorf("%d routes, %v", len(all), err)
	}
	for _, host := range []string{"*", "*.example.com", "a-b.c_d.example", "10.0.0.1"} {
		if _, err := w.routes.Set(w.ctx(), &app.SetRouteRequest{Host: host, Path: "/api/", App: "shop"}); err != nil {
			t.Errorf("%q: %v", host, err)
		}
	}
	for _, host := range []string{"", "http://x", "x:80", "a b", "*x", "x.*", "-x", "a..b", "ä.de", "x/y", strings.Repeat("a", 64) + ".de"} {
		_, err := w.routes.Set(w.ctx(), &app.SetRouteRequest{Host: host, App: "shop"})
		w.class("host "+host, err, errs.InvalidArgument)
	}
	for _, path := range []string{"x", "/a b", "/a?b", "/a#b", "/\n", "/" + strings.Repeat("a", 2000)} {
		_, err := w.routes.Set(w.ctx(), &app.SetRouteRequest{Host: "x", Path: path, App: "shop"})
		w.class("path", err, errs.InvalidArgument)
	}
	_, err = w.routes.Set(w.ctx(), &app.SetRouteRequest{Host: "x", App: "none"})
	w.class("app", err, errs.NotFound)
	w.must(w.routes.Delete(w.ctx(), &app.DeleteRouteRequest{Host: "SHOP.example.com"}))
	w.class("again", w.routes.Delete(w.ctx(), &app.DeleteRouteRequest{Host: "shop.example.com"}), errs.NotFound)
	// Other projects' routes are theirs.
	p := core.NewProject()
	p.Name = "theirs"
	w.create(p)
	other := app.NewApp()
	other.Project, other.Name = p.ID, "app"
	w.must(entity.Create(t.Context(), w.store, other))
	_, err = w.routes.Set(w.ctx(), &app.SetRouteRequest{Project: "theirs", Host: "*", Path: "/api/", App: "app"})
	w.class("taken", err, errs.AlreadyExists)
	w.class("not theirs", w.routes.Delete(w.ctx(), &app.DeleteRouteRequest{Project: "theirs", Host: "*", Path: "/api/"}), errs.NotFound)
}

func TestNodes(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"n", string(w.node)} {
		resp, err := w.nodes.Cordon(w.ctx(), &server.NodeRequest{Node: name})
		w.must(err)
		if n, err := entity.Decode[core.Node](&resp.Node); err != nil || !n.Spec.Cordoned {
			t.Errorf("%+v, %v", n, err)
		}
		resp, err = w.nodes.Uncordon(w.ctx(), &server.NodeRequest{Node: name})
		w.must(err)
		if n, err := entity.Decode[core.Node](&resp.Node); err != nil || n.Spec.Cordoned {
			t.Errorf("%+v, %v", n, err)
		}
	}
	_, err := w.nodes.Cordon(w.ctx(), &server.NodeRequest{Node: "none"})
	w.class("unknown", err, errs.NotFound)
}
