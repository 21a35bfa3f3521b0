package server

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/network"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/pkg/sysuser"
	"miren.dev/runtime/servers/ingress"
)

// previewDial bounds the time in which the server connects to a preview, and serviceDial that for
// a service on a runner. Meanwhile a request does not try another sandbox.
const (
	previewDial = 5 * time.Second
	serviceDial = 2 * time.Second
)

// minAccessLog is the smallest size at which the access log is rotated, in bytes.
const minAccessLog = 64 << 10

// ingressUserDefault is the user of the ingress that is created if it is missing.
const ingressUserDefault = "runtime-ingress"

// ingressEnv is the whole environment of the ingress process: that of the server
// may hold passwords, and what it says is in the configuration file.
var ingressEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOMEMLIMIT=256MiB", "GODEBUG=" + ingress.ExtendedConnect}

// findIngressUser returns the user that the ingress process runs as: that of
// ingress.user if this process is root, otherwise its own.
func findIngressUser(ctx context.Context, cfg *config.Config) (sysuser.User, error) {
	if os.Geteuid() != 0 {
		return sysuser.Current(), nil
	}
	var u sysuser.User
	var err error
	if name := cmp.Or(cfg.Ingress.User, ingressUserDefault); name == ingressUserDefault {
		u, err = sysuser.Ensure(ctx, name, "runtime's ingress")
	} else {
		u, err = sysuser.Find(name)
	}
	switch {
	case err != nil:
		return u, errs.New(errs.ClassOf(err), "ingress.user: %w", err).
			WithHint("create it (useradd --system --shell /usr/sbin/nologin NAME), or set ingress.user to a number that nothing else uses")
	case u.UID == 0:
		return u, errs.New(errs.InvalidArgument, "ingress.user: the ingress does not run as root").
			WithHint("leave ingress.user away for %s, or name another user", ingressUserDefault)
	}
	return u, nil
}

// Ingress runs the ingress process: it serves until ctx ends. It reads the
// store through a socket of the server that allows it nothing else, and
// continues to serve when the server is away. Meanwhile it also answers the names of sandboxes.
//
// As root it only prepares its directory and opens what it listens on; before
// it reads a byte that others wrote it becomes the user of the ingress. openLog
// opens a log file that is rotated at a size in bytes. socket is where its admin
// interface listens, takeOver that of the ingress whose sockets it takes; empty: the
// usual one, and none. node is the node of this machine; empty: the one that its server was last.
func Ingress(ctx context.Context, cfg *config.Config, node id.Node, socket, takeOver string, log *slog.Logger, openLog func(path string, max int64) (io.Writer, error)) error {
	in, err := instance.Find(cfg.StateDir, cfg.RunDir)
	if err != nil {
		return err
	}
	user, err := findIngressUser(ctx, cfg)
	if err != nil {
		return err
	}
	dir := in.State("ingress")
	if err := user.Own(dir); err != nil {
		return err
	}
	for _, d := range []string{filepath.Dir(dir), in.RunDir} {
		if err := user.CanEnter(d); err != nil {
			return errs.Wrap(err, "ingress.user")
		}
	}
	if node == "" {
		if node, err = nodeOf(in); err != nil {
			return err
		}
	}
	client, err := rpc.NewClient("unix://"+in.Socket(ingressSocket), rpc.ClientOptions{})
	if err != nil {
		return err
	}
	defer client.Close()
	// Each connection to a runner is a call, of which a connection to the server has a limited number.
	runners, err := rpc.NewClient("unix://"+in.Socket(ingressSocket), rpc.ClientOptions{})
	if err != nil {
		return err
	}
	defer runners.Close()
	var access io.Writer
	if n := cfg.Ingress.AccessLogBytes; n > 0 { // the file and its predecessor
		if access, err = openLog(in.State("logs", "access.log"), max(int64(n)/2, minAccessLog)); err != nil {
			return errs.Wrap(err, "ingress.access_log_bytes")
		}
	}
	proxies, err := prefixes("ingress.trusted_proxies", cfg.Ingress.TrustedProxies)
	if err != nil {
		return err
	}
	providers, err := prefixes("ingress.oidc_networks", cfg.Ingress.OidcNetworks)
	if err != nil {
		return err
	}
	ports, err := routes.ParsePorts(cfg.Ingress.TCPPorts)
	if err != nil {
		return err
	}
	metrics := prometheus.NewRegistry()
	previews, services := sandbox.NewPreviewsClient(client), sandbox.NewSandboxesClient(runners)
	var secure []string
	if a := cfg.Ingress.HTTPSAddress; a != "" {
		secure = append(secure, a)
	}
	keys := certificate.NewCertificatesClient(client)
	srv, err := ingress.New(ingress.Config{
		Addrs: []string{cfg.Ingress.HTTPAddress}, HTTPSAddrs: secure, NoRedirect: !cfg.Ingress.HTTPSRedirect,
		NoHTTP3: !cfg.Ingress.Http3, HTTP3File: filepath.Join(dir, "http3"),
		Certificates: func(ctx context.Context) ([]ingress.Certificate, error) { return servedCertificates(ctx, keys) }, CertificateFile: filepath.Join(dir, "certificates"),
		Passwords: func(ctx context.Context) ([]ingress.Password, error) {
			return routePasswords(ctx, app.NewRoutesClient(client))
		}, PasswordFile: filepath.Join(dir, "passwords"),
		LocalDomains: localDomains(cfg),
		Wake: func(ctx context.Context, pid schema.ID) error {
			return previews.Wake(ctx, &sandbox.PreviewRequest{Preview: id.Preview(pid)})
		},
		Dial: func(ctx context.Context, pid schema.ID, port int) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, previewDial)
			defer cancel()
			return dialPreview(ctx, previews, id.Preview(pid), port)
		},
		DialService: func(ctx context.Context, sid schema.ID, port int) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, serviceDial)
			defer cancel()
			return dialService(ctx, services, id.Sandbox(sid), port)
		},
		Reader: remote.New(client), Node: node, TableFile: filepath.Join(dir, "table"), AdminSocket: cmp.Or(socket, ingressAdmin(in)), TakeOver: takeOver,
		HoldTimeout: off(cfg.Ingress.HoldTimeout), DrainTimeout: off(cfg.Ingress.DrainTimeout), Logger: log,
		BodyTimeout: cfg.Ingress.BodyTimeout, TrustedProxies: proxies, OIDCNetworks: providers, TCPPorts: ports, ProxyProtocol: cfg.Ingress.ProxyProtocol, AccessLog: access, LogQuery: cfg.Ingress.AccessLogQuery,
		Registerer: metrics, Gatherer: metrics,
	})
	if err != nil {
		return err
	}
	if err := srv.Listen(ctx); err != nil {
		return err
	}
	names, err := network.NewStandby(in, log.With("component", "names"))
	if err != nil {
		return err
	}
	if err := user.Become(); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return names.Run(ctx) })
	g.Go(func() error { return srv.Run(ctx) })
	return g.Wait()
}

