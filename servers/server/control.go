package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/dnshook"
	"miren.dev/runtime/components/execution/traced"
	ctladdon "miren.dev/runtime/controllers/addon"
	"miren.dev/runtime/controllers/applog"
	"miren.dev/runtime/controllers/appnet"
	"miren.dev/runtime/controllers/apppreview"
	"miren.dev/runtime/controllers/autoscale"
	"miren.dev/runtime/controllers/build"
	ctlcertificate "miren.dev/runtime/controllers/certificate"
	"miren.dev/runtime/controllers/deployment"
	ctldisk "miren.dev/runtime/controllers/disk"
	ctlexecution "miren.dev/runtime/controllers/execution"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/node"
	"miren.dev/runtime/controllers/pool"
	"miren.dev/runtime/controllers/retention"
	ctlsandbox "miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/controllers/scheduler"
	"miren.dev/runtime/controllers/task"
	"miren.dev/runtime/controllers/template"
	ctlwebhook "miren.dev/runtime/controllers/webhook"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/certificates"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/egresslog"
	"miren.dev/runtime/domain/events"
	"miren.dev/runtime/domain/executions"
	"miren.dev/runtime/domain/gitpush"
	"miren.dev/runtime/domain/metrics"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/domain/secrets"
	"miren.dev/runtime/domain/tasks"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/domain/webhooks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/trace"
	rpcserver "miren.dev/runtime/servers/rpc"
	"miren.dev/runtime/servers/runner"
	"miren.dev/runtime/servers/workspace"
)

// control is the control plane over a store.
type control struct {
	cfg    *config.Config
	m      *machine
	logger *slog.Logger
	store  entityStore
	sealer *schema.Sealer
	node   *node.Registrar
	builds *build.Reconciler
	// informers of the whole process
	informers *informer.Set
	rt        *kit.Runtime
	images    *resolver
	templates *templates.Service
	refresh   *refresher
	policies  *policies.Store // store, for what users make
	quotas    *quotas.Store   // policies, for what makes sandboxes, disks and executions
	secrets   *secrets.Service
	egressLog *egresslog.Recorder
	demand    *sandboxes.Demand // of warm sandboxes: from the services to the pools
	objects   *retention.Objects
	nodeDisks *ctldisk.Reconciler   // its Node is set by controllers
	metrics   prometheus.Registerer // nil: none
	workspace workspace.Settings
	traces    *trace.Tracer // nil: none
	runners   *runner.Hub   // the runners that are connected
	peers     *runner.Peers // the private networks of apps, with those on runners
	appLogs   atomic.Pointer[applog.Collector]
	deps      *rpcserver.Deps // the operations that surfaces and controllers share
}

