package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// tenant holds the names and ids of a project that a request can contain.
type tenant struct {
	project   string
	projectID schema.ID
	app       *app.App
	build     *app.Build
	deploy    *app.Deployment
	run       *app.TaskRun
	sandbox   *sandbox.Sandbox
	snapshot  *sandbox.Snapshot
	version   *app.AppVersion
	preview   *sandbox.Preview
}

// newTenant creates an app with everything that belongs to one, in a project.
func (e *frontEnv) newTenant(project string) *tenant {
	e.t.Helper()
	ctx := e.t.Context()
	if err := projects.Ensure(ctx, e.c.store, project); err != nil {
		e.t.Fatal(err)
	}
	pid, err := projects.Find(ctx, e.c.store, project)
	if err != nil {
		e.t.Fatal(err)
	}
	x := &tenant{project: project, projectID: pid, app: app.NewApp(), build: app.NewBuild(), deploy: app.NewDeployment(), sandbox: sandbox.NewSandbox()}
	x.app.Name = fmt.Sprintf("a%d", time.Now().UnixNano())
	create := func(o schema.Object) {
		e.t.Helper()
		o.GetMeta().Project = pid
		if err := entity.Create(ctx, e.c.store, o); err != nil {
			e.t.Fatal(err)
		}
	}
	create(x.app)
	x.build.Spec.App, x.build.Spec.Source, x.build.Status.Phase = x.app.GetID(), "src", app.BuildPhaseSucceeded
	create(x.build)
	x.version = app.NewAppVersion()
	x.version.Spec.App, x.version.Spec.Number, x.version.Spec.Image = x.app.GetID(), 1, "img@sha256:0"
	x.version.Spec.Services = []app.Service{{Name: "web"}}
	x.version.Spec.Services[0].SetDefaults()
	create(x.version)
	x.deploy.Spec.App, x.deploy.Status.Phase = x.app.GetID(), app.DeploymentPhaseSucceeded
	create(x.deploy)
	x.run = app.NewTaskRun()
	x.run.Spec.App, x.run.Spec.Task, x.run.Spec.Trigger = x.app.GetID(), "t", app.TaskTriggerUser
	create(x.run)
	x.sandbox.Spec.Template.Image, x.sandbox.Status.Phase = "img", sandbox.SandboxPhaseStopped
	create(x.sandbox)
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = x.app.Name, "amd64", 1000, 1<<30
	if err := entity.Create(ctx, e.c.store, n); err != nil {
		e.t.Fatal(err)
	}
	x.snapshot = sandbox.NewSnapshot()
	x.snapshot.Spec.Sandbox, x.snapshot.Spec.Node, x.snapshot.Spec.Template.Image = x.sandbox.GetID(), n.GetID(), "img"
	x.snapshot.Status.Phase = sandbox.SnapshotPhaseReady
	create(x.snapshot)
	x.preview = sandbox.NewPreview()
	x.preview.Spec.Sandbox, x.preview.Spec.Port, x.preview.Spec.Key = x.sandbox.GetID(), 80, []byte("key")
	create(x.preview)
	return x
}

