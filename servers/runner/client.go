package runner

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/runner"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/identity"
)

const (
	// firstRetry and lastRetry bound the pause before a lost connection is made
	// again. A connection that lasted for lastRetry begins anew with the first.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 15 * time.Second
	// renewCheck is the time between two checks of the certificate.
	renewCheck = time.Hour
)

// Files of the state directory of a runner, of mode 0600. The certificate is
// written last: with it the machine is a runner.
const (
	keyFile         = "client.key"
	caFile          = "ca.pem"
	describeFile    = "runner.json"
	certificateFile = "client.pem"
)

// Description says of which server a machine is a runner.
type Description struct {
	Server string  `json:"server"` // host:port
	Node   id.Node `json:"node"`
	Name   string  `json:"name"` // of the node
}

// Client is a runner's side of the connection. It is safe for concurrent use.
type Client struct {
	Description
	dir         string
	logger      *slog.Logger
	rpc         *rpc.Client
	gateway     runner.GatewayClient
	peers       chan struct{} // has a value for each connection of Peer
	certificate atomic.Pointer[tls.Certificate]
}

// Secret returns the secret of a token with the authority that the runner must
// find, as it is shown to users.
func Secret(token, fingerprint string) string { return token + "_" + fingerprint }

// Joined reports whether the machine with a state directory is a runner.
func Joined(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, certificateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, errs.New(errs.Unavailable, "state of the runner: %w", err)
	}
	return true, nil
}

// Join makes this machine a runner of a server. The connection with which the
// authority is asked for proves nothing; the token says which authority is right,
// and is sent only to a server that it has certified.
func Join(ctx context.Context, dir, server, token, name string) error {
	i := strings.LastIndexByte(token, '_')
	if i < 0 || len(token)-i-1 != 64 {
		return errs.New(errs.InvalidArgument, "this is no token of a runner").WithHint("make one on the server: r runner token create")
	}
	secret, fingerprint := token[:i], token[i+1:]
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return errs.New(errs.FailedPrecondition, "create %s: %w", dir, err)
	}
	ca, err := authority(ctx, server, fingerprint)
	if err != nil {
		return err
	}
	key, err := ownKey(dir)
	if err != nil {
		return err
	}
	csr, err := identity.RequestFor(key)
	if err != nil {
		return err
	}
	conf, err := identity.ClientTLS(ca, nil, nil, "")
	if err != nil {
		return err
	}
	cl, err := rpc.Dial(ctx, server, rpc.ClientOptions{TLS: conf})
	if err != nil {
		return err
	}
	defer cl.Close()
	req := &runner.JoinRequest{Token: secret, Name: name, Csr: string(csr), Arch: runtime.GOARCH}
	if err := req.Validate(); err != nil {
		return err
	}
	resp, err := runner.NewGatewayClient(cl).Join(rpc.WithIdempotent(ctx), req) // the same key: the server answers a repetition
	if err != nil {
		return err
	}
	describe, err := json.Marshal(Description{Server: server, Node: resp.Node, Name: name})
	if err != nil {
		return errs.New(errs.Internal, "describe the runner: %w", err)
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{caFile, ca}, {describeFile, describe}, {certificateFile, []byte(resp.Certificate)}} {
		if err := save(dir, f.name, f.data); err != nil {
			return err
		}
	}
	return nil
}

func save(dir, name string, data []byte) error {
	if err := atomicfile.Write(filepath.Join(dir, name), data, 0o600); err != nil {
		return errs.New(errs.Unavailable, "state of the runner: %w", err)
	}
	return nil
}

func read(dir, name string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return nil, errs.New(errs.Unavailable, "state of the runner: %w", err)
	}
	return b, nil
}

// ownKey returns the key of this machine, which it makes the first time: an
// attempt to join that is repeated must have the same.
func ownKey(dir string) ([]byte, error) {
	key, err := os.ReadFile(filepath.Join(dir, keyFile))
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	key, _, err = identity.NewRequest()
	if err != nil {
		return nil, err
	}
	return key, save(dir, keyFile, key)
}