func newControl(cfg *config.Config, m *machine, store entityStore, src sources, reg prometheus.Registerer, log *slog.Logger) *control {
	c := &control{cfg: cfg, m: m, logger: log, store: store, sealer: schema.NewSealer(m.in.State("secrets.key")), metrics: reg}
	c.node = &node.Registrar{
		Store: store, Instance: m.in.ID, CPUMillis: cfg.Node.CPUMillis, MemoryBytes: cfg.Node.MemoryBytes,
		StateDir: m.in.State(), KeepDisk: cfg.Node.KeepDiskBytes, IDFile: nodeFile(m.in), Logger: log,
	}
	c.builds = &build.Reconciler{
		Store: store, Builder: m.buildkit, Bases: m.bases, Sources: src, Sealer: c.sealer, Logs: m.buildLogs, TempDir: m.in.State("tmp"),
		Parallel: int(cfg.Build.Parallel), Timeout: cfg.Build.Timeout, Logger: log.With("controller", "build"), Content: m.images.Content,
	}
	c.informers = informer.New(informer.Config{Reader: store, Logger: log.With("component", "informers")})
	c.policies = policies.New(store, c.informers)
	c.quotas = quotas.New(c.policies, c.informers)
	c.secrets = &secrets.Service{Store: store, Sealer: c.sealer}
	c.m.secrets.Store(c.secrets)
	c.egressLog = egresslog.New(store, func(ctx context.Context, sid string) (string, error) {
		return projects.Of(ctx, store, sandbox.KindSandbox, schema.ID(sid))
	}, log.With("component", "egress log"))
	c.m.egressLog.Store(c.egressLog)
	c.runners = runner.NewHub(log.With("component", "runners"))
	n, _ := m.driver.(runner.Network) // others have no private networks
	c.peers = runner.NewPeers(c.runners, n)
	m.setPeer(func(ctx context.Context, _, to string, port uint16) (sandboxes.Conn, error) {
		return c.peers.Connect(ctx, to, port)
	})
	c.images, c.demand = &resolver{m: m}, &sandboxes.Demand{}
	c.templates = templates.New(c.policies, c.informers, c.images.Resolve, log)
	c.templates.Size, c.templates.Sources, c.templates.Keep = c.images.Size, src.Store, int(cfg.Retention.Versions)
	c.templates.Sealer = c.sealer
	c.builds.Image = c.images.Resolve
	c.refresh = newRefresher(c)
	c.rt = kit.New(kit.Config{Informers: c.informers, Logger: log, Registerer: reg})
	c.objects = retention.NewObjects(&retention.Objects{
		Objects: m.objects, Store: store, Keep: cfg.History.Executions, MaxBytes: cfg.Executions.StoreBytes, Logger: log,
	})
	c.nodeDisks = &ctldisk.Reconciler{
		Store: store, Volumes: m.volumes, MountDir: m.in.DiskMounts(), DefaultStore: m.diskStore, Logger: log.With("controller", "disk"),
	}
	deps := c.services(src)
	c.deps = &deps
	return c
}

