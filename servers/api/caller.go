package api

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// Limits of the RPC clients that callers share, one for each identity.
const (
	maxClients = 512 // the RPC server has 1024 connections for these and the unix socket
	clientIdle = time.Minute
)

// Caller is the authenticated caller of a request.
type Caller struct {
	Identity rpc.Identity
	Client   *rpc.Client // makes calls with the identity; shared, so it is not closed
	s        *shared
	owner    *clients
}

// Release says that the caller's calls have ended.
func (c *Caller) Release() { c.owner.release(c.s) }

// Project returns the project of the key, the one project in which it has roles. For a key
// whose roles hold in all projects that is the default project.
func (c *Caller) Project() string {
	for _, r := range c.Identity.Roles {
		if _, project, bound := rpc.SplitRole(r); bound {
			return project
		}
	}
	return projects.Default
}

// Key returns the API key of a request, from Authorization: Bearer or X-API-Key;
// "" for none.
func Key(r *http.Request) string {
	if k := r.Header.Get("X-API-Key"); k != "" {
		return k
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// Authenticate returns the caller with an API key, who must be released.
// Unauthenticated without a valid key.
func (s *Server) Authenticate(ctx context.Context, key string) (*Caller, error) {
	if key == "" {
		return nil, errNoKey()
	}
	id, err := s.cfg.Authenticate(ctx, key)
	if err != nil {
		return nil, err
	}
	return s.As(id)
}

// ProjectHeader names the project of a request whose key has roles in all projects.
const ProjectHeader = "X-Project"

// AuthenticateRequest returns the caller of a request; the handler releases it. If the request has ProjectHeader, the
// caller gets the roles of its key in that project alone: lists then have only entities of the project, and the server
// looks names up there. PermissionDenied if the key has no role in the project.
func (s *Server) AuthenticateRequest(r *http.Request) (*Caller, error) {
	c, err := s.Authenticate(r.Context(), Key(r))
	project := r.Header.Get(ProjectHeader)
	if err != nil || project == "" {
		return c, err
	}
	defer c.Release()
	if !projectName.MatchString(project) {
		return nil, errs.New(errs.InvalidArgument, "the header %s is no name of a project", ProjectHeader)
	}
	id := c.Identity
	id.Roles = rpc.InProject(id.Roles, project)
	if len(id.Roles) == 0 {
		return nil, errs.New(errs.PermissionDenied, "the key has no role in project %s, which the header %s names", project, ProjectHeader).
			WithHint("leave the header out: a request then concerns the project of its key")
	}
	return s.As(id)
}

var projectName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// As returns the caller with an identity that another part has authenticated. Release
// must be called on it.
func (s *Server) As(id rpc.Identity) (*Caller, error) {
	sh, err := s.clients.acquire(id)
	if err != nil {
		return nil, err
	}
	return &Caller{Identity: id, Client: sh.client, s: sh, owner: s.clients}, nil
}

func errNoKey() error {
	return errs.New(errs.Unauthenticated, "the request has no API key").
		WithHint("send one in the header X-API-Key or Authorization: Bearer; `r key create` makes one")
}

// shared is the RPC client of an identity. The owner's mutex guards it.
type shared struct {
	client *rpc.Client
	key    string
	users  int
	idle   time.Time // since when it has no users
}

// clients are the RPC clients of the callers, one for each identity.
type clients struct {
	local func(rpc.Identity) *rpc.Client

	mu  sync.Mutex
	all map[string]*shared
}

func newClients(local func(rpc.Identity) *rpc.Client) *clients {
	return &clients{local: local, all: map[string]*shared{}}
}

// acquire returns the client of an identity. ResourceExhausted if too many
// identities make calls.
func (s *clients) acquire(id rpc.Identity) (*shared, error) {
	key := strings.Join(append([]string{id.Key, id.Name, id.Expires.String()}, id.Roles...), "\x00")
	var idle []*shared
	defer func() {
		for _, old := range idle {
			old.client.Close()
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.all[key]
	if sh == nil {
		if idle = s.takeIdleLocked(len(s.all) >= maxClients); len(s.all) >= maxClients {
			return nil, errs.New(errs.ResourceExhausted, "more than %d API keys make calls now", maxClients).WithHint("try again")
		}
		sh = &shared{client: s.local(id), key: key}
		s.all[key] = sh
	}
	sh.users++
	return sh, nil
}

// takeIdleLocked removes the clients that were idle for long, or all idle ones.
func (s *clients) takeIdleLocked(all bool) []*shared {
	var idle []*shared
	for key, sh := range s.all {
		if sh.users == 0 && (all || time.Since(sh.idle) > clientIdle) {
			idle = append(idle, sh)
			delete(s.all, key)
		}
	}
	return idle
}

func (s *clients) release(sh *shared) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh.users--
	sh.idle = time.Now()
}

// close closes every client; calls under way fail.
func (s *clients) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, sh := range s.all {
		sh.client.Close()
		delete(s.all, key)
	}
}
