package apps

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

func setup(t *testing.T) *Service {
	t.Helper()
	s := &Service{
		Store: pgtest.Store(t, api.Kinds()...), Sealer: schema.NewSealer(filepath.Join(t.TempDir(), "key")), Logger: slog.New(slog.DiscardHandler),
	}
	for range 2 {
		if err := projects.Ensure(t.Context(), s.Store, projects.Default); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// serving makes an app with n versions that served, the last one active.
func serving(t *testing.T, s *Service, name string, n int64) (*app.App, []*app.AppVersion) {
	t.Helper()
	a, err := s.Ensure(t.Context(), "", name)
	if err != nil {
		t.Fatal(err)
	}
	var all []*app.AppVersion
	for i := int64(1); i <= n; i++ {
		v := app.NewAppVersion()
		v.Project, v.Name = a.Project, VersionName(name, i)
		var svc app.Service
		svc.SetDefaults()
		svc.Name = app.DefaultService
		v.Spec = app.AppVersionSpec{App: a.GetID(), Number: i, Image: v.Name, Services: []app.Service{svc}}
		v.Status.ServedAt = &a.CreatedAt
		if err := entity.Create(t.Context(), s.Store, v); err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	if n > 0 {
		a.Status.Activate(all[n-1].GetID())
		if err := entity.UpdateStatus(t.Context(), s.Store, a); err != nil {
			t.Fatal(err)
		}
	}
	return a, all
}

// end ends a deployment as its controller does.
func end(t *testing.T, s *Service, d *app.Deployment) {
	t.Helper()
	l, err := LeaseOf(t.Context(), s.Store, d.Spec.App)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Store.Revoke(t.Context(), l.Lease); err != nil {
		t.Fatal(err)
	}
}

func TestAppNames(t *testing.T) {
	s := setup(t)
	for name, ok := range map[string]bool{
		"shop": true, "a": true, "a-1": true, strings.Repeat("a", app.MaxAppName): true, "": false, "1a": false, "a-": false, "A": false, "a_b": false, strings.Repeat("a", app.MaxAppName+1): false,
	} {
		_, err := s.Create(t.Context(), "", name)
		if (err == nil) != ok || err != nil && (!errs.Is(err, errs.InvalidArgument) || errs.HintOf(err) == "") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := s.Create(t.Context(), "", "shop"); !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("again: %v", err)
	}
	if _, err := s.Create(t.Context(), "nobody", "shop"); !errs.Is(err, errs.NotFound) || errs.HintOf(err) == "" {
		t.Errorf("in no project: %v", err)
	}
	if _, err := s.Find(t.Context(), "", "none"); !errs.Is(err, errs.NotFound) || errs.HintOf(err) == "" {
		t.Errorf("none: %v", err)
	}
}

// Build, deployment, lease and app change together, also against concurrent
// writers of the app.
func TestDeployAmongWriters(t *testing.T) {
	s := setup(t)
	a, _ := serving(t, s, "shop", 1)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if _, _, err := s.SetEnv(ctx, "", "shop", EnvChange{Set: map[string]string{"N": strings.Repeat("x", i%100)}}, DeployRequest{}); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	for range 20 {
		d, err := s.Deploy(t.Context(), a, DeployRequest{Kind: app.RolloutKindDeploy, Source: "src"}) // a is stale
		if err != nil {
			t.Fatal(err)
		}
		now, err := s.Find(t.Context(), "", "shop")
		if err != nil || now.Status.ActiveDeployment != d.GetID() || d.Spec.Build == "" || d.Status.Phase != app.DeploymentPhasePending || d.Revision == 0 {
			t.Fatalf("%+v %+v %v", now.Status, d, err)
		}
		_, err = s.Deploy(t.Context(), a, DeployRequest{Kind: app.RolloutKindDeploy, Source: "src"})
		if errs.Detail(err, app.DetailLease) != string(d.ID) {
			t.Fatalf("second: %v", err)
		}
		end(t, s, d)
	}
	cancel()
	wg.Wait()
	for _, req := range []DeployRequest{{Kind: app.RolloutKindDeploy}, {Kind: app.RolloutKindRollback}} {
		if _, err := s.Deploy(t.Context(), a, req); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%+v: %v", req, err)
		}
	}
	if _, err := LeaseOf(t.Context(), s.Store, a.GetID()); !errs.Is(err, errs.NotFound) {
		t.Errorf("a refused deployment holds the lease: %v", err)
	}
}

func TestSetEnv(t *testing.T) {
	s := setup(t)
	serving(t, s, "shop", 1)
	for _, bad := range []EnvChange{
		{Set: map[string]string{"1A": "x"}}, {Set: map[string]string{"": "x"}}, {Set: map[string]string{"PORT": "1"}},
		{SetSecret: map[string]string{"A B": "x"}}, {Set: map[string]string{"A": "a\x00b"}}, {Set: map[string]string{"A": strings.Repeat("x", sandbox.MaxEnvValue+1)}},
	} {
		if _, _, err := s.SetEnv(t.Context(), "", "shop", bad, DeployRequest{}); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%.40v: %v", bad, err)
		}
	}
	d, changed, err := s.SetEnv(t.Context(), "", "shop", EnvChange{Set: map[string]string{"A": "1", "B": "2"}, SetSecret: map[string]string{"S": "hidden"}}, DeployRequest{})
	if d != nil || !changed || err != nil {
		t.Fatal(d, changed, err)
	}
	// A name is either secret or not.
	d, changed, err = s.SetEnv(t.Context(), "", "shop", EnvChange{Set: map[string]string{"S": "open"}, SetSecret: map[string]string{"A": "x"}, Unset: []string{"B", "C"}, Deploy: true}, DeployRequest{})
	if err != nil || !changed || d.Spec.Kind != app.RolloutKindConfig {
		t.Fatal(d, err)
	}
	a, err := s.Find(t.Context(), "", "shop")
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Spec.Env) != 1 || a.Spec.Env["S"] != "open" || len(a.Spec.Secrets) != 1 {
		t.Errorf("%v %v", a.Spec.Env, a.Spec.Secrets)
	}
	if v, err := s.Sealer.Open(a.Spec.Secrets["A"]); err != nil || v != "x" {
		t.Errorf("%q %v", v, err)
	}
	// While a deployment is under way a change that is to be rolled out is refused whole.
	if _, _, err := s.SetEnv(t.Context(), "", "shop", EnvChange{Unset: []string{"S"}, Deploy: true}, DeployRequest{}); errs.Detail(err, app.DetailLease) == "" {
		t.Errorf("during a deployment: %v", err)
	}
	if a, err = s.Find(t.Context(), "", "shop"); err != nil || a.Spec.Env["S"] != "open" {
		t.Errorf("%v %v", a.Spec.Env, err)
	}
}

