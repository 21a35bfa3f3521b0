package routes

import (
	"testing"
	"time"

	"miren.dev/runtime/api/app"
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
	if err := s.DeleteTCP(ctx, "theirs", 20000); !errs.Is(err, errs.NotFound) {
		t.Error(err)
	}
	if err := s.DeleteTCP(ctx, "", 20000); err != nil {
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