// controllers returns every controller of the server. An entry gives a
// controller its dependencies; the controller itself declares its kind, what
// wakes it and the fields it writes.
func (c *control) controllers(nodeID id.Node) []kit.Controller {
	log := func(name string) *slog.Logger { return c.logger.With("controller", name) }
	keep := c.cfg.Retention
	nodeDisks := c.nodeDisks
	nodeDisks.Node = nodeID
	driver := traced.New(c.m.driver, c.traces)
	nodeSandboxes := &ctlsandbox.Reconciler{
		Copies: ctlsandbox.Copies{SnapshotCopier: c.m.driver, Objects: newSnapshotObjects},
		Disks:  nodeDisks, Store: c.store, Driver: driver, Node: nodeID, Sealer: c.sealer, Stopped: lastStopped(c.m.in), Logger: log("sandbox"),
	}
	appLogs := &applog.Collector{
		Store: c.store, Informers: c.informers, Driver: driver, Runners: runnerLogs{c.runners}, Logs: c.m.appLogs, Node: nodeID, Logger: log("app-log"),
	}
	nodeSandboxes.Kept = appLogs
	c.appLogs.Store(appLogs)
	if c.cfg.Ingress.HTTPAddress != "" {
		nodeSandboxes.Previews = ingress.Client{Socket: ingressAdmin(c.m.in)}
	}
	orders := &ctlcertificate.Orders{
		Store: c.store, Certificates: c.deps.Certificates, Sealer: c.sealer, Server: nodeID, Logger: log("certificate-order"),
		Config: ctlcertificate.Config{Directory: c.cfg.Acme.Directory, Email: c.cfg.Acme.Email, CAFile: c.cfg.Acme.CAFile, Challenges: c.cfg.Acme.Challenges},
	}
	if len(orders.Config.Challenges) == 0 && c.cfg.Ingress.HTTPSAddress == "" {
		orders.Config.Challenges = []string{"http-01"}
	}
	if len(c.cfg.Acme.DNSCommand) > 0 {
		orders.DNS = dnshook.Hook{Command: c.cfg.Acme.DNSCommand}
	}
	if c.cfg.Ingress.HTTPAddress != "" {
		orders.Ingress = ingress.Client{Socket: ingressAdmin(c.m.in)}
	}
	list := []kit.Controller{
		c.builds.Controller(),
		(&ctlcertificate.Hosts{
			Store: c.store, Informers: c.informers, Enabled: c.cfg.Acme.Directory != "", Domains: c.cfg.Acme.Domains, Logger: log("certificate-host"),
		}).Controller(),
		orders.Controller(),
		(&deployment.Reconciler{
			Store: c.quotas, Admit: c.admit, Informers: c.informers, Drainer: c.drainer(), URL: c.appURL, HostURL: c.hostURL, DrainTimeout: c.cfg.Ingress.DrainTimeout,
			Bake: c.cfg.Deploy.Bake, Default: c.policies.Default, Routes: &routes.Service{Store: c.store, LocalDomains: localDomains(c.cfg)},
			Began: time.Now(), Logger: log("deployment"),
		}).Controller(),
		(&apppreview.Reconciler{Store: c.store, Logger: log("app-preview")}).Controller(),
		(&ctladdon.Reconciler{
			Store: c.quotas, Informers: c.informers, Apps: c.deps.Apps, Sealer: c.sealer, Run: c.deps.Addons.Run, Logger: log("addon"),
		}).Controller(),
		(&task.Schedule{Store: c.quotas, Logger: log("task-schedule")}).Controller(),
		(&task.Runs{Store: c.store, Logger: log("task-run")}).Controller(),
		(&template.Reconciler{Templates: c.templates}).Controller(),
		(&pool.Reconciler{Store: c.quotas, Drainer: c.drainer(), Node: c.deps.Sandboxes.Node, DrainTimeout: c.cfg.Ingress.DrainTimeout, Logger: log("pool")}).Controller(),
		c.autoscaler(nodeID, log("autoscale")).Controller(),
		(&pool.Warm{
			Store: c.store, Informers: c.informers, Templates: c.templates, Demand: c.demand, Logger: log("warm-pool"),
		}).Controller(),
		(&scheduler.Reconciler{Store: c.store, Logger: log("scheduler")}).Controller(),
		nodeSandboxes.Controller(),
		appLogs.Controller(),
		(&applog.Keeper{Store: c.store, Logs: c.m.appLogs, Logger: log("app-log-retention")}).Controller(),
		(&ctlsandbox.Snapshots{Sandboxes: nodeSandboxes, Logger: log("snapshot")}).Controller(),
		nodeDisks.Controller(),
		(&ctldisk.Copies{
			Store: c.store, Volumes: c.m.volumes, Node: nodeID, DefaultStore: c.m.diskStore, Logger: log("disk-copy"),
		}).Controller(),
		(&ctldisk.Schedule{Store: c.store, Logger: log("disk-schedule")}).Controller(),
		(&node.Liveness{Store: c.store, Logger: log("node")}).Controller(),
		(&runner.Connections{Store: c.store, Hub: c.runners, Node: nodeID}).Controller(),
		(&retention.Reconciler{
			Store: c.store, Logger: log("retention"), Config: retention.Config{
				Versions: int(keep.Versions), Deployments: int(keep.Deployments), Builds: int(keep.Builds), EndedPools: keep.Ended,
			},
		}).Controller(),
		(&retention.Sandboxes{Store: c.store, Logger: log("sandbox-retention"), After: keep.Ended}).Controller(),
		(&ctlexecution.Reconciler{
			Store: c.store, Executions: c.deps.Executions, Sandboxes: c.deps.Sandboxes, Sealer: c.sealer, Node: nodeID,
			Parallel: int(c.cfg.Executions.Parallel), Logger: log("execution"), Traces: c.traces,
		}).Controller(),
		(&ctlwebhook.Feed{Store: c.store, Informers: c.informers, Logger: log("webhook-feed")}).Controller(),
		(&ctlwebhook.Expirer{Store: c.store, For: c.cfg.History.Events}).Controller(),
		(&ctlwebhook.Sender{
			Store: c.store, Webhooks: c.deps.Webhooks, Informers: c.informers, Allow: c.m.webhooks, Logger: log("webhook"),
		}).Controller(),
	}
	if _, ok := c.m.driver.(runner.Network); ok {
		list = append(list, (&appnet.Reconciler{Store: c.store, Informers: c.informers, Node: nodeID, Network: c.peers}).Controller())
	}
	return list
}

