package sandboxes

import (
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// node records the processes that it is asked for.
type node struct {
	Node
	specs map[id.Sandbox]ExecSpec
	err   error
}

func (n *node) Exec(_ context.Context, sid id.Sandbox, spec ExecSpec) (Process, error) {
	n.specs[sid] = spec
	return nil, n.err
}

func setup(t *testing.T) (*Service, *node) {
	t.Helper()
	store := pgtest.Store(t, api.Kinds()...)
	if err := projects.Ensure(t.Context(), store, projects.Default); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	n := &node{specs: map[id.Sandbox]ExecSpec{}}
	s := &Service{
		Store: store, Apps: &apps.Service{Store: store, Logger: log}, Node: n, Sealer: schema.NewSealer(filepath.Join(t.TempDir(), "key")), Logger: log,
		Image: func(_ context.Context, name string) (string, error) { return "store/" + name, nil },
	}
	return s, n
}

// serving makes the app shop, which serves a version with the services web and
// worker.
func serving(t *testing.T, s *Service) (*app.App, *app.AppVersion) {
	t.Helper()
	a, err := s.Apps.Create(t.Context(), "", "shop")
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := s.Sealer.Seal("hidden")
	if err != nil {
		t.Fatal(err)
	}
	v := app.NewAppVersion()
	v.Project, v.Name = a.Project, apps.VersionName(a.Name, 1)
	v.Spec = app.AppVersionSpec{
		App: a.GetID(), Number: 1, Image: "img", Env: map[string]string{"A": "app", "B": "app"}, Secrets: map[string]schema.Secret{"KEY": sealed},
	}
	for _, name := range []string{app.DefaultService, "worker"} {
		var svc app.Service
		svc.SetDefaults()
		svc.Name, svc.Command, svc.MemoryBytes = name, []string{name}, 64<<20
		v.Spec.Services = append(v.Spec.Services, svc)
	}
	if err := entity.Create(t.Context(), s.Store, v); err != nil {
		t.Fatal(err)
	}
	a.Status.Activate(v.GetID())
	if err := entity.UpdateStatus(t.Context(), s.Store, a); err != nil {
		t.Fatal(err)
	}
	return a, v
}

func TestCreateResolvesTheImageAndSealsSecrets(t *testing.T) {
	s, _ := setup(t)
	sb, err := s.Create(t.Context(), "", CreateRequest{Image: "debian", Env: map[string]string{"A": "1"}, EnvSecret: map[string]string{"S": "x"}, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	tpl := sb.Spec.Template
	if tpl.Image != "store/debian" || !maps.Equal(tpl.Env, map[string]string{"A": "1"}) || *sb.Spec.TTL != time.Minute || tpl.Resources.MemoryBytes != sandbox.DefaultMemoryBytes {
		t.Errorf("%+v", sb.Spec)
	}
	if v, err := s.Sealer.Open(tpl.Secrets["S"]); err != nil || v != "x" {
		t.Errorf("secret %q, %v", v, err)
	}
}

func TestCreateLikeAnAppTakesItsActiveVersion(t *testing.T) {
	s, _ := setup(t)
	serving(t, s)
	sb, err := s.Create(t.Context(), "", CreateRequest{App: "shop", Env: map[string]string{"B": "mine"}, PIDs: 7})
	if err != nil {
		t.Fatal(err)
	}
	tpl := sb.Spec.Template
	if tpl.Image != "img" || tpl.Command[0] != app.DefaultService || tpl.Resources.MemoryBytes != 64<<20 || tpl.Resources.PIDs != 7 || tpl.Ports != nil || tpl.Probe != nil {
		t.Errorf("%+v", tpl)
	}
	if tpl.Env["A"] != "app" || tpl.Env["B"] != "mine" || tpl.Env["RUNTIME_APP"] != "shop" || len(tpl.Secrets) != 1 || sb.Spec.App != "" || sb.Spec.Pool != "" {
		t.Errorf("%+v", sb.Spec)
	}
	for name, c := range map[string]struct {
		req  CreateRequest
		want errs.Class
	}{
		"image too":  {CreateRequest{App: "shop", Image: "x"}, errs.InvalidArgument},
		"neither":    {CreateRequest{}, errs.InvalidArgument},
		"no app":     {CreateRequest{App: "none"}, errs.NotFound},
		"no service": {CreateRequest{App: "shop", Service: "none"}, errs.NotFound},
		"variables":  {CreateRequest{Image: "x", Env: map[string]string{"A=": ""}}, errs.InvalidArgument},
		"command":    {CreateRequest{Image: "x", Command: []string{strings.Repeat("x", sandbox.MaxCommand)}}, errs.InvalidArgument},
	} {
		if _, err := s.Create(t.Context(), "", c.req); !errs.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Exec with an app runs in a ready sandbox of the active version.
func TestExecChoosesAReadySandbox(t *testing.T) {
	s, n := setup(t)
	a, v := serving(t, s)
	create := func(version id.AppVersion, service string, ready bool) id.Sandbox {
		t.Helper()
		sb := sandbox.NewSandbox()
		sb.Project, sb.Spec.App, sb.Spec.AppVersion, sb.Spec.Service, sb.Spec.Template.Image = a.Project, a.GetID(), version, service, "img"
		sb.Status.Phase, sb.Status.Ready = sandbox.SandboxPhaseRunning, ready
		if err := entity.Create(t.Context(), s.Store, sb); err != nil {
			t.Fatal(err)
		}
		return sb.GetID()
	}
	create("", app.DefaultService, true)
	create(v.GetID(), "worker", true)
	create(v.GetID(), app.DefaultService, false)
	req := ExecRequest{App: "shop", Command: []string{"id"}, Env: map[string]string{"B": "2", "A": "1"}}
	if _, _, err := s.Exec(t.Context(), req); !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(errs.HintOf(err), "r app run --app shop") {
		t.Errorf("none is ready: %v", err)
	}
	idle := &app.App{Meta: schema.Meta{Name: "idle", Project: a.Project}}
	if err := entity.Create(t.Context(), s.Store, idle); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Exec(t.Context(), ExecRequest{App: "idle", Command: []string{"id"}}); err == nil || !strings.Contains(err.Error(), "serves no version yet") {
		t.Errorf("it was never deployed: %v", err)
	}
	want := create(v.GetID(), app.DefaultService, true)
	got, _, err := s.Exec(t.Context(), req)
	if err != nil || got != want || !slices.Equal(n.specs[want].Env, []string{"A=1", "B=2"}) {
		t.Errorf("%s, %v, %+v", got, err, n.specs)
	}
	// A command that cannot be run has an exit code, and is tried in no other
	// sandbox.
	n.err = errs.New(errs.InvalidArgument, "id cannot be run").With(DetailExitCode, "127")
	got, _, err = s.Exec(t.Context(), req)
	if code, ok := ExitCode(err); !ok || code != 127 || got != want {
		t.Errorf("%s, %v", got, err)
	}
	if _, ok := ExitCode(errs.New(errs.NotFound, "other")); ok {
		t.Error("another error has an exit code")
	}
}

func TestClassify(t *testing.T) {
	of := func(sid schema.ID, created, changed schema.Revision, phase sandbox.SandboxPhase, desired sandbox.DesiredState, ready bool) *sandbox.Sandbox {
		sb := sandbox.NewSandbox()
		sb.ID, sb.CreateRevision, sb.StatusRevision = sid, created, changed
		sb.Status.Phase, sb.Spec.Desired, sb.Status.Ready = phase, desired, ready
		return sb
	}
	running, stopped := sandbox.DesiredStateRunning, sandbox.DesiredStateStopped
	m := Classify([]*sandbox.Sandbox{
		of("f", 6, 9, sandbox.SandboxPhaseStopped, stopped, false),
		of("e", 5, 8, sandbox.SandboxPhaseFailed, running, false),
		of("d", 4, 4, sandbox.SandboxPhaseRunning, stopped, true),
		of("c", 3, 3, sandbox.SandboxPhaseRunning, running, true),
		of("b", 1, 1, sandbox.SandboxPhasePending, running, false),
		of("a", 1, 1, sandbox.SandboxPhasePending, running, false),
	})
	ids := func(list []*sandbox.Sandbox) (out string) {
		for _, sb := range list {
			out += string(sb.ID)
		}
		return out
	}
	if ids(m.Live) != "abc" || ids(m.Stopping) != "d" || ids(m.Ended) != "ef" || m.Ready != 1 {
		t.Errorf("live %s, stopping %s, ended %s, ready %d", ids(m.Live), ids(m.Stopping), ids(m.Ended), m.Ready)
	}
}
