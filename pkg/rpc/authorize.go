package rpc

import (
	"context"
	"slices"
	"strings"

	"miren.dev/runtime/pkg/errs"
)

// ProjectRule says which project a method concerns.
type ProjectRule string

// Project rules. The zero value is as strict as ProjectCluster.
const (
	ProjectCluster ProjectRule = "cluster" // the installation: only roles that hold in every project
	ProjectAny     ProjectRule = "any"     // no project: roles of any project
	ProjectHandler ProjectRule = "handler" // the handler limits itself to GrantFrom
	ProjectRequest ProjectRule = "request" // the project that Method.Target finds in the request
)

// Target is a request's reference to its project: an entity of that project, or
// else a project's name, as in the request.
type Target struct {
	Kind, ID string
	Project  string // "": the default project
}

// Grant is the set of projects in which a caller may make a call.
type Grant struct {
	All      bool     // every project, and the installation
	Projects []string // otherwise these projects, by name
}

// Allows reports whether the grant includes the named project.
func (g Grant) Allows(project string) bool { return g.All || slices.Contains(g.Projects, project) }

// GrantFrom returns, in a handler, the caller's grant. It is zero for public
// methods.
func GrantFrom(ctx context.Context) Grant {
	if c, ok := ctx.Value(keyCall).(*serverCall); ok {
		return c.grant
	}
	return Grant{}
}

// Authorizer decides which identity may call which method, and in which projects.
type Authorizer interface {
	// Authorize returns where an identity may call a method, and an error of class
	// Unauthenticated or PermissionDenied if nowhere. It is not asked for public
	// methods.
	Authorize(ctx context.Context, id Identity, m MethodInfo) (Grant, error)
}

// RoleAdmin is the role that may call every method.
const RoleAdmin = "admin"

// Roles is an Authorizer: it maps each role to permissions, or to single
// methods by their full names. RoleAdmin has all. A role may be bound to a
// project ("deployer@shop"); otherwise it holds in all.
type Roles map[string][]string

// DefaultRoles are the roles of certificates and API keys that runtime issues.
var DefaultRoles = Roles{
	"viewer":   {"read"},
	"agent":    {"read", "exec"},
	"deployer": {"read", "deploy", "exec"},
	"ingress":  {"store.Entities/Get", "store.Entities/List", "store.Entities/Watch", "sandbox.Previews/Dial", "sandbox.Previews/Wake", "sandbox.Sandboxes/DialService", "certificate.Certificates/Served", "app.Routes/Passwords"},
}

// Names returns the roles, sorted, with RoleAdmin.
func (r Roles) Names() []string {
	names := []string{RoleAdmin}
	for n := range r {
		names = append(names, n)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// SplitRole returns the name of a role, and the project that it is bound to.
func SplitRole(role string) (name, project string, bound bool) { return strings.Cut(role, "@") }

// InProject returns the roles that hold in a project, bound to it.
func InProject(roles []string, project string) []string {
	var in []string
	for _, r := range roles {
		if name, of, bound := SplitRole(r); !bound || of == project {
			in = append(in, name+"@"+project)
		}
	}
	return in
}

// Authorize implements Authorizer.
func (r Roles) Authorize(_ context.Context, id Identity, m MethodInfo) (Grant, error) {
	if !id.known() {
		return Grant{}, errs.New(errs.Unauthenticated, "%s needs an identity", m.Full).
			WithHint("use the server's socket as root, or a client certificate (`r auth generate`)")
	}
	var g Grant
	for _, role := range id.Roles {
		name, project, bound := SplitRole(role)
		if name != RoleAdmin && !slices.Contains(r[name], m.Permission) && !slices.Contains(r[name], m.Full) {
			continue
		}
		if !bound {
			return Grant{All: true}, nil
		}
		g.Projects = append(g.Projects, project)
	}
	if len(g.Projects) > 0 {
		return g, nil
	}
	noun, command := id.credential()
	return Grant{}, errs.New(errs.PermissionDenied, "%s may not call %s: it needs the permission %q", id.Name, m.Full, m.Permission).
		WithHint("ask for a %s with another role (`%s --role`)", noun, command).With("permission", m.Permission)
}

// authorize decides as far as it can without the request.
func (sc *serverCall) authorize() error {
	m := sc.method
	if m.Permission == Public {
		return nil
	}
	var err error
	if sc.grant, err = sc.s.opts.Authorizer.Authorize(sc.traced, sc.identity, m.MethodInfo); err != nil || sc.grant.All {
		return err
	}
	switch m.Project {
	case ProjectAny, ProjectHandler:
		return nil
	case ProjectRequest:
		if m.Target != nil && sc.s.opts.ProjectOf != nil {
			return nil // authorizeTarget decides the rest
		}
	}
	return errs.New(errs.PermissionDenied, "%s may not call %s: it concerns the whole installation, and the roles of %s hold in the projects %s",
		sc.identity.Name, m.Full, sc.identity.Name, strings.Join(sc.grant.Projects, ", ")).
		WithHint("ask for a certificate with a role for all projects (`r auth generate --role`)")
}

// authorizeTarget decides with the request.
func (sc *serverCall) authorizeTarget(req any) error {
	if sc.grant.All || sc.method.Project != ProjectRequest || sc.method.Permission == Public {
		return nil
	}
	name, err := sc.s.opts.ProjectOf(sc.traced, sc.method.Target(req))
	if err != nil {
		return err
	}
	if !sc.grant.Allows(name) {
		return DeniedProject(sc.traced)
	}
	return nil
}

// DeniedProject is the error for a call that concerns a project in which its
// caller has no role for it.
func DeniedProject(ctx context.Context) error {
	id := IdentityFrom(ctx)
	err := errs.New(errs.PermissionDenied, "%s may do this only in the projects %s", id.Name, strings.Join(GrantFrom(ctx).Projects, ", "))
	if id.How == HowKey {
		return err.WithHint("use a key of the other project (`r key create --project`)")
	}
	return err.WithHint("name the project with --project, or ask for a certificate with a role in this one (`r auth generate --role ROLE@PROJECT`)")
}
