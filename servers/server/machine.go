package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/components/buildkit"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/filesystem"
	"miren.dev/runtime/components/network"
	"miren.dev/runtime/components/network/firewall"
	"miren.dev/runtime/components/network/proxy"
	"miren.dev/runtime/components/postgres"
	"miren.dev/runtime/domain/egresslog"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/domain/secrets"
	"miren.dev/runtime/pkg/breaker"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/pkg/metricstore"
	"miren.dev/runtime/pkg/sysuser"
	"miren.dev/runtime/servers/disks"
)

// hostBundles are the paths at which distributions keep the machine's CA
// certificates.
var hostBundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// machine holds the parts of an installation on this machine that are not the
// control plane. Making one changes nothing on the machine.
type machine struct {
	cfg         *config.Config
	in          *instance.Instance
	logger      *slog.Logger
	binDir      string
	caBundle    string
	postgres    *postgres.Server // nil until started, or with an external store
	containerd  *containerd.Daemon
	images      *containerd.Images
	driver      sandboxDriver
	buildkit    *buildkit.Daemon
	bases       *baseimage.Store
	buildLogs   *buildlog.Logs
	appLogs     *logstore.Store // what apps printed; nil until Run opens it
	logSinks    logSinks
	metricSinks metricSinks
	metrics     *metricstore.Store // history; nil until Run opens it, and if none is kept
	metricsErr  error              // why it could not be opened
	volumes     *disks.Volumes
	diskStore   string         // URL of the store of disks that name none
	objects     *objects       // of executions
	webhooks    []netip.Prefix // networks that receivers of webhooks may be in
	ingressUser sysuser.User   // set by Run, if there is an ingress
	runner      bool           // it has no store, and no secrets of one
	// ingressError is why the ingress does not run; "" or nil: it runs, or its state is not known.
	ingressError atomic.Pointer[string]
	// secrets of the store, which the control plane opens after the machine was made.
	secrets atomic.Pointer[secrets.Service]
	// egressLog keeps what sandboxes asked for on the network; nil until then.
	egressLog atomic.Pointer[egresslog.Recorder]
	// peer connects sandboxes of apps to those on other nodes; nil until it is set.
	peer atomic.Pointer[peerFunc]
}

// peerFunc connects a sandbox of an app to one on another node.
type peerFunc func(ctx context.Context, from, to string, port uint16) (sandboxes.Conn, error)

func newMachine(cfg *config.Config, in *instance.Instance, log *slog.Logger) (*machine, error) {
	m := &machine{cfg: cfg, in: in, logger: log}
	var err error
	if m.binDir, err = toolchainDir(cfg); err != nil {
		return nil, err
	}
	for _, tool := range []string{"containerd", "runsc", "containerd-shim-runsc-v1", "containerd-shim-runsc-launch-v1", "buildkitd", "runtime-agent", "runtime-launch"} {
		if _, err := os.Stat(filepath.Join(m.binDir, tool)); err != nil {
			return nil, errs.New(errs.FailedPrecondition, "%s is not in %s", tool, m.binDir).
				WithHint("build it with `make toolchain bin/runtime`, or name its directory with --toolchain-dir")
		}
	}
	if m.caBundle, err = bundle(cfg.CABundle); err != nil {
		return nil, err
	}
	var pools []netip.Prefix
	for _, p := range cfg.Network.Pools {
		prefix, err := network.ParsePool(p)
		if err != nil {
			return nil, errs.Wrap(err, "network.pools")
		}
		pools = append(pools, prefix)
	}
	var allow []netip.Prefix
	for _, a := range cfg.Network.Allow {
		prefix, err := firewall.ParseAllowed(a)
		if err != nil {
			return nil, errs.Wrap(err, "network.allow")
		}
		allow = append(allow, prefix)
	}
	for _, a := range cfg.Webhooks.Allow {
		prefix, err := netip.ParsePrefix(a)
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "webhooks.allow: %w", err)
		}
		m.webhooks = append(m.webhooks, prefix)
	}
	m.containerd = containerd.New(containerd.Config{Instance: in, BinDir: m.binDir, Logger: log.With("component", "containerd")})
	m.images = containerd.NewImages(m.containerd)
	if m.driver, err = m.newDriver(cfg, network.Config{
		Instance: in, Pools: pools, Allow: allow, Connections: int(cfg.Network.Connections),
		Parked: int(cfg.Network.Parked), ConfList: cfg.Network.Conflist, PluginDirs: pluginDirs(cfg, m.binDir),
		Secret: m.secret, Record: m.recordEgress, Peer: m.connectPeer, Roots: m.caBundle, Logger: log.With("component", "network"),
	}); err != nil {
		return nil, err
	}
	m.buildkit = buildkit.New(buildkit.Config{
		Instance: in, Containerd: m.containerd, BinDir: m.binDir, CABundle: m.caBundle, CacheBytes: cfg.Build.CacheBytes,
		Allow: allow, Connections: int(cfg.Network.Connections), OnDemand: cfg.Build.OnDemand, IdleStop: cfg.Build.IdleStop,
		Limits: buildLimits(cfg),
		Logger: log.With("component", "buildkit"),
	})
	m.bases = newBases(cfg, m.binDir, in, log.With("component", "baseimage"))
	m.buildLogs = buildlog.New(in.State("logs", "builds"), cfg.Logs.BuildBytes)
	exe, err := os.Executable()
	if err != nil {
		return nil, errs.New(errs.Internal, "find this program: %w", err)
	}
	m.volumes = &disks.Volumes{Instance: in, Program: exe, Logger: log.With("component", "volumes")}
	if m.diskStore, err = m.volumes.DefaultStore(); err != nil {
		return nil, err
	}
	if m.objects, err = newObjects(cmp.Or(cfg.Executions.Store, in.State("executions")), in.ID, breaker.New(breaker.Config{
		Name: "object store", Failures: 3, Slow: 10 * time.Second, Pause: 5 * time.Second, Logger: log.With("component", "object store"),
	})); err != nil {
		return nil, err
	}
	return m, nil
}

