// Package clientconfig is the configuration of a client: the clusters that it
// knows, its identities, and which server a command talks to.
//
//	current_cluster: prod
//	clusters:
//	  prod:
//	    server: runtime.example.com:7443
//	    identity: alice
//	    ca_file: prod-ca.pem            # or ca: with the PEM text
//	identities:
//	  alice:
//	    certificate: |                  # or certificate_file
//	      -----BEGIN CERTIFICATE-----
//	    key_file: alice.key             # or key
//	  ci:
//	    api_key: e2b_...                # for a server https://host:port, its HTTP API
//
// Paths are relative to the file, which is ~/.config/runtime/clientconfig.yaml.
//
// The server of a command is the first of: --server or RUNTIME_SERVER; --cluster
// or RUNTIME_CLUSTER; --state-dir or RUNTIME_STATE_DIR, a server of this
// machine; the current cluster of the configuration; the server of this machine
// with the default state directory. Any of the flags outranks the environment.
// A server of this machine is reached by its unix socket,
// <run dir>/<instance id>/server.sock; only Linux has one.
package clientconfig

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc/upgrade"
)

// Options name the server of a command; an empty field was not given.
type Options struct {
	Server   string
	Cluster  string
	StateDir string
	RunDir   string
}

// Env fills empty fields from the environment. A flag outranks the environment,
// even for another option.
func (o Options) Env() Options {
	if o.Server == "" && o.Cluster == "" && o.StateDir == "" {
		o.Server, o.Cluster, o.StateDir = os.Getenv("RUNTIME_SERVER"), os.Getenv("RUNTIME_CLUSTER"), os.Getenv("RUNTIME_STATE_DIR")
	}
	o.RunDir = cmp.Or(o.RunDir, os.Getenv("RUNTIME_RUN_DIR"))
	return o
}

// Target is a server and how to reach it.
type Target struct {
	Address string      // unix:///path, host:port, or https://host:port (http: this machine) of an HTTP API
	TLS     *tls.Config // nil for a unix socket and http
	Key     string      // API key, for an HTTP API
	Source  string      // source of the choice: "--server", "cluster prod", a state directory
	Project string      // default project of the cluster
	Local   bool        // a server of this machine, found by its state directory
}

// Resolve finds the server. It does not connect.
func Resolve(o Options) (*Target, error) {
	if o.Server != "" && o.Cluster == "" {
		return address(o.Server, "--server")
	}
	if o.Cluster == "" && o.StateDir != "" {
		return local(o)
	}
	path, err := Path()
	if err != nil {
		if o.Cluster == "" {
			return local(o)
		}
		return nil, err
	}
	cfg, err := Load(path)
	if err != nil {
		return nil, err
	}
	name := cmp.Or(o.Cluster, cfg.CurrentCluster)
	if name == "" {
		return local(o)
	}
	t, err := cfg.Target(name)
	if err != nil || o.Server == "" {
		return t, err
	}
	// Both are given: use the cluster's identity at another address.
	a, err := address(o.Server, "--server")
	if err != nil {
		return nil, err
	}
	if t.Address = a.Address; a.TLS == nil {
		t.TLS = nil
	} else if t.TLS == nil {
		t.TLS = a.TLS
	}
	return t, nil
}

func address(s, source string) (*Target, error) {
	if path := strings.TrimPrefix(s, "unix://"); path != s || strings.HasPrefix(s, "/") {
		if !filepath.IsAbs(path) {
			return nil, errs.New(errs.InvalidArgument, "server %q: the path of the socket must be absolute", s)
		}
		return &Target{Address: "unix://" + path, Source: source}, nil
	}
	if scheme, _, ok := strings.Cut(s, "://"); ok && strings.HasPrefix(scheme, "http") {
		u, err := upgrade.ParseURL(s)
		if err != nil {
			return nil, err
		}
		t := &Target{Address: u.String(), Source: source}
		if u.Scheme == "https" {
			t.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.Hostname()}
		}
		return t, nil
	}
	s = strings.TrimPrefix(s, "tls://")
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || port == "" {
		return nil, errs.New(errs.InvalidArgument, "server %q is neither unix:///path nor host:port", s).
			WithHint("for example --server unix:///run/runtime/abcd1234/server.sock, or --server runtime.example.com:7443")
	}
	return &Target{Address: s, Source: source, TLS: &tls.Config{MinVersion: tls.VersionTLS13, ServerName: host}}, nil
}

