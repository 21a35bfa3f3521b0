// Command static-server serves a folder over HTTP. It is what base image
// "static" (components/baseimage) holds.
//
//	static-server [folder]      default: /site
//
// It listens on PORT (default 8080). Beside the files themselves: /dir/ is
// dir/index.html, /page is page.html, and what does not exist is 404.html
// with status 404, or, where there is no 404.html and STATIC_FALLBACK is set
// (to "/index.html" for single-page apps), that file with status 200. Names that begin
// with a dot are not served, but for .well-known.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	dir := "/site"
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, dir, ":"+port, os.Getenv("STATIC_FALLBACK")); err != nil {
		slog.Error("static-server", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, addr, fallback string) error {
	h, err := newSite(dir, fallback)
	if err != nil {
		return err
	}
	srv := &http.Server{Addr: addr, Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	served := make(chan error, 1)
	go func() { served <- srv.ListenAndServe() }()
	slog.Info("serving", "dir", dir, "address", addr)
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 8*time.Second)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		return err
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
