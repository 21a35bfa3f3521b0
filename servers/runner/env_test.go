package runner

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/runner"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/controllers/node"
	ctlsandbox "miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/domain/identities"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/runners"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/identity"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/executiontest/fake"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// env is a server's gateway with a real store, over TLS, behind a proxy that can
// cut the connections of runners.
type env struct {
	*testing.T
	store       entity.Store
	sealer      *schema.Sealer
	ca          *identity.Authority
	gateway     *Gateway
	hub         *Hub
	peers       *Peers
	network     *network // of the server's machine
	rpc         *rpc.Server
	revocations *identities.Revocations
	runners     *runners.Service
	nodes       *Nodes // as the server's services use it
	project     schema.ID
	address     string
	proxy       *cutter
	finish      func(context.Context, id.Node, id.Sandbox) error // of the gateway; nil: nothing is done
	logger      *slog.Logger
}

const content = "an image"

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{T: t, store: pgtest.Store(t, api.Kinds()...), revocations: identities.NewRevocations(), logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	dir := t.TempDir()
	e.sealer = schema.NewSealer(filepath.Join(dir, "key"))
	var err error
	e.ca, err = identity.Open(filepath.Join(dir, "pki"))
	e.must(err)
	e.must(projects.Ensure(t.Context(), e.store, projects.Default))
	e.project, err = projects.Find(t.Context(), e.store, "")
	e.must(err)
	ids := &identities.Service{Store: e.store}
	e.runners = &runners.Service{Store: e.store, Identities: ids}
	e.hub, e.network = NewHub(e.logger), newNetwork(t)
	e.peers = NewPeers(e.hub, e.network)
	e.gateway = NewGateway(Config{
		Store: e.store, CA: e.ca, Sealer: e.sealer, Key: []byte("key of the test"), Runners: e.runners, Identities: ids, Hub: e.hub, Peers: e.peers, Logger: e.logger,
		Recorded: func(c *core.ClientCertificate) { e.revocations.Put(c) },
		Finish: func(ctx context.Context, node id.Node, sid id.Sandbox) error {
			if e.finish == nil {
				return nil
			}
			return e.finish(ctx, node, sid)
		},
		Export: func(_ context.Context, ref string, w io.Writer) error {
			_, err := io.WriteString(w, content+" "+ref)
			return err
		},
	})
	tls, err := e.ca.ServerTLS()
	e.must(err)
	e.rpc, err = rpc.NewServer(rpc.ServerOptions{
		TLS: tls, Authorizer: Only{}, Logger: e.logger,
		Refuse: func(i rpc.Identity) error {
			if i.Serial == "" {
				return nil
			}
			return e.revocations.Check(i.Name, i.Serial)
		},
	})
	e.must(err)
	e.gateway.Register(e.rpc)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	e.must(err)
	e.proxy = newCutter(t, l.Addr().String())
	e.address = e.proxy.l.Addr().String()
	informers := informer.New(informer.Config{Reader: e.store})
	e.nodes = NewNodes(ctlsandbox.LocalNode{Driver: fake.NewMachine().Driver()}, e.hub, informers)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { e.check(e.rpc.Serve(l)) })
	wg.Go(func() { e.check(informers.Run(ctx)) })
	t.Cleanup(func() {
		cancel()
		e.rpc.Close()
		wg.Wait()
	})
	return e
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) check(err error) {
	e.Helper()
	if err != nil {
		e.Error(err)
	}
}

func (e *env) class(what string, err error, want errs.Class) {
	e.Helper()
	if !errs.Is(err, want) {
		e.Errorf("%s: %v (%s), want %s", what, err, errs.ClassOf(err), want)
	}
}

// token makes a token as its user sees it.
func (e *env) token() string {
	e.Helper()
	_, secret, err := e.runners.CreateToken(e.Context(), 0, "root")
	e.must(err)
	fp, err := identity.Fingerprint(e.ca.CA())
	e.must(err)
	return Secret(secret, fp)
}

// machine is a simulated machine that is a runner.
type machine struct {
	e    *env
	dir  string
	fake *fake.Machine
	node id.Node
	stop func()

	network *network
	client  *Client

	imageBytes int64
	made       time.Time // of every image

	mu     sync.Mutex
	images map[string]string
}

func (m *machine) Has(_ context.Context, ref string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.images[ref] != "", nil
}

func (m *machine) List(context.Context, map[string]string) (list []containerd.Record, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ref := range m.images {
		list = append(list, containerd.Record{Ref: ref, CreatedAt: m.made})
	}
	return list, nil
}

func (m *machine) Usage(_ context.Context, ref string) (int64, error) {
	return int64(len(m.image(ref))), nil
}

func (m *machine) Delete(_ context.Context, ref string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.images, ref)
	return nil
}

// image returns what the machine has of an image.
func (m *machine) image(ref string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.images[ref]
}

func (m *machine) Import(_ context.Context, ref string, r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.images[ref] = string(b)
	return nil
}

