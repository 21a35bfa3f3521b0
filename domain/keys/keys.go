// Package keys has the API keys of an installation. A program sends its key with
// each request to the HTTP API; the key gives it roles in one project.
//
//	Create, Delete  what users do
//	Exchange        a key for a caller with a token, for as long as its login lasts
//	Authenticate    the identity of a key
//	Check           whether an identity still has its key
//	Follow, Run     keep the keys in memory, and write when they were used
//
// A key is 256 random bits. The store has its SHA-256, encrypted, and so cannot
// give a key away.
package keys

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/users"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// Prefix begins every key. Clients of E2B accept only keys that begin so and go
// on with hexadecimal digits.
const Prefix = "e2b_"

// AllProjects as the project of a Request asks for a key whose roles hold in the whole
// installation. The caller of Create checks the permission.
const AllProjects = "*"

// DefaultRole is the role of a key for which none is asked.
const DefaultRole = "agent"

// writeInterval is the least time between two writes of when a key was used.
const writeInterval = time.Minute

// Service is the operations on the API keys of one store. It is safe for
// concurrent use.
type Service struct {
	store  entity.Store
	logger *slog.Logger
	table  *table
	synced func() bool // whether every key of the store was read
	ended  func()
}

// New returns a Service that knows of no key yet. ended is called after a key
// was deleted or changed, so that connections with its old identity are closed.
func New(store entity.Store, sealer *schema.Sealer, people *users.Table, ended func(), log *slog.Logger) *Service {
	return &Service{store: store, logger: log, table: newTable(sealer, people), synced: func() bool { return false }, ended: ended}
}

// Follow keeps the keys in memory from now on; it must be called before set runs.
func (s *Service) Follow(set *informer.Set) {
	s.synced = func() bool { return set.Status().Synced }
	informer.Of[core.APIKey](set).Handle(func(ch informer.Change[*core.APIKey]) {
		if ch.New == nil {
			s.table.remove(ch.Old.GetID())
			s.ended()
			return
		}
		s.put(ch.New)
	})
}

// put takes a key into the table. One that cannot be opened is refused from then on.
func (s *Service) put(k *core.APIKey) {
	changed, err := s.table.put(k)
	if err != nil {
		s.logger.Error("an API key cannot be used", "key", string(k.ID), "error", err)
	}
	if changed {
		s.ended()
	}
}

// Request describes a key to create.
type Request struct {
	Project string   // name, or AllProjects; "": the default project
	Name    string   // unique in the project
	Roles   []string // names of roles; none: DefaultRole
	TTL     time.Duration
	By      string // identity that asks for it
	User    string // name of the user to whom it belongs; "": a program
	Rate    int64  // most requests per second to the HTTP API; 0: the server's
	// MaxSandboxes and MaxExecutions bound what is asked for with the key at the same time
	// (package quotas); nil: unlimited.
	MaxSandboxes, MaxExecutions *int64
}

// Create makes a key and returns it with its secret, which is kept nowhere.
// AlreadyExists if the project has a key of that name; the errors of owner.
func (s *Service) Create(ctx context.Context, req Request) (*core.APIKey, string, error) {
	return s.create(ctx, req, "")
}

// create is Create; with a lease the key's entity ends with it.
func (s *Service) create(ctx context.Context, req Request, lease schema.LeaseID) (*core.APIKey, string, error) {
	project := req.Project
	if project == "" || project == AllProjects {
		project = projects.Default
	}
	pid, err := projects.Find(ctx, s.store, project)
	if err != nil {
		return nil, "", err
	}
	bind := project
	if req.Project == AllProjects {
		bind = ""
	}
	roles, err := boundRoles(req.Roles, bind)
	if err != nil {
		return nil, "", err
	}
	owner, err := s.owner(ctx, req.User, roles)
	if err != nil {
		return nil, "", err
	}
	secret := Prefix + newSecret()
	sealed, err := s.table.sealer.Seal(hexHash(secret))
	if err != nil {
		return nil, "", err
	}
	k := core.NewAPIKey()
	k.Project, k.Name, k.Lease = pid, req.Name, lease
	k.Spec = core.APIKeySpec{Hash: sealed, Roles: roles, CreatedBy: req.By, User: owner, MaxSandboxes: req.MaxSandboxes, MaxExecutions: req.MaxExecutions}
	if req.Rate != 0 {
		k.Spec.Rate = &req.Rate
	}
	if req.TTL != 0 {
		end := time.Now().Add(req.TTL).UTC().Truncate(time.Millisecond)
		k.Spec.ExpiresAt = &end
	}
	err = entity.Create(ctx, s.store, k)
	if errs.Is(err, errs.AlreadyExists) {
		return nil, "", errs.New(errs.AlreadyExists, "project %s has a key %q", project, req.Name).
			WithHint("choose another name, or delete that one (`r key delete %s`)", req.Name)
	}
	if err != nil {
		return nil, "", err
	}
	s.put(k)
	return k, secret, nil
}

