package rpc

import (
	"context"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

// TestBoundRolesReachTheirProjectsOnly: by the rule of the method. A method
// without a rule is for roles of all projects.
func TestBoundRolesReachTheirProjectsOnly(t *testing.T) {
	rule := func(name string, r ProjectRule, target func(any) Target) *Method {
		m := unary(name, "read", false, func(s *echoServer, _ context.Context, req *echoMsg) (*echoMsg, error) {
			s.calls.Add(1)
			return req, nil
		})
		m.Project, m.Target = r, target
		return m
	}
	byText := func(req any) Target { return Target{Project: req.(*echoMsg).Text} }
	none, cluster, anyProject := rule("None", "", nil), rule("Cluster", ProjectCluster, nil), rule("Any", ProjectAny, nil)
	byRequest, noTarget := rule("Request", ProjectRequest, byText), rule("NoTarget", ProjectRequest, nil)
	methods := []*Method{none, cluster, anyProject, byRequest, noTarget}
	for _, resolver := range []bool{true, false} {
		opts := ServerOptions{}
		if resolver {
			opts.ProjectOf = func(_ context.Context, t Target) (string, error) {
				if t.Project == "lost" {
					return "", errs.New(errs.Unavailable, "the store is away")
				}
				return t.Project, nil
			}
		}
		srv, err := NewServer(opts)
		if err != nil {
			t.Fatal(err)
		}
		echo := newEchoServer()
		srv.Register(&Service{Name: "test.Echo", Methods: methods}, echo)
		cl := srv.Local(Identity{Name: "alice", Roles: []string{"viewer@shop", "viewer@mall"}, How: "process"})
		for _, c := range []struct {
			m    *Method
			text string
			want errs.Class
		}{
			{none, "", errs.PermissionDenied}, {cluster, "", errs.PermissionDenied}, {noTarget, "shop", errs.PermissionDenied},
			{anyProject, "", ""}, {byRequest, "shop", ""}, {byRequest, "mall", ""}, {byRequest, "other", errs.PermissionDenied},
			{byRequest, "", errs.PermissionDenied}, {byRequest, "lost", errs.Unavailable},
		} {
			if !resolver && c.m == byRequest {
				c.want = errs.PermissionDenied
			}
			before := echo.calls.Load()
			_, err := call(t, cl, c.m, &echoMsg{Text: c.text})
			if c.want == "" && err != nil || c.want != "" && !errs.Is(err, c.want) {
				t.Errorf("%s %q with resolver %t: %v, want %q", c.m.Name, c.text, resolver, err, c.want)
			}
			if called := echo.calls.Load() > before; called != (c.want == "") || err != nil && OutcomeOf(err) != NotStarted {
				t.Errorf("%s %q: handler entered: %t, outcome %s", c.m.Name, c.text, called, OutcomeOf(err))
			}
		}
		admin := srv.Local(Identity{Name: "root", Roles: []string{RoleAdmin}, How: "process"})
		for _, m := range methods {
			if _, err := call(t, admin, m, &echoMsg{Text: "lost"}); err != nil {
				t.Errorf("%s as admin of all projects: %v", m.Name, err)
			}
		}
		cl.Close()
		admin.Close()
		srv.Close()
	}
}
