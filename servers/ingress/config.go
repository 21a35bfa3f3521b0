package ingress

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// DefaultLocalDomain is the domain under which apps answer if none is configured.
const DefaultLocalDomain = "localhost"

// Config of an Ingress. Zero values mean the defaults.
type Config struct {
	Addrs        []string // where to listen for HTTP; default 127.0.0.1:8080
	LocalDomains []string // <app>.<domain> leads to the app without a route, <port>-<sandbox>.<domain> to a preview; default localhost

	// HTTPSAddrs is where to listen for HTTPS; default nowhere.
	HTTPSAddrs []string
	// Certificates returns all certificates with their keys. Nil: only those in
	// CertificateFile.
	Certificates    func(ctx context.Context) ([]Certificate, error)
	CertificateFile string // where the last certificates are kept; empty: nowhere
	// Passwords returns the users of routes. Nil: only those in PasswordFile.
	Passwords    func(ctx context.Context) ([]Password, error)
	PasswordFile string // where the last passwords are kept; empty: nowhere

	TCPPorts routes.Ports // that routes of TCP may have; default none

	// OIDCNetworks are networks that the providers of logins may be in although they
	// are not public.
	OIDCNetworks []netip.Prefix

	NoRedirect bool // hosts with a certificate answer by HTTP too

	NoHTTP3   bool   // the UDP ports of HTTPSAddrs are not used
	HTTP3File string // where the secret is kept by which clients of a killed process learn that it is gone; empty: nowhere

	Reader entity.Reader // the store; nil: only the table on disk
	// Node is the node of this ingress. Only the addresses of its sandboxes are used: nodes choose
	// their subnets by themselves, so the same address may be another sandbox elsewhere. Empty: only
	// sandboxes without a node are reached.
	Node id.Node
	// Wake resumes the sandbox of a preview, if it is paused, and returns without
	// waiting for that. Nil: requests for paused sandboxes fail.
	Wake func(ctx context.Context, preview schema.ID) error
	// Dial connects to a port of the sandbox of a preview that does not listen on
	// its network address. FailedPrecondition if no process listens. Nil: only
	// network addresses are reached.
	Dial func(ctx context.Context, preview schema.ID, port int) (net.Conn, error)

	// DialService connects to the port of a sandbox of an app that is on a runner, through the server.
	// Nil: sandboxes on runners are not reached.
	DialService func(ctx context.Context, sandbox schema.ID, port int) (net.Conn, error)

	TableFile   string // where the last table is kept; empty: nowhere
	AdminSocket string // unix socket of the admin interface; empty: none
	// TakeOver is the admin socket of the ingress whose listening sockets this one
	// takes, if a process answers there. Empty: it takes none.
	TakeOver string

	HoldTimeout  time.Duration // how long a request waits for a sandbox; default 30 s; negative: not at all
	HoldLimit    int           // how many requests of one app, or of the previews of one sandbox, may wait; default 1000
	DrainTimeout time.Duration // how long requests may continue after the stop, or once a successor serves; default 30 s; negative: not at all

	MaxConnections        int           // connections of clients; default half of the files this process may open
	MaxHeaderBytes        int           // of a request's head; default 64 KiB
	MaxBodyBytes          int64         // of a request's body; default 1 GiB; negative: unlimited
	ReadHeaderTimeout     time.Duration // default 10 s
	IdleTimeout           time.Duration // how long a client's connection may be idle; default 2 min
	DialTimeout           time.Duration // for a connection to a sandbox; default 2 s
	ResponseHeaderTimeout time.Duration // until a sandbox begins to answer; default 10 min; negative: unlimited

	// BodyTimeout is how long the body of a request or an answer may make no
	// progress, whichever side is the cause; default 2 min; negative: unlimited.
	// Only the client must make progress on an event stream or gRPC.
	BodyTimeout time.Duration

	// TrustedProxies are peers whose X-Forwarded-* and Forwarded headers are
	// believed and extended. The ingress replaces these headers of all other
	// peers.
	TrustedProxies []netip.Prefix
	// ProxyProtocol has the connections of TrustedProxies begin with a PROXY header
	// (version 1 or 2), which names their client. It needs TrustedProxies.
	ProxyProtocol bool

	Logger     *slog.Logger
	AccessLog  io.Writer             // one line of JSON per request; nil: none. A write may take its time: requests do not wait for it
	LogQuery   bool                  // the access log has the values of queries; otherwise only their names
	Registerer prometheus.Registerer // nil: no metrics
	Gatherer   prometheus.Gatherer   // what the admin interface serves as /metrics; nil: nothing
}

func (c Config) withDefaults() (Config, error) {
	if len(c.Addrs) == 0 {
		c.Addrs = []string{"127.0.0.1:8080"}
	}
	if c.LocalDomains == nil {
		c.LocalDomains = []string{DefaultLocalDomain}
	}
	var local []string
	for _, d := range c.LocalDomains {
		d = strings.ToLower(strings.Trim(d, "."))
		if d == "" || strings.ContainsAny(d, "/: *") {
			return c, errs.New(errs.InvalidArgument, "local domain %q is not a domain", d)
		}
		local = append(local, "."+d)
	}
	c.LocalDomains = local
	if c.ProxyProtocol && len(c.TrustedProxies) == 0 {
		return c, errs.New(errs.InvalidArgument, "ingress.proxy_protocol is set, but ingress.trusted_proxies names no proxy").
			WithHint("set ingress.trusted_proxies to the networks of the proxies that send the header")
	}
	setDuration(&c.HoldTimeout, 30*time.Second)
	setDuration(&c.DrainTimeout, 30*time.Second)
	setDuration(&c.ReadHeaderTimeout, 10*time.Second)
	setDuration(&c.IdleTimeout, 2*time.Minute)
	setDuration(&c.DialTimeout, 2*time.Second)
	setDuration(&c.ResponseHeaderTimeout, 10*time.Minute)
	setDuration(&c.BodyTimeout, 2*time.Minute)
	if c.HoldLimit <= 0 {
		c.HoldLimit = 1000
	}
	if c.MaxConnections <= 0 {
		c.MaxConnections = 10_000
		var files unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur < 1<<40 {
			c.MaxConnections = max(int(files.Cur/2), 100) // each client may need one more file for a sandbox
		}
	}
	if c.MaxHeaderBytes <= 0 {
		c.MaxHeaderBytes = 64 << 10
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = 1 << 30
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func setDuration(d *time.Duration, def time.Duration) {
	if *d == 0 {
		*d = def
	}
}
