// Package containerd runs the private containerd of one installation and the
// images in it.
//
// The daemon has its own root (<state>/containerd), state (<run>/containerd)
// and socket, so that it never meets another containerd of the machine. It
// is a process of its own (package proc): it outlives the server, is adopted by the
// next one and started again when it dies. Shims in turn outlive it. Everything is in one
// containerd namespace, the instance's name.
//
// Its PATH starts with the directory of the toolchain, which is how it finds
// the shims; RUNTIME_SHIM_SOCKETS in its environment tells the runsc shim where
// its socket belongs.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/dialer"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
)

// Snapshotter is the snapshotter that every image is unpacked with.
const Snapshotter = "overlayfs"

// stopGrace is the time between SIGTERM and SIGKILL.
const stopGrace = 10 * time.Second

// Config of a Daemon.
type Config struct {
	Instance *instance.Instance
	// BinDir is the directory of the toolchain: containerd and the shims.
	BinDir string
	Logger *slog.Logger
}

// Daemon is the supervised containerd of an instance. Its methods may be
// called concurrently.
type Daemon struct {
	cfg Config

	mu      sync.Mutex // guards the fields below; held while the daemon is started or stopped
	process *proc.Process
	client  *client.Client
}

// New returns the daemon of an instance without starting it.
func New(cfg Config) *Daemon {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Daemon{cfg: cfg}
}

// Namespace returns the containerd namespace of everything of the instance.
func (d *Daemon) Namespace() string { return d.cfg.Instance.Name("") }

// Socket returns the path of the daemon's socket.
func (d *Daemon) Socket() string { return d.cfg.Instance.Socket("containerd", "containerd.sock") }

// Root returns the directory of the daemon's durable files.
func (d *Daemon) Root() string { return d.cfg.Instance.State("containerd") }

// StateDir returns the directory of the daemon's volatile files: bundles of tasks.
func (d *Daemon) StateDir() string { return d.cfg.Instance.Socket("containerd", "state") }

// ShimSocketDir returns the directory of the shims' sockets, each named like
// its container. It is short, since paths of sockets are limited.
func (d *Daemon) ShimSocketDir() string { return d.cfg.Instance.Socket("s") }

func (d *Daemon) recordFile() string { return d.cfg.Instance.Socket("containerd", "containerd.pid") }

// Start adopts the running daemon or starts it, and returns when it answers.
func (d *Daemon) Start(ctx context.Context) error {
	_, err := d.ensure(ctx)
	return err
}

func (d *Daemon) ensure(ctx context.Context) (*proc.Process, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.process != nil {
		select {
		case <-d.process.Done():
		default:
			return d.process, nil
		}
	}
	c, err := d.clientLocked()
	if err != nil {
		return nil, err
	}
	config := d.cfg.Instance.Socket("containerd", "config.toml")
	if err := os.MkdirAll(filepath.Dir(config), 0o711); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "containerd directory: %w", err)
	}
	if err := os.MkdirAll(d.Root(), 0o711); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "containerd directory: %w", err)
	}
	// The configuration is written before every start.
	if err := atomicfile.Write(config, d.config(), 0o644, atomicfile.Volatile); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "containerd configuration: %w", err)
	}
	p, err := proc.Ensure(ctx, proc.Spec{
		Name:       "containerd",
		Path:       filepath.Join(d.cfg.BinDir, "containerd"),
		Args:       []string{"--config", config},
		Env:        d.environment(),
		LogFile:    d.cfg.Instance.State("logs", "containerd.log"),
		RecordFile: d.recordFile(),
		Ready: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			ok, err := c.IsServing(ctx)
			if err == nil && !ok {
				err = errors.New("not serving yet")
			}
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	d.process = p
	d.cfg.Logger.Info("containerd runs", "pid", p.PID(), "adopted", p.Adopted, "socket", d.Socket())
	return p, nil
}

func (d *Daemon) environment() []string {
	env := []string{
		"PATH=" + d.cfg.BinDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	}
	for _, name := range []string{"HOME", "TMPDIR", "LANG"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env, "RUNTIME_SHIM_SOCKETS="+d.ShimSocketDir())
}

// Run keeps the daemon running until ctx ends, and leaves it running then.
func (d *Daemon) Run(ctx context.Context) error {
	proc.Keep(ctx, "containerd", d.cfg.Logger, d.ensure)
	return nil
}

// Stop ends the daemon, even one that another process started. It does not end
// sandboxes: delete them before.
func (d *Daemon) Stop(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.client != nil {
		_ = d.client.Close()
		d.client = nil
	}
	p := d.process
	d.process = nil
	if p == nil {
		var err error
		if p, err = proc.Find(d.recordFile()); err != nil || p == nil {
			return err
		}
	}
	return p.Stop(ctx, syscall.SIGTERM, stopGrace)
}

// Client returns a client whose default namespace is the instance's. It connects when it is first used, and again after
// a restart of the daemon. It belongs to the Daemon; Stop closes it.
func (d *Daemon) Client() (*client.Client, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.clientLocked()
}

func (d *Daemon) clientLocked() (*client.Client, error) {
	if d.client != nil {
		return d.client, nil
	}
	c, err := client.New(d.Socket(),
		client.WithDefaultNamespace(d.Namespace()),
		client.WithDefaultRuntime(""),
		client.WithDialOpts([]grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(dialer.ContextDialer),
			// The daemon may be restarting: redial soon.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, MaxDelay: 500 * time.Millisecond},
				MinConnectTimeout: 2 * time.Second,
			}),
		}),
	)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "connect to containerd: %w", err)
	}
	d.client = c
	return c, nil
}

// Close closes the connection; the daemon keeps running.
func (d *Daemon) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.client == nil {
		return nil
	}
	err := d.client.Close()
	d.client = nil
	return err
}

// Error turns an error of containerd into one with a class.
func Error(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	class := errs.ClassOf(err)
	switch {
	case errdefs.IsNotFound(err):
		class = errs.NotFound
	case errdefs.IsAlreadyExists(err):
		class = errs.AlreadyExists
	case errdefs.IsInvalidArgument(err):
		class = errs.InvalidArgument
	case errdefs.IsFailedPrecondition(err):
		class = errs.FailedPrecondition
	case errdefs.IsResourceExhausted(err):
		class = errs.ResourceExhausted
	case errdefs.IsUnavailable(err):
		class = errs.Unavailable
	case errdefs.IsCanceled(err):
		class = errs.Canceled
	case errdefs.IsDeadlineExceeded(err):
		class = errs.DeadlineExceeded
	case errdefs.IsAborted(err), errdefs.IsConflict(err):
		class = errs.Conflict
	case errdefs.IsUnknown(err):
		class = errs.Internal
	}
	return errs.New(class, "%s: %w", fmt.Sprintf(format, args...), err)
}