func TestSetEnvWithoutChange(t *testing.T) {
	s := setup(t)
	a, _ := serving(t, s, "shop", 1)
	set := EnvChange{Set: map[string]string{"A": "1"}, SetSecret: map[string]string{"S": "hidden"}}
	for _, tc := range []struct {
		name   string
		change EnvChange
		want   bool
	}{
		{"new", set, true},
		{"the same", set, false},
		{"another value", EnvChange{Set: map[string]string{"A": "2"}}, true},
		{"another secret", EnvChange{SetSecret: map[string]string{"S": "other"}}, true},
		{"from plain to secret", EnvChange{SetSecret: map[string]string{"A": "2"}}, true},
		{"unknown name", EnvChange{Unset: []string{"NONE"}}, false},
		{"nothing to roll out", EnvChange{Unset: []string{"NONE"}, Deploy: true}, false},
		{"removed", EnvChange{Unset: []string{"A", "S"}}, true},
	} {
		before, err := entity.Get[app.App](t.Context(), s.Store, a.GetID())
		if err != nil {
			t.Fatal(err)
		}
		d, changed, err := s.SetEnv(t.Context(), "", "shop", tc.change, DeployRequest{})
		if d != nil || changed != tc.want || err != nil {
			t.Errorf("%s: %v, %v, %v", tc.name, d, changed, err)
		}
		after, err := entity.Get[app.App](t.Context(), s.Store, a.GetID())
		if err != nil || (after.Revision != before.Revision) != tc.want {
			t.Errorf("%s: revision %d, then %d, %v", tc.name, before.Revision, after.Revision, err)
		}
	}
	// A change that was set and not rolled out yet is rolled out when it is set
	// again.
	if _, _, err := s.SetEnv(t.Context(), "", "shop", set, DeployRequest{}); err != nil {
		t.Fatal(err)
	}
	set.Deploy = true
	if d, changed, err := s.SetEnv(t.Context(), "", "shop", set, DeployRequest{}); d == nil || !changed || err != nil {
		t.Errorf("%v, %v, %v", d, changed, err)
	}
}