// local finds the socket of this machine's server.
func local(o Options) (*Target, error) {
	if o.StateDir == "" && runtime.GOOS != "linux" {
		return nil, errs.New(errs.FailedPrecondition, "no server is named, and %s has none of its own", runtime.GOOS).
			WithHint("add one with `r cluster add NAME HOST:PORT --use`, or name one with --server or --cluster")
	}
	state := cmp.Or(o.StateDir, config.DefaultStateDir())
	if abs, err := filepath.Abs(state); err == nil {
		state = abs
	}
	id, err := os.ReadFile(filepath.Join(state, "instance-id"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, NotRunning(state)
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "read the identity of the server: %w", err)
	}
	sock := filepath.Join(cmp.Or(o.RunDir, config.DefaultRunDir()), strings.TrimSpace(string(id)), "server.sock")
	return &Target{Address: "unix://" + sock, Source: state, Local: true}, nil
}

// NotRunning is the error for a machine without a server.
func NotRunning(state string) error {
	start := "r server start"
	if state != config.DefaultStateDir() {
		start += " --state-dir " + state
	}
	return errs.New(errs.Unavailable, "no server is running for %s", state).With(detailState, state).
		WithHint("start one with `%s`, or name another with --server or --cluster (`r cluster add` adds one)", start)
}

// detailState names the state directory of a server that does not run.
const detailState = "state_dir"

// IsNotRunning reports whether err is one of NotRunning.
func IsNotRunning(err error) bool {
	return errs.Is(err, errs.Unavailable) && errs.Detail(err, detailState) != ""
}

// Target returns the server of a cluster. It does not connect.
func (c *Config) Target(name string) (*Target, error) {
	cl, err := c.Cluster(name)
	if err != nil {
		return nil, err
	}
	t, err := address(cl.Server, "cluster "+name)
	if err != nil {
		return nil, errs.Wrap(err, "%s: cluster %s", c.path, name)
	}
	t.Project = cl.Project
	if id := c.Identities[cl.Identity]; id != nil {
		t.Key = id.APIKey
	}
	if t.TLS == nil {
		return t, nil
	}
	if cl.ServerName != "" {
		t.TLS.ServerName = cl.ServerName
	}
	ca, err := c.pem(cl.CA, cl.CAFile)
	if err != nil {
		return nil, err
	}
	if len(ca) > 0 {
		t.TLS.RootCAs = x509.NewCertPool()
		if !t.TLS.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errs.New(errs.InvalidArgument, "%s: the ca of cluster %s contains no certificate in PEM", c.path, name).
				WithHint("give the certificate of the authority that signs the server's: `r auth generate` on the server prints it")
		}
	}
	if cl.Identity != "" && t.Key == "" {
		cert, err := c.Certificate(cl.Identity)
		if err != nil {
			return nil, err
		}
		t.TLS.Certificates = []tls.Certificate{cert}
	}
	return t, nil
}

// Certificate returns the certificate and key of an identity.
func (c *Config) Certificate(name string) (tls.Certificate, error) {
	id := c.Identities[name]
	if id == nil {
		return tls.Certificate{}, errs.New(errs.NotFound, "%s has no identity %q", c.path, name)
	}
	cert, err := c.pem(id.Certificate, id.CertificateFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := c.pem(id.Key, id.KeyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, errs.New(errs.InvalidArgument, "%s: identity %s: %w", c.path, name, err).
			WithHint("make a new one with `r auth generate --name %s`", name)
	}
	return pair, nil
}
