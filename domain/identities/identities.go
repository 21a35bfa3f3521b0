// Package identities records the client certificates of an installation, and
// revokes them.
//
//	Record       a certificate that was issued
//	Revoke       the certificates of an identity, or one by its serial number
//	Revocations  the revoked certificates, in memory
//
// A certificate that was issued before certificates were recorded has no entity.
// Revoking an identity makes an entity without serial number, which stands for
// all of these.
package identities

import (
	"context"
	"regexp"
	"strings"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// keepExpired is how long the entity of a certificate stays after its expiry.
const keepExpired = 30 * 24 * time.Hour

// Service is the operations on the certificates of one store. It is safe for
// concurrent use.
type Service struct {
	Store entity.Store
}

// Issued describes a certificate that was issued.
type Issued struct {
	Identity, Serial string
	Roles            []string
	By               string // identity that asked for it
	ExpiresAt        time.Time
}

// Record stores a certificate before its owner gets it, and deletes the records
// of those that expired more than keepExpired ago.
func (s *Service) Record(ctx context.Context, i Issued) (*core.ClientCertificate, error) {
	all, _, err := entity.List[core.ClientCertificate](ctx, s.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	c := core.NewClientCertificate()
	c.Spec = core.ClientCertificateSpec{Identity: i.Identity, Serial: i.Serial, Roles: i.Roles, IssuedBy: i.By, ExpiresAt: &i.ExpiresAt}
	if err := entity.Create(ctx, s.Store, c); err != nil {
		return nil, err
	}
	for _, old := range all {
		if e := old.Spec.ExpiresAt; e == nil || time.Since(*e) < keepExpired {
			continue
		}
		if err := entity.Delete(ctx, s.Store, old); err != nil && !errs.Is(err, errs.NotFound) && !errs.Is(err, errs.Conflict) {
			return nil, err
		}
	}
	return c, nil
}

// serialNumber matches what cannot be mistaken for the name of an identity that
// has no certificates: serial numbers have 127 random bits.
var serialNumber = regexp.MustCompile(`^[0-9a-f]{24,32}$`)

// Revoke revokes the certificate with a serial number, or else every
// certificate of an identity, including those without a record. It returns the
// revoked certificates. A certificate stays revoked for ever.
func (s *Service) Revoke(ctx context.Context, which, by string) ([]*core.ClientCertificate, error) {
	serial := strings.TrimLeft(strings.ToLower(strings.ReplaceAll(which, ":", "")), "0")
	all, _, err := entity.List[core.ClientCertificate](ctx, s.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	var found []*core.ClientCertificate
	unrecorded := core.NewClientCertificate()
	unrecorded.Spec = core.ClientCertificateSpec{Identity: which}
	for _, c := range all {
		switch {
		case c.Spec.Serial != "" && c.Spec.Serial == serial:
			return s.revoke(ctx, by, c)
		case c.Spec.Identity != which:
		case c.Spec.Serial == "":
			unrecorded = c
		default:
			found = append(found, c)
		}
	}
	if len(found) == 0 && unrecorded.ID == "" && serialNumber.MatchString(serial) {
		unrecorded.Spec = core.ClientCertificateSpec{Serial: serial}
	}
	return s.revoke(ctx, by, append(found, unrecorded)...)
}

// CheckChange returns an error of class FailedPrecondition if the entity of a
// certificate must stay as it is: without it a revoked certificate would work
// again once servers have started anew. It may go when the certificate has expired.
func CheckChange(c *core.ClientCertificate) error {
	if c.Spec.RevokedAt == nil || c.Spec.ExpiresAt != nil && time.Now().After(*c.Spec.ExpiresAt) {
		return nil
	}
	err := errs.New(errs.FailedPrecondition, "%s keeps a certificate revoked, so it is neither changed nor deleted", c.ID)
	if c.Spec.ExpiresAt == nil {
		return err.WithHint("it stays for ever, since it is not known when the certificates that it stands for expire")
	}
	return err.WithHint("it can be deleted after %s, when the certificate expires", c.Spec.ExpiresAt.Format(time.RFC3339))
}

// revoke marks certificates as revoked and stores those without an id.
func (s *Service) revoke(ctx context.Context, by string, certs ...*core.ClientCertificate) ([]*core.ClientCertificate, error) {
	now := time.Now()
	mark := func(c *core.ClientCertificate) error {
		if c.Spec.RevokedAt == nil {
			c.Spec.RevokedAt, c.Spec.RevokedBy = &now, by
		}
		return nil
	}
	for i, c := range certs {
		if c.ID == "" {
			_ = mark(c)
			if err := entity.Create(ctx, s.Store, c); err != nil {
				return nil, err
			}
			continue
		}
		c, err := entity.ModifySpec(ctx, s.Store, c.GetID(), mark)
		if err != nil {
			return nil, err
		}
		certs[i] = c
	}
	return certs, nil
}
