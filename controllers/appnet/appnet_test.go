package appnet

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"testing"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/appnet"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// network keeps the last table.
type network struct {
	mu   sync.Mutex
	apps []appnet.App
}

func (n *network) SetApps(_ context.Context, apps []appnet.App) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.apps = apps
	return nil
}

func (n *network) get() []appnet.App {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.apps
}

func create[T any, P entity.ObjectPtr[T]](t *testing.T, s entity.Store, o P) P {
	t.Helper()
	if err := entity.Create(t.Context(), s, o); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestTableFollowsTheStore(t *testing.T) {
	s := pgtest.Store(t, api.Kinds()...)
	project, node := core.NewProject(), core.NewNode()
	project.Name, node.Name = "p", "here"
	create(t, s, project)
	other := core.NewNode()
	other.Name = "elsewhere"
	for _, n := range []*core.Node{node, other} {
		n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "amd64", 1000, 1<<30
	}
	create(t, s, node)
	create(t, s, other)
	edge := core.NewNode()
	edge.Name, edge.Spec = "edge", other.Spec
	edge.Spec.Runner = true
	create(t, s, edge)
	a := app.NewApp()
	a.Project, a.Name = project.ID, "shop"
	create(t, s, a)
	ver := app.NewAppVersion()
	ver.Project, ver.Name = project.ID, "shop-v1"
	ver.Spec = app.AppVersionSpec{
		App: a.GetID(), Number: 1, Image: "img@sha256:1", Network: &app.Network{Restricted: true, AllowFrom: []string{"blog"}},
	}
	for _, name := range []string{"web", "worker"} {
		svc := app.Service{Name: name}
		svc.SetDefaults()
		ver.Spec.Services = append(ver.Spec.Services, svc)
	}
	create(t, s, ver)
	made := func(service string, on *core.Node, of id.App) *sandbox.Sandbox {
		sb := sandbox.NewSandbox()
		sb.Project, sb.Spec.App, sb.Spec.Service, sb.Spec.Node = project.ID, of, service, on.GetID()
		sb.Spec.Template.Image, sb.Spec.Runner = "img@sha256:1", on.Spec.Runner
		if of != "" {
			sb.Spec.AppVersion = ver.GetID()
		}
		return create(t, s, sb)
	}
	web := made("web", node, a.GetID())
	made("worker", other, a.GetID()) // of another server
	made("", node, "")               // an agent's

	n := &network{}
	set := informer.New(informer.Config{Reader: s})
	r := &Reconciler{Informers: set, Node: node.GetID(), Network: n}
	r.Store = kittest.Hold(t, s, r.Controller())
	kittest.Run(t, set, kit.Config{Logger: slog.New(slog.DiscardHandler)}, r.Controller())
	expect := func(what string, want appnet.App) {
		t.Helper()
		want.Project, want.Name = string(project.ID), "shop"
		wait.For(t, what, func() bool { return reflect.DeepEqual(n.get(), []appnet.App{want}) }, wait.State(func() any { return n.get() }))
	}
	member := appnet.Member{Sandbox: string(web.ID), Service: "web"}
	expect("no version serves", appnet.App{Members: []appnet.Member{member}})

	a.Status.Activate(ver.GetID())
	if err := entity.UpdateStatus(t.Context(), s, a); err != nil {
		t.Fatal(err)
	}
	serving := appnet.App{Restricted: true, From: []string{"blog"}, Services: []string{"web", "worker"}, Members: []appnet.Member{member}}
	expect("a version serves", serving)

	web.Status.Phase, web.Status.Ready = sandbox.SandboxPhaseRunning, true
	if err := entity.UpdateStatus(t.Context(), s, web); err != nil {
		t.Fatal(err)
	}
	serving.Members = []appnet.Member{{Sandbox: string(web.ID), Service: "web", Ready: true}}
	expect("its sandbox is ready", serving)

	web.Status.Phase, web.Status.Ready = sandbox.SandboxPhaseStopped, false
	if err := entity.UpdateStatus(t.Context(), s, web); err != nil {
		t.Fatal(err)
	}
	serving.Members = nil
	expect("its sandbox has ended", serving)

	there := made("worker", edge, a.GetID())
	serving.Members = []appnet.Member{{Sandbox: string(there.ID), Service: "worker", Node: string(edge.ID)}}
	expect("a sandbox is on a runner", serving)
	reached := serving
	for server, want := range map[id.Node][]appnet.Member{other.GetID(): nil, node.GetID(): serving.Members} {
		edge, err := entity.Get[core.Node](t.Context(), s, edge.GetID())
		if err != nil {
			t.Fatal(err)
		}
		edge.Spec.Server = server
		if err := entity.UpdateSpec(t.Context(), s, edge); err != nil {
			t.Fatal(err)
		}
		reached.Members = want
		expect("the runner is connected to "+string(server), reached)
	}
}
