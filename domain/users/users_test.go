package users

import (
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// TestDisabledUserEndsAccess: also if a server learns of the user and of its end at
// once, for certificates with its name may be in use.
func TestDisabledUserEndsAccess(t *testing.T) {
	ended := 0
	table := NewTable(func() { ended++ })
	put := func(name string, revision schema.Revision, disabled bool) {
		u := core.NewUser()
		u.ID, u.Name, u.Revision, u.Spec.Disabled = schema.ID("user-"+name), name, revision, disabled
		table.put(u)
	}
	put("alice", 1, false)
	if err := table.Check("alice"); err != nil || ended != 0 {
		t.Errorf("a new user: %v, ended %d", err, ended)
	}
	put("alice", 3, true)
	put("alice", 2, false) // arrives late
	if err := table.Check("alice"); !errs.Is(err, errs.Unauthenticated) || ended != 1 {
		t.Errorf("a disabled user: %v, ended %d", err, ended)
	}
	put("bob", 4, true)
	if err := table.Check("bob"); !errs.Is(err, errs.Unauthenticated) || ended != 2 {
		t.Errorf("a user that is known as disabled only: %v, ended %d", err, ended)
	}
}
