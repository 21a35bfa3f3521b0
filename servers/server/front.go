package server

import (
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	kinds "miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/runner"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/domain/audit"
	"miren.dev/runtime/domain/identities"
	"miren.dev/runtime/domain/keys"
	"miren.dev/runtime/domain/previews"
	"miren.dev/runtime/domain/sshkeys"
	"miren.dev/runtime/domain/trust"
	"miren.dev/runtime/domain/users"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/preview"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/identity"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/servers/api"
	"miren.dev/runtime/servers/e2b"
	mcpserver "miren.dev/runtime/servers/mcp"
	rpcserver "miren.dev/runtime/servers/rpc"
	sshserver "miren.dev/runtime/servers/ssh"
)

// SocketName is the name of the RPC socket in the run directory.
const SocketName = "server.sock"

// ingressSocket is the name of the RPC socket that the ingress process uses.
// Its peers have the role of the ingress and no other.
const ingressSocket = "server-ingress.sock"

var ingressIdentity = rpc.Identity{Name: "ingress", Roles: []string{"ingress"}, How: "socket"}

// shutdownGrace is how long calls under way may continue when the server stops.
const shutdownGrace = 5 * time.Second

// front is the RPC server.
type front struct {
	c       *control
	rpc     *rpc.Server
	ca      *identity.Authority
	stop    context.CancelFunc // stops the server
	started time.Time
	address atomic.Pointer[string] // address of the TLS listener

	identities  *identities.Service
	revocations *identities.Revocations
	users       *users.Table
	keys        *keys.Service
	trust       *trust.Rules
	api         *api.Server
	mcp         *mcpserver.Handler
	e2b         *e2b.Server
	tokenKey    []byte // tokens of sandboxes and previews are made with it
	apiAddress  atomic.Pointer[string]
	audit       *audit.Recorder
	runners     *runnerFront

	sshKeys    *sshkeys.Index
	sshPrivate *sshserver.Authority
	sshAddress atomic.Pointer[string] // address of the SSH listener; nil: none
	sshHost    struct {
		sync.Mutex
		revision schema.Revision // of the host keys of sshPrivate
	}
}

func newFront(c *control, src sources, stop context.CancelFunc) (*front, error) {
	f := &front{
		c: c, stop: stop, started: time.Now(), identities: &identities.Service{Store: c.store}, revocations: identities.NewRevocations(),
		sshKeys: sshkeys.NewIndex(),
	}
	var err error
	if f.ca, err = identity.Open(c.m.in.State("pki")); err != nil {
		return nil, err
	}
	if f.sshPrivate, err = sshserver.OpenAuthority(c.m.in.State("ssh")); err != nil {
		return nil, err
	}
	tlsConfig, err := f.ca.ServerTLS(f.hosts()...)
	if err != nil {
		return nil, err
	}
	f.users = users.NewTable(func() { f.rpc.Recheck() })
	f.keys = keys.New(c.policies, c.sealer, f.users, func() { f.rpc.Recheck() }, c.logger.With("component", "API keys"))
	if f.trust, err = trust.Load(c.cfg.API.TrustFile); err != nil {
		return nil, err
	}
	f.audit = audit.NewRecorder(c.store, f.projectOf, c.logger.With("component", "audit"))
	if f.rpc, err = rpc.NewServer(rpc.ServerOptions{
		TLS: tlsConfig, Refuse: f.refuse, ProjectOf: f.projectOf, Auditor: f.audit, Logger: c.logger.With("component", "rpc"),
		Traces: c.traces,
	}); err != nil {
		return nil, err
	}
	store.RegisterEntities(f.rpc, rpcserver.Entities(remote.NewServer(c.store, kinds.Kinds()), c.store))
	deps := c.services(src)
	if f.tokenKey, err = tokenKey(c.m.in.State("e2b.key")); err != nil {
		return nil, err
	}
	deps.Previews = &previews.Service{
		Store: c.policies, Key: preview.NewKey(f.tokenKey), URL: c.localURL, DialSandbox: deps.Sandboxes.Dial, WakeSandbox: deps.Sandboxes.Wake,
	}
	rpcserver.Register(f.rpc, deps)
	core.RegisterUsers(f.rpc, rpcserver.Users(&users.Service{Store: c.store, Table: f.users, CheckRole: f.checkRole}))
	core.RegisterKeys(f.rpc, rpcserver.Keys(f.keys, c.quotas))
	server.RegisterServer(f.rpc, f)
	server.RegisterDebug(f.rpc, &debug{c})
	server.RegisterSSH(f.rpc, &sshHandler{f})
	if f.runners, err = f.newRunners(tlsConfig); err != nil {
		return nil, err
	}
	runner.RegisterRunners(f.rpc, &runnerHandler{f.runners})
	f.followRevocations()
	f.users.Follow(c.informers)
	f.keys.Follow(c.informers)
	if f.api, err = f.newAPI(tlsConfig); err != nil {
		return nil, err
	}
	if f.mcp, err = f.newMCP(); err != nil {
		return nil, err
	}
	f.api.Handle("mcp", "/mcp", f.mcp)
	f.api.Handle("mcp", "/mcp/ws", f.mcp.WebSocket())
	if f.e2b, err = f.newE2B(); err != nil {
		return nil, err
	}
	f.followSSHKeys()
	f.followHostKeys()
	return f, nil
}

