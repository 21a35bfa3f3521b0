package runner

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/runner"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/domain/identities"
	"miren.dev/runtime/domain/runners"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/identity"
	"miren.dev/runtime/pkg/schema"
)

// certificateLife is how long a runner's certificate is valid, and renewBefore how
// long before its end the runner asks for the next.
const (
	certificateLife = 30 * 24 * time.Hour
	renewBefore     = 10 * 24 * time.Hour
	// renewPause is the least time between two certificates of a runner: the store
	// has a record of each.
	renewPause = 10 * time.Minute
)

// Config is what a Gateway needs.
type Config struct {
	Store      entity.Store
	CA         *identity.Authority
	Sealer     *schema.Sealer // opens secrets of the store
	Key        []byte         // the keys of runners are made with it
	Runners    *runners.Service
	Identities *identities.Service
	// Recorded is told of each certificate that is issued.
	Recorded func(*core.ClientCertificate)
	// Export writes an image as an OCI archive.
	Export func(ctx context.Context, ref string, w io.Writer) error
	// Finish copies the rest of the output of a deleted sandbox from a runner to the log of its app; nil: it is lost.
	Finish func(ctx context.Context, runner id.Node, sid id.Sandbox) error
	Hub    *Hub
	Peers  *Peers
	Logger *slog.Logger
}

// Gateway serves runners. It is safe for concurrent use.
type Gateway struct {
	cfg Config

	mu      sync.Mutex
	scopes  map[id.Node]*remote.Server
	renewed map[id.Node]time.Time
}

// NewGateway returns a Gateway.
func NewGateway(cfg Config) *Gateway {
	return &Gateway{cfg: cfg, scopes: map[id.Node]*remote.Server{}, renewed: map[id.Node]time.Time{}}
}

// Register makes s serve runners. s must have the Authorizer Only.
func (g *Gateway) Register(s *rpc.Server) {
	runner.RegisterGateway(s, g)
	store.RegisterEntities(s, &entities{g})
}

// Only is the Authorizer of the server for runners: it permits every method to
// runners, and none but the public ones to any other caller.
type Only struct{}

// Authorize implements rpc.Authorizer.
func (Only) Authorize(_ context.Context, id rpc.Identity, m rpc.MethodInfo) (rpc.Grant, error) {
	switch {
	case id.How == "":
		return rpc.Grant{}, errs.New(errs.Unauthenticated, "%s needs the certificate of a runner", m.Full)
	case id.How != "certificate" || !slices.Equal(id.Roles, []string{runners.Role}):
		return rpc.Grant{}, errs.New(errs.PermissionDenied, "%s is for runners only, which %s is not", m.Full, id.Name)
	}
	return rpc.Grant{All: true}, nil
}

// caller returns the node of the runner that calls.
func caller(ctx context.Context) id.Node { return id.Node(rpc.IdentityFrom(ctx).Name) }

// key returns the key of a runner.
func (g *Gateway) key(node id.Node) []byte {
	m := hmac.New(sha256.New, g.cfg.Key)
	m.Write([]byte("runner secrets " + node))
	return m.Sum(nil)
}

// Authority implements runner.Gateway.
func (g *Gateway) Authority(context.Context) (*runner.AuthorityResponse, error) {
	return &runner.AuthorityResponse{CA: string(g.cfg.CA.CA())}, nil
}

// Join implements runner.Gateway.
func (g *Gateway) Join(ctx context.Context, req *runner.JoinRequest) (*runner.JoinResponse, error) {
	key, err := identity.RequestKey([]byte(req.Csr))
	if err != nil {
		return nil, err
	}
	node, err := g.cfg.Runners.Join(ctx, runners.JoinRequest{Token: req.Token, Name: req.Name, Arch: req.Arch, Key: key})
	if err != nil {
		return nil, err
	}
	rpc.SetSubjects(ctx, rpc.Subject{Kind: core.KindNode, ID: string(node)})
	g.cfg.Logger.Info("runner has joined", "node", string(node), "name", req.Name)
	return g.issue(ctx, node, req.Csr, "token")
}

// issue makes and records a certificate. Unauthenticated if the runner was removed
// meanwhile.
func (g *Gateway) issue(ctx context.Context, node id.Node, csr, by string) (*runner.JoinResponse, error) {
	roles := []string{runners.Role}
	pair, err := g.cfg.CA.SignClient([]byte(csr), string(node), roles, certificateLife)
	if err != nil {
		return nil, err
	}
	cert, err := g.cfg.Identities.Record(ctx, identities.Issued{Identity: string(node), Serial: pair.Serial, Roles: roles, By: by, ExpiresAt: pair.ExpiresAt})
	if err != nil {
		return nil, err
	}
	g.cfg.Recorded(cert)
	if _, err := g.node(ctx, node); err != nil {
		return nil, err
	}
	return &runner.JoinResponse{Node: node, Certificate: string(pair.Certificate), ExpiresAt: pair.ExpiresAt}, nil
}

// node returns the node of a runner. Unauthenticated if it was removed.
func (g *Gateway) node(ctx context.Context, node id.Node) (*core.Node, error) {
	n, err := entity.Get[core.Node](ctx, g.cfg.Store, node)
	if errs.Is(err, errs.NotFound) || err == nil && (n.Spec.Removed || !n.Spec.Runner) {
		return nil, errs.New(errs.Unauthenticated, "this runner was deleted").WithHint("join again with another token (r runner token create)")
	}
	return n, err
}

