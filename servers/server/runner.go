package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/runner"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution/traced"
	"miren.dev/runtime/controllers/node"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	gateway "miren.dev/runtime/servers/runner"
)

// runnerDir is the directory, below that of the state, of what makes a machine a runner.
const runnerDir = "runner"

// RunnerOptions say which server a machine is a runner of. They count the first
// time only.
type RunnerOptions struct {
	Server string // host:port
	Token  string
	Name   string // of the node; "": the machine's
}

// RunRunner runs this machine as a runner until ctx ends, and leaves its sandboxes
// running. The first time it joins its server.
func RunRunner(ctx context.Context, cfg *config.Config, o RunnerOptions, log *slog.Logger) error {
	in, err := instance.Open(cfg.StateDir, cfg.RunDir)
	if err != nil {
		return err
	}
	if err := in.Lock(); err != nil {
		return err
	}
	defer in.Unlock()
	log = log.With("instance", in.ID)
	if _, err := os.Stat(nodeFile(in)); err == nil {
		if joined, jerr := gateway.Joined(in.State(runnerDir)); jerr == nil && !joined {
			return errs.New(errs.FailedPrecondition, "%s is the state of a server", in.StateDir).WithHint("choose another directory (--state-dir)")
		}
	}
	m, err := newMachine(cfg, in, log)
	if err != nil {
		return err
	}
	defer m.close()
	m.runner = true
	if err := join(ctx, in.State(runnerDir), o); err != nil {
		return err
	}
	client, err := gateway.Open(in.State(runnerDir), log.With("component", "server connection"))
	if err != nil {
		return err
	}
	defer client.Close()
	if o.Server != "" && o.Server != client.Server {
		return errs.New(errs.FailedPrecondition, "this machine is a runner of %s, not of %s", client.Server, o.Server).
			WithHint("choose another directory (--state-dir) for another server")
	}
	traces, err := openTraces(ctx, cfg, "runtime-runner", in.ID, log)
	if err != nil {
		return err
	}
	defer traces.Close()
	if err := m.containerd.Start(ctx); err != nil {
		return errs.Wrap(err, "containerd")
	}
	if err := m.startDriver(ctx); err != nil {
		return err
	}
	m.setPeer(client.Peer)
	private, _ := m.driver.(gateway.Network) // others have no private networks
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return forever(ctx, log, "containerd", m.containerd.Run) })
	g.Go(func() error { return forever(ctx, log, "sandbox driver", m.driver.Run) })
	g.Go(func() error {
		return gateway.Run(ctx, client, gateway.Machine{
			Driver: traced.New(m.driver, traces.Tracer()), Files: m.driver, Images: runnerImages{m.images}, Stopped: lastStopped(in), Logger: log, Traces: traces.Tracer(),
			Host:       func() (*runner.Host, error) { return runnerHost(in) },
			Network:    private,
			ImageBytes: cfg.Node.ImageBytes,
			Registrar: node.Registrar{
				CPUMillis: cfg.Node.CPUMillis, MemoryBytes: cfg.Node.MemoryBytes, StateDir: in.State(), KeepDisk: cfg.Node.KeepDiskBytes,
				IDFile: nodeFile(in),
			},
		})
	})
	err = g.Wait()
	log.Info("runner stopped; sandboxes go on", "error", err)
	return err
}

// runnerHost reads what the machine of a runner uses.
func runnerHost(in *instance.Instance) (*runner.Host, error) {
	u, err := readHost(in)
	if err != nil {
		return nil, err
	}
	return &runner.Host{
		CPU: time.Duration(u.CPUSeconds * float64(time.Second)), MemoryBytes: u.MemoryBytes, Processes: u.Processes,
		ReceivedBytes: u.ReceivedBytes, SentBytes: u.SentBytes, DiskBytes: u.DiskBytes,
	}, nil
}

// join makes the machine a runner, if it is none.
func join(ctx context.Context, dir string, o RunnerOptions) error {
	joined, err := gateway.Joined(dir)
	if joined || err != nil {
		return err
	}
	if o.Server == "" || o.Token == "" {
		return errs.New(errs.InvalidArgument, "this machine is no runner yet: --server and --token are needed").
			WithHint("make a token on the server: r runner token create")
	}
	name := o.Name
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return errs.New(errs.FailedPrecondition, "name of this machine: %w", err).WithHint("name the runner with --name")
		}
		name, _, _ = strings.Cut(strings.ToLower(host), ".")
	}
	return gateway.Join(ctx, dir, o.Server, o.Token, name)
}

// runnerImages is the image store of a runner.
type runnerImages struct{ *containerd.Images }

// Has implements runner.Images.
func (i runnerImages) Has(ctx context.Context, ref string) (bool, error) {
	_, err := i.Images.Content(ctx, ref)
	if errs.Is(err, errs.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// Import implements runner.Images.
func (i runnerImages) Import(ctx context.Context, ref string, archive io.Reader) error {
	name, _, _ := strings.Cut(ref, "@")
	r := &failing{r: archive}
	got, err := i.Images.Import(ctx, r, name, nil)
	switch {
	case r.err != nil: // the connection, whose end is no fault of the archive
		return r.err
	case err != nil:
		return err
	case got != ref:
		_ = i.Images.Delete(ctx, got) // the error below is the one that matters
		return errs.New(errs.Corrupt, "the server sent image %s instead of %s", got, ref)
	}
	return nil
}

// failing keeps the error of a reader.
type failing struct {
	r   io.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}
