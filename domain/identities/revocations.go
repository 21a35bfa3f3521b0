package identities

import (
	"sync"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/pkg/errs"
)

// Revocations holds in memory which certificates are revoked. A revocation is
// final. It is safe for concurrent use.
type Revocations struct {
	mu      sync.RWMutex
	serials map[string]bool // recorded certificates; true: revoked
	names   map[string]bool // identities whose certificates without an entity are revoked
}

// NewRevocations returns Revocations that know of no certificate.
func NewRevocations() *Revocations {
	return &Revocations{serials: map[string]bool{}, names: map[string]bool{}}
}

// Put records the state of a certificate. It reports whether the certificate (or
// the identity, for an entity without serial number) is newly revoked.
func (r *Revocations) Put(c *core.ClientCertificate) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	revoked := c.Spec.RevokedAt != nil
	if c.Spec.Serial != "" {
		was := r.serials[c.Spec.Serial]
		r.serials[c.Spec.Serial] = was || revoked
		return revoked && !was
	}
	was := r.names[c.Spec.Identity]
	r.names[c.Spec.Identity] = was || revoked
	return revoked && !was
}

// Check returns an error of class Unauthenticated if a certificate is revoked.
func (r *Revocations) Check(identity, serial string) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	revoked, recorded := r.serials[serial]
	if !revoked && (recorded || !r.names[identity]) {
		return nil
	}
	return errs.New(errs.Unauthenticated, "the certificate of %s was revoked", identity).
		WithHint("ask for a new one (`r auth generate`)").With("serial", serial)
}
