package mock

import (
	"context"
	"crypto/rand"
	"log/slog"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	kinds "miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	rpcstore "miren.dev/runtime/api/store"
	"miren.dev/runtime/components/mock"
	ctlexecution "miren.dev/runtime/controllers/execution"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/pool"
	ctlsandbox "miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/controllers/scheduler"
	"miren.dev/runtime/controllers/template"
	ctlwebhook "miren.dev/runtime/controllers/webhook"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/audit"
	"miren.dev/runtime/domain/certificates"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/events"
	"miren.dev/runtime/domain/executions"
	"miren.dev/runtime/domain/keys"
	"miren.dev/runtime/domain/metrics"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/previews"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/domain/secrets"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/domain/users"
	"miren.dev/runtime/domain/webhooks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/preview"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/servers/e2b"
	rpcserver "miren.dev/runtime/servers/rpc"
	"miren.dev/runtime/servers/workspace"
)

// plane is the control plane of a mock server: that of the real one without the
// parts for apps, disks, nodes and the host.
type plane struct {
	s         *Server
	logger    *slog.Logger
	cfg       *config.Config // defaults
	store     entity.Store
	machine   *mock.Machine
	sealer    *schema.Sealer
	informers *informer.Set
	policies  *policies.Store
	quotas    *quotas.Store
	templates *templates.Service
	objects   *objects
	demand    *sandboxes.Demand
	deps      rpcserver.Deps
	users     *users.Table
	keys      *keys.Service
	audit     *audit.Recorder
	rpc       *rpc.Server
	node      id.Node
	rt        *kit.Runtime
	e2b       *e2b.Server
	closed    chan struct{} // when every call has ended
}

func newPlane(s *Server) *plane {
	p := &plane{
		s: s, logger: s.cfg.Logger, cfg: config.Default(), store: s.store, demand: &sandboxes.Demand{}, closed: make(chan struct{}),
		machine: mock.NewMachine(mock.Config{Program: s.cfg.Answers.Program, Dir: filepath.Join(s.dir, "files"), Dial: (&interpreters{answers: s.cfg.Answers, contexts: map[string][]*codeContext{}}).dial}),
		sealer:  schema.NewSealer(filepath.Join(s.dir, "secrets.key")),
	}
	p.informers = informer.New(informer.Config{Reader: p.store, Logger: p.logger})
	p.policies = policies.New(p.store, p.informers)
	p.quotas = quotas.New(p.policies, p.informers)
	p.templates = templates.New(p.policies, p.informers, image, p.logger)
	p.templates.Size = func(context.Context, string) (int64, error) { return 0, nil }
	p.templates.Keep = int(p.cfg.Retention.Versions)
	p.templates.Sealer = p.sealer
	p.objects = &objects{}
	p.rt = kit.New(kit.Config{Informers: p.informers, Logger: p.logger})
	p.deps = p.services()
	return p
}

// image is the reference of an image in place of a name: no image exists here.
func image(_ context.Context, name string) (string, error) { return name, nil }

func (p *plane) services() rpcserver.Deps {
	d := &disks.Service{Store: p.quotas, Informers: p.informers}
	a := &apps.Service{Store: p.store, Informers: p.informers, Sealer: p.sealer, Logger: p.logger}
	rt := &routes.Service{Store: p.store, Apps: a, Sealer: p.sealer}
	sec := &secrets.Service{Store: p.store, Sealer: p.sealer}
	driver := p.machine.Driver()
	return rpcserver.Deps{
		Apps: a, Routes: rt, Certificates: &certificates.Service{Store: p.store, Sealer: p.sealer, Routes: rt}, Nodes: &nodes.Service{Store: p.store},
		History: p.s.store, Disks: d, Secrets: sec, Quotas: p.quotas, Policies: p.policies, Templates: p.templates,
		Webhooks: &webhooks.Service{Store: p.store, Sealer: p.sealer}, Events: &events.Service{Store: p.store},
		Metrics: &metrics.Service{Entities: p.store, Apps: a},
		Sandboxes: sandboxes.New(&sandboxes.Service{
			Store: p.quotas, Policies: p.policies, Informers: p.informers, Apps: a, Templates: p.templates, Disks: d, Secrets: sec, Sealer: p.sealer,
			Image: image, Logger: p.logger, Demand: p.demand, NoPools: true,
			Node: ctlsandbox.LocalNode{Driver: driver, FileDriver: driver, Store: p.store, Disks: noDisks{}},
		}),
		Executions: executions.New(&executions.Service{
			Store: p.quotas, Quota: p.quotas.Check, Policies: p.policies, History: p.s.store, Informers: p.informers, Objects: p.objects, Templates: p.templates, Sealer: p.sealer,
			MaxQueued: int(p.cfg.Executions.Queue), MaxBytes: p.cfg.Executions.StoreBytes / 2,
		}),
	}
}

