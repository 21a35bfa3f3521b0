package api_test

import (
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/history"
	"miren.dev/runtime/api/interpreter"
	"miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/secret"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// TestEveryMethodIsDenied calls every method of every service without
// credentials, and as an identity without roles. No handler may be entered:
// there are none, so that entering one would give an error of another class.
func TestEveryMethodIsDenied(t *testing.T) {
	srv, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	for _, domain := range [][]*rpc.Service{app.Services, core.Services, history.Services, interpreter.Services, lsvd.Services, sandbox.Services, secret.Services, server.Services, store.Services} {
		for _, s := range domain {
			srv.Register(s, nil)
		}
	}
	methods := srv.Methods()
	if len(methods) < 30 {
		t.Fatalf("only %d methods", len(methods))
	}
	public := map[string]bool{"server.Server/Version": true}
	for _, m := range methods {
		if (m.Permission == rpc.Public) != public[m.Full] {
			t.Errorf("%s has permission %q; what is public is listed here on purpose", m.Full, m.Permission)
		}
	}
	for who, want := range map[*rpc.Identity]errs.Class{
		{}:                                errs.Unauthenticated,
		{Name: "someone", How: "process"}: errs.PermissionDenied,
	} {
		cl := srv.Local(*who)
		for _, m := range methods {
			if public[m.Full] {
				continue
			}
			var err error
			if m.Stream == rpc.StreamNone {
				err = cl.Call(t.Context(), &m, &rpc.None{}, &rpc.None{})
			} else if s, oerr := cl.Open(t.Context(), &m, &rpc.None{}); oerr != nil {
				err = oerr
			} else {
				err = s.RecvMsg(&rpc.None{})
				_ = s.Close()
			}
			if !errs.Is(err, want) || rpc.OutcomeOf(err) != rpc.NotStarted {
				t.Errorf("%s as %s: %v (%s)", m.Full, who, err, rpc.OutcomeOf(err))
			}
		}
		cl.Close()
	}
}
