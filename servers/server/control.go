package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/build"
	"miren.dev/runtime/controllers/deployment"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/node"
	"miren.dev/runtime/controllers/pool"
	"miren.dev/runtime/controllers/retention"
	ctlsandbox "miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/controllers/scheduler"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/servers/service"
)

// control is the control plane over a store.
type control struct {
	cfg     *config.Config
	m       *machine
	log     *slog.Logger
	store   *pgstore.Store
	service *service.Service
	sealer  *schema.Sealer
	node    *node.Registrar
	builds  *build.Reconciler
	rt      *kit.Runtime
}

// openStore connects to the store and makes sure of what must always be there.
func openStore(ctx context.Context, cfg *config.Config, url string, log *slog.Logger) (*pgstore.Store, error) {
	store, err := pgstore.Open(ctx, pgstore.Config{URL: url, Kinds: api.Kinds(), Logger: log.With("component", "store"), KeepRevisions: cfg.Store.KeepRevisions})
	if err != nil {
		return nil, errs.Wrap(err, "store")
	}
	return store, nil
}

func newControl(cfg *config.Config, m *machine, store *pgstore.Store, sources build.Sources, reg prometheus.Registerer, log *slog.Logger) *control {
	c := &control{cfg: cfg, m: m, log: log, store: store, sealer: schema.NewSealer(m.in.State("secrets.key"))}
	c.service = &service.Service{Store: store, Sealer: c.sealer, Log: log}
	c.node = &node.Registrar{Store: store, Instance: m.in.ID, CPUMillis: cfg.Node.CPUMillis, MemoryBytes: cfg.Node.MemoryBytes, IDFile: m.in.State("node-id"), Log: log}
	c.builds = &build.Reconciler{
		Store: store, Builder: m.buildkit, Bases: m.bases, Sources: sources, Logs: m.buildLogs, TempDir: m.in.State("tmp"),
		Parallel: int(cfg.Build.Parallel), Timeout: cfg.Build.Timeout, Log: log.With("controller", "build"),
	}
	c.rt = kit.New(kit.Config{Reader: store, Logger: log, Registerer: reg})
	return c
}

// reconcile adapts a reconciler that returns a delay.
func reconcile(f func(context.Context, schema.ID) (time.Duration, error)) func(context.Context, schema.ID) (kit.Result, error) {
	return func(ctx context.Context, key schema.ID) (kit.Result, error) {
		d, err := f(ctx, key)
		return kit.Result{RequeueAfter: d}, err
	}
}

// addControllers registers every controller.
func (c *control) addControllers(nodeID id.Node) error {
	var drainer deployment.Drainer
	if c.cfg.Ingress.HTTPAddress != "" {
		drainer = ingress.Client{Socket: c.m.in.Socket("ingress.sock")}
	}
	pools := &pool.Reconciler{Store: c.store}
	deployments := &deployment.Reconciler{
		Store: c.store, Drainer: drainer, Log: c.log.With("controller", "deployment"), URL: c.appURL, DrainTimeout: c.cfg.Ingress.DrainTimeout,
	}
	keeper := &retention.Reconciler{Store: c.store, Log: c.log.With("controller", "retention"), Config: retention.Config{
		Versions: int(c.cfg.Retention.Versions), Deployments: int(c.cfg.Retention.Deployments), Builds: int(c.cfg.Retention.Builds),
		EndedPools: c.cfg.Retention.Ended,
	}}
	for _, ctl := range []kit.Controller{
		{
			Name: "build", Kind: app.BuildKind, Reconcile: reconcile(c.builds.Reconcile), Workers: 2,
		},
		{
			Name: "deployment", Kind: app.DeploymentKind, Reconcile: reconcile(deployments.Reconcile), Workers: 4,
			Watches: []kit.Source{
				kit.Map(func(b *app.Build) []schema.ID { return c.activeDeployment(schema.ID(b.Spec.App)) }),
				kit.Map(func(sb *sandbox.Sandbox) []schema.ID { return c.activeDeployment(schema.ID(sb.Spec.App)) }),
				kit.Map(func(p *sandbox.SandboxPool) []schema.ID { return c.activeDeployment(schema.ID(p.Spec.App)) }),
			},
		},
		{
			Name: "pool", Kind: sandbox.SandboxPoolKind, Reconcile: reconcile(pools.Reconcile), Workers: 4,
			Watches: []kit.Source{kit.Map(func(sb *sandbox.Sandbox) []id.SandboxPool { return kit.Key(sb.Spec.Pool) })},
		},
		(&retention.Sandboxes{Store: c.store, Log: c.log.With("controller", "retention"), After: c.cfg.Retention.Ended}).Controller(),
		(&node.Liveness{Store: c.store, Log: c.log.With("controller", "node")}).Controller(),
		(&scheduler.Reconciler{Store: c.store, Log: c.log.With("controller", "scheduler")}).Controller(),
		{
			Name: "retention", Kind: app.AppKind, Reconcile: reconcile(keeper.Reconcile),
		},
	} {
		if err := c.rt.Add(ctl); err != nil {
			return err
		}
	}
	sandboxes := &ctlsandbox.Reconciler{Store: c.store, Driver: c.m.driver, Node: nodeID, Sealer: c.sealer, Stopped: lastStopped(c.m.in), Log: c.log.With("controller", "sandbox")}
	return c.rt.Add(sandboxes.Controller())
}

// activeDeployment returns the deployment that is under way for an app. It is
// asked for every change of a sandbox, so it reads the store only for those of
// apps; a failed read is made up for by the deployment's own polling.
func (c *control) activeDeployment(aid schema.ID) []schema.ID {
	if aid == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	a, err := entity.Get[app.App](ctx, c.store, aid)
	if err != nil || a.Status.ActiveDeployment == "" {
		return nil
	}
	return []schema.ID{schema.ID(a.Status.ActiveDeployment)}
}

// appURL is where an app answers without a route: the first local domain.
func (c *control) appURL(a *app.App) string {
	if c.cfg.Ingress.HTTPAddress == "" {
		return ""
	}
	domain := "localhost"
	if len(c.cfg.Ingress.LocalDomains) > 0 {
		domain = c.cfg.Ingress.LocalDomains[0]
	}
	_, port, err := net.SplitHostPort(c.cfg.Ingress.HTTPAddress)
	if err != nil {
		return ""
	}
	if port == "80" {
		return fmt.Sprintf("http://%s.%s/", a.Name, strings.TrimPrefix(domain, "."))
	}
	return fmt.Sprintf("http://%s.%s:%s/", a.Name, strings.TrimPrefix(domain, "."), port)
}

// prepare makes what every store must have, and registers this node.
func (c *control) prepare(ctx context.Context) (id.Node, error) {
	if err := c.service.EnsureProject(ctx, service.DefaultProject); err != nil {
		return "", errs.Wrap(err, "default project")
	}
	// What a killed server left of materialised sources.
	if err := os.RemoveAll(c.builds.TempDir); err != nil {
		return "", errs.New(errs.Unavailable, "clear temporary files: %w", err)
	}
	if err := os.MkdirAll(c.builds.TempDir, 0o700); err != nil {
		return "", errs.New(errs.Unavailable, "directory for temporary files: %w", err)
	}
	return c.node.Register(ctx)
}
