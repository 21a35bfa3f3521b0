// Package sshkeys keeps the public keys whose owners may log in to sandboxes
// with SSH.
//
//	Parse   reads a public key, and refuses weak ones
//	Add     permits a key
//	Delete  refuses it again
//	Index   the permitted keys, in memory
package sshkeys

import (
	"context"
	"crypto/rsa"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// DefaultLife is how long a key is valid by default.
const DefaultLife = 365 * 24 * time.Hour

// Bits of RSA keys. Larger ones only cost time.
const minRSABits, maxRSABits = 2048, 8192

// types are the types of keys that log in.
var types = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKECDSA256, ssh.KeyAlgoRSA,
}

// Parse reads a public key as in a .pub file. InvalidArgument for anything else,
// and for keys that are too weak.
func Parse(line string) (ssh.PublicKey, error) {
	line = strings.TrimSpace(line)
	if strings.Contains(line, "PRIVATE KEY") {
		return nil, errs.New(errs.InvalidArgument, "this is a private key").WithHint("give the public key, from the file whose name ends with .pub")
	}
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	switch {
	case err != nil:
		return nil, errs.New(errs.InvalidArgument, "this is no SSH public key: %w", err).WithHint("give one line such as `ssh-ed25519 AAAA...`, from a .pub file")
	case len(rest) > 0:
		return nil, errs.New(errs.InvalidArgument, "this is more than one SSH public key").WithHint("give one at a time")
	case len(options) > 0:
		return nil, errs.New(errs.InvalidArgument, "the options %q of a key are not supported", strings.Join(options, ",")).WithHint("give the key without them")
	case !slices.Contains(types, key.Type()):
		return nil, errs.New(errs.InvalidArgument, "keys of type %s are not accepted", key.Type()).WithHint("`ssh-keygen -t ed25519` makes one that is")
	}
	if c, ok := key.(ssh.CryptoPublicKey); ok {
		if r, ok := c.CryptoPublicKey().(*rsa.PublicKey); ok && (r.N.BitLen() < minRSABits || r.N.BitLen() > maxRSABits) {
			return nil, errs.New(errs.InvalidArgument, "an RSA key of %d bits is not accepted: it needs %d to %d", r.N.BitLen(), minRSABits, maxRSABits).
				WithHint("`ssh-keygen -t ed25519` makes a key that is")
		}
	}
	return key, nil
}

// Service is the operations on the keys of one store. It is safe for concurrent
// use.
type Service struct {
	Store entity.Store
}

// AddRequest describes a key.
type AddRequest struct {
	Identity  string
	PublicKey string
	Project   string // in which names of sandboxes are looked up; "": the default
	Roles     []string
	By        string // identity that adds it
	Life      time.Duration
}

// Add permits a key. AlreadyExists if it is permitted already; Parse's errors.
func (s *Service) Add(ctx context.Context, req AddRequest) (*core.SSHKey, error) {
	key, err := Parse(req.PublicKey)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(req.Life)
	k := core.NewSSHKey()
	k.Spec = core.SSHKeySpec{
		Identity: req.Identity, PublicKey: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), Fingerprint: ssh.FingerprintSHA256(key),
		Project: req.Project, Roles: req.Roles, AddedBy: req.By, ExpiresAt: end,
	}
	err = entity.Create(ctx, s.Store, k)
	if errs.Is(err, errs.AlreadyExists) {
		return nil, errs.New(errs.AlreadyExists, "the key %s was added already", k.Spec.Fingerprint).
			WithHint("`r ssh key list` shows it; delete it to add it with other roles")
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}

// Delete deletes a key by its id or fingerprint and returns what it was.
// NotFound if there is none.
func (s *Service) Delete(ctx context.Context, which string) (*core.SSHKey, error) {
	k, err := s.find(ctx, which)
	if err != nil {
		return nil, err
	}
	if err := entity.Delete(ctx, s.Store, k); err != nil {
		return nil, err
	}
	return k, nil
}

func (s *Service) find(ctx context.Context, which string) (*core.SSHKey, error) {
	all, _, err := entity.List[core.SSHKey](ctx, s.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	for _, k := range all {
		if string(k.ID) == which || k.Spec.Fingerprint == which {
			return k, nil
		}
	}
	return nil, errs.New(errs.NotFound, "there is no SSH key %q", which).WithHint("`r ssh key list` lists the keys; name one by its id or fingerprint")
}

// Index holds the permitted keys in memory. It is safe for concurrent use.
type Index struct {
	mu      sync.RWMutex
	keys    map[string]*core.SSHKey // by fingerprint of what the entity's key is
	prints  map[schema.ID]string    // fingerprint of each entity
	deleted map[schema.ID]bool      // a deletion is final, also for an older state that arrives late
}

// NewIndex returns an index without keys.
func NewIndex() *Index {
	return &Index{keys: map[string]*core.SSHKey{}, prints: map[schema.ID]string{}, deleted: map[schema.ID]bool{}}
}

// Put records the state of a key. It reports whether connections that the key
// opened may have to be closed.
func (x *Index) Put(k *core.SSHKey) (recheck bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.deleted[k.ID] {
		return false
	}
	recheck = x.removeLocked(k.ID)
	key, err := Parse(k.Spec.PublicKey)
	if err != nil {
		return recheck // written by hand, and no key
	}
	print := ssh.FingerprintSHA256(key)
	x.keys[print], x.prints[k.ID] = k, print
	return recheck
}

// Remove records that a key was deleted.
func (x *Index) Remove(id schema.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(id)
	x.deleted[id] = true
}

func (x *Index) removeLocked(id schema.ID) bool {
	print, ok := x.prints[id]
	if ok {
		delete(x.keys, print)
		delete(x.prints, id)
	}
	return ok
}

// Find returns the permitted key with a fingerprint. Unauthenticated if there is
// none, or it has expired.
func (x *Index) Find(fingerprint string) (*core.SSHKey, error) {
	x.mu.RLock()
	k := x.keys[fingerprint]
	x.mu.RUnlock()
	if k == nil || !time.Now().Before(k.Spec.ExpiresAt) {
		return nil, errs.New(errs.Unauthenticated, "the SSH key %s is not permitted", fingerprint).WithHint("`r ssh key add` permits it")
	}
	return k, nil
}