// nodeFile has the id of the node that this machine is.
func nodeFile(in *instance.Instance) string { return in.State("node-id") }

// nodeOf returns the node that this machine is. FailedPrecondition if no server has run on it.
func nodeOf(in *instance.Instance) (id.Node, error) {
	b, err := os.ReadFile(nodeFile(in))
	if errors.Is(err, os.ErrNotExist) {
		return "", errs.New(errs.FailedPrecondition, "this machine is no node yet").WithHint("start its server, or name the node (--node)")
	}
	if err != nil {
		return "", errs.New(errs.Unavailable, "which node this machine is: %w", err)
	}
	return id.Node(strings.TrimSpace(string(b))), nil
}

// tcpPorts returns the ports that routes of TCP may have. Run has checked them.
func tcpPorts(cfg *config.Config) routes.Ports {
	ports, err := routes.ParsePorts(cfg.Ingress.TCPPorts)
	if err != nil {
		return nil
	}
	return ports
}

// prefixes reads the networks of a key of the configuration.
func prefixes(key string, list []string) (out []netip.Prefix, err error) {
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, errs.New(errs.InvalidArgument, "%s: %w", key, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// servedCertificates asks for the certificates with their keys.
func servedCertificates(ctx context.Context, c certificate.CertificatesClient) ([]ingress.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var list []ingress.Certificate
	for req := (&certificate.ServedRequest{}); ; {
		page, err := c.Served(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, s := range page.Certificates {
			list = append(list, ingress.Certificate{ID: schema.ID(s.ID), Project: schema.ID(s.Project), Created: schema.Revision(s.Created), Chain: s.Chain, Key: s.Key})
			req.After = s.ID
		}
		if !page.More {
			return list, nil
		}
	}
}

// routePasswords asks for the users of routes.
func routePasswords(ctx context.Context, c app.RoutesClient) ([]ingress.Password, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var list []ingress.Password
	for req := (&app.RoutePasswordsRequest{}); ; {
		page, err := c.Passwords(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, p := range page.Passwords {
			list = append(list, ingress.Password{Route: schema.ID(p.Route), User: p.User, Hash: p.Hash})
		}
		if req.After = page.Last; page.Last == "" {
			return list, nil
		}
	}
}

// localDomains returns the domains under which apps answer without a route.
func localDomains(cfg *config.Config) []string {
	if len(cfg.Ingress.LocalDomains) == 0 {
		return []string{ingress.DefaultLocalDomain}
	}
	return cfg.Ingress.LocalDomains
}

// off maps the configuration's 0, which means "not at all", to a negative
// value: the ingress takes 0 for its default.
func off(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
