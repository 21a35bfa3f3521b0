package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/certificate"
	apistore "miren.dev/runtime/api/store"
	"miren.dev/runtime/components/postgres"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/rpc"
)

// storeChild serves a store on a private PostgreSQL: over TLS, and with --socket
// on the server's socket and on the one where an ingress looks for it.
func storeChild(ctx context.Context, args []string, ready func(string)) (err error) {
	f := flag.NewFlagSet("store", flag.ContinueOnError)
	dir := f.String("dir", "", "of the installation")
	pki := f.String("pki", "", "of the authority")
	socket := f.Bool("socket", false, "serve on the server's sockets too")
	cert := f.String("certificate", "", "that the ingress gets")
	key := f.String("key", "", "of the certificate")
	if err := f.Parse(args); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	in, err := instance.Open(filepath.Join(*dir, "state"), filepath.Join(*dir, "run"))
	if err != nil {
		return err
	}
	pg, err := postgres.Start(ctx, postgres.ConfigFor(in, log))
	if err != nil {
		return err
	}
	defer func() {
		if serr := pg.Stop(context.WithoutCancel(ctx)); err == nil {
			err = serr
		}
	}()
	kinds := append(api.Kinds(), valueKind)
	st, err := pgstore.Open(ctx, pgstore.Config{URL: pg.URL(), Kinds: kinds, Logger: log})
	if err != nil {
		return err
	}
	defer st.Close()
	tlsConfig, err := serverTLS(*pki)
	if err != nil {
		return err
	}
	srv, err := rpc.NewServer(rpc.ServerOptions{TLS: tlsConfig, Logger: log})
	if err != nil {
		return err
	}
	apistore.RegisterEntities(srv, remote.NewServer(st, kinds))
	if *cert != "" {
		certs := &ownCertificate{store: st}
		if certs.chain, err = os.ReadFile(*cert); err != nil {
			return err
		}
		if certs.key, err = os.ReadFile(*key); err != nil {
			return err
		}
		certificate.RegisterCertificates(srv, certs)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	listeners := []net.Listener{tcp}
	if *socket {
		l, err := net.Listen("unix", in.Socket("server.sock"))
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
		stop, err := serveIngress(srv, in.Socket("server-ingress.sock"))
		if err != nil {
			return err
		}
		defer stop()
	}
	return serveUntil(ctx, srv, listeners, func() { ready(tcp.Addr().String()) })
}

// serveIngress serves the ingress, which runs as another user, until stop is
// called.
func serveIngress(srv *rpc.Server, path string) (stop func(), err error) {
	l, err := rpc.ListenUnix(path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.ServeAs(l, rpc.Identity{Name: "ingress", Roles: []string{"ingress"}, How: "socket"})
	}()
	return func() { l.Close(); srv.Close(); <-done }, nil
}

// serveUntil serves on all listeners until ctx ends.
func serveUntil(ctx context.Context, srv *rpc.Server, listeners []net.Listener, ready func()) error {
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- srv.Serve(l) }()
	}
	ready()
	select {
	case <-ctx.Done():
	case err := <-ended:
		srv.Close()
		return err
	}
	srv.Close()
	for range listeners {
		<-ended
	}
	return nil
}

// etcdChild is an etcd with one member.
func etcdChild(ctx context.Context, args []string, ready func(string)) error {
	f := flag.NewFlagSet("etcd", flag.ContinueOnError)
	dir := f.String("dir", "", "of its data")
	pki := f.String("pki", "", "of the authority")
	if err := f.Parse(args); err != nil {
		return err
	}
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.LogOutputs = *dir, "error", []string{"stderr"}
	client, err := freeURL("https")
	if err != nil {
		return err
	}
	peer, err := freeURL("http")
	if err != nil {
		return err
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = filepath.Join(*pki, "server.pem"), filepath.Join(*pki, "server.key")
	cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = filepath.Join(*pki, "ca.pem"), true
	// etcd uses the server's certificate for a call to itself unless it has one for clients.
	cfg.ClientTLSInfo.ClientCertFile, cfg.ClientTLSInfo.ClientKeyFile = filepath.Join(*pki, "client.pem"), filepath.Join(*pki, "client.key")
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		return err
	case <-ctx.Done():
		return nil
	}
	ready(client.Host)
	select {
	case <-ctx.Done():
		return nil
	case err := <-e.Err():
		return err
	}
}

// freeURL has a port that is free now.
func freeURL(scheme string) (*url.URL, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return &url.URL{Scheme: scheme, Host: l.Addr().String()}, nil
}
