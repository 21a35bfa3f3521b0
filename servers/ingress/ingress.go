package ingress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/httpserve"
)

// Ingress is the HTTP data plane.
type Ingress struct {
	cfg        Config
	metrics    *metrics
	registry   *registry
	table      atomic.Pointer[table]
	follower   *follower
	tunnels    tunnels
	keys       *keyring
	passwords  *passwords
	tcp        *tcpPorts
	providers  *http.Client // for the providers of logins
	challenges challenges
	access     *accessLog // nil: none
	started    time.Time
	pid        int
	conns      atomic.Int64  // number of clients' connections, tunnels included
	stopping   chan struct{} // closed when requests should stop waiting
	addrs      chan []net.Addr

	pred       *predecessor  // the process whose sockets this one has; nil: none
	serve      chan struct{} // closed when this process may serve though its predecessor does
	serveOnce  sync.Once
	successors atomic.Int64  // processes that have the sockets of this one
	draining   atomic.Bool   // a successor serves: clients should come again
	ended      chan struct{} // closed when no request is under way any more

	listeners []net.Listener
	secure    []net.Listener // for HTTPS
	httpsPort int            // of the first of them; 0: none. Set before requests are served
	http3     *http3Server   // nil: none. Set before requests are served
	admin     *adminListener
}

// New makes an ingress. It does no IO.
func New(cfg Config) (*Ingress, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	in := &Ingress{cfg: cfg, metrics: newMetrics(cfg.Registerer), stopping: make(chan struct{}), addrs: make(chan []net.Addr, 1), started: time.Now(), pid: os.Getpid(),
		serve: make(chan struct{}), ended: make(chan struct{})}
	dialer := newDialer(cfg.DialTimeout)
	in.registry = newRegistry(func(ctx context.Context, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	}, in.metrics)
	in.registry.dialService = cfg.DialService
	in.tcp = &tcpPorts{in: in, allowed: cfg.TCPPorts, wake: make(chan struct{}, 1), open: map[int64]net.Listener{}}
	in.table.Store(newTable(&State{}, in.registry))
	in.keys = newKeyring(in)
	in.passwords = newPasswords(in)
	in.providers = newProviderClient(cfg.OIDCNetworks)
	in.follower = newFollower(in)
	if cfg.AccessLog != nil {
		in.access = newAccessLog(cfg.AccessLog, cfg.LogQuery, cfg.Logger)
	}
	return in, nil
}

// Addrs waits until the listeners are open and returns their addresses.
func (in *Ingress) Addrs(ctx context.Context) ([]net.Addr, error) {
	select {
	case a := <-in.addrs:
		in.addrs <- a
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Listen opens the addresses and the admin socket, which Run then closes. Run does
// it if it was not done. A process that gives up privileges calls it before.
func (in *Ingress) Listen(ctx context.Context) error {
	pred, err := takeOver(ctx, in.cfg.TakeOver)
	if err != nil {
		return err
	}
	listeners, secure, err := listen(ctx, in.cfg, pred)
	if err != nil {
		pred.close()
		return err
	}
	admin, err := listenAdmin(in.cfg.AdminSocket)
	if err != nil {
		pred.close()
		for _, l := range append(listeners, secure...) {
			l.Close()
		}
		return err
	}
	in.listeners, in.secure, in.admin, in.pred = listeners, secure, admin, pred
	if len(secure) > 0 {
		in.httpsPort = secure[0].Addr().(*net.TCPAddr).Port
	}
	in.listenHTTP3()
	pred.release(in.cfg.TCPPorts)
	return nil
}

// Run serves until ctx ends, then lets requests finish for DrainTimeout, and
// returns nil. With a predecessor it serves when it is told so by the admin
// interface, or when the predecessor has ended.
func (in *Ingress) Run(ctx context.Context) error {
	if in.listeners == nil {
		if err := in.Listen(ctx); err != nil {
			return err
		}
	}
	listeners, admin := in.listeners, in.admin
	in.follower.load()
	in.keys.load()
	in.passwords.load()
	srv := &http.Server{
		Handler: in, ReadHeaderTimeout: in.cfg.ReadHeaderTimeout, IdleTimeout: in.cfg.IdleTimeout,
		TLSConfig: in.keys.tlsConfig(), MaxHeaderBytes: in.cfg.MaxHeaderBytes, ConnState: in.count, ErrorLog: httpserve.ErrorLog(in.cfg.Logger),
	}
	adminSrv := &http.Server{Handler: in.adminHandler(), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: srv.ErrorLog}

	var addrs []net.Addr
	for _, l := range listeners {
		addrs = append(addrs, l.Addr())
	}
	in.addrs <- addrs

	// The follower and the admin interface run until draining has ended, after
	// ctx.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	var background errgroup.Group
	background.Go(func() error { return in.follower.run(work) })
	background.Go(func() error { in.sweep(work); return nil })
	background.Go(func() error { in.keys.run(work); return nil })
	background.Go(func() error { in.passwords.run(work); return nil })
	if in.access != nil {
		background.Go(func() error { in.access.run(work); return nil })
	}
	background.Go(func() error { in.pred.follow(work); return nil })
	if admin != nil {
		background.Go(func() error { return ignoreClosed(adminSrv.Serve(admin)) })
	}
	var err error
	if in.standBy(ctx) {
		in.cfg.Logger.Info("ingress serves", "addresses", addrs, "revision", in.follower.position().Revision)
		serving, failed := errgroup.WithContext(ctx)
		for _, l := range listeners {
			serving.Go(func() error { return ignoreClosed(srv.Serve(in.proxied(l))) })
		}
		for _, l := range in.secure {
			serving.Go(func() error { return ignoreClosed(srv.ServeTLS(in.proxied(l), "", "")) })
		}
		ports, closePorts := context.WithCancel(context.WithoutCancel(ctx))
		background.Go(func() error { in.tcp.run(ports); return nil })
		background.Go(func() error { in.http3.run(); return nil })
		<-failed.Done() // ctx has ended, or a listener failed
		closePorts()
		in.drain(ctx, srv)
		err = serving.Wait()
	} else {
		in.pred.release(nil)
	}
	for _, l := range append(listeners[:len(listeners):len(listeners)], in.secure...) {
		l.Close()
	}
	in.http3.close()
	close(in.ended)
	stopWork()
	adminSrv.Close()
	if admin != nil {
		admin.remove()
	}
	err = errors.Join(err, background.Wait())
	in.registry.close() // after sweep, which is the only other one to use what it uses
	return err
}

// count counts the connections of clients. A tunnel subtracts its connection
// itself.
func (in *Ingress) count(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if in.conns.Add(1) > int64(in.cfg.MaxConnections) {
			in.metrics.refused.Inc()
			c.Close()
		}
	case http.StateClosed:
		in.conns.Add(-1)
	}
}

func (in *Ingress) sweep(ctx context.Context) {
	t := time.NewTicker(idleConnLife / 2)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			in.registry.sweep()
		case <-ctx.Done():
			return
		}
	}
}

// install makes s the table in use.
func (in *Ingress) install(s *State) {
	next := newTable(s, in.registry)
	old := in.table.Swap(next)
	in.registry.retain(s)
	close(old.changed)
	in.tcp.changed()
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return errs.Wrap(err, "serve")
}