// hosts returns the names that the server's certificate is valid for.
func (f *front) hosts() []string {
	hosts := append([]string{"localhost", "127.0.0.1", "::1"}, f.c.cfg.RPC.Hosts...)
	if h, err := os.Hostname(); err == nil {
		hosts = append(hosts, h)
	}
	for _, a := range []string{f.c.cfg.RPC.Address, f.c.cfg.API.Address, f.c.cfg.Runners.Address} {
		if h, _, err := net.SplitHostPort(a); err == nil && h != "" {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// listenIngress opens the socket on which the ingress calls, for its user and root.
func (f *front) listenIngress() (net.Listener, error) {
	path, user := f.c.m.in.Socket(ingressSocket), f.c.m.ingressUser
	l, err := rpc.ListenUnix(path)
	if err != nil {
		return nil, err
	}
	if err := os.Chown(path, user.UID, user.GID); err != nil {
		l.Close()
		return nil, errs.New(errs.FailedPrecondition, "give %s to user %s: %w", path, user.Name, err)
	}
	return l, nil
}

// listeners are what the front listens on.
type listeners struct {
	unix, ingress net.Listener
	tls           net.Listener // nil: none, as the following
	api           net.Listener
	runners       net.Listener
}

func (l *listeners) close() {
	for _, x := range []net.Listener{l.unix, l.ingress, l.tls, l.api, l.runners} {
		if x != nil {
			x.Close()
		}
	}
}

// listen opens all of them, or none.
func (f *front) listen() (l *listeners, err error) {
	l = &listeners{}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.unix, err = rpc.ListenUnix(f.c.m.in.Socket(SocketName)); err != nil {
		return nil, err
	}
	if l.ingress, err = f.listenIngress(); err != nil {
		return nil, err
	}
	if l.api, err = f.listenAPI(); err != nil {
		return nil, err
	}
	if l.runners, err = f.listenRunners(); err != nil {
		return nil, err
	}
	if a := f.c.cfg.RPC.Address; a != "" {
		if l.tls, err = net.Listen("tcp", a); err != nil {
			return nil, errs.New(errs.FailedPrecondition, "rpc.address: %w", err)
		}
		bound := l.tls.Addr().String()
		f.address.Store(&bound)
	}
	return l, nil
}

// serveTLS serves a listener for certificates, none of which is accepted until the
// revocations are known.
func (f *front) serveTLS(ctx context.Context, s *rpc.Server, l net.Listener) error {
	if err := f.c.informers.WaitSynced(ctx); err != nil {
		l.Close()
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	return s.Serve(l)
}

// run serves until ctx ends.
func (f *front) run(ctx context.Context) error {
	l, err := f.listen()
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	closed := make(chan struct{}) // when the RPC server has ended every call
	g.Go(func() error { return f.keys.Run(gctx) })
	g.Go(func() error { return f.trust.Run(gctx, f.c.logger.With("component", "trust")) })
	if l.api != nil {
		g.Go(func() error {
			f.e2b.Start()
			err := f.api.Serve(gctx, l.api)
			// A call that the face itself ends would end its process.
			<-closed
			f.e2b.Close()
			return err
		})
		g.Go(func() error {
			<-gctx.Done()
			return f.mcp.Close()
		})
	}
	g.Go(func() error { return f.rpc.ServeAs(l.ingress, ingressIdentity) })
	g.Go(func() error { return f.rpc.Serve(l.unix) })
	if l.tls != nil {
		g.Go(func() error { return f.serveTLS(gctx, f.rpc, l.tls) })
	}
	if l.runners != nil {
		g.Go(func() error { return f.serveTLS(gctx, f.runners.rpc, l.runners) })
	}
	if f.c.cfg.SSH.Address != "" {
		g.Go(func() error { return f.serveSSH(gctx) })
	}
	g.Go(func() error {
		defer close(closed)
		<-gctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(gctx), shutdownGrace)
		defer cancel()
		f.runners.rpc.Close() // runners connect again by themselves
		err := f.rpc.Shutdown(grace)
		f.rpc.Close()
		f.audit.Wait()
		if errs.Is(err, errs.DeadlineExceeded) {
			return nil // streams that follow changes do not end by themselves
		}
		return err
	})
	return g.Wait()
}
