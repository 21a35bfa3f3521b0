package server

import (
	"context"
	"log/slog"
	"time"

	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/servers/ingress"
)

// Ingress runs the ingress process: it serves until ctx ends. It reads the
// store through a socket of the server that allows it nothing else, and
// continues to serve when the server is away.
func Ingress(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	in, err := instance.Find(cfg.StateDir, cfg.RunDir)
	if err != nil {
		return err
	}
	client, err := rpc.NewClient("unix://"+in.Socket(ingressSocket), rpc.ClientOptions{})
	if err != nil {
		return err
	}
	defer client.Close()
	srv, err := ingress.New(ingress.Config{
		Addrs: []string{cfg.Ingress.HTTPAddress}, LocalDomains: cfg.Ingress.LocalDomains,
		Reader: remote.New(client), TableFile: in.State("ingress", "table"), AdminSocket: in.Socket("ingress.sock"),
		HoldTimeout: off(cfg.Ingress.HoldTimeout), DrainTimeout: off(cfg.Ingress.DrainTimeout), Logger: log,
	})
	if err != nil {
		return err
	}
	return srv.Run(ctx)
}

// off maps the configuration's 0, which means "not at all", to a negative
// value: the ingress takes 0 for its default.
func off(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
