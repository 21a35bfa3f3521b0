package keys

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/domain/users"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// keepDeleted is how long a deleted key is remembered, far longer than a change
// takes to arrive.
const keepDeleted = time.Hour

type hash = [sha256.Size]byte

// row is a key in memory.
type row struct {
	hash     hash
	sealed   schema.Secret
	identity rpc.Identity // of the key itself; that of its user is in users
	user     id.User      // "": a program
	rate     int64        // requests per second; 0: those of the server
}

// table holds the keys in memory. It is safe for concurrent use.
type table struct {
	sealer *schema.Sealer
	users  *users.Table

	mu      sync.RWMutex
	byHash  map[hash]id.APIKey
	rows    map[id.APIKey]row
	deleted map[id.APIKey]time.Time // recently deleted keys: an older state that arrives late brings none of them back
	uses    map[id.APIKey]time.Time
}

func newTable(sealer *schema.Sealer, people *users.Table) *table {
	return &table{sealer: sealer, users: people, byHash: map[hash]id.APIKey{}, rows: map[id.APIKey]row{}, deleted: map[id.APIKey]time.Time{}, uses: map[id.APIKey]time.Time{}}
}

// put takes the state of a key, and reports whether an earlier identity of it is
// void now. On an error the key has no row any more.
func (t *table) put(k *core.APIKey) (changed bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kid := k.GetID()
	if _, ok := t.deleted[kid]; ok {
		return false, nil
	}
	old, known := t.rows[kid]
	r := row{hash: old.hash, sealed: k.Spec.Hash, identity: identityOf(k), user: k.Spec.User}
	if k.Spec.Rate != nil {
		r.rate = *k.Spec.Rate
	}
	if !known || !old.sealed.Equal(r.sealed) {
		if r.hash, err = t.open(r.sealed); err != nil {
			t.dropLocked(kid)
			return known, err
		}
	}
	if known && old.hash != r.hash {
		delete(t.byHash, old.hash)
	}
	t.rows[kid], t.byHash[r.hash] = r, kid
	return known && !same(old, r), nil
}

func (t *table) open(sealed schema.Secret) (hash, error) {
	text, err := t.sealer.Open(sealed)
	if err != nil {
		return hash{}, err
	}
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != sha256.Size {
		return hash{}, errs.New(errs.Corrupt, "the hash of the key is not one of SHA-256").WithHint("delete the key, and make another")
	}
	return hash(b), nil
}

// same reports whether two states of a key give the same identity to the same secret.
func same(a, b row) bool {
	x, y := a.identity, b.identity
	return a.hash == b.hash && a.user == b.user && x.Name == y.Name && slices.Equal(x.Roles, y.Roles) && x.Expires.Equal(y.Expires)
}

// identityOf returns the identity of a key.
func identityOf(k *core.APIKey) rpc.Identity {
	i := rpc.Identity{Name: "key:" + k.Name, Roles: k.Spec.Roles, How: rpc.HowKey, Key: string(k.ID)}
	if len(k.Spec.Roles) > 0 {
		if _, project, bound := rpc.SplitRole(k.Spec.Roles[0]); bound {
			i.Name = "key:" + project + "/" + k.Name
		}
	}
	if e := k.Spec.ExpiresAt; e != nil {
		i.Expires = *e
	}
	return i
}

// remove drops a key that was deleted.
func (t *table) remove(kid id.APIKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(t.deleted, func(_ id.APIKey, at time.Time) bool { return now.Sub(at) > keepDeleted })
	t.deleted[kid] = now
	t.dropLocked(kid)
}

func (t *table) dropLocked(kid id.APIKey) {
	delete(t.byHash, t.rows[kid].hash)
	delete(t.rows, kid)
	delete(t.uses, kid)
}

// authenticate returns the identity of the key with a hash, and notes its use. known:
// the table has the key and its user.
func (t *table) authenticate(h hash, now time.Time) (i rpc.Identity, known bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kid, ok := t.byHash[h]
	if !ok {
		return i, false, errs.New(errs.Unauthenticated, "the API key is not known").
			WithHint("it is wrong, or was deleted; an administrator makes one with `r key create`")
	}
	r := t.rows[kid]
	if i, err = t.identity(r); err == nil {
		err = expired(i, now)
	}
	if err != nil {
		return rpc.Identity{}, r.user == "" || t.users.Knows(r.user), err
	}
	t.uses[kid] = now.UTC().Truncate(time.Millisecond)
	i.Roles = slices.Clone(i.Roles)
	return i, true, nil
}

func (t *table) rate(kid id.APIKey) int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.rows[kid].rate
}

// identity returns the identity that a key gives now.
func (t *table) identity(r row) (rpc.Identity, error) {
	if r.user == "" {
		return r.identity, nil
	}
	return t.users.Identity(r.user, r.identity)
}

func expired(i rpc.Identity, now time.Time) error {
	if i.Expires.IsZero() || now.Before(i.Expires) {
		return nil
	}
	return errs.New(errs.Unauthenticated, "the API key %s has expired", i.Name).
		WithHint("an administrator makes another with `r key create`")
}

// check returns an error if the key of an identity does not give it any more.
func (t *table) check(i rpc.Identity) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r, ok := t.rows[id.APIKey(i.Key)]
	now, err := t.identity(r)
	if err != nil {
		return err
	}
	if !ok || now.Name != i.Name || !slices.Equal(now.Roles, i.Roles) && !inProject(now.Roles, i.Roles) {
		return errs.New(errs.Unauthenticated, "the API key %s was deleted or changed", i.Name).
			WithHint("an administrator makes another with `r key create`")
	}
	return expired(now, time.Now())
}

// inProject reports whether an identity has the roles of a key as far as they hold in one project: its caller asked for that.
func inProject(all, roles []string) bool {
	if len(roles) == 0 {
		return false
	}
	_, project, bound := rpc.SplitRole(roles[0])
	return bound && slices.Equal(rpc.InProject(all, project), roles)
}

// takeUses returns when keys were last used since the last call.
func (t *table) takeUses() map[id.APIKey]time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	uses := t.uses
	t.uses = map[id.APIKey]time.Time{}
	return uses
}