// addControllers registers every controller, and the other writers of fields.
func (c *control) addControllers(nodeID id.Node) error {
	for _, ctl := range c.controllers(nodeID) {
		if err := c.rt.Add(ctl); err != nil {
			return err
		}
	}
	c.rt.Declare(node.Registration())
	c.rt.Declare(rpcserver.Access())
	c.rt.Declare("quota", kit.Access{Owns: kit.Fields(core.ProjectKind, "status")})
	return c.rt.Check()
}

// admit returns the error with which operations of a rollout would be refused.
func (c *control) admit(ctx context.Context, ops []entity.Op) error {
	if err := c.policies.Check(ctx, ops); err != nil {
		return err
	}
	return c.quotas.Check(ctx, ops)
}

// drainer reports the requests that the ingress is serving; nil if there is no
// ingress.
func (c *control) drainer() deployment.Drainer {
	if c.cfg.Ingress.HTTPAddress == "" {
		return nil
	}
	return ingress.Client{Socket: ingressAdmin(c.m.in)}
}

// runnerLogs reads the output that connected runners keep.
type runnerLogs struct{ *runner.Hub }

// Logs implements applog.Runners.
func (r runnerLogs) Logs(ctx context.Context, node id.Node, sid id.Sandbox, q sandboxes.LogQuery, emit func(sandboxes.LogLine) error) error {
	return r.Node(node).Logs(ctx, sid, q, emit)
}

// finishLog copies the rest of the output of a deleted sandbox from a runner.
func (c *control) finishLog(ctx context.Context, node id.Node, sid id.Sandbox) error {
	l := c.appLogs.Load()
	if l == nil {
		return errs.New(errs.Unavailable, "the server has just begun").WithHint("try again")
	}
	return l.FinishRunner(ctx, node, sid)
}

// autoscaler has the number of sandboxes of services follow the load.
func (c *control) autoscaler(nodeID id.Node, log *slog.Logger) *autoscale.Reconciler {
	r := &autoscale.Reconciler{Store: c.store, Informers: c.informers, Meter: c.deps.Sandboxes.Node, Node: nodeID, Connected: c.runners.Connected, Logger: log}
	if c.cfg.Ingress.HTTPAddress != "" {
		r.Ingress = ingress.Client{Socket: ingressAdmin(c.m.in)}
	}
	return r
}

// appURL returns the URL of an app without a route: under the first local
// domain.
func (c *control) appURL(a *app.App) string { return c.localURL(a.Name) }

// localURL returns the URL of a host below the first local domain; "" if there is
// no ingress.
func (c *control) localURL(label string) string {
	domain := "localhost"
	if len(c.cfg.Ingress.LocalDomains) > 0 {
		domain = c.cfg.Ingress.LocalDomains[0]
	}
	return c.hostURL(label + "." + strings.TrimPrefix(domain, "."))
}

// hostURL returns the URL of a host; "" if there is no ingress.
func (c *control) hostURL(host string) string {
	if c.cfg.Ingress.HTTPAddress == "" {
		return ""
	}
	_, port, err := net.SplitHostPort(c.cfg.Ingress.HTTPAddress)
	if err != nil {
		return ""
	}
	if port == "80" {
		return fmt.Sprintf("http://%s/", host)
	}
	return fmt.Sprintf("http://%s:%s/", host, port)
}

