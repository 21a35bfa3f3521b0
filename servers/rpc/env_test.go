package rpcserver_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/controllers/applog"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	controller "miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/source"
	rpcserver "miren.dev/runtime/servers/rpc"
	"miren.dev/runtime/servers/runner"
	"miren.dev/runtime/testsupport/executiontest/fake"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// gate is a store that a test can make unavailable.
type gate struct {
	entity.Store
	away     atomic.Bool
	readOnly atomic.Bool
}

var errAway = errs.New(errs.Unavailable, "the store is away")

func (g *gate) Get(ctx context.Context, kind string, id schema.ID) (schema.Record, error) {
	if g.away.Load() {
		return schema.Record{}, errAway
	}
	return g.Store.Get(ctx, kind, id)
}

func (g *gate) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	if g.readOnly.Load() {
		return entity.TxnResult{}, errAway
	}
	return g.Store.Txn(ctx, req)
}

func (g *gate) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	if g.away.Load() {
		return entity.Page{}, errAway
	}
	return g.Store.List(ctx, q)
}

func (g *gate) Watch(ctx context.Context, q entity.WatchQuery) (entity.Watch, error) {
	if g.away.Load() {
		return nil, errAway
	}
	w, err := g.Store.Watch(ctx, q)
	return &gateWatch{w, g}, err
}

type gateWatch struct {
	entity.Watch
	g *gate
}

func (w *gateWatch) Next(ctx context.Context) ([]entity.Event, error) {
	e, err := w.Watch.Next(ctx)
	if w.g.away.Load() {
		return nil, errAway
	}
	return e, err
}

// env is a server with a real store, the sandbox controller and a simulated
// machine, reached over a unix socket.
type env struct {
	*testing.T
	store     *gate
	machine   *fake.Machine
	buildLogs *buildlog.Logs
	kept      *logstore.Store
	project   schema.ID
	node      id.Node
	service   *sandboxes.Service
	disks     *nodeDisks
	hub       *runner.Hub  // nil: the machine is a runner
	objects   storesim.Mem // with copies of snapshots

	apps      app.AppsClient
	deploys   app.DeploysClient
	builds    app.BuildsClient
	routes    app.RoutesClient
	sandboxes sandbox.SandboxesClient
	nodes     server.NodesClient
	templates sandbox.TemplatesClient
	fileCalls sandbox.FilesClient
	quotas    core.QuotasClient
	policies  core.PoliciesClient
	files     string // directory with the files of every sandbox
	rpc       *rpc.Server
}

