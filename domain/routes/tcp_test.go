package routes

import (
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

func TestTCP(t *testing.T) {
	s := setup(t)
	ctx := t.Context()
	var err error
	if s.TCPPorts, err = ParsePorts([]string{"5432", "20000-20009"}); err != nil {
		t.Fatal(err)
	}
	set := func(req SetTCPRequest) error {
		_, err := s.SetTCP(ctx, req)
		return err
	}
	if err := set(SetTCPRequest{Port: 20000, App: "shop", Service: "db", IdleTimeout: ptr(time.Minute), Allow: []string{"10.0.0.0/8"}}); err != nil {
		t.Fatal(err)
	}
	r, err := s.SetTCP(ctx, SetTCPRequest{Port: 20000, App: "other", ProxyProtocol: true})
	if err != nil || r.Spec.Service != "web" || r.Spec.IdleTimeout != app.DefaultTCPIdle || r.Spec.Allow != nil || !r.Spec.ProxyProtocol {
		t.Errorf("%+v %v", r, err)
	}
	for _, c := range []struct {
		req   SetTCPRequest
		class errs.Class
	}{
		{SetTCPRequest{Project: "theirs", Port: 20000, App: "shop"}, errs.AlreadyExists},
		{SetTCPRequest{Port: 20010, App: "shop"}, errs.FailedPrecondition},
		{SetTCPRequest{Port: 0, App: "shop"}, errs.FailedPrecondition},
		{SetTCPRequest{Port: 5432, App: "nothing"}, errs.NotFound},
		{SetTCPRequest{Port: 5432, App: "shop", Allow: []string{"x"}}, errs.InvalidArgument},
		{SetTCPRequest{Port: 5432, App: "shop", IdleTimeout: ptr(time.Millisecond)}, errs.InvalidArgument},
	} {
		if err := set(c.req); !errs.Is(err, c.class) {
			t.Errorf("%+v: %v", c.req, err)
		}
	}
	if err := s.DeleteTCP(ctx, "theirs", 20000, ""); !errs.Is(err, errs.NotFound) {
		t.Error(err)
	}
	if err := s.DeleteTCP(ctx, "", 20000, ""); err != nil {
		t.Error(err)
	}
	if err := set(SetTCPRequest{Project: "theirs", Port: 20000, App: "shop"}); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "80", "70000", "2000-1999", "x", "1-2-3"} {
		if _, err := ParsePorts([]string{bad}); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestTCPByName: a port has one route for every connection, or routes by server name, also of
// several projects; and no project takes the name of another, by HTTP, a certificate or a port.
func TestTCPByName(t *testing.T) {
	s := setup(t)
	ctx := t.Context()
	var err error
	if s.TCPPorts, err = ParsePorts([]string{"20000-20009"}); err != nil {
		t.Fatal(err)
	}
	set := func(project string, port int64, host string) error {
		_, err := s.SetTCP(ctx, SetTCPRequest{Project: project, Port: port, App: "shop", Host: host, TLS: host != ""})
		return err
	}
	http := func(project, host string) error {
		_, err := s.Set(ctx, SetRequest{Project: project, Host: host, App: "shop"})
		return err
	}
	for i, c := range []struct {
		err   error
		class errs.Class
	}{
		{set("", 20000, "DB.example.com."), ""},
		{set("", 20000, "*.pg.example.com"), ""},
		{set("theirs", 20000, "db.theirs.com"), ""},
		{set("", 20001, "db.example.com"), ""}, // the same name at another port
		{set("", 20002, ""), ""},
		// Names of others.
		{set("theirs", 20000, "db.example.com"), errs.AlreadyExists},
		{set("theirs", 20003, "db.example.com"), errs.AlreadyExists},
		{set("theirs", 20003, "a.pg.example.com"), errs.AlreadyExists},
		{http("theirs", "db.example.com"), errs.AlreadyExists},
		{http("theirs", "*.example.com"), errs.AlreadyExists},
		{http("", "db.theirs.com"), errs.AlreadyExists},
		{http("", "db.example.com"), ""}, // their own name, by HTTP too
		{http("theirs", "web.theirs.com"), ""},
		{set("", 20003, "web.theirs.com"), errs.AlreadyExists},
		{s.MayClaim(ctx, "p-other", "db.example.com"), errs.AlreadyExists},
		// The other form.
		{set("", 20000, ""), errs.AlreadyExists},
		{set("theirs", 20000, ""), errs.AlreadyExists},
		{set("", 20002, "db.example.com"), errs.AlreadyExists},
		{set("theirs", 20002, "db.theirs.com"), errs.AlreadyExists},
		{set("", 20004, "*"), errs.InvalidArgument},
		{set("", 20004, "no host"), errs.InvalidArgument},
	} {
		if errs.ClassOf(c.err) != c.class || c.class == errs.AlreadyExists && errs.HintOf(c.err) == "" {
			t.Errorf("%d: %v, not %q", i, c.err, c.class)
		}
	}
	for _, req := range []SetTCPRequest{{Port: 20004, App: "shop", Host: "x.example.com"}, {Port: 20004, App: "shop", Passthrough: true}} {
		if _, err := s.SetTCP(ctx, req); !errs.Is(err, errs.InvalidArgument) || errs.HintOf(err) == "" {
			t.Errorf("%+v: %v", req, err)
		}
	}
	r, err := s.SetTCP(ctx, SetTCPRequest{Port: 20000, App: "other", Host: "db.example.com", TLS: true, Passthrough: true})
	if err != nil || r.Spec.Host != "db.example.com" || r.Spec.TLS || !r.Spec.Passthrough {
		t.Errorf("%+v %v", r, err)
	}
	if err := s.DeleteTCP(ctx, "theirs", 20000, "db.example.com"); !errs.Is(err, errs.NotFound) {
		t.Error(err)
	}
	if err := s.DeleteTCP(ctx, "", 20000, ""); !errs.Is(err, errs.NotFound) {
		t.Error(err)
	}
	for _, d := range []struct{ project, host string }{{"", "db.example.com"}, {"", "*.pg.example.com"}, {"theirs", "db.theirs.com"}} {
		if err := s.DeleteTCP(ctx, d.project, 20000, d.host); err != nil {
			t.Error(err)
		}
	}
	if err := set("theirs", 20000, ""); err != nil {
		t.Errorf("a port without names: %v", err)
	}
}

// TestTCPFormsAtOnce: of a route for every connection and one by name that were made at the same
// time, neither of which found the other, the older one stays.
func TestTCPFormsAtOnce(t *testing.T) {
	s := setup(t)
	ctx := t.Context()
	s.TCPPorts = Ports{{20000, 20000}}
	a, err := s.Apps.Find(ctx, "", "shop")
	if err != nil {
		t.Fatal(err)
	}
	var made [2]*app.TCPRoute
	for i, host := range []string{"db.example.com", ""} {
		r := app.NewTCPRoute()
		r.Project = a.Project
		r.Spec.Port, r.Spec.Host, r.Spec.Key, r.Spec.App = 20000, host, tcpKey(20000, host), a.GetID()
		if err := entity.Create(ctx, s.Store, r); err != nil {
			t.Fatal(err)
		}
		made[i] = r
	}
	if err := s.settleTCP(ctx, made[1]); !errs.Is(err, errs.AlreadyExists) {
		t.Error(err)
	}
	if err := s.settleTCP(ctx, made[0]); err != nil {
		t.Error(err)
	}
	left, err := s.ofPort(ctx, 20000)
	if err != nil || len(left) != 1 || left[0].ID != made[0].ID {
		t.Errorf("%v %v", left, err)
	}
}
