// Package sshserver is the SSH gateway to sandboxes: `ssh SANDBOX@HOST` gives a
// shell in a sandbox, or runs a command in it. `git push ssh://git@HOST/APP.git`
// deploys an app.
//
// The gateway authenticates its client by a registered public key, or by a
// certificate of the installation, and is then a client of the server's RPC with
// the identity that the key stands for. Permissions, projects, limits and the
// audit therefore hold as for every other caller. Each SSH connection has an RPC
// connection, and on it the call server.SSH/Connect, which lasts as long: when
// the server ends that call, because the key was deleted, revoked or has
// expired, the SSH connection ends too.
//
// A client without a valid key learns nothing of sandboxes: the gateway looks for
// the sandbox after the authentication.
package sshserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

const (
	// maxConns bounds the connections after their log-in, maxPerHolder those of
	// one identity.
	maxConns, maxPerHolder = 512, 128
	// maxHandshakes bounds the connections before their log-in. A further one
	// closes the oldest: silent clients cannot keep others out.
	maxHandshakes    = 64
	handshakeTimeout = 30 * time.Second
	maxAuthTries     = 6 // keys that a client may offer; an agent can have several
	// writeTimeout ends a connection whose client reads nothing for this long.
	writeTimeout = time.Minute
)

// Config configures a server. Every field is required.
type Config struct {
	Authority *Authority
	// Key returns the registered key with a fingerprint; an error if there is none
	// that is valid.
	Key func(fingerprint string) (*core.SSHKey, error)
	// Refuse returns an error for an identity that has no access any more.
	Refuse func(rpc.Identity) error
	// Dial returns a client of the server's RPC with an identity, for a peer at
	// an address. The zero identity is anonymous.
	Dial   func(id rpc.Identity, from net.Addr) *rpc.Client
	Logger *slog.Logger
}

// Server is the gateway.
type Server struct {
	cfg Config
	ssh *ssh.ServerConfig

	mu         sync.Mutex
	handshakes []net.Conn // oldest first
	conns      map[net.Conn]string
	perHolder  map[string]int
	wg         sync.WaitGroup
}

// New makes a server.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, conns: map[net.Conn]string{}, perHolder: map[string]int{}}
	secure := ssh.SupportedAlgorithms() // those without known weaknesses
	s.ssh = &ssh.ServerConfig{
		Config:                  ssh.Config{KeyExchanges: secure.KeyExchanges, Ciphers: secure.Ciphers, MACs: secure.MACs},
		PublicKeyAuthAlgorithms: secure.PublicKeyAuths,
		MaxAuthTries:            maxAuthTries,
		ServerVersion:           "SSH-2.0-runtime",
	}
	return s
}

// login is what the authentication found out.
type login struct {
	identity rpc.Identity
	project  string // in which names of sandboxes are looked up
}

type loginKey struct{}

// authenticate returns the identity of a key that a client offers.
func (s *Server) authenticate(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	var l login
	if cert, ok := key.(*ssh.Certificate); ok {
		id, err := s.cfg.Authority.identity(cert, meta.User())
		if err != nil {
			return nil, err
		}
		l.identity = id
	} else {
		k, err := s.cfg.Key(ssh.FingerprintSHA256(key))
		if err != nil {
			return nil, err
		}
		l.identity = rpc.Identity{Name: k.Spec.Identity, Roles: k.Spec.Roles, How: HowKey, Serial: k.Spec.Fingerprint, Expires: k.Spec.ExpiresAt}
		l.project = k.Spec.Project
	}
	if err := s.cfg.Refuse(l.identity); err != nil {
		return nil, err
	}
	return &ssh.Permissions{ExtraData: map[any]any{loginKey{}: l}}, nil
}

// Serve accepts connections until ctx ends, and then ends them. The authority has
// its host keys.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer s.wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var delay time.Duration
	for {
		nc, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = nc.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return errs.New(errs.Unavailable, "ssh: accept on %s: %w", l.Addr(), err)
		case err != nil: // the process is out of files, or the connection died at once
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			s.cfg.Logger.Warn("ssh accept failed", "error", err, "retry_in", delay)
			select {
			case <-time.After(delay):
			case <-ctx.Done():
			}
			continue
		}
		delay = 0
		s.begin(nc)
		s.wg.Go(func() { s.serve(ctx, nc) })
	}
}

// begin counts a connection that is in its handshake.
func (s *Server) begin(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.handshakes) >= maxHandshakes {
		_ = s.handshakes[0].Close() // ends its handshake
		s.handshakes = s.handshakes[1:]
	}
	s.handshakes = append(s.handshakes, nc)
}

// admit counts a connection after its log-in, if there is room for it.
func (s *Server) admit(nc net.Conn, holder string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= maxConns || s.perHolder[holder] >= maxPerHolder {
		return false
	}
	s.conns[nc] = holder
	s.perHolder[holder]++
	return true
}

// greeted ends the count of a connection as one in its handshake.
func (s *Server) greeted(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range s.handshakes {
		if c == nc {
			s.handshakes = append(s.handshakes[:i], s.handshakes[i+1:]...)
			return
		}
	}
}

// leave ends the count of a connection.
func (s *Server) leave(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	holder, ok := s.conns[nc]
	if !ok {
		return
	}
	delete(s.conns, nc)
	if s.perHolder[holder]--; s.perHolder[holder] == 0 {
		delete(s.perHolder, holder)
	}
}

// serve serves one connection from handshake to end.
func (s *Server) serve(ctx context.Context, raw net.Conn) {
	defer raw.Close()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	log := s.cfg.Logger.With("peer", raw.RemoteAddr().String())
	defer func() {
		if p := recover(); p != nil {
			log.Error("ssh connection panicked", "panic", p)
		}
	}()
	refused := false
	cfg := *s.ssh
	cfg.PublicKeyCallback = func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		p, err := s.authenticate(meta, key)
		refused = err != nil
		return p, err
	}
	keys := s.cfg.Authority.hostKeys()
	cfg.AddHostKey(keys[0])
	timer := time.AfterFunc(handshakeTimeout, func() { _ = raw.Close() })
	sc, channels, requests, err := ssh.NewServerConn(writeDeadline{raw}, &cfg)
	timer.Stop()
	s.greeted(raw)
	if err != nil {
		log.Debug("ssh handshake failed", "error", err)
		if refused {
			s.recordRefused(ctx, raw.RemoteAddr())
		}
		return
	}
	l, ok := sc.Permissions.ExtraData[loginKey{}].(login)
	if !ok || !s.admit(raw, l.identity.How+l.identity.Name) {
		log.Warn("ssh connection refused: there are too many", "identity", l.identity.Name)
		return
	}
	defer s.leave(raw)
	newConn(s, sc, l, keys, log.With("identity", l.identity.Name, "user", sc.User())).run(ctx, channels, requests)
}

// recordRefused records an attempt to log in without a valid key: a call without
// identity is refused, and recorded, up to a rate.
func (s *Server) recordRefused(ctx context.Context, from net.Addr) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	cl := s.cfg.Dial(rpc.Identity{}, from)
	defer cl.Close()
	_, err := connect(ctx, cl, "")
	if !errs.Is(err, errs.Unauthenticated) {
		s.cfg.Logger.Warn("an SSH log-in that was refused could not be recorded", "peer", from.String(), "error", err)
	}
}

// writeDeadline is a connection whose writes fail when the peer reads nothing
// for writeTimeout.
type writeDeadline struct{ net.Conn }

func (c writeDeadline) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
