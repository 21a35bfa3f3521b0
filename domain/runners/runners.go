// Package runners has the operations on runners, the machines that run sandboxes
// and dial out to the server. A runner is a node (api/core) with spec.runner.
//
//	CreateToken   makes a token with which one machine becomes a runner
//	Join          uses one up
//	SetApp        says whether services of an app may be placed on a runner
//	Delete        begins to remove a runner; controllers/node does the rest
//
// A token is 256 random bits; the store has its SHA-256. The identity of a
// runner's certificates is the id of its node, and their only role is Role.
package runners

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/domain/identities"
	"miren.dev/runtime/domain/nodes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// Role is the role of the certificates of runners. It permits nothing but what
// the gateway of runners serves.
const Role = "runner"

const (
	// DefaultTTL is how long a token is valid if nothing else is asked for.
	DefaultTTL = time.Hour
	// keepTokens is how long the entity of a token stays after its expiry.
	keepTokens = 30 * 24 * time.Hour
	// prefix begins every token.
	prefix = "rrt_"
)

// Service is the operations on the runners of one store. It is safe for
// concurrent use.
type Service struct {
	Store      entity.Store
	Identities *identities.Service
}

// hash returns what the store has of a token.
func hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// CreateToken makes a token and returns it with its secret, which is kept
// nowhere. It deletes the entities of tokens that expired long ago.
func (s *Service) CreateToken(ctx context.Context, ttl time.Duration, by string) (*core.RunnerToken, string, error) {
	if ttl == 0 {
		ttl = DefaultTTL
	}
	all, _, err := entity.List[core.RunnerToken](ctx, s.Store, entity.Query{})
	if err != nil {
		return nil, "", err
	}
	b := make([]byte, 32)
	rand.Read(b) // never fails (crypto/rand)
	secret := prefix + hex.EncodeToString(b)
	t := core.NewRunnerToken()
	t.Spec = core.RunnerTokenSpec{Hash: hash(secret), ExpiresAt: time.Now().Add(ttl).UTC().Truncate(time.Millisecond), CreatedBy: by}
	if err := entity.Create(ctx, s.Store, t); err != nil {
		return nil, "", err
	}
	for _, old := range all {
		if time.Since(old.Spec.ExpiresAt) < keepTokens {
			continue
		}
		if err := entity.Delete(ctx, s.Store, old); err != nil && !errs.Is(err, errs.NotFound) && !errs.Is(err, errs.Conflict) {
			return nil, "", err
		}
	}
	return t, secret, nil
}

// errToken says the same of every token that does not work: it helps nobody to guess.
func errToken() error {
	return errs.New(errs.Unauthenticated, "the token is not valid: it is unknown, expired or used").
		WithHint("make another on the server: r runner token create")
}

// JoinRequest describes a machine that becomes a runner.
type JoinRequest struct {
	Token string // the secret
	Name  string // of its node
	Arch  string
	Key   string // names the machine's attempts: a repeated one finds the node of the first
}

// Join uses a token up and makes the node. A repetition with the same Key, whose
// first answer was lost, returns the same node. Unauthenticated: the token is not valid.
// AlreadyExists: there is a node of that name.
func (s *Service) Join(ctx context.Context, req JoinRequest) (id.Node, error) {
	if !strings.HasPrefix(req.Token, prefix) {
		return "", errToken()
	}
	found, _, err := entity.List[core.RunnerToken](ctx, s.Store, entity.Where(core.RunnerTokenAttrHash, hash(req.Token)))
	if err != nil {
		return "", err
	}
	if len(found) != 1 || time.Now().After(found[0].Spec.ExpiresAt) {
		return "", errToken()
	}
	t := found[0]
	if t.Spec.UsedBy != "" {
		return s.again(ctx, t, req)
	}
	n := core.NewNode()
	n.Name = req.Name
	n.Spec.Arch, n.Spec.Runner, n.Spec.CPUMillis, n.Spec.MemoryBytes = req.Arch, true, 1, 1 // until it registers what it has
	create, err := entity.CreateOp(n)
	if err != nil {
		return "", err
	}
	t.Spec.UsedBy, t.Spec.UsedKey = string(n.ID), req.Key
	use, err := entity.UpdateSpecOp(t)
	if err != nil {
		return "", err
	}
	_, err = s.Store.Txn(ctx, entity.TxnRequest{Ops: []entity.Op{use, create}})
	switch {
	case errs.Is(err, errs.Conflict), errs.Is(err, errs.NotFound):
		return "", errToken() // used meanwhile
	case errs.Is(err, errs.AlreadyExists):
		return "", errs.New(errs.AlreadyExists, "there is a node %q", req.Name).
			WithHint("choose another name (--name), or delete that runner (`r runner delete %s`)", req.Name)
	case err != nil:
		return "", err
	}
	return n.GetID(), nil
}

// again returns the node of the first attempt of the same machine.
func (s *Service) again(ctx context.Context, t *core.RunnerToken, req JoinRequest) (id.Node, error) {
	if req.Key == "" || t.Spec.UsedKey != req.Key {
		return "", errToken()
	}
	n, err := entity.Get[core.Node](ctx, s.Store, id.Node(t.Spec.UsedBy))
	if errs.Is(err, errs.NotFound) {
		return "", errToken()
	}
	if err != nil {
		return "", err
	}
	if n.Name != req.Name || n.Spec.Removed {
		return "", errToken()
	}
	return n.GetID(), nil
}

// SetApp permits, or does not permit any longer, that services of an app are placed on a runner.
// NotFound if there is no such node, FailedPrecondition if it is no runner.
func (s *Service) SetApp(ctx context.Context, name string, a id.App, allowed bool) error {
	n, err := nodes.Find(ctx, s.Store, name)
	if err != nil {
		return err
	}
	if !n.Spec.Runner {
		return errs.New(errs.FailedPrecondition, "node %s is no runner", n.Name)
	}
	_, err = entity.ModifySpec(ctx, s.Store, n.GetID(), func(n *core.Node) error {
		n.Spec.Apps = slices.DeleteFunc(n.Spec.Apps, func(x string) bool { return x == string(a) })
		if allowed {
			n.Spec.Apps = append(n.Spec.Apps, string(a))
		}
		return nil
	})
	return err
}

// Delete revokes the certificates of a runner, which it returns, and marks its node
// as removed. FailedPrecondition for a node that is no runner.
func (s *Service) Delete(ctx context.Context, name, by string) (id.Node, []*core.ClientCertificate, error) {
	n, err := nodes.Find(ctx, s.Store, name)
	if err != nil {
		return "", nil, err
	}
	if !n.Spec.Runner {
		return "", nil, errs.New(errs.FailedPrecondition, "node %s is no runner", n.Name)
	}
	// First, so that it cannot come back in between.
	certs, err := s.Identities.Revoke(ctx, string(n.ID), by)
	if err != nil {
		return "", nil, err
	}
	_, err = entity.ModifySpec(ctx, s.Store, n.GetID(), func(n *core.Node) error {
		n.Spec.Removed, n.Spec.Cordoned = true, true
		return nil
	})
	if err != nil {
		return n.GetID(), certs, err
	}
	// Again, for one that was issued before the node was marked.
	all, err := s.Identities.Revoke(ctx, string(n.ID), by)
	if err != nil {
		return n.GetID(), certs, err
	}
	return n.GetID(), all, nil
}