func TestRollbackTarget(t *testing.T) {
	s := setup(t)
	a, v := serving(t, s, "shop", 3)
	// The version before never served.
	v[1].Status.ServedAt = nil
	if err := entity.UpdateStatus(t.Context(), s.Store, v[1]); err != nil {
		t.Fatal(err)
	}
	for to, want := range map[string]int{"": 0, "v2": 1, "2": 1, string(v[0].ID): 0} {
		got, err := s.rollbackTarget(t.Context(), a, to)
		if err != nil || got.ID != v[want].ID {
			t.Errorf("%q: %v %v", to, got, err)
		}
	}
	if _, err := s.Rollback(t.Context(), "", "shop", "v9", DeployRequest{}); !errs.Is(err, errs.NotFound) || errs.HintOf(err) == "" {
		t.Errorf("to what is not there: %v", err)
	}
	serving(t, s, "one", 1)
	serving(t, s, "new", 0)
	for _, name := range []string{"one", "new"} {
		if _, err := s.Rollback(t.Context(), "", name, "", DeployRequest{}); !errs.Is(err, errs.FailedPrecondition) || errs.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Restart(t.Context(), "", "new", DeployRequest{}); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("restart of what does not serve: %v", err)
	}
}

func TestDeleteApp(t *testing.T) {
	s := setup(t)
	a, _ := serving(t, s, "shop", 2)
	if _, err := s.Deploy(t.Context(), a, DeployRequest{Kind: app.RolloutKindDeploy, Source: "src"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), "", "shop"); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{app.KindApp, app.KindAppVersion, app.KindBuild, app.KindDeployment, app.KindDeployLease} {
		page, err := s.Store.List(t.Context(), entity.Query{Kind: k})
		if err != nil || len(page.Records) != 0 {
			t.Errorf("%d of %s are left: %v", len(page.Records), k, err)
		}
	}
	if err := s.Delete(t.Context(), "", "shop"); !errs.Is(err, errs.NotFound) {
		t.Error(err)
	}
}

// TestAppOfAddon: only its addon changes what the app of an addon runs.
func TestAppOfAddon(t *testing.T) {
	s := setup(t)
	a, _ := serving(t, s, "db", 2)
	a.Labels = map[string]string{AddonLabel: "add-1"}
	if err := entity.UpdateSpec(t.Context(), s.Store, a); err != nil {
		t.Fatal(err)
	}
	_, rollback := s.Rollback(t.Context(), "", "db", "", DeployRequest{})
	_, _, scale := s.Scale(t.Context(), "", "db", Scaling{})
	for what, err := range map[string]error{"delete": s.Delete(t.Context(), "", "db"), "rollback": rollback, "scale": scale} {
		if !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(errs.HintOf(err), "r addon show db") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.Deploy(t.Context(), a, DeployRequest{Kind: app.RolloutKindDeploy, Source: "src"}); err != nil {
		t.Errorf("the addon's own deployment: %v", err)
	}
}