// authority asks a server for its authority, which must have the fingerprint.
func authority(ctx context.Context, server, fingerprint string) ([]byte, error) {
	// Nothing is sent but the question, and the answer is checked.
	cl, err := rpc.Dial(ctx, server, rpc.ClientOptions{TLS: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}})
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	resp, err := runner.NewGatewayClient(cl).Authority(ctx)
	if errs.Is(err, errs.Unimplemented) {
		return nil, errs.New(errs.FailedPrecondition, "%s is not the address for runners", server).WithHint("it is runners.address of the server's configuration")
	}
	if err != nil {
		return nil, err
	}
	got, err := identity.Fingerprint([]byte(resp.CA))
	if err != nil {
		return nil, err
	}
	if got != fingerprint {
		return nil, errs.New(errs.Unauthenticated, "the server at %s is not the one that made the token", server).
			WithHint("check the address; another machine may answer there")
	}
	return []byte(resp.CA), nil
}

// Open returns the client of a machine that has joined.
func Open(dir string, log *slog.Logger) (*Client, error) {
	c := &Client{dir: dir, logger: log, peers: make(chan struct{}, maxPeers)}
	b, err := read(dir, describeFile)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &c.Description); err != nil {
		return nil, errs.New(errs.Corrupt, "%s: %w", filepath.Join(dir, describeFile), err)
	}
	ca, err := read(dir, caFile)
	if err != nil {
		return nil, err
	}
	if err := c.load(); err != nil {
		return nil, err
	}
	conf, err := identity.ClientTLS(ca, nil, nil, "")
	if err != nil {
		return nil, err
	}
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.certificate.Load(), nil }
	if c.rpc, err = rpc.NewClient(c.Server, rpc.ClientOptions{TLS: conf}); err != nil {
		return nil, err
	}
	c.gateway = runner.NewGatewayClient(c.rpc)
	return c, nil
}

// load reads the certificate.
func (c *Client) load() error {
	cert, err := read(c.dir, certificateFile)
	if err != nil {
		return err
	}
	key, err := read(c.dir, keyFile)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return errs.New(errs.Corrupt, "certificate of the runner in %s: %w", c.dir, err)
	}
	c.certificate.Store(&pair)
	return nil
}

// Close ends the connection.
func (c *Client) Close() { c.rpc.Close() }

// Run serves the server's calls, which come through the connection, with srv until
// ctx ends. It connects again whenever the connection is lost.
func (c *Client) Run(ctx context.Context, srv *rpc.Server) error {
	delay := firstRetry
	for {
		began := time.Now()
		err := c.serve(ctx, srv)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > lastRetry {
			delay = firstRetry
		}
		wait := time.Duration(float64(delay) * (0.5 + rand.Float64()))
		if errs.Is(err, errs.Unauthenticated) {
			// It may have been deleted, which its server says and nobody else; what runs here goes on.
			wait = lastRetry
			c.logger.Error("the server refuses this runner", "server", c.Server, "error", err)
		} else {
			c.logger.Warn("the connection to the server has ended", "server", c.Server, "error", err, "retry_in", wait)
		}
		delay = min(2*delay, lastRetry)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// serve serves one connection.
func (c *Client) serve(ctx context.Context, srv *rpc.Server) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := c.gateway.Connect(ctx)
	if err != nil {
		return err
	}
	err = srv.ServeConn(rpc.NewTunnel(st.Reader(), st.Writer(), cancel), rpc.Identity{Name: "server", Roles: []string{rpc.RoleAdmin}, How: "tunnel"})
	if _, rerr := st.Recv(); err == nil {
		err = rerr // why the call ended
	}
	return err
}

// Renew keeps the certificate valid until ctx ends.
func (c *Client) Renew(ctx context.Context) error {
	t := time.NewTicker(renewCheck)
	defer t.Stop()
	for {
		if left := time.Until(c.certificate.Load().Leaf.NotAfter); left < renewBefore {
			if err := c.renew(ctx); err != nil && ctx.Err() == nil {
				c.logger.Error("renew the certificate of this runner", "valid_for", left, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func (c *Client) renew(ctx context.Context) error {
	key, err := read(c.dir, keyFile)
	if err != nil {
		return err
	}
	csr, err := identity.RequestFor(key)
	if err != nil {
		return err
	}
	resp, err := c.gateway.Renew(ctx, &runner.RenewRequest{Csr: string(csr)})
	if err != nil {
		return err
	}
	block, _ := pem.Decode([]byte(resp.Certificate))
	if block == nil {
		return errs.New(errs.Unavailable, "the server sent no certificate")
	}
	if _, err := x509.ParseCertificate(block.Bytes); err != nil {
		return errs.New(errs.Unavailable, "the server's certificate for this runner: %w", err)
	}
	if err := save(c.dir, certificateFile, []byte(resp.Certificate)); err != nil {
		return err
	}
	c.logger.Info("certificate of this runner renewed", "valid_until", resp.ExpiresAt)
	return c.load()
}
