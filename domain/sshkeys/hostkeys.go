package sshkeys

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// hostName is the name of the one entity with host keys.
const hostName = "gateway"

// HostKeys is the operations on the host keys of the SSH gateway: the current one,
// and the next one, of which clients are told while the current one proves to
// them who tells. It is safe for concurrent use.
type HostKeys struct {
	Store  entity.Store
	Sealer *schema.Sealer
}

// Ensure returns the host keys, and makes them if there are none.
func (h *HostKeys) Ensure(ctx context.Context) (*core.SSHHost, error) {
	k, err := entity.ByName[core.SSHHost](ctx, h.Store, "", hostName)
	if !errs.Is(err, errs.NotFound) {
		return k, err
	}
	k = core.NewSSHHost()
	k.Name = hostName
	if k.Spec.CurrentKey, k.Spec.CurrentPrivate, err = h.generate(); err != nil {
		return nil, err
	}
	if k.Spec.NextKey, k.Spec.NextPrivate, err = h.generate(); err != nil {
		return nil, err
	}
	err = entity.Create(ctx, h.Store, k)
	if errs.Is(err, errs.AlreadyExists) { // by another server
		return entity.ByName[core.SSHHost](ctx, h.Store, "", hostName)
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}

// Rotate makes the next key the current one, and a new next one. It is one write:
// every server has either the old keys or the new ones. Conflict if another
// rotation was faster.
func (h *HostKeys) Rotate(ctx context.Context) (*core.SSHHost, error) {
	k, err := h.Ensure(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	k.Spec.CurrentKey, k.Spec.CurrentPrivate, k.Spec.RotatedAt = k.Spec.NextKey, k.Spec.NextPrivate, &now
	if k.Spec.NextKey, k.Spec.NextPrivate, err = h.generate(); err != nil {
		return nil, err
	}
	if err := entity.UpdateSpec(ctx, h.Store, k); err != nil {
		return nil, err
	}
	return k, nil
}

// generate makes a key, whose private part it seals.
func (h *HostKeys) generate() (string, schema.Secret, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", schema.Secret{}, err
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		return "", schema.Secret{}, err
	}
	public, err := ssh.NewPublicKey(key.Public())
	if err != nil {
		return "", schema.Secret{}, err
	}
	sealed, err := h.Sealer.Seal(string(pem.EncodeToMemory(block)))
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public))), sealed, err
}

// Signers opens the current key and the next one.
func (h *HostKeys) Signers(k *core.SSHHost) (current, next ssh.Signer, err error) {
	if current, err = h.signer(k.Spec.CurrentPrivate); err != nil {
		return nil, nil, err
	}
	next, err = h.signer(k.Spec.NextPrivate)
	return current, next, err
}

func (h *HostKeys) signer(sec schema.Secret) (ssh.Signer, error) {
	plain, err := h.Sealer.Open(sec)
	if err != nil {
		return nil, errs.Wrap(err, "host key of the SSH gateway")
	}
	s, err := ssh.ParsePrivateKey([]byte(plain))
	if err != nil {
		return nil, errs.New(errs.Corrupt, "host key of the SSH gateway: %w", err)
	}
	return s, nil
}
