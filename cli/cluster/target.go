// Package cluster finds the server that a command talks to: the client
// configuration with its clusters and identities, and the connection.
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
//
// Paths are relative to the file, which is ~/.config/runtime/clientconfig.yaml.
//
// In this order: --server or RUNTIME_SERVER; --cluster or RUNTIME_CLUSTER;
// --state-dir or RUNTIME_STATE_DIR, a server of this machine; the current
// cluster of the configuration; the server of this machine with the default
// state directory. A server of this machine is reached by its unix socket,
// <run dir>/<instance id>/server.sock.
package cluster

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/suggest"
)

// Options say which server is meant; empty fields are not given.
type Options struct {
	Server   string
	Cluster  string
	StateDir string
	RunDir   string
}

// Env fills what is not given from the environment. A flag outranks the
// environment, also that of another option.
func (o Options) Env() Options {
	if o.Server == "" && o.Cluster == "" && o.StateDir == "" {
		o.Server, o.Cluster, o.StateDir = os.Getenv("RUNTIME_SERVER"), os.Getenv("RUNTIME_CLUSTER"), os.Getenv("RUNTIME_STATE_DIR")
	}
	o.RunDir = cmp.Or(o.RunDir, os.Getenv("RUNTIME_RUN_DIR"))
	return o
}

// Target is where a server is.
type Target struct {
	Address string      // unix:///path or host:port
	TLS     *tls.Config // nil for a unix socket
	// Source says in words where this comes from.
	Source  string
	Project string // default project of the cluster
	Local   bool   // a server of this machine, found by its state directory
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
	t, err := cfg.target(name)
	if err != nil || o.Server == "" {
		return t, err
	}
	// Both: the cluster's identity at another address.
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
	state := cmp.Or(o.StateDir, instance.DefaultStateDir)
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
	sock := filepath.Join(cmp.Or(o.RunDir, instance.DefaultRunDir), strings.TrimSpace(string(id)), "server.sock")
	return &Target{Address: "unix://" + sock, Source: state, Local: true}, nil
}

// NotRunning is the error for a machine without a server.
func NotRunning(state string) error {
	hint := "start one with `r server start`"
	if state != instance.DefaultStateDir {
		hint = "start one with `r server start --state-dir " + state + "`"
	}
	return errs.New(errs.Unavailable, "no server is running for %s", state).With("state_dir", state).
		WithHint("%s, or name one with --server or --cluster", hint)
}

// target returns where the named cluster is.
func (c *Config) target(name string) (*Target, error) {
	cl := c.Clusters[name]
	if cl == nil {
		known := slices.Sorted(maps.Keys(c.Clusters))
		err := errs.New(errs.NotFound, "%s has no cluster %q", c.path, name)
		switch s := suggest.Nearest(name, known); {
		case s != "":
			return nil, err.WithHint("did you mean %q?", s)
		case len(known) > 0:
			return nil, err.WithHint("it has: %s", strings.Join(known, ", "))
		}
		return nil, err.WithHint("add one with `r auth generate`")
	}
	t, err := address(cl.Server, "cluster "+name)
	if err != nil {
		return nil, errs.Wrap(err, "%s: cluster %s", c.path, name)
	}
	t.Project = cl.Project
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
			return nil, errs.New(errs.InvalidArgument, "%s: the ca of cluster %s holds no certificate in PEM", c.path, name)
		}
	}
	if id := c.Identities[cl.Identity]; id != nil {
		cert, err := c.certificate(cl.Identity, id)
		if err != nil {
			return nil, err
		}
		t.TLS.Certificates = []tls.Certificate{cert}
	}
	return t, nil
}

func (c *Config) certificate(name string, id *Identity) (tls.Certificate, error) {
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