// services are the operations that the surfaces offer.
func (c *control) services(src sources) rpcserver.Deps {
	if c.deps != nil {
		return *c.deps
	}
	d := &disks.Service{Store: c.quotas, Informers: c.informers, Stores: c.cfg.Disks.Stores}
	a := &apps.Service{Store: c.store, Informers: c.informers, Sealer: c.sealer, Sources: src.Store, BuildLogs: c.m.buildLogs, Logger: c.logger}
	rt := &routes.Service{Store: c.store, Apps: a, LocalDomains: localDomains(c.cfg), Sealer: c.sealer, TCPPorts: tcpPorts(c.cfg)}
	sbs := sandboxes.New(&sandboxes.Service{
		Store: c.quotas, Policies: c.policies, Informers: c.informers, Apps: a, Templates: c.templates, Disks: d, Secrets: c.secrets, Sealer: c.sealer,
		Image: c.images.Resolve, Logger: c.logger, Demand: c.demand, Kept: c.m.appLogs,
		Node: runner.NewNodes(ctlsandbox.LocalNode{Driver: traced.New(c.m.driver, nil), FileDriver: c.m.driver, Store: c.store, Disks: c.nodeDisks}, c.runners, c.informers),
	})
	return rpcserver.Deps{
		Addons: &addons.Service{Store: c.quotas, Apps: a, Disks: d, Run: addons.RunIn(sbs), Informers: c.informers},
		Pushes: &gitpush.Service{Store: c.store, Apps: a, Sources: src.Store, Open: c.openPushes, Logger: c.logger.With("component", "push")},
		Apps:   a, Tasks: &tasks.Service{Store: c.quotas, Apps: a}, Routes: rt, Certificates: &certificates.Service{Store: c.store, Sealer: c.sealer, Routes: rt}, Nodes: &nodes.Service{Store: c.store}, History: c.store,
		Software:  c.images.Software,
		Disks:     d,
		Secrets:   c.secrets,
		Quotas:    c.quotas,
		Metrics:   &metrics.Service{Store: c.m.metrics, Err: c.m.metricsErr, Entities: c.store, Apps: a, Interval: c.cfg.Metrics.Interval},
		Webhooks:  &webhooks.Service{Store: c.store, Sealer: c.sealer},
		Events:    &events.Service{Store: c.store},
		Policies:  c.policies,
		Templates: c.templates,
		Sandboxes: sbs,
		Executions: executions.New(&executions.Service{
			Store: c.quotas, Quota: c.quotas.Check, Policies: c.policies, History: c.store, Informers: c.informers, Objects: c.objects, Templates: c.templates, Sealer: c.sealer,
			MaxQueued: int(c.cfg.Executions.Queue), MaxBytes: c.cfg.Executions.StoreBytes / 2,
		}),
	}
}

// newProject gives a new project the quota that the configuration states.
func (c *control) newProject(p *core.Project) {
	q := c.cfg.Quota
	p.Spec.Quota = quotas.Of(map[core.QuotaResource]int64{
		core.QuotaResourceSandboxes: q.Sandboxes, core.QuotaResourceCPUMillis: q.CPUMillis, core.QuotaResourceMemoryBytes: q.MemoryBytes,
		core.QuotaResourceDiskBytes: q.DiskBytes, core.QuotaResourceExecutions: q.Executions, core.QuotaResourceSnapshotBytes: q.SnapshotBytes,
	})
}

// prepare creates the default project and the shipped templates, and registers
// this node.
func (c *control) prepare(ctx context.Context) (id.Node, error) {
	if err := projects.Ensure(ctx, c.store, projects.Default, c.newProject); err != nil {
		return "", errs.Wrap(err, "default project")
	}
	if err := c.templates.Ship(ctx, c.workspace.Shipped()); err != nil {
		return "", errs.Wrap(err, "shipped templates")
	}
	// A killed server may have left sources that it laid out for builds.
	if err := os.RemoveAll(c.builds.TempDir); err != nil {
		return "", errs.New(errs.Unavailable, "clear temporary files: %w", err)
	}
	if err := os.MkdirAll(c.builds.TempDir, 0o700); err != nil {
		return "", errs.New(errs.Unavailable, "directory for temporary files: %w", err)
	}
	return c.node.Register(ctx)
}
