// Package disks is the disk daemon as a process: package lsvd/node/daemon behind
// RPC on a unix socket, and its metrics over HTTP.
//
//	<run dir>/lsvd/control.sock   RPC (api/lsvd), for root and the daemon's own user
//	<run dir>/lsvd/metrics.sock   HTTP GET /metrics, for the same
//	<run dir>/lsvd/nbd/*.sock     disks by NBD, unless another place was asked for
//	<run dir>/lsvd/daemon.json    its process (package proc); gone if it ended in order
//	<run dir>/lsvd/holder.*       what keeps block devices between two daemons (package lsvd/frontend/holder)
//	<run dir>/lsvd/block/         mounts under block devices (package lsvd/frontend/loop)
package disks

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	api "miren.dev/runtime/api/lsvd"
	"miren.dev/runtime/lsvd/frontend/holder"
	"miren.dev/runtime/lsvd/metrics"
	"miren.dev/runtime/lsvd/node/daemon"
	"miren.dev/runtime/lsvd/node/host"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/pkg/rpc"
)

// Config configures the process.
type Config struct {
	StateDir string // of the disks: <state dir>/lsvd
	RunDir   string // of the disks: <run dir>/lsvd
	Metrics  string // TCP address for a second metrics listener; empty: only the socket
	Logger   *slog.Logger
	// CloseTimeout bounds how long disks may upload unsent data when the daemon
	// ends.
	CloseTimeout time.Duration
	// Holder says how to start the process that keeps block devices between two
	// daemons.
	Holder holder.Spec
	// DiskCacheBytes bounds the disk cache, in bytes; 0: no disk cache.
	DiskCacheBytes int64
	// LogSpaceBytes bounds the local logs of all disks together; 0: not at all.
	LogSpaceBytes int64
	// MemoryBytes bounds what all disks together keep in memory; 0: not at all.
	MemoryBytes int64
}

// Socket returns the path of the control socket of the daemon with a run
// directory.
func Socket(runDir string) string { return filepath.Join(runDir, "control.sock") }

// Record returns the path of the process record of the daemon with a run
// directory.
func Record(runDir string) string { return filepath.Join(runDir, "daemon.json") }

func metricsSocket(runDir string) string { return filepath.Join(runDir, "metrics.sock") }

// Run runs the daemon until ctx ends or a client asks it to stop.
func Run(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	state, err := host.Open(cfg.StateDir)
	if err != nil {
		return err
	}
	held := newHolder(cfg.Holder)
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		held.end(ctx)
	}()
	engine, err := daemon.New(daemon.Config{State: state, RunDir: cfg.RunDir, Logger: cfg.Logger, CloseTimeout: cfg.CloseTimeout,
		Holder: held, DiskCacheBytes: cfg.DiskCacheBytes, LogSpaceBytes: cfg.LogSpaceBytes, MemoryBytes: cfg.MemoryBytes})
	if err != nil {
		return err
	}
	s := &server{cfg: cfg, engine: engine, started: time.Now(), stop: cancel}
	// The control socket is removed after the disks are closed: a client that
	// waits for the socket to vanish waits for the daemon's end.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	var g errgroup.Group
	g.Go(func() error {
		defer cancel() // also if another daemon has the directory
		defer stopServing()
		return engine.Run(ctx)
	})
	g.Go(func() error {
		held.watch(ctx, cfg.Logger, engine.Hold)
		return nil
	})
	g.Go(func() error {
		select {
		case <-engine.Ready():
		case <-serving.Done():
			return nil
		}
		defer cancel()
		return s.serve(serving)
	})
	return g.Wait()
}

// serve serves RPC and metrics until ctx ends.
func (s *server) serve(ctx context.Context) error {
	if err := writeRecord(Record(s.cfg.RunDir)); err != nil {
		return err
	}
	defer os.Remove(Record(s.cfg.RunDir))
	srv, err := rpc.NewServer(rpc.ServerOptions{Logger: s.cfg.Logger})
	if err != nil {
		return err
	}
	api.RegisterDisks(srv, s)
	control, err := rpc.ListenUnix(Socket(s.cfg.RunDir))
	if err != nil {
		return err
	}
	web := s.web()
	listeners := map[string]net.Listener{}
	lis, err := rpc.ListenUnix(metricsSocket(s.cfg.RunDir))
	if err == nil {
		listeners["unix://"+metricsSocket(s.cfg.RunDir)] = lis
		if s.cfg.Metrics != "" {
			if lis, err = net.Listen("tcp", s.cfg.Metrics); err != nil {
				err = errs.New(errs.FailedPrecondition, "listen for metrics: %w", err)
			} else {
				listeners["http://"+lis.Addr().String()+"/metrics"] = lis
			}
		}
	}
	if err != nil {
		control.Close()
		for _, l := range listeners {
			l.Close()
		}
		return err
	}
	var g errgroup.Group
	for url, l := range listeners {
		s.metrics = append(s.metrics, url)
		g.Go(func() error {
			if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				s.cfg.Logger.Error("metrics are no longer served", "address", url, "error", err)
			}
			return nil
		})
	}
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = web.Shutdown(end) // a scrape under way may be cut off
		_ = srv.Shutdown(end)
	})
	defer stop()
	s.cfg.Logger.Info("disk daemon is ready", "state_dir", s.cfg.StateDir, "socket", Socket(s.cfg.RunDir))
	err = srv.Serve(control)
	srv.Close() // waits for the handlers
	_ = web.Close()
	return errors.Join(err, g.Wait())
}

func (s *server) web() *http.Server {
	reg := prometheus.NewRegistry()
	reg.MustRegister(metrics.NewCollector(s.engine.Samples), metrics.Budgets{LogSpace: s.engine.LogSpace, Memory: s.engine.Memory}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	return &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
}

func writeRecord(path string) error {
	rec, err := proc.Identify(os.Getpid())
	if err != nil {
		return errs.New(errs.Internal, "identify this process: %w", err)
	}
	if rec.Path, err = os.Executable(); err != nil {
		return errs.New(errs.Internal, "identify this process: %w", err)
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return errs.New(errs.Internal, "identify this process: %w", err)
	}
	if err := atomicfile.Write(path, b, 0o644, atomicfile.Volatile); err != nil {
		return errs.New(errs.Unavailable, "record this process: %w", err)
	}
	return nil
}
