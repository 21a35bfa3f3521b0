// Package users has the people of an installation. A user owns API keys, and the
// certificates and SSH keys that have its name: the audit log names it for calls
// with any of them, and all are refused while it is disabled.
//
//	Create, Set  what administrators do
//	Table        the users in memory: who is disabled, and the roles of keys
package users

import (
	"context"
	"slices"
	"sync"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// Service is the operations on the users of one store. It is safe for concurrent use.
type Service struct {
	Store entity.Store
	Table *Table
	// CheckRole returns an error for a role, or a project of one, that does not exist.
	CheckRole func(ctx context.Context, role string) error
}

// Create makes a user. Errors: AlreadyExists; those of CheckRole.
func (s *Service) Create(ctx context.Context, name, displayName string, roles []string, by string) (*core.User, error) {
	if err := s.check(ctx, roles); err != nil {
		return nil, err
	}
	u := core.NewUser()
	u.Name, u.Spec = name, core.UserSpec{DisplayName: displayName, Roles: roles, CreatedBy: by}
	err := entity.Create(ctx, s.Store, u)
	if errs.Is(err, errs.AlreadyExists) {
		return nil, errs.New(errs.AlreadyExists, "there is a user %q", name).WithHint("`r user list` lists the users")
	}
	if err != nil {
		return nil, err
	}
	s.Table.put(u)
	return u, nil
}

func (s *Service) check(ctx context.Context, roles []string) error {
	for _, r := range roles {
		if err := s.CheckRole(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// Set changes a user; nil: that stays. This server knows the change when Set
// returns, others when they learn of it. Errors: NotFound; those of CheckRole.
func (s *Service) Set(ctx context.Context, name string, roles []string, disabled *bool) (*core.User, error) {
	if err := s.check(ctx, roles); err != nil {
		return nil, err
	}
	u, err := Find(ctx, s.Store, name)
	if err != nil {
		return nil, err
	}
	u, err = entity.ModifySpec(ctx, s.Store, u.GetID(), func(u *core.User) error {
		if roles != nil {
			u.Spec.Roles = roles
		}
		if disabled != nil {
			u.Spec.Disabled = *disabled
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.Table.put(u)
	return u, nil
}

// Find returns a user by its name; NotFound.
func Find(ctx context.Context, r entity.Reader, name string) (*core.User, error) {
	u, err := entity.ByName[core.User](ctx, r, "", name)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "there is no user %q", name).WithHint("`r user list` lists the users, and `r user create` makes one")
	}
	return u, err
}

// Permits reports whether a user may have a key with a role that is bound to a
// project.
func Permits(u *core.User, bound string) bool {
	name, _, _ := rpc.SplitRole(bound)
	return slices.Contains(u.Spec.Roles, bound) || slices.Contains(u.Spec.Roles, name)
}

// Table holds the users in memory. It is safe for concurrent use.
type Table struct {
	changed func() // after a change that may end somebody's access

	mu     sync.RWMutex
	byID   map[id.User]*core.User
	byName map[string]*core.User
}

// NewTable returns a Table that knows of no user. changed is called after a user was
// changed, so that connections with its old rights are closed.
func NewTable(changed func()) *Table {
	return &Table{changed: changed, byID: map[id.User]*core.User{}, byName: map[string]*core.User{}}
}

// Follow keeps the users in memory from now on; it must be called before set runs.
func (t *Table) Follow(set *informer.Set) {
	informer.Of[core.User](set).Handle(func(ch informer.Change[*core.User]) {
		if ch.New != nil {
			t.put(ch.New)
			return
		}
		t.mu.Lock()
		delete(t.byID, ch.Old.GetID())
		delete(t.byName, ch.Old.Name)
		t.mu.Unlock()
		t.changed()
	})
}

// put takes the state of a user, unless it is older than the known one.
func (t *Table) put(u *core.User) {
	u = schema.Copy(u)
	t.mu.Lock()
	old := t.byID[u.GetID()]
	if old != nil && old.Revision >= u.Revision {
		t.mu.Unlock()
		return
	}
	t.byID[u.GetID()], t.byName[u.Name] = u, u
	t.mu.Unlock()
	// A server that had lost its watch learns of a user and of its end at once.
	if old != nil || u.Spec.Disabled {
		t.changed()
	}
}

// Knows reports whether there is a user with an id.
func (t *Table) Knows(uid id.User) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byID[uid] != nil
}

// Check returns an error of class Unauthenticated if the user of that name is
// disabled, nil if there is none.
func (t *Table) Check(name string) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return disabled(t.byName[name])
}

func disabled(u *core.User) error {
	if u == nil || !u.Spec.Disabled {
		return nil
	}
	return errs.New(errs.Unauthenticated, "the user %s is disabled", u.Name).WithHint("an administrator enables it with `r user enable %s`", u.Name)
}

// Identity returns the identity of a key of a user: its name, and those of the key's
// roles that the user may have. Errors: Unauthenticated for a user that is disabled,
// and for one that is not known, or has none of the roles.
func (t *Table) Identity(uid id.User, key rpc.Identity) (rpc.Identity, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	u := t.byID[uid]
	if u == nil {
		return rpc.Identity{}, errs.New(errs.Unauthenticated, "the user of the API key %s is not known", key.Name)
	}
	if err := disabled(u); err != nil {
		return rpc.Identity{}, err
	}
	out := key
	out.Name, out.Roles = u.Name, nil
	for _, r := range key.Roles {
		if Permits(u, r) {
			out.Roles = append(out.Roles, r)
		}
	}
	if len(out.Roles) == 0 {
		return rpc.Identity{}, errs.New(errs.Unauthenticated, "the user %s has none of the roles of the API key %s any more", u.Name, key.Name).
			WithHint("an administrator changes its roles with `r user set`")
	}
	return out, nil
}
