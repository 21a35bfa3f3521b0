package server

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// reach lists what each role may call in addition to the methods that every
// caller may: permissions, and single methods.
var reach = map[string][]string{
	"":               nil, // a certificate without a known role
	"viewer":         {"read"},
	"ingress":        {"store.Entities/Get", "store.Entities/List", "store.Entities/Watch", "sandbox.Previews/Dial", "sandbox.Previews/Wake", "sandbox.Sandboxes/DialService", "certificate.Certificates/Served", "app.Routes/Passwords"},
	"agent":          {"read", "exec"},
	"deployer":       {"read", "deploy", "exec"},
	rpc.RoleAdmin:    {"read", "deploy", "exec", "write", "admin"},
	"viewer,unknown": {"read"},
}

// The test uses the server's real front, over TLS. It calls every registered
// method without a certificate, and with one of each role.
func TestEveryMethodStatesWhoMayCall(t *testing.T) {
	env := newFrontEnv(t)
	f, dial := env.f, env.dial
	methods := f.rpc.Methods()
	if len(methods) < 30 {
		t.Fatalf("only %d methods", len(methods))
	}
	public := []string{"server.Server/Version"}
	known := reach[rpc.RoleAdmin]
	for _, m := range methods {
		if (m.Permission == rpc.Public) != slices.Contains(public, m.Full) {
			t.Errorf("%s is %s; what is public is listed here on purpose", m.Full, m.Permission)
		}
		if m.Permission != rpc.Public && !slices.Contains(known, m.Permission) {
			t.Errorf("%s needs %q, which this test does not know", m.Full, m.Permission)
		}
	}
	// try calls a method with an empty request.
	try := func(cl *rpc.Client, m rpc.MethodInfo, allowed bool) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if m.Stream == rpc.StreamNone {
			return cl.Call(ctx, &m, &rpc.None{}, &rpc.None{})
		}
		st, err := cl.Open(ctx, &m, &rpc.None{})
		if err != nil {
			return err
		}
		defer st.Close()
		if err := st.CloseSend(); err != nil {
			return err
		}
		// An allowed method may stay silent for ever. A refusal comes, however busy the machine is.
		silence := time.Minute
		if allowed {
			silence = 200 * time.Millisecond
		}
		first := make(chan error, 1)
		go func() { first <- st.RecvMsg(&map[int]any{}) }()
		select {
		case err := <-first:
			return err
		case <-time.After(silence):
			st.Close()
			<-first
			return nil
		}
	}
	nobody := dial(nil, nil)
	for _, m := range methods {
		err := try(nobody, m, m.Permission == rpc.Public)
		if m.Permission == rpc.Public {
			if errs.Is(err, errs.Unauthenticated) {
				t.Errorf("%s is public: %v", m.Full, err)
			}
			continue
		}
		if !errs.Is(err, errs.Unauthenticated) || rpc.OutcomeOf(err) != rpc.NotStarted {
			t.Errorf("%s, called by nobody: %v (%s)", m.Full, err, rpc.OutcomeOf(err))
		}
	}
	for role, may := range reach {
		roles := []string{"none"}
		if role != "" {
			roles = strings.Split(role, ",")
		}
		pair, err := f.ca.IssueClient("somebody", roles, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		cl := dial(pair.Certificate, pair.Key)
		for _, m := range methods {
			if m.Permission == rpc.Public {
				continue
			}
			allowed := slices.Contains(may, m.Permission) || slices.Contains(may, m.Full)
			if allowed && m.Full == "server.Server/Status" || allowed && m.Full == "server.Server/Doctor" {
				continue // they examine the machine, which this test does not have
			}
			err := try(cl, m, allowed)
			if denied := errs.Is(err, errs.PermissionDenied) && rpc.OutcomeOf(err) == rpc.NotStarted; denied == allowed || errs.Is(err, errs.Internal) {
				t.Errorf("%s (%s) as %q: %v", m.Full, m.Permission, role, err)
			}
		}
	}
}