func newEnv(t *testing.T) *env {
	t.Helper()
	dir, err := os.MkdirTemp("", "rt-rpc-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	e := &env{T: t, store: &gate{Store: pgtest.Store(t, api.Kinds()...)}, machine: fake.NewMachine(), buildLogs: buildlog.New(filepath.Join(dir, "builds"), 0), files: t.TempDir()}
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("VERBOSE") != "" {
		log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	sealer := schema.NewSealer(filepath.Join(dir, "key"))
	e.must(projects.Ensure(t.Context(), e.store, projects.Default))
	if e.project, err = projects.Find(t.Context(), e.store, ""); err != nil {
		t.Fatal(err)
	}
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "n", "amd64", 1000_000, 1<<40
	e.create(n)
	e.node = n.GetID()

	// The server's informers reach the store as it does; those of the controller always do.
	informers := informer.New(informer.Config{Reader: e.store})
	e.disks = &nodeDisks{store: e.store.Store}
	rec := &controller.Reconciler{Driver: e.machine.Driver(), Node: e.node, Sealer: sealer, Logger: log, Disks: e.disks, Copies: e.copiesOf(e.machine)}
	rec.Store = kittest.Hold(t, e.store.Store, rec.Controller())
	e.kept, err = logstore.Open(logstore.Config{Dir: filepath.Join(dir, "logs"), SegmentBytes: 16 << 10})
	e.must(err)
	t.Cleanup(e.kept.Close)
	nodeInformers := informer.New(informer.Config{Reader: e.store.Store})
	collector := &applog.Collector{Store: e.store.Store, Informers: nodeInformers, Driver: rec.Driver, Logs: e.kept, Node: e.node, Logger: log}
	rec.Kept = collector
	snapshotRec := &controller.Reconciler{Driver: rec.Driver, Node: rec.Node, Logger: log, Copies: rec.Copies}
	snapshots := (&controller.Snapshots{Sandboxes: snapshotRec, Logger: log}).Controller()
	snapshotRec.Store = kittest.Hold(t, e.store.Store, snapshots)
	srv, err := rpc.NewServer(rpc.ServerOptions{Logger: log})
	e.must(err)
	name, access := rpcserver.Access()
	policy := policies.New(e.store, informers)
	quota := quotas.New(policy, informers)
	held := kittest.HoldWriter(t, quota, name, access)
	svc := &apps.Service{
		Store: held, Informers: informers, Sealer: sealer, Sources: source.NewStore(source.StoreConfig{Dir: filepath.Join(dir, "sources")}),
		BuildLogs: e.buildLogs, Logger: log,
	}
	image := func(_ context.Context, name string) (string, error) { return name, nil }
	tpl := templates.New(held, informers, image, log)
	e.must(tpl.Ship(t.Context()))
	e.service = sandboxes.New(&sandboxes.Service{
		Store: held, Policies: policy, Informers: informers, Apps: svc, Templates: tpl, Disks: &disks.Service{Store: held, Informers: informers}, Node: e.nodeCalls(log, informers), Sealer: sealer,
		Image: image, Logger: log, Kept: e.kept,
	})
	rpcserver.Register(srv, rpcserver.Deps{
		Apps: svc, Routes: &routes.Service{Store: held, Apps: svc, Sealer: sealer}, Nodes: &nodes.Service{Store: held}, Templates: tpl, Sandboxes: e.service, Quotas: quota, Policies: policy,
	})
	store.RegisterEntities(srv, remote.NewServer(e.store, api.Kinds()))
	e.rpc = srv
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	e.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := srv.Serve(l); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if err := informers.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	_, stop := kittest.Run(t, nodeInformers, kit.Config{StopGrace: time.Millisecond, Logger: log}, rec.Controller(), snapshots, collector.Controller(),
		(&applog.Keeper{Store: e.store.Store, Logs: e.kept, Logger: log}).Controller())
	t.Cleanup(func() {
		stop()
		cancel()
		srv.Close() // waits for every handler
		wg.Wait()
		for _, sid := range e.machine.IDs() {
			e.machine.Vanish(sid)
		}
	})
	c := e.dial(socket)
	e.apps, e.deploys, e.builds, e.routes = app.NewAppsClient(c), app.NewDeploysClient(c), app.NewBuildsClient(c), app.NewRoutesClient(c)
	e.templates = sandbox.NewTemplatesClient(c)
	e.fileCalls, e.quotas, e.policies = sandbox.NewFilesClient(c), core.NewQuotasClient(c), core.NewPoliciesClient(c)
	e.sandboxes, e.nodes = sandbox.NewSandboxesClient(c), server.NewNodesClient(c)
	return e
}

// throughRunner is the test that runs other ones with a machine that is a runner.
const throughRunner = "TestThroughARunner"

// nodeCalls returns the operations on the simulated machine, that of the server, or on one that is a runner.
func (e *env) nodeCalls(log *slog.Logger, informers *informer.Set) sandboxes.Node {
	e.Helper()
	local := controller.LocalNode{Driver: e.machine.Driver(), FileDriver: hostFiles(e.files), Store: e.store.Store, Disks: e.disks}
	if !strings.HasPrefix(e.Name(), throughRunner+"/") {
		e.hub = runner.NewHub(log)
		e.hub.SetNode(e.node)
		return runner.NewNodes(local, e.hub, informers)
	}
	srv, err := rpc.NewServer(rpc.ServerOptions{Logger: log})
	e.must(err)
	rpcserver.RegisterNode(srv, local, nil, nil)
	cl := srv.Local(rpc.Identity{Name: "server", Roles: []string{rpc.RoleAdmin}, How: "tunnel"})
	e.Cleanup(func() {
		cl.Close()
		srv.Close()
	})
	return runner.NewNode(cl)
}

func (e *env) dial(socket string) *rpc.Client {
	e.Helper()
	c, err := rpc.NewClient("unix://"+socket, rpc.ClientOptions{})
	e.must(err)
	e.Cleanup(func() { c.Close() })
	return c
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) create(o schema.Object) {
	e.Helper()
	if o.EntityKind().Scope == schema.ScopeProject {
		o.GetMeta().Project = e.project
	}
	e.must(entity.Create(e.Context(), e.store.Store, o))
}

// ctx ends before the test runs out of time.
func (e *env) ctx() context.Context {
	ctx, cancel := context.WithTimeout(e.Context(), wait.Limit)
	e.Cleanup(cancel)
	return ctx
}

// sandbox makes one that no node has yet.
func (e *env) sandbox(command ...string) *sandbox.Sandbox {
	e.Helper()
	sb := sandbox.NewSandbox()
	sb.Spec.Template.Image, sb.Spec.Template.Command = "image", append([]string{"/bin/guest"}, command...)
	e.create(sb)
	return sb
}

// place assigns the sandbox to the node.
func (e *env) place(sb *sandbox.Sandbox) {
	e.Helper()
	sb.Spec.Node, sb.Status.Phase = e.node, sandbox.SandboxPhaseScheduled
	e.must(entity.UpdateSpec(e.Context(), e.store.Store, sb))
}

// run creates a running sandbox.
func (e *env) run(command ...string) *sandbox.Sandbox {
	e.Helper()
	sb := e.sandbox(command...)
	e.place(sb)
	return e.until(sb, sandbox.WaitUntilRunning)
}

func (e *env) until(sb *sandbox.Sandbox, what sandbox.WaitUntil) *sandbox.Sandbox {
	e.Helper()
	resp, err := e.sandboxes.Wait(e.ctx(), &sandbox.WaitRequest{Sandbox: sb.GetID(), Until: what})
	e.must(err)
	got, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	e.must(err)
	return got
}

func (e *env) class(what string, err error, want errs.Class) {
	e.Helper()
	if !errs.Is(err, want) {
		e.Errorf("%s: %v (%s), want %s", what, err, errs.ClassOf(err), want)
	}
}

// all receives messages until the end.
func all[In, Out any](st rpc.ClientStream[In, Out]) ([]*Out, error) {
	var out []*Out
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, m)
	}
}

func ptr[T any](v T) *T { return &v }

func text(batches []*sandbox.LogBatch) []string {
	var out []string
	for _, b := range batches {
		for _, l := range b.Lines {
			out = append(out, l.Text)
		}
	}
	return out
}

func joined(lines []string) string { return strings.Join(lines, ",") }
