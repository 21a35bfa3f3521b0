package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/controllers/retention"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/logstore"
	"miren.dev/runtime/servers/runner"
	"miren.dev/runtime/servers/workspace"
)

// restartDelay is the pause before a part that failed is run again.
const restartDelay = time.Second

// teardownTries is how often a server that nobody uses tries to end everything.
const teardownTries = 10

// Run runs the server: it starts or adopts every part, serves until ctx ends or
// a client asks it to stop, and leaves the data plane running. With idle_end, Run
// ends everything of the installation if nobody uses the server for that time, or
// if it cannot start.
func Run(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	started := false
	err := run(ctx, cfg, log, &started)
	end := (*idleEnd)(nil)
	switch {
	case errors.As(err, &end):
		defer end.release()
		return endAll(ctx, cfg, log)
	case err != nil && !started && cfg.IdleEnd > 0:
		// Nobody else would end what it has started.
		return errors.Join(err, Teardown(context.WithoutCancel(ctx), cfg, log))
	}
	return err
}

// endAll ends everything of the installation. Nobody else would, so it tries again
// until ctx ends, which does not cut a try short.
func endAll(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	for try := 1; ; try++ {
		err := Teardown(context.WithoutCancel(ctx), cfg, log)
		if err == nil || try == teardownTries || ctx.Err() != nil {
			return err
		}
		log.Warn("cannot end everything; trying again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(restartDelay):
		}
	}
}

func run(ctx context.Context, cfg *config.Config, log *slog.Logger, started *bool) error {
	settings, err := workspace.Load(os.Getenv)
	if err != nil {
		return err
	}
	in, err := instance.Open(cfg.StateDir, cfg.RunDir)
	if err != nil {
		return err
	}
	if err := lockWhole(in); err != nil {
		return err
	}
	defer in.Unlock()
	if joined, err := runner.Joined(in.State(runnerDir)); err != nil {
		return err
	} else if joined {
		return errs.New(errs.FailedPrecondition, "%s is the state of a runner", in.StateDir).WithHint("choose another directory (--state-dir)")
	}
	log = log.With("instance", in.ID)
	m, err := newMachine(cfg, in, log)
	if err != nil {
		return err
	}
	defer m.close()
	if cfg.Ingress.HTTPAddress != "" {
		if _, err := routes.ParsePorts(cfg.Ingress.TCPPorts); err != nil {
			return err
		}
		if m.ingressUser, err = findIngressUser(ctx, cfg); err != nil {
			return err
		}
	}
	traces, err := openTraces(ctx, cfg, "runtime", in.ID, log)
	if err != nil {
		return err
	}
	defer traces.Close()
	url, err := m.storeURL(ctx)
	if err != nil {
		return err
	}
	store, err := openStore(ctx, cfg, url, log)
	if err != nil {
		return err
	}
	defer store.Close()
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), store, m.objects.breaker)
	if m.appLogs, err = logstore.Open(logstore.Config{
		Dir: in.State("logs", "apps"), MaxBytes: cfg.Logs.MaxBytes, MaxAge: cfg.Logs.MaxAge, Logger: log.With("component", "app logs"),
		Expired: m.logSinks.expired,
	}); err != nil {
		return err
	}
	defer m.appLogs.Close()
	defer m.openMetrics()()
	if err := m.logSinks.open(m, store, reg); err != nil {
		return err
	}
	if err := m.metricSinks.open(m, store, reg); err != nil {
		return err
	}
	sources := openSources(cfg, in, log)
	c := newControl(cfg, m, store, sources, reg, log)
	c.workspace, c.traces = settings, traces.Tracer()
	nodeID, err := c.prepare(ctx)
	if err != nil {
		return err
	}
	if err := m.startNode(ctx); err != nil {
		return err
	}
	c.runners.SetNode(nodeID)
	if err := c.addControllers(nodeID); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	front, err := newFront(c, sources, stop)
	if err != nil {
		return err
	}

	*started = true
	g, ctx := errgroup.WithContext(ctx)
	if m.postgres != nil {
		g.Go(func() error { return m.postgres.Run(ctx) })
	}
	g.Go(func() error { return forever(ctx, log, "containerd", m.containerd.Run) })
	g.Go(func() error { return forever(ctx, log, "sandbox driver", m.driver.Run) })
	g.Go(func() error { return forever(ctx, log, "buildkit", m.buildkit.Run) })
	g.Go(func() error { return c.node.Run(ctx) })
	g.Go(func() error { return sources.collect(ctx, log) })
	g.Go(func() error {
		return (&retention.Images{Store: store, Images: m.images, Bases: m.bases.Digests, Logger: log}).Run(ctx)
	})
	g.Go(func() error { return c.refresh.Run(ctx) })
	g.Go(func() error { return c.objects.Run(ctx) })
	g.Go(func() error { return c.informers.Run(ctx) })
	g.Go(func() error { return c.egressLog.Run(ctx) })
	c.recordMetrics(ctx, g, nodeID)
	for _, d := range m.logSinks.load() {
		g.Go(func() error { return d.Run(ctx) })
	}
	for _, d := range m.metricSinks.list {
		g.Go(func() error { return d.Run(ctx) })
	}
	g.Go(func() error {
		defer c.builds.Stop()
		return c.rt.Run(ctx)
	})
	g.Go(func() error { return serveMetrics(ctx, cfg, in, reg) })
	g.Go(func() error { return front.run(ctx) })
	if cfg.Ingress.HTTPAddress != "" {
		g.Go(func() error {
			return forever(ctx, log, "ingress", func(ctx context.Context) error { return m.keepIngress(ctx, nodeID) })
		})
	}
	if cfg.IdleEnd > 0 {
		g.Go(func() error { return front.awaitIdle(ctx, in) })
	}
	log.Info("server runs", "state_dir", in.StateDir, "node", string(nodeID))
	if err = g.Wait(); !errors.As(err, new(*idleEnd)) {
		log.Info("server stopped; apps go on", "error", err)
	}
	return err
}

