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
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	controller "miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/source"
	rpcserver "miren.dev/runtime/servers/rpc"
	"miren.dev/runtime/servers/service"
	"miren.dev/runtime/testsupport/executiontest/fake"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// gate is a store that can be away.
type gate struct {
	entity.Store
	away atomic.Bool
}

var errAway = errs.New(errs.Unavailable, "the store is away")

func (g *gate) Get(ctx context.Context, kind string, id schema.ID) (schema.Record, error) {
	if g.away.Load() {
		return schema.Record{}, errAway
	}
	return g.Store.Get(ctx, kind, id)
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

// world is a server with a real store, the sandbox controller and a machine
// that is not real, reached over a unix socket.
type world struct {
	*testing.T
	store     *gate
	machine   *fake.Machine
	buildLogs *buildlog.Logs
	project   schema.ID
	node      id.Node

	apps      app.AppsClient
	deploys   app.DeploysClient
	builds    app.BuildsClient
	routes    app.RoutesClient
	sandboxes sandbox.SandboxesClient
	nodes     server.NodesClient
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "rt-rpc-") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{T: t, store: &gate{Store: pgtest.Store(t, api.Kinds()...)}, machine: fake.NewMachine(), buildLogs: buildlog.New(filepath.Join(dir, "builds"), 0)}
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("VERBOSE") != "" {
		log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	sealer := schema.NewSealer(filepath.Join(dir, "key"))
	svc := &service.Service{Store: w.store, Sealer: sealer, Log: log}
	w.must(svc.EnsureProject(t.Context(), service.DefaultProject))
	if w.project, err = svc.Project(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "n", "amd64", 1000_000, 1<<40
	w.create(n)
	w.node = n.GetID()

	// The server's informers reach the store as it does; those of the controller always do.
	informers := informer.New(informer.Config{Reader: w.store})
	rec := &controller.Reconciler{Driver: w.machine.Driver(), Node: w.node, Sealer: sealer, Log: log}
	rec.Store = kittest.Hold(t, w.store.Store, rec.Controller())
	srv, err := rpc.NewServer(rpc.ServerOptions{Logger: log})
	w.must(err)
	name, access := rpcserver.Access()
	svc.Store = kittest.HoldWriter(t, w.store, name, access)
	rpcserver.Register(srv, rpcserver.Deps{
		Service: svc, Store: svc.Store, Informers: informers, Sources: source.NewStore(source.StoreConfig{Dir: filepath.Join(dir, "sources")}), BuildLogs: w.buildLogs,
		Driver: w.machine.Driver(), Log: log,
		Image: func(_ context.Context, name string) (string, error) { return name, nil },
	})
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	w.must(err)
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
	_, stop := kittest.Run(t, informer.New(informer.Config{Reader: w.store.Store}), kit.Config{StopGrace: time.Millisecond, Logger: log}, rec.Controller())
	t.Cleanup(func() {
		stop()
		cancel()
		srv.Close() // waits for every handler
		wg.Wait()
		for _, sid := range w.machine.IDs() {
			w.machine.Vanish(sid)
		}
	})
	c := w.dial(socket)
	w.apps, w.deploys, w.builds, w.routes = app.NewAppsClient(c), app.NewDeploysClient(c), app.NewBuildsClient(c), app.NewRoutesClient(c)
	w.sandboxes, w.nodes = sandbox.NewSandboxesClient(c), server.NewNodesClient(c)
	return w
}

func (w *world) dial(socket string) *rpc.Client {
	w.Helper()
	c, err := rpc.NewClient("unix://"+socket, rpc.ClientOptions{})
	w.must(err)
	w.Cleanup(func() { c.Close() })
	return c
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) create(o schema.Object) {
	w.Helper()
	if o.EntityKind().Scope == schema.ScopeProject {
		o.GetMeta().Project = w.project
	}
	w.must(entity.Create(w.Context(), w.store.Store, o))
}

// ctx ends before the test runs out of time.
func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), wait.Limit)
	w.Cleanup(cancel)
	return ctx
}

// sandbox makes one that no node has yet.
func (w *world) sandbox(command ...string) *sandbox.Sandbox {
	w.Helper()
	sb := sandbox.NewSandbox()
	sb.Spec.Template.Image, sb.Spec.Template.Command = "image", append([]string{"/bin/guest"}, command...)
	w.create(sb)
	return sb
}

// place lets the node have it.
func (w *world) place(sb *sandbox.Sandbox) {
	w.Helper()
	sb.Spec.Node, sb.Status.Phase = w.node, sandbox.SandboxPhaseScheduled
	w.must(entity.UpdateSpec(w.Context(), w.store.Store, sb))
}

// run makes a sandbox that runs.
func (w *world) run(command ...string) *sandbox.Sandbox {
	w.Helper()
	sb := w.sandbox(command...)
	w.place(sb)
	return w.until(sb, sandbox.WaitUntilRunning)
}

func (w *world) until(sb *sandbox.Sandbox, what sandbox.WaitUntil) *sandbox.Sandbox {
	w.Helper()
	resp, err := w.sandboxes.Wait(w.ctx(), &sandbox.WaitRequest{Sandbox: sb.GetID(), Until: what})
	w.must(err)
	got, err := entity.Decode[sandbox.Sandbox](&resp.Sandbox)
	w.must(err)
	return got
}

func (w *world) class(what string, err error, want errs.Class) {
	w.Helper()
	if !errs.Is(err, want) {
		w.Errorf("%s: %v (%s), want %s", what, err, errs.ClassOf(err), want)
	}
}

// all receives to the end.
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
