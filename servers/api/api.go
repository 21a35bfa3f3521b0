// Package api is the HTTP listener of the server, on which the HTTP faces are
// mounted (REST, E2B, MCP), and what they share:
//
//	Server        listener, limits, /healthz and /readyz
//	Handle        mounts a face below a path; Intercept, by a property of requests
//	              (each with the rate limit of its callers, and metrics)
//	Authenticate  the caller of a request, by its API key
//	Status        the HTTP status of an error; WriteProblem, an answer with it
//
// A face is a client of the server's RPC interface: Caller.Client makes calls
// with the identity of the key, so that permissions, projects and the audit
// hold for HTTP as for everything else.
package api

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/httpserve"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/trace"
)

// Limits of a connection and of a request.
const (
	maxConnections = 4096
	maxHeader      = 64 << 10 // bytes of a request's header
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	// stallTimeout is how long one read of a request's body, or one write of the
	// answer, may take.
	stallTimeout = 2 * time.Minute
	// shutdownGrace is how long requests under way may go on when the server stops.
	shutdownGrace = 5 * time.Second
)

// Config configures a Server. All fields but TLS, the rates, Metrics, Traces and Header are required.
type Config struct {
	// Authenticate returns the identity of an API key.
	Authenticate func(ctx context.Context, key string) (rpc.Identity, error)
	// Local returns an RPC client within the process with an identity.
	Local func(rpc.Identity) *rpc.Client
	// Ready returns why the server cannot do its work now; nil: it can.
	Ready  func() error
	TLS    *tls.Config // nil: plain HTTP
	Logger *slog.Logger
	// Rate is how many requests per second a key, or an address without a valid
	// one, may make; 0: no limit. Burst is how many it may make at once.
	Rate, Burst int64
	// RateOf returns the rate of the key with an id, which holds if it is lower
	// than Rate; 0: it has none. nil: no key has one.
	RateOf  func(key string) int64
	Metrics prometheus.Registerer // nil: none
	// Traces begins a span for each request, below that of the caller; nil: none.
	Traces *trace.Tracer
	// Header adds to the header of every answer; nil: nothing.
	Header func(http.Header)
}

// Server serves the HTTP faces.
type Server struct {
	cfg     Config
	mux     *http.ServeMux
	special []intercept
	clients *clients
	limiter *limiter // nil: no limit
	metrics *metrics
}

type intercept struct {
	match func(*http.Request) bool
	h     http.Handler
}

// New returns a Server without faces.
func New(cfg Config) *Server {
	s := &Server{
		cfg: cfg, mux: http.NewServeMux(), clients: newClients(cfg.Local), limiter: newLimiter(cfg.Rate, cfg.Burst, time.Now), metrics: newMetrics(cfg.Metrics),
	}
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok\n") })
	s.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := cfg.Ready(); err != nil {
			plain(w, http.StatusServiceUnavailable, err.Error()+"\n")
			return
		}
		plain(w, http.StatusOK, "ready\n")
	})
	return s
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text))
}

// Handle mounts a face at a pattern of http.ServeMux. It authenticates its
// callers itself (Authenticate). Metrics have its name. Call it before Serve.
func (s *Server) Handle(name, pattern string, h http.Handler) {
	s.mux.Handle(pattern, &face{s, name, h})
}

// Intercept gives h every request for which match is true, whatever its path,
// before the patterns of Handle; earlier calls come first. Call it before Serve.
func (s *Server) Intercept(name string, match func(*http.Request) bool, h http.Handler) {
	s.special = append(s.special, intercept{match, &face{s, name, h}})
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if s.cfg.Header != nil {
		s.cfg.Header(w.Header())
	}
	w, r = unstalled(w, r)
	for _, i := range s.special {
		if i.match(r) {
			i.h.ServeHTTP(w, r)
			return
		}
	}
	s.mux.ServeHTTP(w, r)
}

// Serve serves on l until ctx ends, and then lets requests under way end for a
// short time.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer s.clients.close()
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	srv := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    httpserve.ErrorLog(s.cfg.Logger),
	}
	l = httpserve.Limit(l, maxConnections)
	if s.cfg.TLS != nil {
		srv.TLSConfig = s.cfg.TLS.Clone()
		srv.TLSConfig.ClientAuth = tls.NoClientCert // callers have keys
		srv.TLSConfig.NextProtos = []string{"h2", "http/1.1"}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := error(nil)
		if s.cfg.TLS != nil {
			err = srv.ServeTLS(l, "", "")
		} else {
			err = srv.Serve(l)
		}
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return errs.New(errs.Unavailable, "HTTP API: %w", err)
	})
	g.Go(func() error {
		<-gctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(gctx), shutdownGrace)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			stop() // ends the requests that are left
			_ = srv.Close()
		}
		return nil
	})
	return g.Wait()
}
