package rpc

import (
	"context"
	"crypto/tls"
	"time"
)

// Identity is the authenticated peer of a connection. The zero Identity is
// anonymous.
type Identity struct {
	Name  string   // common name of the certificate, or "uid:1000"
	Roles []string // organisations of the certificate; "admin" for root on the unix socket. "deployer@shop" holds in the project shop only
	How   string   // "certificate", "socket", "process"; empty: anonymous
	// Serial is the serial number of the certificate in lower-case hexadecimal
	// digits; empty without one.
	Serial string
	// Expires is when the certificate does: its connections end then. Zero without
	// one.
	Expires time.Time
}

// known reports whether the caller is not anonymous.
func (i Identity) known() bool { return i.How != "" }

func (i Identity) String() string {
	if !i.known() {
		return "anonymous"
	}
	return i.Name
}

// IdentityFrom returns the identity of the caller, in a handler.
func IdentityFrom(ctx context.Context) Identity {
	if c, ok := ctx.Value(keyCall).(*serverCall); ok {
		return c.identity
	}
	return Identity{}
}

// tlsIdentity returns the identity of a verified client certificate, if there
// is one.
func tlsIdentity(st tls.ConnectionState) Identity {
	if len(st.VerifiedChains) == 0 || len(st.PeerCertificates) == 0 || st.PeerCertificates[0].Subject.CommonName == "" {
		return Identity{}
	}
	cert := st.PeerCertificates[0]
	return Identity{
		Name: cert.Subject.CommonName, Roles: cert.Subject.Organization, How: "certificate", Serial: cert.SerialNumber.Text(16), Expires: cert.NotAfter,
	}
}
