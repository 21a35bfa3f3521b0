package sshserver

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

const (
	// maxChannels bounds the sessions and forwarded connections of a connection.
	maxChannels = 128
	// keepAlive is the time between two questions whether the client is there. One
	// that does not answer maxMissed of them is gone.
	keepAlive = 30 * time.Second
	maxMissed = 4
	// refusalTime is how long a client whose log-in failed has to ask why.
	refusalTime = 10 * time.Second
)

// conn is the connection of one client.
type conn struct {
	s      *Server
	ssh    *ssh.ServerConn
	login  login
	keys   hostKeys
	logger *slog.Logger

	rpc      *rpc.Client
	sandbox  id.Sandbox
	refused  error // why the client may not use the sandbox
	channels atomic.Int64
	pushed   atomic.Bool // a push has begun

	listeners []*listener // used by take only
	wg        sync.WaitGroup
}

func newConn(s *Server, sc *ssh.ServerConn, l login, keys hostKeys, log *slog.Logger) *conn {
	return &conn{s: s, ssh: sc, login: l, keys: keys, logger: log}
}

// run serves the connection until it ends.
func (c *conn) run(ctx context.Context, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	ctx, cancel := context.WithCancel(ctx)
	defer c.wg.Wait()
	defer c.ssh.Close()
	c.keys.announce(c.ssh)
	c.rpc = c.s.cfg.Dial(c.login.identity, c.ssh.RemoteAddr())
	defer c.rpc.Close()
	if c.ssh.User() == GitUser {
		c.awaitPush()
	} else if st, err := c.open(ctx); err != nil {
		c.refused = err
		time.AfterFunc(refusalTime, func() { _ = c.ssh.Close() })
	} else {
		defer st.Close()
		c.wg.Go(func() {
			if _, err := st.Recv(); ctx.Err() == nil {
				c.logger.Info("ssh connection is ended by the server", "error", err)
			}
			_ = c.ssh.Close()
		})
	}
	defer cancel()
	c.wg.Go(func() { c.keepAlive(ctx) })
	c.take(ctx, channels, requests)
}

// take serves channels and requests until the connection ends. Requests that came
// before a channel are answered before it is served: where the client wants a port
// of the sandbox (ssh -R), its command finds it.
func (c *conn) take(ctx context.Context, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	for {
		select {
		case r, more := <-requests:
			if !more {
				requests = nil
				continue
			}
			c.answer(ctx, r)
		case ch, more := <-channels:
			if !more {
				return
			}
			for range len(requests) {
				c.answer(ctx, <-requests)
			}
			c.begin(ctx, ch)
		}
	}
}

// begin serves a channel beside the others.
func (c *conn) begin(ctx context.Context, ch ssh.NewChannel) {
	if c.channels.Load() >= maxChannels {
		_ = ch.Reject(ssh.ResourceShortage, "too many channels")
		return
	}
	c.channels.Add(1)
	c.wg.Go(func() {
		defer c.channels.Add(-1)
		c.serve(ctx, ch)
	})
}

// answer answers a request of the connection. The client's own keep-alive gets a
// refusal, which is an answer.
func (c *conn) answer(ctx context.Context, r *ssh.Request) {
	var answer []byte
	ok := false
	switch {
	case r.Type == proveKeysRequest && r.WantReply:
		answer = c.keys.prove(c.ssh.SessionID(), r.Payload)
		ok = answer != nil
	case r.Type == "tcpip-forward":
		answer, ok = c.listen(ctx, r.Payload)
	case r.Type == "cancel-tcpip-forward":
		ok = c.unlisten(r.Payload)
	}
	if r.WantReply {
		_ = r.Reply(ok, answer) // a connection that is lost has no more of them
	}
}

func (c *conn) serve(ctx context.Context, ch ssh.NewChannel) {
	switch ch.ChannelType() {
	case "session":
		c.session(ctx, ch)
	case "direct-tcpip":
		c.forward(ctx, ch)
	default:
		_ = ch.Reject(ssh.UnknownChannelType, "not supported")
	}
}

// keepAlive ends the connection when its client does not answer any more.
func (c *conn) keepAlive(ctx context.Context) {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	answers := make(chan struct{}, 1)
	asked, missed := false, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-answers:
			asked, missed = false, 0
		case <-tick.C:
			if !asked {
				asked = true
				c.wg.Go(func() {
					if _, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil); err == nil {
						answers <- struct{}{}
					}
				})
				continue
			}
			if missed++; missed >= maxMissed {
				c.logger.Info("ssh client does not answer")
				_ = c.ssh.Close()
				return
			}
		}
	}
}

// open finds the sandbox, and begins the call that lasts as long as the
// connection. Its errors do not tell whether a sandbox exists that the client may
// not use.
func (c *conn) open(ctx context.Context) (rpc.ClientStream[rpc.None, server.SSHConnection], error) {
	st, err := c.find(ctx, c.ssh.User())
	if err == nil {
		c.logger.Info("ssh connection", "sandbox", c.sandbox, "how", c.login.identity.How)
		return st, nil
	}
	switch errs.ClassOf(err) {
	case errs.NotFound, errs.PermissionDenied, errs.InvalidArgument:
		c.logger.Info("ssh connection refused", "error", err)
		err = errs.New(errs.NotFound, "there is no sandbox %q that this key may use", c.ssh.User())
	case errs.Unauthenticated:
		err = errs.New(errs.Unauthenticated, "the key is not valid any more")
	default:
		c.logger.Warn("ssh connection failed", "error", err)
	}
	return nil, err
}

// find opens the connection of the sandbox that a user name means: an id, a
// name, or project/name.
func (c *conn) find(ctx context.Context, user string) (rpc.ClientStream[rpc.None, server.SSHConnection], error) {
	project, name, ok := strings.Cut(user, "/")
	if !ok {
		project, name = c.login.project, user
		if strings.HasPrefix(name, sandbox.SandboxKind.Prefix+"-") {
			st, err := connect(ctx, c.rpc, id.Sandbox(name))
			if err == nil || !errs.Is(err, errs.NotFound) && !errs.Is(err, errs.InvalidArgument) {
				c.sandbox = id.Sandbox(name)
				return st, err
			}
		}
	}
	if project == "" {
		project = projects.Default
	}
	store := remote.New(c.rpc)
	p, err := entity.ByName[core.Project](ctx, store, "", project)
	if err != nil {
		return nil, err
	}
	sb, err := entity.ByName[sandbox.Sandbox](ctx, store, p.ID, name)
	if err != nil {
		return nil, err
	}
	c.sandbox = sb.GetID()
	return connect(ctx, c.rpc, c.sandbox)
}

// connect makes the call that lasts as long as a connection.
func connect(ctx context.Context, cl *rpc.Client, sid id.Sandbox) (rpc.ClientStream[rpc.None, server.SSHConnection], error) {
	st, err := server.NewSSHClient(cl).Connect(ctx, &server.SSHConnectRequest{Sandbox: sid})
	if err != nil {
		return nil, err
	}
	if _, err := st.Recv(); err != nil {
		_ = st.Close()
		return nil, err
	}
	return st, nil
}
