package keys

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/users"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// env is two servers of one store, of which the second follows it.
type env struct {
	*Service
	other *Service
	ended int
}

func newEnv(t *testing.T) *env {
	t.Helper()
	store := pgtest.Store(t, api.Kinds()...)
	for _, p := range []string{projects.Default, "shop"} {
		if err := projects.Ensure(t.Context(), store, p); err != nil {
			t.Fatal(err)
		}
	}
	e, sealer, log := &env{}, schema.NewSealer(filepath.Join(t.TempDir(), "key")), slog.New(slog.DiscardHandler)
	e.Service = New(store, sealer, users.NewTable(func() {}), func() { e.ended++ }, log)
	e.other = New(store, sealer, users.NewTable(func() {}), func() {}, log)
	set := informer.New(informer.Config{Reader: store, Logger: log})
	e.other.Follow(set)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := set.WaitSynced(ctx); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *env) create(t *testing.T, req Request) (*core.APIKey, string) {
	t.Helper()
	k, secret, err := e.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return k, secret
}

// TestKeyGivesItsRolesInItsProject: on the server that made it at once, on others
// when they learn of it; and no record has the key or its hash.
func TestKeyGivesItsRolesInItsProject(t *testing.T) {
	e := newEnv(t)
	k, secret := e.create(t, Request{Project: "shop", Name: "ci", By: "root", TTL: time.Hour})
	if !regexp.MustCompile(`^e2b_[0-9a-f]{64}$`).MatchString(secret) {
		t.Errorf("a key of the shape %d, %q...", len(secret), secret[:4])
	}
	i, err := e.Authenticate(t.Context(), secret)
	if err != nil || i.Name != "key:shop/ci" || !slices.Equal(i.Roles, []string{"agent@shop"}) || !i.Expires.Equal(*k.Spec.ExpiresAt) || e.Check(i) != nil {
		t.Errorf("%+v, %v", i, err)
	}
	wait.For(t, "the other server knows the key", func() bool {
		_, err := e.other.Authenticate(t.Context(), secret)
		return err == nil
	})
	rec, err := e.store.Get(t.Context(), core.KindAPIKey, k.ID)
	if err != nil {
		t.Fatal(err)
	}
	text, err := entity.Decode[core.APIKey](&rec)
	if err != nil {
		t.Fatal(err)
	}
	js, err := text.Spec.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{secret, secret[len(Prefix):], hexHash(secret)} {
		if strings.Contains(fmt.Sprintf("%s %+v %#v %s", rec.Spec, rec, text, js), s) {
			t.Error("a record has the key or its hash")
		}
	}
}

// TestRefusedKeys: unknown, deleted and expired ones.
func TestRefusedKeys(t *testing.T) {
	e := newEnv(t)
	_, secret := e.create(t, Request{Name: "ci"})
	i, err := e.Authenticate(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the other server knows the key", func() bool {
		_, err := e.other.Authenticate(t.Context(), secret)
		return err == nil
	})
	if _, err := e.Authenticate(t.Context(), secret+"0"); !errs.Is(err, errs.Unavailable) {
		t.Errorf("an unknown key on a server that has not read the keys: %v", err)
	}
	for _, wrong := range []string{"", Prefix, secret + "0", strings.ToUpper(secret), secret[:len(secret)-1]} {
		if _, err := e.other.Authenticate(t.Context(), wrong); !errs.Is(err, errs.Unauthenticated) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if err := e.Delete(t.Context(), "", "ci"); err != nil || e.ended != 1 {
		t.Fatal(err, e.ended)
	}
	if err := e.Check(i); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("the identity of a deleted key: %v", err)
	}
	wait.For(t, "the other server refuses the deleted key", func() bool {
		_, err := e.other.Authenticate(t.Context(), secret)
		return errs.Is(err, errs.Unauthenticated)
	})
	if err := e.Delete(t.Context(), "", "ci"); !errs.Is(err, errs.NotFound) {
		t.Errorf("a second deletion: %v", err)
	}
	k, secret := e.create(t, Request{Name: "ci", TTL: time.Hour})
	past := time.Now().Add(-time.Second)
	k.Spec.ExpiresAt = &past
	e.put(k)
	if _, err := e.Authenticate(t.Context(), secret); !errs.Is(err, errs.Unauthenticated) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("an expired key: %v", err)
	}
}

// TestALateStateBringsNoKeyBack: the watch may bring the creation of a key after
// its deletion was asked for.
func TestALateStateBringsNoKeyBack(t *testing.T) {
	e := newEnv(t)
	k, secret := e.create(t, Request{Name: "ci"})
	if err := e.Delete(t.Context(), "", "ci"); err != nil {
		t.Fatal(err)
	}
	e.put(k)
	if _, _, err := e.table.authenticate(sha256.Sum256([]byte(secret)), time.Now()); !errs.Is(err, errs.Unauthenticated) {
		t.Error(err)
	}
}

