// Package buildkit runs the private buildkitd of one installation and builds
// images with it.
//
// The daemon uses the instance's containerd as its worker, in the instance's
// containerd namespace, so a built image is at once where sandboxes are made
// from. Like containerd it is a process of its own (package proc): it outlives the
// server, is adopted by the next one and started again when it dies.
//
// Every build step runs in gVisor through the project's shim: it is code of
// tenants, and has limits (limits.go). What it writes must reach the snapshot, so runsc's overlay is off
// for builds. The shim gives each step the host's CA bundle; images and cache
// keys know nothing of it. Steps reach the internet over a bridge of their own and
// neither the host nor sandboxes (network.go); that interfaces which lead out
// forward is the business of components/network, which must have been started.
//
// # What it leaves on the host, all named by the instance
//
//	<state>/buildkit/         buildkitd's root, and tmp/ for its mounts
//	<run>/buildkit/           socket, process record, generated configuration, addresses in use
//	<instance>-build          cgroup of the steps; also how their containers are recognised
//	<instance>-build          nftables tables (components/network/firewall), and a routing rule with the bridge's name
//	rt<id>bb                  bridge
//
// Network namespaces of steps are below <state>/buildkit/net. Stop removes all
// but the directories; what a killed buildkitd left is swept before the next is started.
package buildkit

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	ctd "github.com/containerd/containerd/v2/client"
	"github.com/moby/buildkit/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"miren.dev/runtime/components/network/firewall"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
)

// stopGrace is how long it may take to end.
const stopGrace = 10 * time.Second

// Defaults of Config.
const (
	DefaultCacheBytes   = 10 << 30
	DefaultMinFreeBytes = 5 << 30
)

// Containerd is what is needed of the daemon whose worker this is.
type Containerd interface {
	Socket() string
	Namespace() string
	Client() (*ctd.Client, error)
}

// Config of a Daemon.
type Config struct {
	Instance   *instance.Instance
	Containerd Containerd
	// BinDir is the directory of the toolchain: buildkitd, runsc, cni/.
	BinDir string
	// CABundle is a file with certificates that build steps trust besides
	// their image's; empty: none.
	CABundle string
	// Subnet is the IPv4 network of build steps; zero: a free /24 is chosen and kept.
	Subnet netip.Prefix
	// CacheBytes bounds what build results and caches use; 0: DefaultCacheBytes.
	CacheBytes int64
	// MinFreeBytes of the disk are kept free of build caches; 0: DefaultMinFreeBytes.
	MinFreeBytes int64
	// Parallelism bounds the steps that run at the same time; 0: the number of CPUs.
	Parallelism int
	// Limits of build steps.
	Limits Limits
	// Allow are private networks that steps may reach (firewall.ParseAllowed).
	Allow []netip.Prefix
	// Connections that one step may have open; 0: there is no bound.
	Connections int
	// OnDemand: the daemon is started by a build, not by Start, and ended by Run
	// when no build used it for IdleStop; 0: it is kept.
	OnDemand bool
	IdleStop time.Duration
	Logger   *slog.Logger
}

// Daemon is the supervised buildkitd of an instance. Its methods may be called
// concurrently.
type Daemon struct {
	cfg        Config
	cpuPercent int64 // of an equal share of the CPU that all steps get when others want it too
	firewall   *firewall.Firewall

	netMu  sync.Mutex   // guards guests, and making and removing the network
	guests netip.Prefix // subnet of the network that is there; the zero Prefix: none

	mu      sync.Mutex // guards what follows; held while the daemon is started or stopped
	process *proc.Process
	below   proc.Record // the containerd that it was started on
	client  *client.Client
	limits  Limits    // complete, from the first start on
	uses    int       // builds that run
	used    time.Time // end of the last build, or the start without one

	begun chan struct{} // has a value when the daemon was started or adopted
}