// join makes a runner and starts it.
func (e *env) join(name string) *machine {
	e.Helper()
	m := &machine{e: e, dir: e.TempDir(), fake: fake.NewMachine(), images: map[string]string{}, made: time.Now().Add(-time.Hour), imageBytes: 1 << 40, network: newNetwork(e.T)}
	e.must(Join(e.Context(), m.dir, e.address, e.token(), name))
	m.start()
	return m
}

// start runs the runner's process.
func (m *machine) start() {
	m.e.Helper()
	c, err := Open(m.dir, m.e.logger.With("runner", filepath.Base(m.dir)))
	m.e.must(err)
	m.node, m.client = c.Node, c
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.e.check(Run(ctx, c, Machine{
			Driver: m.fake.Driver(), Images: m, ImageBytes: m.imageBytes, Logger: m.e.logger, Network: m.network,
			Host:      func() (*runner.Host, error) { return &runner.Host{MemoryBytes: 42}, nil },
			Registrar: node.Registrar{StateDir: "/", IDFile: filepath.Join(m.dir, "node-id"), CPUMillis: 4000, MemoryBytes: 1 << 40},
		}))
	}()
	m.stop = sync.OnceFunc(func() {
		cancel()
		c.Close()
		<-done
	})
	m.e.Cleanup(m.stop)
}

// sandbox places a sandbox on the node and waits until it runs.
func (m *machine) sandbox(change ...func(*sandbox.Sandbox)) *sandbox.Sandbox {
	m.e.Helper()
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Node, sb.Status.Phase = m.e.project, m.node, sandbox.SandboxPhaseScheduled
	sb.Spec.Template.Image, sb.Spec.Template.Command = "img@sha256:1", []string{"/bin/guest", "stub"}
	for _, c := range change {
		c(sb)
	}
	m.e.must(entity.Create(m.e.Context(), m.e.store, sb))
	return m.e.until(sb, sandbox.SandboxPhaseRunning)
}

func (e *env) get(sb *sandbox.Sandbox) *sandbox.Sandbox {
	e.Helper()
	got, err := entity.Get[sandbox.Sandbox](e.Context(), e.store, sb.GetID())
	e.must(err)
	return got
}

func (e *env) until(sb *sandbox.Sandbox, phase sandbox.SandboxPhase) *sandbox.Sandbox {
	e.Helper()
	wait.For(e.T, "the sandbox is "+string(phase), func() bool { return e.get(sb).Status.Phase == phase })
	wait.For(e.T, "the server knows the sandbox", func() bool {
		return e.nodes.sandboxes.Get(sb.ID) != nil && e.nodes.nodes.Get(schema.ID(sb.Spec.Node)) != nil
	})
	return e.get(sb)
}

// exec runs a command of the guest and returns its output and exit code.
func (e *env) exec(sb *sandbox.Sandbox, input string, args ...string) (string, int, error) {
	ctx, cancel := context.WithTimeout(e.Context(), wait.Limit)
	defer cancel()
	p, err := e.nodes.Exec(ctx, sb.GetID(), sandboxes.ExecSpec{Command: append([]string{"/bin/guest"}, args...)})
	if err != nil {
		return "", 0, err
	}
	defer p.Close()
	if _, err := io.WriteString(p.Stdin(), input); err != nil {
		return "", 0, err
	}
	if err := p.Stdin().Close(); err != nil {
		return "", 0, err
	}
	var out strings.Builder
	if _, err := io.Copy(&out, p.Stdout()); err != nil {
		return "", 0, err
	}
	code, err := p.Wait(ctx)
	return out.String(), code, err
}

// cutter is a TCP proxy whose connections a test cuts.
type cutter struct {
	l  net.Listener
	to string
	wg sync.WaitGroup

	mu    sync.Mutex
	conns []*net.TCPConn
	down  bool
	all   int // connections that were ever made
}

func newCutter(t *testing.T, to string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{l: l, to: to}
	c.wg.Go(c.accept)
	t.Cleanup(func() {
		l.Close()
		c.cut(true)
		c.wg.Wait()
	})
	return c
}

func (c *cutter) accept() {
	for {
		near, err := c.l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", c.to)
		if err != nil {
			near.Close()
			continue
		}
		c.mu.Lock()
		c.all++
		c.conns = append(c.conns, near.(*net.TCPConn), far.(*net.TCPConn))
		if c.down {
			near.Close()
			far.Close()
		}
		c.mu.Unlock()
		for _, p := range [][2]net.Conn{{near, far}, {far, near}} {
			c.wg.Go(func() {
				_, _ = io.Copy(p[0], p[1])
				p[0].Close()
				p[1].Close()
			})
		}
	}
}

// cut resets every connection. With down, new ones are reset too, until up.
func (c *cutter) cut(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, nc := range c.conns {
		_ = nc.SetLinger(0)
		if err := nc.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			panic(err)
		}
	}
	c.conns, c.down = nil, down
}

// made returns how many connections were ever made.
func (c *cutter) made() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all
}

func (c *cutter) up() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = false
}