func buildLimits(cfg *config.Config) buildkit.Limits {
	return buildkit.Limits{
		MemoryBytes: cfg.Build.MemoryBytes, CPUMillis: cfg.Build.CPUMillis, Processes: cfg.Build.Processes,
		DiskBytes: cfg.Build.StepBytes, DiskFreeBytes: cfg.Build.FreeBytes,
	}
}

// secret returns the value that the egress proxy adds to a request to a host.
func (m *machine) secret(ctx context.Context, reference, host string) (string, error) {
	s := m.secrets.Load()
	if m.runner {
		return "", errs.New(errs.FailedPrecondition, "a runner adds no secrets to requests")
	}
	if s == nil {
		return "", errs.New(errs.Unavailable, "the server is starting")
	}
	return s.Value(ctx, reference, host)
}

func (m *machine) setPeer(f peerFunc) { m.peer.Store(&f) }

// connectPeer connects a sandbox of an app to one on another node.
func (m *machine) connectPeer(ctx context.Context, from, to string, port uint16) (proxy.PeerConn, error) {
	f := m.peer.Load()
	if f == nil {
		return nil, errs.New(errs.Unavailable, "the server is starting")
	}
	return (*f)(ctx, from, to, port)
}

// recordEgress keeps a request of a sandbox.
func (m *machine) recordEgress(ctx context.Context, r egress.Record) {
	if log := m.egressLog.Load(); log != nil {
		log.Add(ctx, r)
	}
}

// pluginDirs returns where CNI plugins are.
func pluginDirs(cfg *config.Config, binDir string) []string {
	if len(cfg.Network.PluginDirs) > 0 {
		return cfg.Network.PluginDirs
	}
	return []string{filepath.Join(binDir, "cni"), "/opt/cni/bin"}
}

// bundle returns the path of the file with CA certificates for builds and
// sandboxes.
func bundle(setting string) (string, error) {
	switch setting {
	case "none", "":
		return "", nil
	case "auto":
		for _, f := range hostBundles {
			if _, err := os.Stat(f); err == nil {
				return f, nil
			}
		}
		return "", nil
	}
	if _, err := os.Stat(setting); err != nil || !filepath.IsAbs(setting) {
		return "", errs.New(errs.InvalidArgument, "ca_bundle: %q is not the absolute path of a file", setting)
	}
	return setting, nil
}

// storeURL starts the private PostgreSQL, unless another store is configured, and
// returns the store's URL.
func (m *machine) storeURL(ctx context.Context) (string, error) {
	if m.cfg.Store.URL != "" {
		return m.cfg.Store.URL, nil
	}
	pg, err := postgres.Start(ctx, postgres.ConfigFor(m.in, m.logger.With("component", "postgres")))
	if err != nil {
		return "", errs.Wrap(err, "PostgreSQL")
	}
	m.postgres = pg
	return pg.URL(), nil
}

// startNode starts the processes that run sandboxes and builds, and adopts
// those that run already.
func (m *machine) startNode(ctx context.Context) error {
	if err := m.containerd.Start(ctx); err != nil {
		return errs.Wrap(err, "containerd")
	}
	if err := m.startDriver(ctx); err != nil {
		return err
	}
	if err := m.buildkit.Start(ctx); err != nil {
		return errs.Wrap(err, "BuildKit")
	}
	return nil
}

// close closes the connections; all processes keep running.
func (m *machine) close() {
	for _, err := range []error{m.driver.Close(), m.buildkit.Close(), m.containerd.Close()} {
		if err != nil {
			m.logger.Warn("close a connection", "error", err)
		}
	}
}

// tearDown ends and removes everything of the installation that runs on the
// machine; the state directory stays. It continues after an error and returns
// all errors.
func (m *machine) tearDown(ctx context.Context) error {
	var all []error
	try := func(what string, err error) {
		if err != nil {
			all = append(all, errs.Wrap(err, "%s", what))
		}
	}
	// Build steps and sandboxes are removed through containerd, which may have
	// died.
	try("containerd", m.containerd.Start(ctx))
	try("BuildKit", m.buildkit.Stop(ctx))
	try("sandboxes", m.startDriver(ctx))
	try("sandboxes", m.driver.Shutdown(ctx))
	try("disks", m.detachDisks(ctx))
	m.close()
	try("containerd", m.containerd.Stop(ctx))
	pg, err := postgres.Attach(postgres.ConfigFor(m.in, m.logger))
	try("PostgreSQL", err)
	if pg != nil {
		try("PostgreSQL", pg.Stop(ctx))
	}
	return errors.Join(all...)
}

// detachDisks detaches the disks of sandboxes, of which none runs any more, and
// stops the disk daemon unless it serves other volumes.
func (m *machine) detachDisks(ctx context.Context) error {
	dir := m.in.DiskMounts()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "list the mounts of disks: %w", err)
	}
	for _, e := range entries {
		mount := filepath.Join(dir, e.Name())
		if err := filesystem.UnmountOnly(mount); err != nil {
			return err
		}
		if err := m.volumes.Abandon(ctx, e.Name()); err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
		// Until here the directory says that the disk is attached, to the next stop too.
		if err := filesystem.Unmount(mount); err != nil {
			return err
		}
	}
	return m.volumes.Stop(ctx)
}