// Exchange makes a key with the roles of an identity that logged in by a token. The key
// ends when the login does, and its entity with it. Roles that hold in all projects do so
// for the key too; its entity is in the default project. FailedPrecondition for another
// identity.
func (s *Service) Exchange(ctx context.Context, i rpc.Identity) (*core.APIKey, string, error) {
	if i.How != rpc.HowToken || len(i.Roles) == 0 {
		return nil, "", errs.New(errs.FailedPrecondition, "%s did not log in by a token", i.Name).WithHint("`r key create` makes a key")
	}
	_, project, bound := rpc.SplitRole(i.Roles[0])
	if !bound {
		project = AllProjects
	}
	left := time.Until(i.Expires)
	lease, err := s.store.Grant(ctx, left)
	if err != nil {
		return nil, "", err
	}
	return s.create(ctx, Request{Project: project, Name: "token-" + strings.ToLower(rand.Text()[:10]), Roles: i.Roles, TTL: left, By: i.Name}, lease.ID)
}

// owner returns the id of the user of a key with roles. NotFound if there is none of
// that name, PermissionDenied if the user may not have one of the roles.
func (s *Service) owner(ctx context.Context, name string, roles []string) (id.User, error) {
	if name == "" {
		return "", nil
	}
	u, err := users.Find(ctx, s.store, name)
	if err != nil {
		return "", err
	}
	for _, r := range roles {
		if !users.Permits(u, r) {
			return "", errs.New(errs.PermissionDenied, "the user %s may not have the role %s", name, r).
				WithHint("an administrator changes its roles with `r user set`")
		}
	}
	return u.GetID(), nil
}

// boundRoles binds roles to a project, "" for all. InvalidArgument for an unknown role, and
// for one of another project.
func boundRoles(roles []string, project string) ([]string, error) {
	if len(roles) == 0 {
		roles = []string{DefaultRole}
	}
	var bound []string
	for _, r := range roles {
		name, of, isBound := rpc.SplitRole(r)
		switch {
		case isBound && of != project:
			return nil, errs.New(errs.InvalidArgument, "role %q is not of project %s, to which the key belongs", r, project).
				WithHint("make a key in each project; a certificate (`r auth generate`) may have roles in several")
		case !slices.Contains(rpc.DefaultRoles.Names(), name):
			return nil, errs.New(errs.InvalidArgument, "there is no role %q", name).WithHint("roles are %v", rpc.DefaultRoles.Names())
		}
		if project != "" {
			name += "@" + project
		}
		bound = append(bound, name)
	}
	return bound, nil
}

func newSecret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func hexHash(secret string) string {
	h := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(h[:])
}

// Find returns the named key of a project. NotFound if there is none.
func Find(ctx context.Context, r entity.Reader, project, name string) (*core.APIKey, error) {
	pid, err := projects.Find(ctx, r, project)
	if err != nil {
		return nil, err
	}
	k, err := entity.ByName[core.APIKey](ctx, r, pid, name)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "there is no key %q", name).WithHint("`r key list` lists the keys of the project")
	}
	return k, err
}

// Delete deletes a key. This server refuses it when Delete returns, others when
// they learn of it. NotFound if the project has no key of that name.
func (s *Service) Delete(ctx context.Context, project, name string) error {
	k, err := Find(ctx, s.store, project, name)
	if err != nil {
		return err
	}
	if err := entity.Remove[core.APIKey](ctx, s.store, k.GetID()); err != nil {
		return err
	}
	s.table.remove(k.GetID())
	s.ended()
	return nil
}

// Authenticate returns the identity of a key. Unauthenticated for a key that is
// unknown, deleted or expired; Unavailable if the keys and users were not read yet.
func (s *Service) Authenticate(_ context.Context, key string) (rpc.Identity, error) {
	id, known, err := s.table.authenticate(sha256.Sum256([]byte(key)), time.Now())
	if !known && !s.synced() {
		return rpc.Identity{}, errs.New(errs.Unavailable, "the server has not read its API keys and users yet").WithHint("try again")
	}
	return id, err
}

// Rate returns how many requests per second the key with an id may make; 0: it
// has no rate of its own.
func (s *Service) Rate(key string) int64 { return s.table.rate(id.APIKey(key)) }

// Check returns an error of class Unauthenticated if an identity that Authenticate
// returned is no longer that of its key.
func (s *Service) Check(id rpc.Identity) error { return s.table.check(id) }

// Run writes when keys were last used, until ctx ends. Each key is written at
// most once a minute.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(writeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.writeUses(ctx)
		}
	}
}

// writeUses writes the uses since the last call.
func (s *Service) writeUses(ctx context.Context) {
	for id, used := range s.table.takeUses() {
		_, err := entity.ModifyStatus(ctx, s.store, id, func(k *core.APIKey) error {
			if last := k.Status.LastUsed; last == nil || last.Before(used) {
				k.Status.LastUsed = &used
			}
			return nil
		})
		if err != nil && !errs.Is(err, errs.NotFound) && ctx.Err() == nil {
			s.logger.Warn("the last use of an API key is not recorded", "key", string(id), "error", err)
		}
	}
}
