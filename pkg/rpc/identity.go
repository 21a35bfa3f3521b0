package rpc

import (
	"context"
	"crypto/tls"
	"slices"

	"miren.dev/runtime/pkg/errs"
)

// Identity is the owner of a connection. The zero Identity is anonymous.
type Identity struct {
	Name  string   // common name of the certificate, or "uid:1000"
	Roles []string // organisations of the certificate; "admin" for root on the unix socket
	How   string   // "certificate", "socket", "process"; empty: anonymous
	// Serial is the serial number of the certificate in lower-case hexadecimal
	// digits; empty without one.
	Serial string
}

// RoleAdmin is the role that may do everything.
const RoleAdmin = "admin"

// known reports whether the caller is not anonymous.
func (i Identity) known() bool { return i.How != "" }

func (i Identity) String() string {
	if !i.known() {
		return "anonymous"
	}
	return i.Name
}

// IdentityFrom returns who called, in a handler.
func IdentityFrom(ctx context.Context) Identity {
	if c, ok := ctx.Value(keyCall).(*serverCall); ok {
		return c.identity
	}
	return Identity{}
}

// Authorizer decides which identity may call which method.
type Authorizer interface {
	// Authorize returns nil to allow, and an error of class Unauthenticated or
	// PermissionDenied otherwise. It is not asked for public methods.
	Authorize(ctx context.Context, id Identity, m MethodInfo) error
}

// Roles is an Authorizer: the permissions of each role. RoleAdmin has all.
type Roles map[string][]string

// DefaultRoles are the roles of certificates that runtime issues.
var DefaultRoles = Roles{
	"viewer":   {"read"},
	"deployer": {"read", "deploy", "exec"},
	"ingress":  {"read"},
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

// Authorize implements Authorizer.
func (r Roles) Authorize(_ context.Context, id Identity, m MethodInfo) error {
	if !id.known() {
		return errs.New(errs.Unauthenticated, "%s needs an identity", m.Full).
			WithHint("use the server's socket as root, or a client certificate (`r auth generate`)")
	}
	for _, role := range id.Roles {
		if role == RoleAdmin || slices.Contains(r[role], m.Permission) {
			return nil
		}
	}
	return errs.New(errs.PermissionDenied, "%s may not call %s: it needs the permission %q", id.Name, m.Full, m.Permission).
		WithHint("ask for a certificate with another role (`r auth generate --role`)").With("permission", m.Permission)
}

// tlsIdentity is the identity of a verified client certificate, if there is one.
func tlsIdentity(st tls.ConnectionState) Identity {
	if len(st.VerifiedChains) == 0 || len(st.PeerCertificates) == 0 || st.PeerCertificates[0].Subject.CommonName == "" {
		return Identity{}
	}
	cert := st.PeerCertificates[0]
	return Identity{Name: cert.Subject.CommonName, Roles: cert.Subject.Organization, How: "certificate", Serial: cert.SerialNumber.Text(16)}
}
