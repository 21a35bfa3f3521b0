package rpc

import (
	"context"
	"crypto/tls"
	"time"
)

// Identity is the authenticated peer of a connection. The zero Identity is
// anonymous.
type Identity struct {
	Name  string   // common name of the certificate, "uid:1000", or "key:shop/ci"
	Roles []string // organisations of the certificate; "admin" for root on the unix socket. "deployer@shop" holds in the project shop only
	How   string   // "certificate", "socket", "process", HowKey, HowToken; empty: anonymous
	// Serial is the serial number of the certificate in lower-case hexadecimal
	// digits; empty without one.
	Serial string
	// Key is the id of the API key; empty without one.
	Key string
	// Expires is when the certificate or key does: its connections end then. Zero
	// for never.
	Expires time.Time
}

// HowKey is Identity.How of the holder of an API key.
const HowKey = "key"

// HowToken is Identity.How of the holder of a token of OpenID Connect.
const HowToken = "token"

// credential returns what proves the identity, and the command that makes another.
func (i Identity) credential() (noun, command string) {
	switch i.How {
	case HowKey:
		return "API key", "r key create"
	case HowToken:
		return "login by a token", "r auth login"
	}
	return "certificate", "r auth generate"
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