// forever runs part again whenever it ends before ctx does.
func forever(ctx context.Context, log *slog.Logger, name string, part func(context.Context) error) error {
	for {
		err := part(ctx)
		if ctx.Err() != nil {
			return nil
		}
		log.Error("a part of the server ended; running it again", "component", name, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(restartDelay):
		}
	}
}

// serveMetrics serves Prometheus metrics, also those of the ingress process, on a unix socket and, if configured, over TCP.
func serveMetrics(ctx context.Context, cfg *config.Config, in *instance.Instance, reg *prometheus.Registry) error {
	path := in.Socket("metrics.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "metrics socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return errs.New(errs.Unavailable, "metrics socket: %w", err)
	}
	listeners := []net.Listener{l}
	if cfg.Metrics.Address != "" {
		l, err := net.Listen("tcp", cfg.Metrics.Address)
		if err != nil {
			return errs.New(errs.FailedPrecondition, "metrics.address: %w", err)
		}
		listeners = append(listeners, l)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(withIngress(reg, ingressAdmin(in)), promhttp.HandlerOpts{}))
	local := http.NewServeMux() // for root
	local.Handle("/", mux)
	local.HandleFunc("GET /debug/goroutines", func(rw http.ResponseWriter, _ *http.Request) {
		_ = pprof.Lookup("goroutine").WriteTo(rw, 1) // the client has gone
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	localSrv := &http.Server{Handler: local, ReadHeaderTimeout: 10 * time.Second}
	g, gctx := errgroup.WithContext(ctx)
	for i, l := range listeners {
		srv := srv
		if i == 0 {
			srv = localSrv
		}
		g.Go(func() error {
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	g.Go(func() error {
		<-gctx.Done()
		return errors.Join(srv.Close(), localSrv.Close())
	})
	return g.Wait()
}

// Teardown ends every process of the installation under cfg.StateDir on this
// machine, and removes what the installation made outside its directories. The
// server must not run. Teardown may be repeated, and is safe when no process
// runs.
func Teardown(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	if _, err := os.Stat(cfg.StateDir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	in, err := instance.Open(cfg.StateDir, cfg.RunDir)
	if err != nil {
		return err
	}
	if err := in.Lock(); err != nil {
		return err
	}
	defer in.Unlock()
	m, err := newMachine(cfg, in, log)
	if err != nil {
		return err
	}
	if err := stopIngress(ctx, in); err != nil {
		return err
	}
	// Record the stop first: the next server then counts sandboxes that vanish
	// from now on as stopped, not as lost.
	if err := os.WriteFile(stoppedFile(in), nil, 0o644); err != nil {
		return errs.New(errs.Unavailable, "note the stop: %w", err)
	}
	if err := m.tearDown(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(in.RunDir); err != nil {
		return errs.New(errs.Unavailable, "remove %s: %w", in.RunDir, err)
	}
	return nil
}

// stoppedFile is written whenever the whole installation is stopped.
func stoppedFile(in *instance.Instance) string { return in.State("stopped") }

// lastStopped returns when the whole installation was last stopped; the zero
// time: never.
func lastStopped(in *instance.Instance) time.Time {
	st, err := os.Stat(stoppedFile(in))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}
