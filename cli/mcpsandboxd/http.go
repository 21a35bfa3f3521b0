package mcpsandboxd

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/httpserve"
	"miren.dev/runtime/pkg/mcpconfig"
	mcpserver "miren.dev/runtime/servers/mcp"
)

const (
	// restartTime is how long a call waits for a server that is started again.
	restartTime = 30 * time.Second
	// idleConn is how long a connection stays open without a request.
	idleConn = 2 * time.Minute
	// maxConns bounds the connections.
	maxConns = 1000
	// maxHeader bounds the header of a request, in bytes.
	maxHeader = 64 << 10
)

// serveHTTP serves streamable HTTP at /mcp and WebSocket at /mcp/ws until ctx ends.
func serveHTTP(ctx context.Context, cfg *mcpconfig.Config, o mcpserver.Options, log *slog.Logger) error {
	path := cmp.Or(cfg.Server.TokenFile, filepath.Join(filepath.Dir(cfg.Sandbox.DatabasePath), "mcp-sandboxd.token"))
	token, err := readToken(path)
	if err != nil {
		return err
	}
	h, err := mcpserver.NewHandler(mcpserver.HandlerOptions{Options: o, Final: true, Authenticate: func(r *http.Request) (*mcpserver.Caller, error) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1 {
			return nil, errs.New(errs.Unauthenticated, "the token is missing or wrong")
		}
		return &mcpserver.Caller{ID: "token", Client: o.Client, Release: func() {}}, nil
	}})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", cfg.Server.Address)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "server.address: %w", err)
	}
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	mux := http.NewServeMux()
	mux.Handle("/mcp", timed(h, cfg.Server.RequestTimeout))
	mux.Handle("/mcp/ws", h.WebSocket())
	srv := &http.Server{
		Handler: mux, ReadHeaderTimeout: cfg.Server.RequestTimeout, IdleTimeout: idleConn, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return base }, ErrorLog: httpserve.ErrorLog(log),
	}
	log.Info("serving MCP by HTTP", "address", l.Addr().String(), "tls", cfg.Server.TLSCert != "", "token_file", path)
	l = httpserve.Limit(l, maxConns)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		var err error
		if cfg.Server.TLSCert != "" {
			err = srv.ServeTLS(l, cfg.Server.TLSCert, cfg.Server.TLSKey)
		} else {
			err = srv.Serve(l)
		}
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return errs.New(errs.FailedPrecondition, "HTTP: %w", err)
	})
	g.Go(func() error {
		<-gctx.Done()
		err := h.Close()
		grace, cancel := context.WithTimeout(context.WithoutCancel(gctx), cfg.Server.ShutdownTimeout)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			stop() // ends the requests that are left
			_ = srv.Close()
		}
		return err
	})
	return g.Wait()
}

// readToken returns the token in a file, and makes the file if it is missing.
func readToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		err = atomicfile.Write(path, []byte(rand.Text()+"\n"), 0o600, atomicfile.NoReplace)
		if err == nil || errors.Is(err, os.ErrExist) { // another process has just made it
			b, err = os.ReadFile(path)
		}
	}
	if err != nil {
		return "", errs.New(errs.FailedPrecondition, "server.token_file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", errs.New(errs.FailedPrecondition, "server.token_file: %s is empty", path).WithHint("write a token into it, or remove it")
	}
	return token, nil
}

// timed bounds the time in which a client sends the body of a request.
func timed(h http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			rc := http.NewResponseController(w)
			if err := rc.SetReadDeadline(time.Now().Add(limit)); err == nil {
				r.Body = &timedBody{r.Body, rc}
			}
		}
		h.ServeHTTP(w, r)
	})
}

// timedBody lifts the deadline when the body was read.
type timedBody struct {
	io.ReadCloser
	rc *http.ResponseController
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.rc.SetReadDeadline(time.Time{}) // the connection has ended
	}
	return n, err
}