// New returns the daemon of an instance without starting it.
func New(cfg Config) *Daemon {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.CacheBytes == 0 {
		cfg.CacheBytes = DefaultCacheBytes
	}
	if cfg.MinFreeBytes == 0 {
		cfg.MinFreeBytes = DefaultMinFreeBytes
	}
	if cfg.Parallelism == 0 {
		cfg.Parallelism = runtime.NumCPU()
	}
	return &Daemon{cfg: cfg, cpuPercent: cpuPercent, firewall: firewall.New(cfg.Logger), begun: make(chan struct{}, 1)}
}

// root returns the directory of the daemon's durable files.
func (d *Daemon) root() string { return d.cfg.Instance.State("buildkit") }

// Socket returns the path of the daemon's socket.
func (d *Daemon) Socket() string { return d.runFile("buildkitd.sock") }

func (d *Daemon) runFile(name string) string { return d.cfg.Instance.Socket("buildkit", name) }

func (d *Daemon) tmpDir() string { return filepath.Join(d.root(), "tmp") }

// cgroup is the parent of the cgroups of all steps, and the mark of their containers.
func (d *Daemon) cgroup() string { return d.cfg.Instance.Name("build") }

// Running reports whether a daemon of the instance runs, whoever started it.
func (d *Daemon) Running() (bool, error) {
	p, err := proc.Find(d.runFile("buildkitd.pid"))
	return p != nil, err
}

// Start adopts the running daemon or starts it, unless that is on demand, and
// returns when it answers. containerd must run.
func (d *Daemon) Start(ctx context.Context) error {
	if d.cfg.OnDemand {
		if running, err := d.Running(); err != nil || !running {
			return err
		}
	}
	_, _, err := d.ensure(ctx)
	return err
}

func (d *Daemon) ensure(ctx context.Context) (*client.Client, *proc.Process, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	below, err := d.containerdProcess(ctx)
	if err != nil {
		return nil, nil, err
	}
	if d.process != nil && d.below == below {
		select {
		case <-d.process.Done():
		default:
			return d.client, d.process, nil
		}
	}
	if d.client == nil {
		c, err := client.New(ctx, "unix://"+d.Socket(), client.WithGRPCDialOption(grpc.WithConnectParams(grpc.ConnectParams{
			// Away for as long as a start takes: come back soon.
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		})))
		if err != nil {
			return nil, nil, errs.New(errs.Unavailable, "connect to buildkitd: %w", err)
		}
		d.client = c
	}
	record := d.runFile("buildkitd.pid")
	running, err := proc.Find(record)
	if err != nil {
		return nil, nil, err
	}
	files, err := d.prepare()
	if err != nil {
		return nil, nil, err
	}
	// It does not find its way to another containerd for up to a minute, and what it was doing is lost.
	if running != nil && (!d.startedOn(below) || !startedWith(files)) {
		d.cfg.Logger.Warn("containerd was started anew or the configuration changed, starting buildkitd again", "pid", running.PID())
		if err := running.Stop(ctx, syscall.SIGKILL, 0); err != nil {
			return nil, nil, err
		}
		running = nil
	}
	if running == nil {
		if err := d.sweep(ctx); err != nil {
			return nil, nil, err
		}
		// Removed by the sweep.
		if err := os.MkdirAll(d.tmpDir(), 0o711); err != nil {
			return nil, nil, errs.New(errs.FailedPrecondition, "buildkit directory: %w", err)
		}
		if err := writeConfig(files...); err != nil {
			return nil, nil, err
		}
		if err := d.rememberBelow(below); err != nil {
			return nil, nil, err
		}
	}
	// Also of one that another server started, whose limits may have been others.
	if err := d.limitSteps(); err != nil {
		return nil, nil, err
	}
	steps, err := d.runscFile()
	if err == nil {
		err = writeConfig(steps)
	}
	if err != nil {
		return nil, nil, err
	}
	p, err := proc.Ensure(ctx, proc.Spec{
		Name:       "buildkitd",
		Path:       filepath.Join(d.cfg.BinDir, "buildkitd"),
		Args:       []string{"--config", d.runFile("buildkitd.toml")},
		Env:        d.environment(),
		LogFile:    d.cfg.Instance.State("logs", "buildkitd.log"),
		RecordFile: record,
		Ready: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := d.client.ListWorkers(ctx)
			return err
		},
	})
	if err != nil {
		return nil, nil, err
	}
	d.process, d.below = p, below
	d.used = time.Now()
	d.begin()
	d.cfg.Logger.Info("buildkitd runs", "pid", p.PID(), "adopted", p.Adopted, "socket", d.Socket())
	return d.client, p, nil
}