// TestChangedRolesVoidTheOldIdentity: connections with it are closed.
func TestChangedRolesVoidTheOldIdentity(t *testing.T) {
	e := newEnv(t)
	k, secret := e.create(t, Request{Name: "ci", Roles: []string{"deployer", "viewer@default"}})
	old, err := e.Authenticate(t.Context(), secret)
	if err != nil || !slices.Equal(old.Roles, []string{"deployer@default", "viewer@default"}) {
		t.Fatal(old, err)
	}
	k.Status.LastUsed = &k.CreatedAt
	if e.put(k); e.ended != 0 || e.Check(old) != nil {
		t.Error("another status voids the identity")
	}
	k.Spec.Roles = []string{"viewer@default"}
	if e.put(k); e.ended != 1 || !errs.Is(e.Check(old), errs.Unauthenticated) {
		t.Error("the old identity is valid")
	}
	if i, err := e.Authenticate(t.Context(), secret); err != nil || e.Check(i) != nil {
		t.Error(i, err)
	}
}

// TestRolesInOneOfAllProjects: an identity may have the roles of a key as far as they hold in one project, and no others.
func TestRolesInOneOfAllProjects(t *testing.T) {
	e := newEnv(t)
	_, secret := e.create(t, Request{Project: AllProjects, Name: "all", Roles: []string{"viewer", "deployer"}})
	i, err := e.Authenticate(t.Context(), secret)
	if err != nil || !slices.Equal(i.Roles, []string{"viewer", "deployer"}) {
		t.Fatal(i, err)
	}
	for roles, want := range map[string]errs.Class{
		"viewer deployer": "", "viewer@shop deployer@shop": "", "viewer@shop": errs.Unauthenticated, "admin@shop deployer@shop": errs.Unauthenticated,
		"viewer@shop deployer@other": errs.Unauthenticated, "viewer deployer@shop": errs.Unauthenticated, "": errs.Unauthenticated,
	} {
		i.Roles = strings.Fields(roles)
		if err := e.Check(i); errs.ClassOf(err) != want {
			t.Errorf("%q: %v", roles, err)
		}
	}
}

// TestKeysAreOfOneProject: a name is taken once in each, and no role of another is given.
func TestKeysAreOfOneProject(t *testing.T) {
	e := newEnv(t)
	e.create(t, Request{Name: "ci"})
	e.create(t, Request{Project: "shop", Name: "ci"})
	for _, c := range []struct {
		req  Request
		want errs.Class
	}{
		{Request{Name: "ci"}, errs.AlreadyExists},
		{Request{Name: "a", Roles: []string{"agent@shop"}}, errs.InvalidArgument},
		{Request{Name: "a", Roles: []string{"agent@"}}, errs.InvalidArgument},
		{Request{Name: "a", Roles: []string{"boss"}}, errs.InvalidArgument},
		{Request{Project: "nowhere", Name: "a"}, errs.NotFound},
	} {
		if _, _, err := e.Create(t.Context(), c.req); !errs.Is(err, c.want) {
			t.Errorf("%+v: %v", c.req, err)
		}
	}
}

// TestKeyOfAUserThatWasNotRead: a server that has read the key and not yet its user
// asks for another attempt. One that has read everything refuses the key.
func TestKeyOfAUserThatWasNotRead(t *testing.T) {
	e := newEnv(t)
	people := users.Service{Store: e.store, Table: users.NewTable(func() {}), CheckRole: func(context.Context, string) error { return nil }}
	if _, err := people.Create(t.Context(), "alice", "", []string{"agent"}, "root"); err != nil {
		t.Fatal(err)
	}
	_, secret := e.create(t, Request{Name: "laptop", User: "alice"})
	if _, err := e.Authenticate(t.Context(), secret); !errs.Is(err, errs.Unavailable) {
		t.Errorf("on a server that has not read its users: %v", err)
	}
	if _, err := e.other.Authenticate(t.Context(), secret); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("on a server that has: %v", err)
	}
}

// TestLastUseIsWritten: once for many uses, and never back in time.
func TestLastUseIsWritten(t *testing.T) {
	e := newEnv(t)
	k, secret := e.create(t, Request{Name: "ci"})
	read := func() *core.APIKey {
		t.Helper()
		k, err := entity.Get[core.APIKey](t.Context(), e.store, k.GetID())
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	for range 10 {
		if _, err := e.Authenticate(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	e.writeUses(t.Context())
	first := read()
	if u := first.Status.LastUsed; u == nil || time.Since(*u) > time.Minute {
		t.Fatal(u)
	}
	e.writeUses(t.Context())
	if again := read(); again.Revision != first.Revision {
		t.Error("it was written without a use")
	}
	e.table.uses[k.GetID()] = first.Status.LastUsed.Add(-time.Hour)
	e.writeUses(t.Context())
	if again := read(); !again.Status.LastUsed.Equal(*first.Status.LastUsed) {
		t.Error("an older use of another server replaced it")
	}
}
