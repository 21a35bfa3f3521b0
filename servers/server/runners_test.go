package server

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/identity"
	gateway "miren.dev/runtime/servers/runner"
	"miren.dev/runtime/testsupport/wait"
)

// TestRevokedRunnerIsDisconnected: a runner whose certificate is revoked loses the connection that
// it has, as every other caller does.
func TestRevokedRunnerIsDisconnected(t *testing.T) {
	e := newFrontEnv(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(projects.Ensure(t.Context(), e.c.store, projects.Default))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	fingerprint, err := identity.Fingerprint(e.f.ca.CA())
	must(err)
	_, secret, err := e.f.runners.service.CreateToken(t.Context(), time.Minute, "root")
	must(err)
	srv, err := rpc.NewServer(rpc.ServerOptions{})
	must(err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		srv.Close()
		e.f.runners.rpc.Close()
		running.Wait()
	})
	running.Go(func() {
		if err := e.f.runners.rpc.Serve(l); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	must(gateway.Join(t.Context(), dir, l.Addr().String(), gateway.Secret(secret, fingerprint), "edge"))
	c, err := gateway.Open(dir, slog.New(slog.DiscardHandler))
	must(err)
	defer c.Close()
	running.Go(func() { _ = c.Run(ctx, srv) }) // it returns nil
	wait.For(t, "the runner is connected", func() bool { return e.c.runners.Connected(c.Node) })
	_, err = server.NewServerClient(e.root()).RevokeIdentity(t.Context(), &server.RevokeIdentityRequest{Certificate: string(c.Node)})
	must(err)
	wait.For(t, "the runner is disconnected", func() bool { return !e.c.runners.Connected(c.Node) })
}

// auditCount counts what an rpc.Auditor is told.
type auditCount struct{ ended, refused int }

func (a *auditCount) Begin(context.Context, *rpc.AuditCall) func(error) error {
	return func(error) error { a.ended++; return nil }
}

func (a *auditCount) Refused(*rpc.AuditCall, error) { a.refused++ }

// TestFailedJoinsCountAsRefused: anybody who reaches the listener for runners can
// call Join, and must not fill the history with failures.
func TestFailedJoinsCountAsRefused(t *testing.T) {
	var count auditCount
	a := &runnerAudit{&count}
	failure := errs.New(errs.Unauthenticated, "the token is not valid")
	call := func(id rpc.Identity, err error) {
		t.Helper()
		c := &rpc.AuditCall{Method: rpc.MethodInfo{Service: "runner.Gateway", Name: "Join", Full: "runner.Gateway/Join"}, Identity: id}
		if err := a.Begin(t.Context(), c)(err); err != nil {
			t.Error(err)
		}
	}
	call(rpc.Identity{}, failure)
	if count != (auditCount{refused: 1}) {
		t.Errorf("after a failure: %+v", count)
	}
	call(rpc.Identity{}, nil)
	call(rpc.Identity{Name: "node-1", How: "certificate"}, failure)
	if count != (auditCount{refused: 1, ended: 2}) {
		t.Errorf("after a success, and a failure of a runner: %+v", count)
	}
}