// attempt makes a call and returns its first answer; nil for an allowed call
// that only waits.
func attempt(t *testing.T, cl *rpc.Client, m rpc.MethodInfo, req any, allowed bool) error {
	limit := time.Minute
	if allowed {
		limit = 300 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if req == nil {
		req = &rpc.None{}
	}
	if m.Stream == rpc.StreamNone {
		return cl.Call(ctx, &m, req, &rpc.None{})
	}
	st, err := cl.Open(ctx, &m, req)
	if err != nil {
		return err
	}
	defer st.Close()
	_ = st.CloseSend() // the call may have ended; RecvMsg returns the reason
	return st.RecvMsg(&map[int]any{})
}

// TestEveryMethodKeepsToProjects calls every method without an identity and
// with roles that are bound to a project, for that project and for another.
func TestEveryMethodKeepsToProjects(t *testing.T) {
	eachStore(t, testEveryMethodKeepsToProjects)
}

func testEveryMethodKeepsToProjects(t *testing.T, e *frontEnv) {
	const own, other = "own", "other"
	foreign := e.newTenant(other)
	clients := map[string]*rpc.Client{"": e.dial(nil, nil)}
	for _, role := range []string{"viewer", "agent", "deployer", rpc.RoleAdmin} {
		e.newTenant(own)
		clients[role] = e.holder(e.issue(e.root(), "holder", role+"@"+own))
	}
	methods := e.f.rpc.Methods()
	slices.SortFunc(methods, func(a, b rpc.MethodInfo) int { return cmp.Compare(a.Full, b.Full) })
	seen := map[string]bool{}
	for _, m := range methods {
		seen[m.Full] = true
		if m.Permission == rpc.Public {
			continue
		}
		a, ok := answers[m.Full]
		if !ok {
			t.Errorf("%s: say in answers what it does with callers of another project", m.Full)
			continue
		}
		if a.rule != m.Project {
			t.Errorf("%s: its interface says %q, this test %q", m.Full, m.Project, a.rule)
		}
		forms := []answer{a}
		if f, ok := otherForms[m.Full]; ok {
			forms = append(forms, f)
		}
		for role, cl := range clients {
			may := slices.Contains(reach[role], m.Permission)
			for _, a := range forms {
				if a.request == nil {
					if m.Full == "server.Server/Status" && may {
						continue // it examines the machine, which this test does not have
					}
					check(t, m, role, "", attempt(t, cl, m, nil, may && a.rule == rpc.ProjectAny), may && a.rule == rpc.ProjectAny)
					continue
				}
				mine := foreign
				if may {
					mine = e.newTenant(own)
				}
				check(t, m, role, own, attempt(t, cl, m, a.request(mine), may), may)
				check(t, m, role, other, attempt(t, cl, m, a.request(foreign), false), false)
			}
		}
	}
	for name := range answers {
		if !seen[name] {
			t.Errorf("there is no method %s", name)
		}
	}
	// A refused call has changed nothing.
	if _, err := entity.Get[sandbox.Sandbox](t.Context(), e.c.store, foreign.sandbox.GetID()); err != nil {
		t.Errorf("the sandbox of the other project: %v", err)
	}
	if _, err := entity.Get[app.App](t.Context(), e.c.store, foreign.app.GetID()); err != nil {
		t.Errorf("the app of the other project: %v", err)
	}
}

// check compares the end of a call with whether it was allowed.
func check(t *testing.T, m rpc.MethodInfo, role, project string, err error, allowed bool) {
	t.Helper()
	denied := errs.Is(err, errs.PermissionDenied) || errs.Is(err, errs.Unauthenticated)
	if allowed == denied {
		t.Errorf("%s as %q in project %q: %v, want allowed=%t", m.Full, role, project, err, allowed)
	}
	if !allowed && m.Project != rpc.ProjectHandler && rpc.OutcomeOf(err) != rpc.NotStarted {
		t.Errorf("%s as %q in project %q: outcome %s", m.Full, role, project, rpc.OutcomeOf(err))
	}
	if role == "" && !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("%s by nobody: %v", m.Full, err)
	}
}

// TestListsShowOwnProjectsOnly: also for a request without a project.
func TestListsShowOwnProjectsOnly(t *testing.T) {
	e := newFrontEnv(t)
	mine, second, foreign := e.newTenant("mine"), e.newTenant("second"), e.newTenant("foreign")
	for _, c := range []struct {
		roles []string
		want  []*tenant
	}{
		{[]string{"viewer@mine"}, []*tenant{mine}},
		{[]string{"viewer@mine", "deployer@second"}, []*tenant{mine, second}},
		{[]string{"viewer"}, []*tenant{mine, second, foreign}},
	} {
		cl := store.NewEntitiesClient(e.holder(e.issue(e.root(), "holder", c.roles...)))
		for _, kind := range []string{app.KindApp, core.KindProject} {
			var got, want []string
			resp, err := cl.List(t.Context(), &store.ListRequest{Kind: kind})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range resp.Records {
				got = append(got, string(r.ID))
			}
			for _, x := range c.want {
				want = append(want, string(map[string]schema.ID{app.KindApp: x.app.ID, core.KindProject: x.projectID}[kind]))
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%v list %s: %v, want %v", c.roles, kind, got, want)
			}
		}
		_, err := cl.List(t.Context(), &store.ListRequest{Kind: core.KindNode})
		if bound := len(c.want) < 3; errs.Is(err, errs.PermissionDenied) != bound {
			t.Errorf("%v list nodes: %v", c.roles, err)
		}
	}
}

// TestWatchShowsOwnProjectsOnly: a watch of every kind has no event of another project.
func TestWatchShowsOwnProjectsOnly(t *testing.T) {
	e := newFrontEnv(t)
	e.newTenant("mine")
	e.newTenant("foreign")
	cl := store.NewEntitiesClient(e.holder(e.issue(e.root(), "holder", "viewer@mine")))
	w, err := cl.Watch(t.Context(), &store.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Recv(); err != nil {
		t.Fatal(err)
	}
	e.newTenant("foreign")
	last := e.newTenant("mine")
	for {
		b, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range b.Events {
			if ev.Record == nil {
				continue
			}
			if ev.Record.Project != last.projectID {
				t.Errorf("an event of %s %s in project %s", ev.Record.Kind, ev.Record.ID, ev.Record.Project)
			}
			if ev.Record.ID == last.sandbox.ID {
				return
			}
		}
	}
}

// TestBoundRoleNamesAProject: roles are checked when a certificate is issued.
func TestBoundRoleNamesAProject(t *testing.T) {
	e := newFrontEnv(t)
	e.newTenant("shop")
	for role, want := range map[string]errs.Class{
		"deployer@shop": "", "deployer@nowhere": errs.NotFound, "deployer@": errs.InvalidArgument, "boss@shop": errs.InvalidArgument,
	} {
		if err := e.f.checkRole(t.Context(), role); errs.ClassOf(err) != want && (want != "" || err != nil) {
			t.Errorf("%s: %v", role, err)
		}
	}
}