// Renew implements runner.Gateway.
func (g *Gateway) Renew(ctx context.Context, req *runner.RenewRequest) (*runner.JoinResponse, error) {
	n, err := g.node(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	if !g.mayRenew(n.GetID()) {
		return nil, errs.New(errs.ResourceExhausted, "this runner has just got a certificate").WithHint("try again after %s", renewPause)
	}
	return g.issue(ctx, n.GetID(), req.Csr, string(n.ID))
}

func (g *Gateway) mayRenew(node id.Node) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at, ok := g.renewed[node]; ok && time.Since(at) < renewPause {
		return false
	}
	g.renewed[node] = time.Now()
	return true
}

// Key implements runner.Gateway.
func (g *Gateway) Key(ctx context.Context) (*runner.KeyResponse, error) {
	return &runner.KeyResponse{Key: g.key(caller(ctx))}, nil
}

// Connect implements runner.Gateway.
func (g *Gateway) Connect(ctx context.Context, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	n, err := g.node(ctx, caller(ctx))
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	nc := rpc.NewTunnel(st.Reader(), st.Writer(), func() { close(ended) })
	// What reads and writes the stream waits until this call ends, which so waits for
	// none of it.
	made := make(chan *rpc.Client, 1)
	go func() {
		cl, err := rpc.NewConnClient(nc, rpc.ClientOptions{Limits: rpc.Limits{KeepAlive: runnerAlive}})
		if err != nil {
			g.cfg.Logger.Warn("runner does not serve its connection", "node", string(n.ID), "error", err)
		}
		made <- cl
	}()
	select {
	case cl := <-made:
		if cl != nil {
			g.cfg.Hub.serve(ctx, n.GetID(), cl, ended)
			return ctx.Err()
		}
	case <-ended:
		go func() {
			if cl := <-made; cl != nil {
				cl.Close()
			}
		}()
	}
	return errs.New(errs.Unavailable, "the runner does not serve its connection")
}

// Image implements runner.Gateway. A runner gets only images of sandboxes that are
// placed on it and have not ended.
func (g *Gateway) Image(ctx context.Context, req *runner.ImageRequest, st rpc.ServerStream[rpc.None, rpc.Bytes]) error {
	all, err := sandboxes.OnNode(ctx, g.cfg.Store, caller(ctx))
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(sb *sandbox.Sandbox) bool { return !sb.Status.Phase.Ended() && sb.Spec.Template.Image == req.Image }) {
		return errs.New(errs.PermissionDenied, "no sandbox of this runner has the image %s", req.Image)
	}
	return g.cfg.Export(ctx, req.Image, st.Writer())
}

// Finish implements runner.Gateway.
func (g *Gateway) Finish(ctx context.Context, req *runner.SandboxRequest) error {
	if g.cfg.Finish == nil {
		return nil
	}
	return g.cfg.Finish(ctx, caller(ctx), req.Sandbox)
}

// scope returns the store as far as it concerns the caller.
func (g *Gateway) scope(ctx context.Context) (*remote.Server, error) {
	node := caller(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.scopes[node]; s != nil {
		return s, nil
	}
	to, err := schema.NewKeySealer(g.key(node))
	if err != nil {
		return nil, err
	}
	s := remote.NewServer(NewScope(g.cfg.Store, node, g.cfg.Sealer, to), api.Kinds())
	g.scopes[node] = s
	return s, nil
}

// Forget drops what is remembered of a runner that was deleted.
func (g *Gateway) Forget(node id.Node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.scopes, node)
	delete(g.renewed, node)
}

// entities serves each runner its Scope.
type entities struct{ g *Gateway }

func scoped[T any](ctx context.Context, e *entities, f func(*remote.Server) (T, error)) (T, error) {
	s, err := e.g.scope(ctx)
	if err != nil {
		var zero T
		return zero, err
	}
	return f(s)
}

func (e *entities) Kinds(ctx context.Context) (*store.KindsResponse, error) {
	return scoped(ctx, e, func(s *remote.Server) (*store.KindsResponse, error) { return s.Kinds(ctx) })
}

func (e *entities) Get(ctx context.Context, req *store.GetRequest) (*store.GetResponse, error) {
	return scoped(ctx, e, func(s *remote.Server) (*store.GetResponse, error) { return s.Get(ctx, req) })
}

func (e *entities) List(ctx context.Context, req *store.ListRequest) (*store.ListResponse, error) {
	return scoped(ctx, e, func(s *remote.Server) (*store.ListResponse, error) { return s.List(ctx, req) })
}

func (e *entities) Txn(ctx context.Context, req *store.TxnRequest) (*store.TxnResponse, error) {
	return scoped(ctx, e, func(s *remote.Server) (*store.TxnResponse, error) { return s.Txn(ctx, req) })
}

func (e *entities) Watch(ctx context.Context, req *store.WatchRequest, st rpc.ServerStream[rpc.None, store.EventBatch]) error {
	s, err := e.g.scope(ctx)
	if err != nil {
		return err
	}
	return s.Watch(ctx, req, st)
}

func (e *entities) Grant(ctx context.Context, req *store.GrantRequest) (*store.Lease, error) {
	return scoped(ctx, e, func(s *remote.Server) (*store.Lease, error) { return s.Grant(ctx, req) })
}

func (e *entities) KeepAlive(ctx context.Context, req *store.LeaseRequest) (*store.Lease, error) {
	return scoped(ctx, e, func(s *remote.Server) (*store.Lease, error) { return s.KeepAlive(ctx, req) })
}

func (e *entities) Revoke(ctx context.Context, req *store.LeaseRequest) error {
	s, err := e.g.scope(ctx)
	if err != nil {
		return err
	}
	return s.Revoke(ctx, req)
}
