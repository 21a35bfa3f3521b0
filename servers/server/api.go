package server

import (
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"strings"

	"miren.dev/runtime/domain/trust"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/servers/api"
	"miren.dev/runtime/servers/dashboard"
	"miren.dev/runtime/servers/rest"
	"miren.dev/runtime/servers/workspace"
)

// newAPI returns the HTTP API with every face.
func (f *front) newAPI(cert *tls.Config) (*api.Server, error) {
	cfg := api.Config{
		Authenticate: f.authenticate, Local: f.rpc.Local, Ready: f.ready, Logger: f.c.logger.With("component", "http api"),
		Rate: f.c.cfg.API.Rate, Burst: f.c.cfg.API.Burst, RateOf: f.keys.Rate, Metrics: f.c.metrics,
		Traces: f.c.traces,
	}
	if f.c.cfg.API.TLS {
		cfg.TLS = cert
	}
	s := api.New(cfg)
	face := rest.Mount(s)
	s.MountRPC(f.rpc.Adopt)
	workspace.Mount(s, f.c.workspace, f.c.logger.With("component", "workspace"))
	return s, f.mountDashboard(s, face, cfg.TLS != nil)
}

// mountDashboard adds the dashboard to the HTTP API.
func (f *front) mountDashboard(s *api.Server, face http.Handler, tls bool) error {
	d := f.c.cfg.Dashboard
	cfg := dashboard.Config{
		Key: f.tokenKey, Secure: tls || strings.HasPrefix(d.URL, "https://"), REST: face, Logger: f.c.logger.With("component", "dashboard"),
	}
	if d.OidcIssuer == "" {
		return dashboard.Mount(s, cfg)
	}
	if d.OidcClientID == "" || f.trust.Path() == "" {
		return errs.New(errs.FailedPrecondition, "dashboard.oidc_issuer: people who log in at %s get no roles", d.OidcIssuer).
			WithHint("set dashboard.oidc_client_id, and a rule in the file api.trust_file (docs/dashboard.md)")
	}
	cfg.OIDC = &dashboard.OIDC{Rules: f.trust, URL: d.URL, Client: trust.Client{
		Issuer: d.OidcIssuer, ID: d.OidcClientID, Scopes: append([]string{"openid", "email"}, d.OidcScopes...),
	}}
	if d.OidcSecretFile != "" {
		b, err := os.ReadFile(d.OidcSecretFile)
		if err != nil {
			return errs.New(errs.FailedPrecondition, "dashboard.oidc_secret_file: %w", err)
		}
		cfg.OIDC.Client.Secret = strings.TrimSpace(string(b))
	}
	return dashboard.Mount(s, cfg)
}

// ready returns why the server cannot do its work now.
func (f *front) ready() error {
	st := f.c.informers.Status()
	if !st.Synced {
		return errs.New(errs.Unavailable, "the server has not read its store yet")
	}
	return st.Err
}

// listenAPI opens the listener of the HTTP API; nil if none is configured.
func (f *front) listenAPI() (net.Listener, error) {
	a := f.c.cfg.API.Address
	if a == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", a)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "api.address: %w", err).WithHint("choose another address (--api-address)")
	}
	bound := l.Addr().String()
	f.apiAddress.Store(&bound)
	if host, _, err := net.SplitHostPort(bound); err == nil && !f.c.cfg.API.TLS && !net.ParseIP(host).IsLoopback() {
		f.c.logger.Warn("the HTTP API listens on the network without TLS: keys can be read on the way", "address", bound)
	}
	return l, nil
}
