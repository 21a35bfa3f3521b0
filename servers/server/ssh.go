package server

import (
	"cmp"
	"context"
	"net"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/sshkeys"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
	sshserver "miren.dev/runtime/servers/ssh"
)

// defaultSSHLife is how long a client can log in with a certificate by default.
const defaultSSHLife = 10 * time.Minute

// followSSHKeys keeps the permitted SSH keys in memory, and ends the connections
// of those that are deleted.
func (f *front) followSSHKeys() {
	informer.Of[core.SSHKey](f.c.informers).Handle(func(ch informer.Change[*core.SSHKey]) {
		if ch.New == nil {
			f.sshKeys.Remove(ch.Old.ID)
			f.rpc.Recheck()
		} else if f.sshKeys.Put(ch.New) {
			f.rpc.Recheck()
		}
	})
}

// followHostKeys makes the gateway use the host keys that another server set.
func (f *front) followHostKeys() {
	informer.Of[core.SSHHost](f.c.informers).Handle(func(ch informer.Change[*core.SSHHost]) {
		if ch.New == nil {
			return // the gateway goes on with those that it has
		}
		if err := f.setHostKeys(ch.New); err != nil {
			f.c.logger.Error("host keys of the SSH gateway cannot be used", "error", err)
		}
	})
}

// serveSSH serves SSH clients until ctx ends.
func (f *front) serveSSH(ctx context.Context) error {
	l, err := net.Listen("tcp", f.c.cfg.SSH.Address)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "ssh.address: %w", err)
	}
	defer l.Close()
	// No key is accepted until the keys and revocations are known.
	if err := f.c.informers.WaitSynced(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	return f.acceptSSH(ctx, l)
}

// acceptSSH serves SSH clients of a listener until ctx ends.
func (f *front) acceptSSH(ctx context.Context, l net.Listener) error {
	k, err := f.hostKeys().Ensure(ctx)
	if err != nil {
		return err
	}
	if err := f.setHostKeys(k); err != nil {
		return err
	}
	bound := l.Addr().String()
	f.sshAddress.Store(&bound)
	return sshserver.New(sshserver.Config{
		Authority: f.sshPrivate, Key: f.sshKeys.Find, Refuse: f.refuse, Dial: f.rpc.LocalFor, Logger: f.c.logger.With("component", "ssh"),
	}).Serve(ctx, l)
}

func (f *front) hostKeys() *sshkeys.HostKeys {
	return &sshkeys.HostKeys{Store: f.c.store, Sealer: f.c.sealer}
}

// setHostKeys makes the gateway use host keys, unless it has later ones.
func (f *front) setHostKeys(k *core.SSHHost) error {
	current, next, err := f.hostKeys().Signers(k)
	if err != nil {
		return err
	}
	f.sshHost.Lock()
	defer f.sshHost.Unlock()
	if k.Revision > f.sshHost.revision {
		f.sshHost.revision = k.Revision
		f.sshPrivate.SetHostKeys(current, next)
	}
	return nil
}

// sshHandler serves server.SSH.
type sshHandler struct{ f *front }

func (h *sshHandler) service() *sshkeys.Service { return &sshkeys.Service{Store: h.f.c.store} }

// AddKey permits a key.
func (h *sshHandler) AddKey(ctx context.Context, req *server.AddSSHKeyRequest) (*server.SSHKeyResponse, error) {
	for _, r := range req.Roles {
		if err := h.f.checkRole(ctx, r); err != nil {
			return nil, err
		}
	}
	if _, err := projects.Find(ctx, h.f.c.store, req.Project); err != nil {
		return nil, err
	}
	life := sshkeys.DefaultLife
	if req.TTL != nil {
		life = *req.TTL
	}
	k, err := h.service().Add(ctx, sshkeys.AddRequest{
		Identity: req.Name, PublicKey: req.PublicKey, Project: req.Project, Roles: req.Roles, By: rpc.IdentityFrom(ctx).Name, Life: life,
	})
	if err != nil {
		return nil, err
	}
	h.f.sshKeys.Put(k)
	return keyResponse(k)
}

// DeleteKey refuses a key. When it returns, this server refuses it; other servers
// of the store learn of it by their watch.
func (h *sshHandler) DeleteKey(ctx context.Context, req *server.DeleteSSHKeyRequest) (*server.SSHKeyResponse, error) {
	k, err := h.service().Delete(ctx, req.Key)
	if err != nil {
		return nil, err
	}
	h.f.sshKeys.Remove(k.ID)
	h.f.rpc.Recheck()
	return keyResponse(k)
}

func keyResponse(k *core.SSHKey) (*server.SSHKeyResponse, error) {
	rec, err := k.EntityKind().Encode(k)
	if err != nil {
		return nil, err
	}
	return &server.SSHKeyResponse{Key: *rec}, nil
}

// IssueCertificate makes a certificate for one sandbox, with the identity of the
// caller.
func (h *sshHandler) IssueCertificate(ctx context.Context, req *server.IssueSSHCertificateRequest) (*server.IssueSSHCertificateResponse, error) {
	if _, err := entity.Get[sandbox.Sandbox](ctx, h.f.c.store, req.Sandbox); err != nil {
		return nil, err
	}
	return h.issue(ctx, req.PublicKey, string(req.Sandbox), req.TTL)
}

// IssuePushCertificate makes a certificate for git push, with the identity of the
// caller.
func (h *sshHandler) IssuePushCertificate(ctx context.Context, req *server.IssuePushCertificateRequest) (*server.IssueSSHCertificateResponse, error) {
	return h.issue(ctx, req.PublicKey, sshserver.GitUser, req.TTL)
}

// issue makes a certificate for a user name.
func (h *sshHandler) issue(ctx context.Context, publicKey, user string, ttl *time.Duration) (*server.IssueSSHCertificateResponse, error) {
	address := h.f.sshAddress.Load()
	if address == nil {
		return nil, errs.New(errs.FailedPrecondition, "the server does not listen for SSH clients").WithHint("start it with --ssh-address HOST:PORT")
	}
	key, err := sshkeys.Parse(publicKey)
	if err != nil {
		return nil, err
	}
	cert, end, err := h.f.sshPrivate.Issue(key, user, rpc.IdentityFrom(ctx), cmp.Or(opt.Value(ttl), defaultSSHLife))
	if err != nil {
		return nil, err
	}
	return &server.IssueSSHCertificateResponse{
		Certificate: cert, ExpiresAt: end, HostKeys: h.f.sshPrivate.HostKeys(), Address: *address, Instance: h.f.c.m.in.ID,
	}, nil
}

// RotateHostKey makes the next host key the current one. Connections that are
// open go on.
func (h *sshHandler) RotateHostKey(ctx context.Context) (*server.SSHHostResponse, error) {
	k, err := h.f.hostKeys().Rotate(ctx)
	if err != nil {
		return nil, err
	}
	if err := h.f.setHostKeys(k); err != nil {
		return nil, err
	}
	rec, err := k.EntityKind().Encode(k)
	if err != nil {
		return nil, err
	}
	return &server.SSHHostResponse{Host: *rec}, nil
}

// Connect permits a connection of an SSH client until the call ends.
func (h *sshHandler) Connect(ctx context.Context, req *server.SSHConnectRequest, st rpc.ServerStream[rpc.None, server.SSHConnection]) error {
	if _, err := entity.Get[sandbox.Sandbox](ctx, h.f.c.store, req.Sandbox); err != nil {
		return err
	}
	if err := st.Send(&server.SSHConnection{At: time.Now()}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