// containerdProcess identifies the containerd that runs now.
func (d *Daemon) containerdProcess(ctx context.Context) (proc.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := d.cfg.Containerd.Client()
	if err != nil {
		return proc.Record{}, err
	}
	info, err := c.IntrospectionService().Server(ctx)
	if err != nil {
		return proc.Record{}, errs.New(errs.Unavailable, "containerd does not answer: %w", err)
	}
	r, err := proc.Identify(int(info.Pid))
	if err != nil {
		return proc.Record{}, errs.New(errs.Unavailable, "containerd (pid %d): %w", info.Pid, err)
	}
	return r, nil
}

func (d *Daemon) belowFile() string { return d.runFile("containerd.json") }

// startedOn says whether the running buildkitd was started on this containerd.
func (d *Daemon) startedOn(below proc.Record) bool {
	b, err := os.ReadFile(d.belowFile())
	var was proc.Record
	return err == nil && json.Unmarshal(b, &was) == nil && was == below
}

func (d *Daemon) rememberBelow(below proc.Record) error {
	b, err := json.Marshal(below)
	if err == nil {
		err = atomicfile.Write(d.belowFile(), b, 0o644, atomicfile.Volatile)
	}
	if err != nil {
		return errs.New(errs.FailedPrecondition, "remember containerd: %w", err)
	}
	return nil
}

// prepare makes the network that builds need, and returns the files that
// buildkitd is to be started with.
func (d *Daemon) prepare() ([]configFile, error) {
	for _, dir := range []string{d.root(), filepath.Dir(d.Socket())} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, errs.New(errs.FailedPrecondition, "buildkit directory: %w", err)
		}
	}
	subnet, dns, err := d.network()
	if err != nil {
		return nil, err
	}
	return d.configFiles(subnet, dns)
}

func (d *Daemon) environment() []string {
	env := []string{
		"PATH=" + d.cfg.BinDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + d.root(),
		"TMPDIR=" + d.tmpDir(),
		"GOGC=50", // it idles most of the time: memory matters more than its own CPU
	}
	// For a registry behind a proxy or a CA of its own.
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	if d.cfg.CABundle != "" {
		env = append(env, "SSL_CERT_FILE="+d.cfg.CABundle)
	}
	return env
}

// Stop ends the daemon, also one that another process started, and removes
// what it has on the host. Builds that run fail. Caches stay.
func (d *Daemon) Stop(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stop(ctx)
}

// stop is Stop with mu held.
func (d *Daemon) stop(ctx context.Context) error {
	if d.client != nil {
		_ = d.client.Close()
		d.client = nil
	}
	p := d.process
	d.process = nil
	if p == nil {
		var err error
		if p, err = proc.Find(d.runFile("buildkitd.pid")); err != nil {
			return err
		}
	}
	if p != nil {
		if err := p.Stop(ctx, syscall.SIGTERM, stopGrace); err != nil {
			return err
		}
	}
	if err := d.sweep(ctx); err != nil {
		return err
	}
	return d.removeNetwork()
}

// Close gives up the connection; the daemon goes on running.
func (d *Daemon) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.client == nil {
		return nil
	}
	err := d.client.Close()
	d.client, d.process = nil, nil
	return err
}