// controllers are those of the real server that programs of the API see at work.
func (p *plane) controllers() []kit.Controller {
	node := &ctlsandbox.Reconciler{
		Store: p.store, Driver: p.machine.Driver(), Node: p.node, Sealer: p.sealer, Logger: p.logger, Disks: noDisks{},
		Copies: ctlsandbox.Copies{SnapshotCopier: p.machine.Driver()},
		Probe:  func(context.Context, string, sandbox.Probe) error { return nil }, // nothing listens in a sandbox
		Booted: func() time.Time { return time.Time{} },
	}
	return []kit.Controller{
		builds{p.store}.controller(),
		(&template.Reconciler{Templates: p.templates}).Controller(),
		(&pool.Warm{Store: p.store, Informers: p.informers, Templates: p.templates, Demand: p.demand, Logger: p.logger}).Controller(),
		(&scheduler.Reconciler{Store: p.store, Logger: p.logger}).Controller(),
		node.Controller(),
		(&ctlsandbox.Snapshots{Sandboxes: node, Logger: p.logger}).Controller(),
		(&ctlexecution.Reconciler{
			Store: p.store, Executions: p.deps.Executions, Sandboxes: p.deps.Sandboxes, Sealer: p.sealer, Node: p.node,
			Parallel: int(p.cfg.Executions.Parallel), Logger: p.logger,
		}).Controller(),
		(&ctlwebhook.Feed{Store: p.store, Informers: p.informers, Logger: p.logger}).Controller(),
		(&ctlwebhook.Expirer{Store: p.store, For: p.cfg.History.Events}).Controller(),
		(&ctlwebhook.Sender{Store: p.store, Webhooks: p.deps.Webhooks, Informers: p.informers, Allow: loopback, Logger: p.logger}).Controller(),
	}
}

// prepare makes what a new installation has, and the key.
func (p *plane) prepare(ctx context.Context) error {
	if err := projects.Ensure(ctx, p.store, projects.Default); err != nil {
		return errs.Wrap(err, "default project")
	}
	settings, err := workspace.Load(func(string) string { return "" })
	if err != nil {
		return err
	}
	if err := p.templates.Ship(ctx, settings.Shipped()); err != nil {
		return errs.Wrap(err, "shipped templates")
	}
	if p.node, err = register(ctx, p.store); err != nil {
		return err
	}
	for _, c := range p.controllers() {
		if err := p.rt.Add(c); err != nil {
			return err
		}
	}
	p.rt.Declare(rpcserver.Access())
	p.rt.Declare("quota", kit.Access{Owns: kit.Fields(core.ProjectKind, "status")})
	if err := p.front(settings); err != nil {
		return err
	}
	p.s.key, err = p.makeKey(ctx)
	return err
}

// front makes the RPC server, which the faces are clients of within the process.
func (p *plane) front(settings workspace.Settings) (err error) {
	p.users = users.NewTable(func() { p.rpc.Recheck() })
	p.keys = keys.New(p.policies, p.sealer, p.users, func() { p.rpc.Recheck() }, p.logger)
	p.audit = audit.NewRecorder(p.s.store, p.projectOf, p.logger)
	if p.rpc, err = rpc.NewServer(rpc.ServerOptions{
		Refuse: func(id rpc.Identity) error {
			if id.Key != "" {
				return p.keys.Check(id)
			}
			return nil
		},
		ProjectOf: p.projectOf, Auditor: p.audit, Logger: p.logger,
	}); err != nil {
		return err
	}
	tokens := make([]byte, 32)
	rand.Read(tokens) // never fails (crypto/rand)
	p.deps.Previews = &previews.Service{
		Store: p.policies, Key: preview.NewKey(tokens), URL: func(string) string { return "" },
		DialSandbox: p.deps.Sandboxes.Dial, WakeSandbox: p.deps.Sandboxes.Wake,
	}
	rpcstore.RegisterEntities(p.rpc, rpcserver.Entities(remote.NewServer(p.store, kinds.Kinds()), p.store))
	rpcserver.Register(p.rpc, p.deps)
	core.RegisterKeys(p.rpc, rpcserver.Keys(p.keys, p.quotas))
	p.users.Follow(p.informers)
	p.keys.Follow(p.informers)
	return p.faces(tokens, settings)
}

func (p *plane) projectOf(ctx context.Context, t rpc.Target) (string, error) {
	if t.Kind == "" {
		if t.Project == "" {
			return projects.Default, nil
		}
		return t.Project, nil
	}
	return projects.Of(ctx, p.store, t.Kind, schema.ID(t.ID))
}

// run has everything run until ctx ends.
func (p *plane) run(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error { return p.informers.Run(ctx) })
	g.Go(func() error { return p.rt.Run(ctx) })
	g.Go(func() error { return p.keys.Run(ctx) })
	g.Go(func() error { return p.serve(ctx) })
	g.Go(func() error {
		defer close(p.closed)
		<-ctx.Done()
		p.rpc.Close() // waits for every call
		p.audit.Wait()
		return nil
	})
}
