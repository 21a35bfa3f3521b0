package server

import (
	"context"
	"crypto/tls"
	"net"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/runner"
	"miren.dev/runtime/domain/runners"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/identity"
	gateway "miren.dev/runtime/servers/runner"
)

// runnerFront serves runners, on a listener of their own: a server with the
// methods for them and no other.
type runnerFront struct {
	front   *front
	service *runners.Service
	gateway *gateway.Gateway
	rpc     *rpc.Server
}

func (f *front) newRunners(cert *tls.Config) (*runnerFront, error) {
	log := f.c.logger.With("component", "runners")
	r := &runnerFront{front: f, service: &runners.Service{Store: f.c.store, Identities: f.identities}}
	key, err := tokenKey(f.c.m.in.State("runners.key"))
	if err != nil {
		return nil, err
	}
	r.gateway = gateway.NewGateway(gateway.Config{
		Store: f.c.store, CA: f.ca, Sealer: f.c.sealer, Key: key, Runners: r.service, Identities: f.identities, Hub: f.c.runners, Peers: f.c.peers, Logger: log,
		Recorded: func(c *core.ClientCertificate) { f.revocations.Put(c) },
		Export:   f.c.m.images.Export,
		Finish:   f.c.finishLog,
	})
	r.rpc, err = rpc.NewServer(rpc.ServerOptions{
		TLS: cert, Authorizer: gateway.Only{}, Refuse: f.refuse, ProjectOf: f.projectOf, Auditor: &runnerAudit{f.audit}, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	r.gateway.Register(r.rpc)
	return r, nil
}

// runnerAudit records the calls of runners but those to the store, which are made
// by controllers: the history would hold little else. Anybody may try to join: an
// attempt that fails is a refused call, of which not every one is recorded.
type runnerAudit struct{ rpc.Auditor }

func (a *runnerAudit) Begin(ctx context.Context, c *rpc.AuditCall) func(error) error {
	if c.Method.Service == "store.Entities" {
		return func(error) error { return nil }
	}
	end := a.Auditor.Begin(ctx, c)
	if c.Identity.How != "" {
		return end
	}
	return func(err error) error {
		if err == nil {
			return end(nil)
		}
		a.Refused(c, err)
		return nil
	}
}

// listenRunners opens the listener for runners; nil if none is configured.
func (f *front) listenRunners() (net.Listener, error) {
	a := f.c.cfg.Runners.Address
	if a == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", a)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "runners.address: %w", err).WithHint("choose another address (--runners-address)")
	}
	return l, nil
}

// runnerHandler serves runner.Runners.
type runnerHandler struct{ *runnerFront }

// CreateToken implements runner.Runners.
func (h *runnerHandler) CreateToken(ctx context.Context, req *runner.CreateTokenRequest) (*runner.CreateTokenResponse, error) {
	f := h.front
	if f.c.cfg.Runners.Address == "" {
		return nil, errs.New(errs.FailedPrecondition, "this server listens for no runners").WithHint("set runners.address (--runners-address) and start the server again")
	}
	fingerprint, err := identity.Fingerprint(f.ca.CA())
	if err != nil {
		return nil, err
	}
	ttl := runners.DefaultTTL
	if req.TTL != nil {
		ttl = *req.TTL
	}
	t, secret, err := h.service.CreateToken(ctx, ttl, rpc.IdentityFrom(ctx).Name)
	if err != nil {
		return nil, err
	}
	rpc.SetSubjects(ctx, rpc.Subject{Kind: core.KindRunnerToken, ID: string(t.ID)})
	rec, err := t.EntityKind().Encode(t)
	if err != nil {
		return nil, err
	}
	return &runner.CreateTokenResponse{Token: *rec, Secret: gateway.Secret(secret, fingerprint), Addresses: []string{f.c.cfg.Runners.Address}}, nil
}

// Delete implements runner.Runners. When it returns, this server refuses the
// runner; other servers of the store learn of it by their watch.
func (h *runnerHandler) Delete(ctx context.Context, req *runner.RunnerRequest) error {
	node, certs, err := h.service.Delete(ctx, req.Runner, rpc.IdentityFrom(ctx).Name)
	for _, c := range certs {
		h.front.revocations.Put(c)
	}
	h.rpc.Recheck()
	if err != nil {
		return err
	}
	h.gateway.Forget(node)
	h.front.c.logger.Info("runner deleted", "node", string(node))
	return nil
}

// Allow implements runner.Runners.
func (h *runnerHandler) Allow(ctx context.Context, req *runner.AllowRequest) error {
	return h.setApp(ctx, req, true)
}

// Deny implements runner.Runners.
func (h *runnerHandler) Deny(ctx context.Context, req *runner.AllowRequest) error {
	return h.setApp(ctx, req, false)
}

func (h *runnerHandler) setApp(ctx context.Context, req *runner.AllowRequest, allowed bool) error {
	a, err := h.front.c.deps.Apps.Find(ctx, req.Project, req.App)
	if err != nil {
		return err
	}
	return h.service.SetApp(ctx, req.Runner, a.GetID(), allowed)
}
